"""What the probes of a native draft share: where they hook into SGLang, what they refuse, how they stop.

They look at the draft's forwards one by one, so the server must run eagerly; and they read the draft's keys
by position, so every key must be there, in plain heads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from harness.engine import compat, guards
from harness.engine.probes.forwards import Budget, DraftForward
from harness.engine.probes.settings import ProbeSettings
from harness.engine.probes.writer import StepWriter
from harness.engine.settings import from_environment
from harness.errors import ConfigError

logger = logging.getLogger("windowed-mtp")

_CHECK = "sglang.srt.server_args.ServerArgs.check_server_args"
_FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
_BACKENDS = _WORKER + "init_attention_backend"
_PREFILL = _WORKER + "_draft_extend_for_prefill"
_SIGNATURES = {
    _CHECK: "self",
    _FORWARD: (
        "self forward_batch skip_attn_backend_init= pp_proxy_tensors= reinit_attn_backend= "
        "split_forward_count="
    ),
    _BACKENDS: "self",
    _PREFILL: "self batch target_hidden_states next_token_ids mm_input_embeds= kv_loc_plan=",
}
_SWITCHES = (
    "enable_dp_attention", "enable_two_batch_overlap", "enable_multi_layer_eagle", "speculative_adaptive",
    "enable_unified_memory", "enable_kv_cache_sharding", "enable_pdmux",
)  # fmt: skip


class NativeProbe:
    """One probe in one process. A subclass says what it does with a forward in `look`."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self.budget = Budget(settings.warm_steps, settings.max_steps)
        self.writer: StepWriter | None = None
        self.targets: list[str] = []
        self.looking = False

    def hooks(self, hook_type: Any) -> dict[str, tuple[Callable[..., Any], Any]]:
        """Dotted target -> (hook, its type); a subclass adds its own."""
        return {
            _CHECK: (self.check_arguments, hook_type.AFTER),
            _BACKENDS: (self.attach, hook_type.AFTER),
            _PREFILL: (self.run_begins, hook_type.AFTER),
            _FORWARD: (self.forward, hook_type.AROUND),
        }

    def register(self, registry: Any, hook_type: Any) -> None:
        """Check SGLang's signatures, then register the hooks.

        Args:
            registry: SGLang's `HookRegistry`.
            hook_type: SGLang's `HookType`.

        Raises:
            ConfigError: this SGLang differs from the one the probe was written for, or the draft is windowed.
        """
        if from_environment().active:
            raise ConfigError(
                f"probe={self.settings.kind} needs the draft's keys at full length: "
                "serve without a window (mode=off)."
            )
        compat.require_signatures(_SIGNATURES)
        hooks = self.hooks(hook_type)
        for target, (hook, kind) in hooks.items():
            registry.register(target, hook, kind)
        self.targets = list(hooks)

    # -- start ----------------------------------------------------------------------------------------

    def check_arguments(self, result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        """After SGLang's own checks: refuse servers whose draft cannot be looked at.

        Raises:
            ConfigError: with every reason.
        """
        from sglang.srt.arg_groups.overrides import resolving_view

        self._require_applied()
        reasons = unsupported(resolving_view(server_args))
        if reasons:
            raise ConfigError(f"probe={self.settings.kind} cannot start: {'; '.join(reasons)}.")

    def attach(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        """The draft's model and cache exist.

        Raises:
            ConfigError: its keys cannot be read by position.
        """
        from sglang.srt.runtime_context import get_parallel

        self._require_applied()
        reasons = guards.unreadable_keys(worker.draft_runner)
        if reasons:
            raise ConfigError(f"probe={self.settings.kind} cannot read this draft: {'; '.join(reasons)}.")
        self.writer = StepWriter(self.settings.path(get_parallel().tp_rank))
        logger.info("windowed-mtp: probe=%s windows=%s", self.settings.kind, list(self.settings.windows))

    # -- forwards -------------------------------------------------------------------------------------

    def run_begins(self, result: Any, *args: Any, **kwargs: Any) -> None:
        """A prompt was prefilled."""
        self.budget.restart()

    def forward(
        self, original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Every forward of both models; those of the draft that are in the budget are looked at."""
        if not runner.is_draft_worker or self.looking or self.writer is None:
            return original(runner, forward_batch, *args, **kwargs)
        mode = forward_batch.forward_mode
        if not (mode.is_decode() or mode.is_draft_extend_v2()) or not self.budget.take():
            return original(runner, forward_batch, *args, **kwargs)
        self.looking = True
        try:
            return self.look(lambda: original(runner, forward_batch, *args, **kwargs), original, runner,
                             forward_batch)  # fmt: skip
        finally:
            self.looking = False

    def look(
        self, run: Callable[[], Any], original: Callable[..., Any], runner: Any, forward_batch: Any
    ) -> Any:
        """Look at one draft forward and return what the real one returns.

        Args:
            run: runs the real forward.
            original: `ModelRunner.forward`.
        """
        raise NotImplementedError

    # -- helpers --------------------------------------------------------------------------------------

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Record lines of the present moment."""
        now = time.monotonic_ns()
        for line in lines:
            if self.writer is not None:
                self.writer.write({"monotonic_ns": now, **line})

    def safely(self, work: Callable[[], list[dict[str, Any]]]) -> None:
        """Record what `work` returns; should it fail, say so in the record and look no more.

        Serving goes on: a probe's failure must not change a run either.
        """
        try:
            self.write(work())
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop looking; the record will say why."""
        logger.exception("windowed-mtp: the %s probe stops", self.settings.kind)
        self.write([{"error": f"{type(error).__name__}: {error}"}])
        if self.writer is not None:
            self.writer.flush()
        self.writer = None

    def _require_applied(self) -> None:
        from sglang.srt.plugins.hook_registry import HookRegistry

        compat.require_applied(self.targets, HookRegistry._patched)


def unsupported(arguments: Any) -> list[str]:
    """Why the draft of a server cannot be looked at; empty where it can.

    Args:
        arguments: a resolved view of SGLang's `ServerArgs`.
    """
    reasons = []
    if arguments.speculative_algorithm is None:
        reasons.append("the server does not speculate (add --speculative-algorithm NEXTN)")
    if (arguments.speculative_eagle_topk or 1) != 1:
        reasons.append("it follows chains, not trees: use --speculative-eagle-topk 1")
    graphs = (arguments.cuda_graph_config.decode, arguments.cuda_graph_config.prefill)
    if any(phase.backend != "disabled" for phase in graphs):
        reasons.append("forwards inside a CUDA graph cannot be looked at: add --disable-cuda-graph")
    if arguments.disaggregation_mode != "null":
        reasons.append("disaggregated prefill is not supported")
    for name in ("pp_size", "dcp_size"):
        if (getattr(arguments, name, 1) or 1) != 1:
            reasons.append(f"--{name.replace('_', '-')} above 1 is not supported")
    reasons += [
        f"--{name.replace('_', '-')} is not supported"
        for name in _SWITCHES
        if getattr(arguments, name, False)
    ]
    return reasons


def forward_of(forward_batch: Any) -> DraftForward:
    """The forward of a batch that the hooks let through.

    Raises:
        ValueError: it proposes nothing.
    """
    forward = DraftForward.of(forward_batch)
    if forward is None:
        raise ValueError(f"no draft forward: {forward_batch.forward_mode}")
    return forward
