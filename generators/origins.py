"""What a task reads besides its parameters, by digest: a user's texts, data sets and sources, the word lists.

A parameter that is a path says where a text lies, not which text it is. The digests tell two of them apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from generators.code_qa import source_paths
from generators.documents import expand
from generators.rows import row_files
from generators.words import LISTS
from harness.regular import read_regular

WORD_LISTS = "the package's word lists"
SHIPPED_WORDS_SHA256 = "084c9c19b9e38de5dd0659c1b92a893dbe6ad6a82175f0004dfb3b34b047d4e2"
"""Of the word lists that `GENERATOR_VERSION` stands for."""


def _file(value: str) -> list[Path]:
    return [Path(value).expanduser()]


def _sources(value: str) -> list[Path]:
    folder = Path(value).expanduser()
    return [folder / name for name in source_paths(folder)]


# Parameters that are paths, and the files that they stand for.
PATHS: dict[str, Callable[[str], list[Path]]] = {
    "files": lambda value: expand([value]),
    "data": row_files,
    "path": _file,
    "root": _sources,
}


def file_digests(params: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of what each path among a task's parameters stands for, by the path as given.

    Of a file these are its bytes, of a folder the names and digests of the files in it that are read. What is
    on the Hub is not here and has none.

    Raises:
        InputError: nothing is there.
    """
    found: dict[str, str] = {}
    for name, read in PATHS.items():
        value = params.get(name)
        given: Sequence[str] = [value] if isinstance(value, str) else value or ()
        for path in given:
            if members := read(path):
                found[path] = _digest(Path(path).expanduser(), members)
    return found


def read_digests(params: Mapping[str, Any]) -> dict[str, str]:
    """As `file_digests`, and the word lists' where they are not those of `GENERATOR_VERSION`.

    Raises:
        InputError: as `file_digests`.
    """
    words = words_sha256()
    return {**file_digests(params), **({WORD_LISTS: words} if words != SHIPPED_WORDS_SHA256 else {})}


@cache
def words_sha256() -> str:
    """SHA-256 of the package's word lists as they are on this machine."""
    folder = files("generators").joinpath("data")
    lists = ((name, folder.joinpath(f"{name}.txt").read_bytes()) for name in LISTS)
    return _joined((name, hashlib.sha256(text).hexdigest()) for name, text in lists)


def digest_of_files(paths: Sequence[Path]) -> str:
    """One SHA-256 over the names and the bytes of files."""
    return _joined((path.name, _file_digest(path)) for path in paths)


def _digest(place: Path, members: Sequence[Path]) -> str:
    if members == [place]:
        return _file_digest(place)
    return _joined((path.relative_to(place).as_posix(), _file_digest(path)) for path in members)


def _joined(digests: Iterable[tuple[str, str]]) -> str:
    text = "".join(f"{name}\0{digest}\n" for name, digest in digests)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _file_digest(path: Path) -> str:
    """Of a file's bytes; `unreadable` where it cannot be read, which whoever needs it will say."""
    try:
        state = path.stat()
        return _content_digest(path, state.st_ino, state.st_size, state.st_mtime_ns)
    except OSError:
        return "unreadable"


@lru_cache(maxsize=1 << 16)
def _content_digest(path: Path, inode: int, size_bytes: int, changed_ns: int) -> str:
    """Read again only where the file's state is another one: a corpus asks after each record."""
    return hashlib.sha256(read_regular(path)).hexdigest()
