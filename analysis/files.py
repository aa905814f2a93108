"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from harness.errors import ConfigError


def write_bytes(path: Path, body: bytes) -> Path:
    """Write by rename; the folder is made if missing, and a link is followed.

    What is no regular file (a terminal, a pipe, `/dev/null`) is written through: a rename would put a file in
    its place.

    Raises:
        ConfigError: the place cannot be written.
    """
    try:
        if (place := _stream(path)) is not None:
            _write_through(place, body)
        else:
            _replace(path.resolve(), body)
    except BrokenPipeError:
        raise  # the reader has gone, as with any output
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another place with --out") from error
    return path


def is_stdout(path: Path) -> bool:
    """Whether a path is this process's own output, so that nothing else may go there."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    except (OSError, ValueError):
        return False


def _stream(path: Path) -> Path | int | None:
    """What to write through: a descriptor of this process, or a path; None for a file or a new one."""
    if is_stdout(path):
        return sys.stdout.fileno()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"cannot write {path}: it is a folder; name a file in it with --out")
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise ConfigError(f"cannot write {path}: it is neither a file nor a pipe; name a file with --out")
    return path


def _write_through(place: Path | int, body: bytes) -> None:
    if isinstance(place, int):
        sys.stdout.flush()
        with os.fdopen(os.dup(place), "wb") as file:
            file.write(body)
        return
    # A pipe that nobody reads would wait forever.
    handle = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(body)


def _replace(path: Path, body: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(body)
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def remove(paths: Iterable[Path]) -> bool:
    """Remove the files that are there; returns whether one was.

    Raises:
        ConfigError: one cannot be removed.
    """
    found = False
    for path in paths:
        try:
            path.unlink()
            found = True
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(
                f"the older {path} cannot be removed ({error.strerror}): name another place with --out"
            ) from error
    return found


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text by rename."""
    return write_bytes(path, text.encode())
