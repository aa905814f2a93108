"""The phase trace: hooks that mark the parts of each decode iteration, and one line an iteration.

On a CPU a forward returns when it is done and the monotonic clock tells its time. On a GPU forwards are only
launched: marks are CUDA events in the worker's stream, read once they have passed, so that nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.engine import compat
from harness.engine.probes.marks import Clock, HostClock, Recorder
from harness.engine.probes.settings import ProbeSettings
from harness.engine.probes.writer import StepWriter
from harness.phases import RANGE_PREFIX

_SPECULATIVE = "sglang.srt.speculative."
_WORKER = _SPECULATIVE + "eagle_worker_v2.EAGLEWorkerV2."
_DRAFT = _SPECULATIVE + "eagle_worker_v2.EagleDraftWorker."
_COMMON = _SPECULATIVE + "eagle_worker_common."
_STEP = _WORKER + "forward_batch_generation"
_FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
_DRAFT_GRAPH = _SPECULATIVE + "eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner.execute"
_EXTEND_GRAPH = _SPECULATIVE + "eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute"
_BACKENDS = _DRAFT + "init_attention_backend"

# Functions that are one part as a whole. What a part leaves after the parts inside it keeps its own name.
_PARTS = {
    _DRAFT + "draft": "draft",
    _COMMON + "prepare_for_draft": "draft_prepare",
    _COMMON + "build_eagle_verify_input": "tree_build",
    _WORKER + "verify": "verify_commit",
    _SPECULATIVE + "eagle_utils.eagle_prepare_for_verify": "verify_prepare",
    _SPECULATIVE + "eagle_utils.eagle_sample": "sampling",
    _DRAFT + "_draft_extend_for_decode": "draft_extend",
    _COMMON + "prepare_for_draft_extend": "draft_extend_prepare",
    _EXTEND_GRAPH: "draft_extend_forward",
}
_SIGNATURES = {
    _STEP: "self batch on_publish= grammar_barrier= pp_proxy_tensors=",
    _FORWARD: (
        "self forward_batch skip_attn_backend_init= pp_proxy_tensors= reinit_attn_backend= "
        "split_forward_count="
    ),
    _DRAFT_GRAPH: "self forward_batch",
    _EXTEND_GRAPH: "self forward_batch select_index",
    _BACKENDS: "self",
    _DRAFT + "draft": "self batch * with_topology=",
    _WORKER + "verify": "self batch pp_proxy_tensors= grammar_barrier=",
    _DRAFT + "_draft_extend_for_decode": "self batch batch_result * kv_loc_plan=",
}
# Index builds are methods of the attention backends under these names; the others run inside CUDA graphs.
_INDEX_BUILDS = ("init_forward_metadata", "init_forward_metadata_out_graph")


class TraceHooks:
    """The hooks of one process."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self.targets: list[str] = []
        self.recorder: Recorder | None = None
        self._steps = 0

    def register(self, registry: Any, hook_type: Any) -> None:
        """See `register` of this module."""
        compat.require_signatures(_SIGNATURES)
        hooks: dict[str, tuple[Callable[..., Any], Any]] = {
            target: (self.part(name), hook_type.AROUND) for target, name in _PARTS.items()
        }
        hooks[_STEP] = (self.step, hook_type.AROUND)
        hooks[_FORWARD] = (self.forward, hook_type.AROUND)
        hooks[_DRAFT_GRAPH] = (self.draft_graph, hook_type.AROUND)
        hooks[_BACKENDS] = (self.after_backends, hook_type.AFTER)
        for target, (hook, kind) in hooks.items():
            registry.register(target, hook, kind)
        self.targets = list(hooks)

    # -- start ----------------------------------------------------------------------------------------

    def after_backends(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        """The draft's backends exist: mark their index builds, and see that every hook was applied."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        compat.require_applied(self.targets, HookRegistry._patched)
        self.mark_index_builds(worker.draft_attn_backend, "draft_index")
        self.mark_index_builds(worker.draft_runner.attn_backend, "draft_extend_index")
        self.mark_index_builds(worker.target_worker.model_runner.attn_backend, "verify_index")

    def mark_index_builds(self, backend: Any, name: str) -> None:
        """Let one backend object mark its own index builds; None has none."""
        for method in _INDEX_BUILDS:
            original = getattr(backend, method, None)
            if callable(original):
                setattr(backend, method, self._marked(original, name))

    def _marked(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        hook = self.part(name)

        def build(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return build

    # -- marks ----------------------------------------------------------------------------------------

    def part(self, name: str) -> Callable[..., Any]:
        """A hook that marks a call as a part, where an iteration is under way."""

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if recorder is None or not recorder.is_open:
                return original(*args, **kwargs)
            return self._inside(recorder, name, False, original, *args, **kwargs)

        return hook

    def forward(self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        """A model's forward: the target's, one of the draft's decode forwards, or the draft's extend."""
        recorder = self.recorder
        if recorder is None or not recorder.is_open:
            return original(runner, *args, **kwargs)
        if not runner.is_draft_worker:
            return self._inside(recorder, "verify_forward", False, original, runner, *args, **kwargs)
        extends = recorder.inside("draft_extend")
        name = "draft_extend_forward" if extends else "draft_forward"
        return self._inside(recorder, name, not extends, original, runner, *args, **kwargs)

    def draft_graph(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """All draft decode forwards of a step in one CUDA graph: one mark stands for all of them."""
        recorder = self.recorder
        if recorder is None or not recorder.is_open:
            return original(*args, **kwargs)
        return self._inside(recorder, "draft_forward", True, original, *args, **kwargs)

    @staticmethod
    def _inside(
        recorder: Recorder, name: str, numbered: bool, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        recorder.enter(name, numbered)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    # -- iterations -----------------------------------------------------------------------------------

    def step(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """One call of the speculative worker; a decode iteration gets a line."""
        if self.recorder is None:
            self.recorder = self._make_recorder(worker)
        recorder = self.recorder
        self._steps += 1
        mode = batch.forward_mode
        if mode.is_extend() or mode.is_idle() or batch.is_extend_in_batch:
            recorder.interrupt()
            recorder.flush()
            return original(worker, batch, *args, **kwargs)
        lengths = batch.seq_lens_cpu
        recorder.begin(
            step=self._steps,
            batch=len(batch.seq_lens),
            context_tokens=None if lengths is None else int(lengths.max()),
        )
        try:
            result = original(worker, batch, *args, **kwargs)
        except BaseException:
            recorder.drop()
            raise
        recorder.end(_accepted(result.accept_lens))
        return result

    def _make_recorder(self, worker: Any) -> Recorder:
        from sglang.srt.runtime_context import get_parallel

        on_gpu = torch.device(worker.device).type == "cuda"
        clock: Clock = DeviceClock() if on_gpu else HostClock()
        writer = StepWriter(self.settings.path(get_parallel().tp_rank))
        return Recorder(clock, writer.write, profiler_ranges(self.settings.nvtx))


def _accepted(lengths: torch.Tensor) -> Callable[[], dict[str, Any]]:
    """Drafts accepted by each request, bonus token excluded, without waiting for the device."""
    kept = lengths
    if lengths.is_cuda:
        kept = torch.empty(lengths.shape, dtype=lengths.dtype, pin_memory=True)
        kept.copy_(lengths, non_blocking=True)
    return lambda: {"accepted": [int(length) - 1 for length in kept.tolist()]}


class DeviceClock:
    """CUDA events in the stream that the iteration runs in."""

    source = "cuda_events"

    def __init__(self) -> None:
        self._stream: Any = None

    def start(self) -> None:
        """Marks go into the current stream, also those of parts that plan in another one."""
        self._stream = torch.cuda.current_stream()

    def mark(self) -> Any:
        """An event after everything launched so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def ready(self, mark: Any) -> bool:
        """Whether the device has passed it."""
        return bool(mark.query())

    def between_ns(self, first: Any, second: Any) -> int:
        """Device time between two events, to about half a microsecond."""
        return round(first.elapsed_time(second) * 1e6)


def profiler_ranges(nvtx: bool) -> Callable[[str], Callable[[], None] | None]:
    """A function that opens a named range where a profiler looks, and returns what closes it.

    Args:
        nvtx: whether nsys is there to see NVTX ranges. The torch profiler is noticed by itself.
    """
    push: Callable[[str], Any] | None = None
    if nvtx:
        import nvtx as library

        push, pop = library.push_range, library.pop_range

    def open_range(name: str) -> Callable[[], None] | None:
        if push is not None:
            push(RANGE_PREFIX + name)
            return pop
        if not torch.autograd._profiler_enabled():
            return None
        range_ = torch.profiler.record_function(RANGE_PREFIX + name)
        range_.__enter__()
        return lambda: range_.__exit__(None, None, None)

    return open_range
