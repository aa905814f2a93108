"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable
from pathlib import Path

from harness.errors import ConfigError


def write_bytes(path: Path, body: bytes) -> Path:
    """Write by rename; the folder is made if missing.

    Raises:
        ConfigError: the place cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(body)
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another place with --out") from error
    return path


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
