"""Kernel times of a traced point: its request once more, untimed, with a profiler over some decode steps.

The timed run stays undisturbed, at the price of a second prefill. A profile that fails leaves its reason in
the record and spoils nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, ServerError
from harness.measure.protocol import TimedRun, request, sampling_parameters
from harness.points import Point
from harness.server import profilers
from harness.server.lifecycle import Server

PROFILED_STEPS = 18
"""Decode iterations that count, as in arXiv:2607.21535, table 7."""
SKIPPED_STEPS = 2
_MIN_STEPS = 2
_TRACE_TIMEOUT_S = 300.0
_KERNELS_KEPT = 60
_FLUSH_TOKENS = 8

_ACTIVITIES = {"torch": ["CPU", "GPU"], "nsys": ["CUDA_PROFILER"]}
_PATTERNS = {"torch": "*TP-0*.trace.json.gz", "nsys": f"{profilers.REPORT}*.nsys-rep"}


def profile(
    server: Server, point: Point, prompt_ids: Sequence[int], run: TimedRun, stall_limit_s: float
) -> dict[str, Any]:
    """Extras `kernels`, `kernel_trace` and `profiled_phases` of a point.

    Args:
        server: started with `spec.profiler` and a probe directory.
        run: the point's timed run, whose decode steps tell how many there are to profile.
    """
    profiler, directory = server.spec.profiler or "", server.probe_directory
    assert directory is not None
    try:
        path = _capture(server, directory, point, prompt_ids, run, stall_limit_s)
        return read(path, profiler)
    except HarnessError as error:
        return {"kernel_trace": {"source": profiler, "problem": str(error)}}


def read(path: Path, profiler: str) -> dict[str, Any]:
    """The extras that a trace file gives.

    Raises:
        InputError: it cannot be read.
    """
    from analysis.traces import read_trace  # noqa: PLC0415  (numbers are read where they are needed)
    from analysis.traces.iterations import break_down  # noqa: PLC0415
    from analysis.traces.stored import as_extras  # noqa: PLC0415

    trace = read_trace(path)
    extras = as_extras(trace, break_down(trace, SKIPPED_STEPS), _KERNELS_KEPT)
    extras["kernel_trace"] |= {"source": profiler, "file": path.name}
    return extras


def _capture(
    server: Server,
    directory: Path,
    point: Point,
    prompt_ids: Sequence[int],
    run: TimedRun,
    stall_limit_s: float,
) -> Path:
    """Profile decode steps of one request; returns the trace file."""
    profiler = server.spec.profiler or ""
    # The last step may be left unfinished by a capture that ends with the request.
    steps = min(PROFILED_STEPS + SKIPPED_STEPS, len(run.decode_steps) - 1)
    if steps < _MIN_STEPS:
        raise ServerError(f"the run has {len(run.decode_steps)} decode steps, too few to profile")
    before = frozenset(directory.glob(_PATTERNS[profiler]))
    server.client.start_profile(
        output_dir=str(directory),
        num_steps=steps,
        activities=_ACTIVITIES[profiler],
        profile_by_stage=True,
        profile_stages=["decode"],
        with_stack=False,
        record_shapes=False,
    )
    request(server, [prompt_ids] * point.batch, sampling_parameters(point), stall_limit_s)
    # A capture that is still open ends with the next prefill.
    ending = {"temperature": 0.0, "max_new_tokens": 1}
    request(server, [list(prompt_ids[:_FLUSH_TOKENS])], ending, stall_limit_s)
    server.client.flush_cache()
    report = profilers.newest(directory, _PATTERNS[profiler], before, _TRACE_TIMEOUT_S)
    return profilers.export(report) if profiler == "nsys" else report
