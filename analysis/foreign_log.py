"""The bytes of a log that somebody else kept: compressed, of another encoding, or damaged."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from harness.errors import InputError
from harness.schedlog import STAMP

_NULLS = b"\0" * 16
"""A gap that a crash or a full disk left; single ones are some program's output."""
_RANK = re.compile(r"\b([A-Z]+)(\d{1,6})\b")


def read_foreign(path: Path) -> bytes:
    """A log as UTF-8, unpacked.

    Raises:
        InputError: it is no regular file, cannot be read, or holds gaps.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file: name the log's file, or save the stream to one first")
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    data = _utf8(data)
    if _NULLS in data:
        raise InputError(
            f"{path} holds stretches of NUL bytes, as a crash or a full disk leaves them: copy it again, "
            r"or take them out (tr -d '\000') and cut it to a run without such a gap by --from and --to"
        )
    return data


def _utf8(data: bytes) -> bytes:
    """Windows shells write UTF-16 where output is redirected."""
    for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        if data.startswith(mark):
            return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def ranks_in(data: bytes) -> set[str]:
    """What stands behind the time stamps: `TP0`, `DP1 TP0` ..."""
    return {found[2].decode("ascii").strip() for found in STAMP.finditer(data)}


def numbers(ranks: Iterable[str], kind: str) -> set[int]:
    """The numbers of one kind of ranks, `TP` or `DP`."""
    return {int(number) for rank in ranks for name, number in _RANK.findall(rank) if name == kind}
