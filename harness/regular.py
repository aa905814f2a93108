"""Reading files that somebody names: a pipe would be waited for, and a device may never end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def require_regular(path: Path) -> Path:
    """The path, where it is a file or a folder; it is not opened.

    Raises:
        OSError: nothing is there, or it is a pipe, a socket or a device.
    """
    mode = path.stat().st_mode
    # A folder is refused by whoever opens it, in the system's words.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        text = "it is a pipe or a device, no regular file: save its contents to a file and name that"
        raise OSError(errno.EINVAL, text, str(path))
    return path


def read_regular(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        OSError: as `require_regular`, or it cannot be read.
    """
    return require_regular(path).read_bytes()
