"""Reads what `nsys export --type sqlite` writes.

Tables appear only where there is something in them, and columns differ by version: every one is looked for.
Kernels belong to their launch by (process, correlation id): ids alone repeat between processes. Kernels of a
CUDA graph carry the id of the graph's launch.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.traces.model import Kind, Launch, Range, Trace, Work
from analysis.traces.sqlite_tables import Table, Tables
from harness.errors import InputError

KNOWN_MAJOR_VERSIONS = ("1", "2", "3")

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_NVTX = "NVTX_EVENTS"

_PUSH_POP, _START_END = 59, 60
_OTHER_EVENTS = {
    33: "category record",
    34: "mark",
    39: "thread name",
    75: "domain record",
    76: "domain record",
}
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
# A global thread id holds machine, process (24 bits) and thread (24 bits); a global process id has thread 0.
_THREAD_BITS = 24

LaunchKey = tuple[int | None, int]


def read(path: Path) -> Trace:
    """Read one export; whatever it lacks is named in the trace.

    Raises:
        InputError: the file is no readable SQLite database.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _Reader(Tables(connection)).trace()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as an nsys export ({error}): export it again") from error


def _whole(*values: Any) -> bool:
    """Whether all are integers; SQLite keeps whatever a damaged or foreign file has in a column."""
    return all(isinstance(value, int) for value in values)


class _Reader:
    """One pass over one export."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.found = Trace("nsys")
        self.strings: dict[int, str] | None = None
        self.nameless = 0

    def trace(self) -> Trace:
        self._read_version()
        self._read_strings()
        self._read_ranges()
        self._read_work(self._read_launches())
        if self.nameless:
            self.found.warnings.append(f"{self.nameless} names are no entries of StringIds")
        return self.found

    # -- parts ----------------------------------------------------------------------------------------

    def _read_version(self) -> None:
        table = self._table("META_DATA_EXPORT", ("name", "value"))
        if table is None:
            return
        facts = {str(name): str(value) for name, value in self.tables.rows(table, ("name", "value"))}
        version = facts.get("EXPORT_SCHEMA_VERSION", "")
        self.found.version = version
        if not version:
            self.found.missing.append("META_DATA_EXPORT: EXPORT_SCHEMA_VERSION")
        elif version.split(".")[0] not in KNOWN_MAJOR_VERSIONS:
            self.found.warnings.append(
                f"export schema {version} is newer than what this reader was written for: check the numbers"
            )

    def _read_strings(self) -> None:
        table = self._table("StringIds", ("id", "value"))
        if table is not None:
            rows = self.tables.rows(table, ("id", "value"))
            self.strings = {key: str(value) for key, value in rows if isinstance(key, int)}

    def _read_ranges(self) -> None:
        wanted = ("eventType", "globalTid")
        table = self._table(_NVTX, ("start", "end"), wanted, "no NVTX in this capture")
        if table is None:
            return
        if not table.has("textId"):
            self._has(table, ("text",))
        columns = ("start", "end", "eventType", "text", "textId", "globalTid")
        for start, end, kind, text, text_id, thread in self.tables.rows(table, columns):
            self._add_range(start, end, kind, self._text(text or text_id), thread)
        if not self.found.ranges:
            self.found.missing.append(f"no NVTX in this capture ({table.name} holds no closed range)")

    def _add_range(self, start: Any, end: Any, kind: Any, name: str, thread: Any) -> None:
        found = self.found
        if kind is not None and kind not in (_PUSH_POP, _START_END):
            found.ignore(_OTHER_EVENTS.get(kind, f"event of type {kind}"))
        elif start is None or end is None:
            found.ignore(f"open range {name!r}")
        elif thread is None:
            found.ignore(f"range {name!r} of no thread")
        elif not _whole(start, end, thread):
            found.ignore("damaged range")
        elif end < start:
            found.ignore(f"range {name!r} that ends before it starts")
        else:
            # Start/end ranges may end on another thread: they belong to the process.
            owner = None if kind == _START_END else int(thread)
            found.ranges.append(Range(name, int(start), int(end), int(thread) >> _THREAD_BITS, owner))

    def _read_launches(self) -> dict[LaunchKey, Launch]:
        """The earliest API call of each (process, correlation id)."""
        launches: dict[LaunchKey, Launch] = {}
        usable = False
        for number, name in enumerate(_CALLS):
            table = self.tables.find(name)
            if table is None:
                if number == 0:
                    self.found.missing.append(name)
                continue
            if not self._has(table, ("start", "globalTid", "correlationId")):
                continue
            usable = True
            for start, thread, key in self.tables.rows(table, ("start", "globalTid", "correlationId")):
                if start is None or thread is None or not key:
                    continue
                if not _whole(start, thread, key):
                    self.found.ignore("damaged call")
                    continue
                process = int(thread) >> _THREAD_BITS
                launch = Launch(int(start), process, int(thread))
                known = launches.get((process, int(key)))
                if known is None or launch.at_ns < known.at_ns:
                    launches[process, int(key)] = launch
        reasons = []
        if not launches:
            has_table = any(self.tables.find(name) for name in _CALLS)
            reasons.append(
                "no_runtime_rows" if usable else "no_runtime_columns" if has_table else "no_runtime_table"
            )
        if not self.found.has_nvtx:
            reasons.append("no_nvtx")
        if reasons:
            self.found.attribution = "unavailable:" + ",".join(reasons)
        return launches

    def _read_work(self, launches: dict[LaunchKey, Launch]) -> None:
        kernels = self._table(_KERNELS, ("start", "end"), what="no kernels in this capture")
        graphs = self.tables.find(_GRAPHS)
        others: tuple[tuple[str, Kind], ...] = ((_COPIES, "memcpy"), (_FILLS, "memset"))
        if kernels is not None:
            self._add_work(kernels, "kernel", launches)
        if graphs is not None and self._has(graphs, ("start", "end")):
            self.found.warnings.append(
                "CUDA graphs were traced as a whole: use --cuda-graph-trace=node to see their kernels"
            )
            self._add_work(graphs, "graph", launches)
        for name, kind in others:
            table = self.tables.find(name)
            if table is not None and self._has(table, ("start", "end")):
                self._add_work(table, kind, launches)

    def _add_work(self, table: Table, kind: Kind, launches: dict[LaunchKey, Launch]) -> None:
        processes = {process for process, _ in launches}
        joined = self._has(table, ("correlationId",))
        by_process = table.has("globalPid")
        if not by_process:
            self.found.missing.append(f"{table.name}.globalPid")
            if len(processes) > 1 and kind == "kernel":
                joined = False
        if not joined and kind == "kernel" and launches:
            reason = "no_correlation_column" if not table.has("correlationId") else "no_process_column"
            self.found.attribution = f"unavailable:{reason}"
        only = next(iter(processes), None)
        columns = ("start", "end", "deviceId", "correlationId", "globalPid", "graphNodeId", "graphId",
                   "shortName", "demangledName", "mangledName", "copyKind")  # fmt: skip
        for start, end, device, key, pid, node, graph, *names in self.tables.rows(table, columns):
            if start is None or end is None:
                self.found.ignore(f"{kind} without an end")
                continue
            if not _whole(start, end, device or 0) or end < start:
                self.found.ignore(f"damaged {kind}")
                continue
            owner = int(pid) >> _THREAD_BITS if isinstance(pid, int) else None if by_process else only
            launch = launches.get((owner, key)) if joined and isinstance(key, int) else None
            name, detail = self._names(kind, graph, names)
            self.found.work.append(
                Work(name, kind, int(start), int(end), int(device or 0), launch, bool(node), detail)
            )

    # -- names and columns ----------------------------------------------------------------------------

    def _names(self, kind: Kind, graph: Any, names: list[Any]) -> tuple[str, str]:
        """Short and full name of a piece of work."""
        short, full, mangled, copy = names
        if kind == "graph":
            return f"CUDA graph {graph}", ""
        if kind == "memset":
            return "memset", ""
        if kind == "memcpy":
            return f"memcpy {_COPY_KINDS.get(copy, copy if copy is not None else '')}".strip(), ""
        known = [self._text(value) for value in (short, full, mangled) if value is not None]
        return (known[0], self._text(full) if full is not None else known[0]) if known else ("?", "")

    def _text(self, value: Any) -> str:
        """A name that is stored as itself or as an id of StringIds."""
        if value is None:
            return ""
        if not isinstance(value, int):
            return str(value)
        name = self.strings.get(value) if self.strings is not None else None
        if name is None:
            self.nameless += 1
            return f"string {value}"
        return name

    def _table(
        self, name: str, needed: tuple[str, ...], wanted: tuple[str, ...] = (), what: str = ""
    ) -> Table | None:
        """A table with its needed columns, or None; what is missing is noted."""
        table = self.tables.find(name)
        if table is None:
            self.found.missing.append(f"{what} ({name} is missing)" if what else name)
            return None
        self._has(table, wanted)
        return table if self._has(table, needed) else None

    def _has(self, table: Table, columns: tuple[str, ...]) -> bool:
        """Whether a table has these columns; each that it lacks is noted."""
        lacking = [f"{table.name}.{column}" for column in columns if not table.has(column)]
        self.found.missing += [name for name in lacking if name not in self.found.missing]
        return not lacking
