"""What is fed with anything at all: each target may refuse its input in a sentence, and nothing else.

A target takes bytes and raises for a fault of ours only. The readers' own errors are swallowed here; warnings
of numpy and pandas count as faults, since they stand for numbers that mean nothing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from analysis.estimators import step_statistics
from analysis.load import load
from analysis.study import Study
from analysis.summary import summary_line
from analysis.tables import TABLES, build
from analysis.traces import read_trace
from analysis.traces.report import as_dict, lines
from generators.documents import chunk_ends, read_text, split_sentences
from generators.rows import read_rows
from harness.errors import ConfigError, HarnessError
from harness.points import Point
from harness.records import DIGEST, RECORD_FILE, Outcome, Record, _digest, read_all
from harness.schedlog import LogFollower, parse, to_decode_steps, to_prefill_steps
from harness.sweep.overrides import check_overrides

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference" / "points"
LOGS = ROOT / "tests" / "data" / "logs"
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1 << 62, -(1 << 62), 0.0, -0.0, 1e-320, 1e308, -1e308, 0.5, "", "a",
    "nan", "1e9", [], {}, [0], [None], [[]], {"a": 1},
)  # fmt: skip


def log(data: bytes) -> None:
    """A log parses to the same rows however it comes in, and every number in them is finite."""
    whole = parse(data)
    follower = LogFollower()
    for at in range(0, len(data), 37):
        follower.feed(data[at : at + 37])
    follower.close()
    assert follower.log.decode == whole.decode
    assert follower.log.prefill == whole.prefill
    for row in [*whole.decode, *whole.prefill]:
        for value in row:
            assert not isinstance(value, float) or math.isfinite(value), row
    to_decode_steps(whole)
    to_prefill_steps(whole)
    whole.summary()


def record(data: bytes) -> None:
    """A record with odd values and a right digest is refused, left out, or tabulated beside sound ones."""
    if not data:
        return
    sound = _sound_records()
    chosen = sound[data[0] % len(sound)]
    values = orjson.loads((REFERENCE / chosen.key / RECORD_FILE).read_bytes())
    # Server arguments are many and free: they would crowd out the fields that are computed with.
    values["server"]["arguments"] = {}
    for at, odd in _edits(data[1:]):
        _set(values, at, copy.deepcopy(_ODD[odd % len(_ODD)]))
    with contextlib.suppress(ValueError):
        values["key"] = Point.model_validate(values["point"]).key
    values.pop(DIGEST, None)
    values[DIGEST] = _digest(values)
    with _folder() as folder:
        place = folder / "points" / str(values["key"]) / RECORD_FILE
        place.parent.mkdir(parents=True)
        place.write_bytes(orjson.dumps(values))
        with contextlib.suppress(HarnessError), contextlib.redirect_stderr(io.StringIO()):
            for found in load(folder, quiet=True):
                summary_line(found)
                statistics = step_statistics(found)
                assert statistics is None or math.isfinite(statistics.step_ms.value)
                study = Study([found, *(other for other in sound if other is not chosen)])
                for name in TABLES:
                    build(name, study)


@functools.cache
def _sound_records() -> list[Record]:
    """One measured record of each kind of probe, arm, batch and size: what tables compare."""
    kinds: dict[tuple[Any, ...], Record] = {}
    for found in read_all(REFERENCE.parent)[0]:
        point = found.point
        if point.task in {"niah_multiquery_enum", "random"} and found.outcome == Outcome.OK:
            kinds.setdefault((point.probe, point.arm, min(point.batch, 2), point.tp, point.dtype), found)
    return list(kinds.values())


def nsys(data: bytes) -> None:
    """A damaged export."""
    _trace(data, "capture.sqlite")


def torch_trace(data: bytes) -> None:
    """A damaged torch profiler trace."""
    _trace(data, "trace.json")


def rows(data: bytes) -> None:
    """A released data set's file."""
    with _folder() as folder, contextlib.suppress(HarnessError):
        place = folder / ("a.json" if data[:1] == b"[" else "a.jsonl")
        place.write_bytes(data)
        for row in read_rows(str(place), ["question"]):
            assert isinstance(row["question"], str)


def document(data: bytes) -> None:
    """A user's own text: what is read encodes again, and is cut where it may be."""
    with _folder() as folder, contextlib.suppress(HarnessError):
        place = folder / "a.txt"
        place.write_bytes(data)
        text = read_text(place)
        text.encode()
        assert all(sentence in text for sentence in split_sentences(text))
        assert chunk_ends(text, 0) == sorted(set(chunk_ends(text, 0)))


def override(data: bytes) -> None:
    """Words of a command line."""
    words = data.decode("utf-8", "replace").split("\x00")
    with contextlib.suppress(ConfigError):
        check_overrides(words)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (log, record, nsys, torch_trace, rows, document, override)
}


def seeds(name: str) -> list[bytes]:
    """Sound inputs to start from."""
    if name == "log":
        return [path.read_bytes()[-6000:] for path in sorted(LOGS.glob("*.log"))]
    if name == "nsys":
        return [_export()]
    if name == "torch_trace":
        event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2, "pid": 0, "tid": 7,
                 "args": {"correlation": 3, "device": 0, "stream": 7}}  # fmt: skip
        launch = {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1}
        mark = {**event, "cat": "user_annotation", "name": "draft", "ts": 0.5, "dur": 9, "args": {}}
        return [orjson.dumps({"traceEvents": [event, launch, mark]})]
    return {
        "rows": [
            b'{"question": "a", "answer": "b"}\n{"question": "\\ud83d\\ude00"}\n',
            b'[{"question": "a"}]',
        ],
        "document": ["Ein Satz. \u05d0\u05d1 <|im_end|> \U0001f600\n".encode(), b"\xef\xbb\xbfa\r\nb"],
        "override": [
            b"arm=ring\x00depth=3,5,7",
            b"input.params={keys: 3}",
            b"window=range(1,9)",
            b"+a@b='c,d'",
        ],
        "record": [bytes(range(12))],
    }[name]


def _edits(data: bytes) -> Iterator[tuple[int, int]]:
    for at in range(0, min(len(data), 24) - 2, 3):
        yield int.from_bytes(data[at : at + 2], "little"), data[at + 2]


def _set(values: Any, at: int, odd: Any) -> None:
    """Replace one of all places of nested values, picked by number."""
    places: list[tuple[Any, Any]] = []

    def walk(inside: Any, depth: int) -> None:
        entries = inside.items() if isinstance(inside, dict) else enumerate(inside[:3])
        for key, value in list(entries):
            places.append((inside, key))
            if isinstance(value, dict | list) and depth < 4:
                walk(value, depth + 1)

    walk(values, 0)
    inside, key = places[at % len(places)]
    inside[key] = odd


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        yield Path(folder)


def _trace(data: bytes, name: str) -> None:
    with _folder() as folder, contextlib.suppress(HarnessError):
        place = folder / name
        place.write_bytes(data)
        trace = read_trace(place)
        as_dict(trace, 0)
        list(lines(trace, 0, 5))


def _export() -> bytes:
    import sqlite3

    with _folder() as folder:
        place = folder / "a.sqlite"
        with contextlib.closing(sqlite3.connect(place)) as base:
            base.executescript((ROOT / "tests" / "data" / "analysis" / "nsys_new.sql").read_text())
        return place.read_bytes()
