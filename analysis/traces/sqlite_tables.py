"""Tables of a SQLite file whose names and columns differ by the version that wrote it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """One table under the name it really has; columns in lower case."""

    name: str
    columns: frozenset[str]

    def has(self, *columns: str) -> bool:
        """Whether all of these columns are there."""
        return all(column.lower() in self.columns for column in columns)


class Tables:
    """The tables of one open connection.

    No views: nsys writes none, and one in a foreign file may be a query without end.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._names = [str(name) for (name,) in names]

    def find(self, wanted: str) -> Table | None:
        """The table `wanted`, or that name with a version suffix (`_V2`).

        Where several are, one that holds rows counts, and of those the highest version.
        """
        pattern = re.compile(rf"{re.escape(wanted)}(?:_V(\d+))?", re.IGNORECASE)
        found = [(name, match) for name in self._names if (match := pattern.fullmatch(name))]
        if not found:
            return None
        name, _ = max(found, key=lambda pair: (self._count(pair[0]) > 0, int(pair[1][1] or 0)))
        columns = self._connection.execute(f"PRAGMA table_info({_quoted(name)})")
        return Table(name, frozenset(str(row[1]).lower() for row in columns))

    def rows(self, table: Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """All rows of some columns, in file order; a column that the table lacks is None."""
        words = ", ".join(_quoted(column) if table.has(column) else "NULL" for column in columns)
        yield from self._connection.execute(f"SELECT {words} FROM {_quoted(table.name)}")

    def _count(self, name: str) -> int:
        (count,) = self._connection.execute(f"SELECT COUNT(*) FROM {_quoted(name)}").fetchone()
        return int(count)


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
