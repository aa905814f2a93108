"""Server arguments as a server reports them, beside what a point says of its server.

One comparison for all uses: a running server before it is measured, one that the harness started, a stored
record, and a foreign log that prints the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from harness.points import WINDOWED_ARMS, Arm, Point
from harness.profiles import device_of

UNKNOWN_BACKEND = "unknown"
"""Draft backend of an imported log's point: nobody said which one it was."""
_NEXTN = ("EAGLE", "NEXTN")

Choices = dict[str, tuple[Any, ...]]


class Wants(Protocol):
    """What a point, or the spec of its server, says of the server."""

    @property
    def arm(self) -> Arm: ...
    @property
    def depth(self) -> int: ...
    @property
    def window_tokens(self) -> int | None: ...
    @property
    def sink_tokens(self) -> int | None: ...
    @property
    def tp(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def draft_backend(self) -> str: ...


def of_point(wants: Wants, on_cpu: bool) -> Choices:
    """Values that an argument may have on a server of this point.

    The device is that of the hardware profile, or of the spec; a profile of somebody's own has none here.

    Args:
        on_cpu: the CPU engine reports no backend of the draft.
    """
    device = device_of(wants.hardware) if isinstance(wants, Point) else getattr(wants, "device", None)
    speculative, windowed = wants.arm != "dense", wants.arm in WINDOWED_ARMS
    choices: Choices = {
        "tp_size": (wants.tp,),
        "dtype": (wants.dtype, "auto"),
        "kv_cache_dtype": (wants.kv_dtype, "auto") if wants.kv_dtype == wants.dtype else (wants.kv_dtype,),
        "speculative_algorithm": _NEXTN if speculative else (None,),
    }
    if device is not None:
        choices["device"] = (device, None)  # a server that does not say is not held against its point
    if speculative:
        choices |= {
            "speculative_num_steps": (wants.depth - 1,),
            "speculative_num_draft_tokens": (wants.depth,),
            "speculative_eagle_topk": (1,),
            "speculative_draft_window_size": (wants.window_tokens,) if windowed else (None, 0, -1),
        }
        if windowed:
            choices["speculative_draft_sink_size"] = (wants.sink_tokens,)
        if not on_cpu and wants.draft_backend != UNKNOWN_BACKEND:
            choices["speculative_draft_attention_backend"] = (wants.draft_backend,)
    return choices


MEASURED: Choices = {"disable_radix_cache": (True,), "decode_log_interval": (1,)}
"""What every server that this program measures has besides."""


def differing(choices: Choices, reported: Mapping[str, Any], absent_differs: bool = False) -> list[str]:
    """Reported arguments that are none of the choices, each as a phrase.

    Args:
        absent_differs: an argument that is not reported differs too.
    """
    return [
        f"{name} is {reported.get(name)!r}, not {wanted[0]!r}"
        for name, wanted in choices.items()
        if (absent_differs or name in reported) and reported.get(name) not in wanted
    ]


def contradictions(wants: Wants, reported: Mapping[str, Any]) -> list[str]:
    """How the arguments of a server that this program measured contradict its point."""
    on_cpu = reported.get("device") == "cpu"
    return differing(of_point(wants, on_cpu) | MEASURED, reported)


def mode_difference(arm: Arm, mode: str) -> list[str]:
    """How the draft's mode, in the plugin's own words (`off` where it says nothing), contradicts an arm."""
    wanted = arm if arm in WINDOWED_ARMS else "off"
    return [] if mode == wanted else [f"the draft's mode is {mode}, not that of arm {arm}"]
