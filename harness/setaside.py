"""Where records go that give way or may not take a place: nothing that was measured is deleted for another.

`results/set_aside/<key>/<n>/` holds them in the order in which they came, n = 1, 2, ...
"""

from __future__ import annotations

from pathlib import Path

FOLDER = "set_aside"


def entries(results: Path, key: str) -> list[Path]:
    """Folders set aside for a point, the oldest first."""
    try:
        found = [path for path in (results / FOLDER / key).iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name))


def put(path: Path, results: Path, key: str) -> Path:
    """Move a folder there; returns where it is now.

    Raises:
        OSError: it cannot be moved.
    """
    before = entries(results, key)
    target = results / FOLDER / key / str(int(before[-1].name) + 1 if before else 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return target
