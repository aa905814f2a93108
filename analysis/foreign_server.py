"""What a foreign log says of its own server, beside what the command line says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.logrows import DECODE
from harness.points import Point
from harness.server.reported import differing, mode_difference, of_point

# SGLang prints them as a dictionary, older releases as the call of a class.
_SERVER = re.compile(rb"server_args=(?:\{|ServerArgs\()([^\r\n]*)")
_MODE = re.compile(rb"windowed-mtp: [^\r\n]*?\bmode=(\w+)")
_ARGUMENT = re.compile(
    rb"(?<!\w)'?(tp_size|dtype|kv_cache_dtype|device|context_length|speculative_algorithm|speculative_num_steps"
    rb"|speculative_num_draft_tokens|speculative_eagle_topk|speculative_draft_window_size"
    rb"|speculative_draft_sink_size|speculative_draft_attention_backend)'?(?:=|: )"
    rb"(None|-?\d{1,15}|'[\w.-]{1,40}')(?=[,)}]|$)"
)


@dataclass(frozen=True)
class Stated:
    """A server as its log states it at its start: arguments that a point speaks of, and the draft's mode."""

    start: int
    arguments: dict[str, Any]
    mode: str | None = None

    @property
    def precision(self) -> dict[str, str]:
        """`dtype` and `kv_dtype` of its points, where they are stated outright."""
        dtype, kv_dtype = (self.arguments.get(name) or "auto" for name in ("dtype", "kv_cache_dtype"))
        if dtype == "auto":
            return {} if kv_dtype == "auto" else {"kv_dtype": kv_dtype}
        return {"dtype": dtype, "kv_dtype": dtype if kv_dtype == "auto" else kv_dtype}


def stated_servers(data: bytes) -> list[Stated]:
    """The servers that a log tells of, in order."""
    return list(_servers(data))


def _servers(data: bytes) -> Iterator[Stated]:
    starts = [(found.start(), _arguments(found[1])) for found in _SERVER.finditer(data)]
    # The plugin's line without the arguments tells too: a log that was cut.
    starts = starts or [(0, {})]
    modes = [(found.start(), found[1].decode("ascii", "replace")) for found in _MODE.finditer(data)]
    ends = [start for start, _ in starts[1:]] + [len(data)]
    for (start, arguments), end in zip(starts, ends, strict=True):
        said = [mode for at, mode in modes if start <= at < end]
        if arguments or said:
            yield Stated(start, arguments, said[-1] if said else None)


def _arguments(line: bytes) -> dict[str, Any]:
    return {
        name.decode(): _value(value.decode("ascii", "replace")) for name, value in _ARGUMENT.findall(line)
    }


def _value(text: str) -> Any:
    if text.startswith("'"):
        return text.strip("'")
    return None if text == "None" else int(text)


def server_of(servers: list[Stated], at: int) -> Stated:
    """The server that wrote the lines from byte `at` on; a log without its beginning states nothing."""
    before = [server for server in servers if server.start <= at]
    return (before or servers or [Stated(0, {})])[-1 if before else 0]


def server_in(piece: bytes, before: Stated) -> Stated | None:
    """The server of the decode lines in a piece; None where they are of several.

    Args:
        before: the one that ran where the piece begins.
    """
    found = [Stated(0, before.arguments, before.mode), *stated_servers(piece)]
    if len(found) > 1 and found[1].start == 0 and not found[1].arguments:
        del found[1]  # a mode without arguments is no start
    ends = [server.start for server in found[1:]] + [len(piece)]
    ran = [s for s, end in zip(found, ends, strict=True) if piece.find(DECODE, s.start, end) >= 0]
    if len(ran) > 1:
        return None
    return ran[0] if ran else found[0]


def contradictions(point: Point, server: Stated) -> list[str]:
    """How the log's own words contradict a point that the command line describes."""
    found = differing(of_point(point, server.arguments.get("device") == "cpu"), server.arguments)
    length = server.arguments.get("context_length")
    if isinstance(length, int) and length < point.context_tokens:
        found.append(f"context_length is {length}, below {point.context_tokens}")
    return found if server.mode is None else found + mode_difference(point.arm, server.mode)
