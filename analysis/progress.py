"""What a long command is at, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shown(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr that goes when they are done; nothing is written to a pipe or file.

    Args:
        what: `reading records`.
    """
    if not sys.stderr.isatty():
        return items
    from rich.console import Console  # noqa: PLC0415  (slow to import)
    from rich.progress import track  # noqa: PLC0415

    return track(items, description=what, console=Console(stderr=True), transient=True)
