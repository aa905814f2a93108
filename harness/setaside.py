"""How a record takes its place, and where those go that give way: nothing measured is deleted for another.

A record is written under a scratch name and renamed. One that stood there gets a scratch name too, and goes
to `results/set_aside/<key>/<n>/`, n = 1, 2, ... A kill between any two of these steps leaves folders of
scratch names, from which `put_right` goes on.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

RECORD_FILE, LOG_FILE = "record.json", "server.log.gz"
"""All that a record's folder holds; whatever else lies there is somebody's."""
FOLDER = "set_aside"
SCRATCH = re.compile(r"\.([0-9a-f]{16})\.[0-9a-f]+\.(tmp|old)")

Judge = Callable[[Path, str], bool | None]
"""Whether a folder holds the measurement of a key (True), a failure of it (False), or what cannot be read."""


def entries(results: Path, key: str) -> list[Path]:
    """Folders set aside for a point, the oldest first."""
    try:
        found = [path for path in (results / FOLDER / key).iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name))


def scratch_name(key: str, kind: str) -> str:
    """A name that no other folder has; `kind`: `tmp` for what is being written, `old` for what gives way."""
    return f".{key}.{secrets.token_hex(4)}.{kind}"


def place(scratch: Path, final: Path, results: Path, judged: Judge) -> Path:
    """Move a whole record to its place; returns where it is.

    A failure is replaced. A measurement gives way to another measurement only, and is set aside, as is what
    cannot be read; a failure that comes after a measurement is set aside itself.

    Raises:
        OSError: a folder cannot be moved.
    """
    key = final.name
    if not os.path.lexists(final):
        bring_back(final)
    if not os.path.lexists(final):
        scratch.rename(final)
    elif not judged(scratch, key) and judged(final, key):
        return _put(scratch, results, key)
    else:
        old = final.with_name(scratch_name(key, "old"))
        final.rename(old)
        scratch.rename(final)
        _retire(old, results, key, judged)
    return final


def bring_back(final: Path) -> bool:
    """Give a record its place again that a killed run had taken from it, if one had."""
    for old in _scratches(final, "old"):
        old.rename(final)
        return True
    return False


def put_right(final: Path, results: Path, judged: Judge) -> list[str]:
    """Go on where a killed run stopped placing a record; a sentence for each thing done.

    Raises:
        OSError: a folder cannot be moved.
    """
    key, done = final.name, []
    if not os.path.lexists(final) and bring_back(final):
        done.append(f"{key}: the previous record is back; the run that was replacing it was killed")
    for path in _scratches(final, "tmp"):
        if judged(path, key) is None:
            shutil.rmtree(path, ignore_errors=True)
            done.append(f"{key}: removed a half-written record")
        else:
            where = place(path, final, results, judged)
            done.append(f"{key}: a killed run's record was whole: it is {where}")
    for path in _scratches(final, "old"):
        if judged(path, key) and judged(final, key) is False:
            place(path, final, results, judged)
            done.append(f"{key}: the measurement is back in the place of a failure")
        elif (kept := _retire(path, results, key, judged)) is not None:
            done.append(f"{key}: the record before the last one is set aside in {kept}")
    return done


def _scratches(final: Path, kind: str) -> Iterable[Path]:
    found = sorted(final.parent.glob(f".{final.name}.*.{kind}"))
    return [path for path in found if SCRATCH.fullmatch(path.name)]


def _retire(old: Path, results: Path, key: str, judged: Judge) -> Path | None:
    """Remove a folder that gave way if it holds a failure and nothing else; set any other aside."""
    files = {path.name for path in old.iterdir()} if old.is_dir() and not old.is_symlink() else {"a link"}
    if not files or (files <= {RECORD_FILE, LOG_FILE} and judged(old, key) is False):
        shutil.rmtree(old, ignore_errors=True)
        return None
    return _put(old, results, key)


def _put(path: Path, results: Path, key: str) -> Path:
    before = entries(results, key)
    target = results / FOLDER / key / str(int(before[-1].name) + 1 if before else 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return target
