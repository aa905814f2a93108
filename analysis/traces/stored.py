"""A trace's breakdown as entries of `record.extras` (schema: `analysis.extras`)."""

from __future__ import annotations

from typing import Any

from analysis.traces.iterations import Breakdown
from analysis.traces.model import Trace
from harness.phases import DRAFT, INDEX_BUILDS, OVERHEAD, UNATTRIBUTED, VERIFY


def as_extras(trace: Trace, found: Breakdown, most_kernels: int) -> dict[str, Any]:
    """`kernels` (the largest), `kernel_trace`, and `profiled_phases` where iterations were marked."""
    extras: dict[str, Any] = {
        "kernels": [
            {
                "name": kernel.name,
                "kind": kernel.kind,
                "phase": kernel.phase,
                "calls_per_iteration": kernel.calls,
                "us_per_iteration": kernel.us,
            }
            for kernel in found.kernels[:most_kernels]
        ],
        "kernel_trace": {
            "source": found.source,
            "iterations": found.iterations,
            "attribution": trace.attribution,
            "busy_us": found.busy_us,
            "busy_us_all": found.total_us,
            "unattributed_us": found.unattributed_us,
            "classes_us": _classes(found),
            "missing": trace.missing,
            "warnings": trace.warnings,
        },
    }
    if found.wall is not None:
        extras["profiled_phases"] = phases(found)
    return extras


def _classes(found: Breakdown) -> dict[str, float]:
    """Microseconds an iteration of each class of draft kernel, the small ones included."""
    totals: dict[str, float] = {}
    for kernel in found.kernels:
        if kernel.phase.startswith("draft"):
            totals[kernel.kind] = totals.get(kernel.kind, 0.0) + kernel.us
    return totals


def phases(found: Breakdown) -> dict[str, Any]:
    """The wall times of a breakdown in the shape of `analysis.extras.Phases`."""
    assert found.wall is not None
    wall = found.wall
    by_phase = wall.phases_ms()
    return {
        "source": found.source,
        "iterations": wall.iterations,
        "verify_base_ms": by_phase.get(VERIFY, 0.0),
        "verify_overhead_ms": by_phase.get(OVERHEAD, 0.0),
        "draft_ms": by_phase.get(DRAFT, 0.0),
        "draft_extend_ms": sum(v for k, v in wall.parts_ms.items() if k.startswith("draft_extend")),
        "draft_index_ms": sum(wall.parts_ms.get(name, 0.0) for name in INDEX_BUILDS),
        "unattributed_ms": by_phase.get(UNATTRIBUTED, 0.0),
        "iteration_ms": wall.iteration_ms,
        "parts_ms": wall.parts_ms,
    }
