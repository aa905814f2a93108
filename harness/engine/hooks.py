"""The hooks of the windowed draft: where each sits in SGLang, and what it does there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from harness.engine import backends, compat, guards, pools, pruning
from harness.engine.geometry import RingGeometry
from harness.engine.settings import EngineSettings
from harness.engine.state import DraftState

logger = logging.getLogger("windowed-mtp")

_POOLS = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator."
_SIZING = "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator."
_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory."
_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
_CHECK = "sglang.srt.server_args.ServerArgs.check_server_args"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner._init_post_memory_pool_components"
_FORWARD = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"

_SIGNATURES = {
    _CHECK: "self",
    _RUNNER: "self",
    _FORWARD: (
        "cls batch model_runner * capture_hidden_mode= return_hidden_states_before_norm "
        "extend_position_info= spec_mrope_positions= kv_loc_plan= write_cols="
    ),
    _WORKER + "init_attention_backend": "self",
    _WORKER + "_draft_extend_for_prefill": (
        "self batch target_hidden_states next_token_ids mm_input_embeds= kv_loc_plan="
    ),
}
_RING_SIGNATURES = {
    _POOLS + "_build_token_to_kv_pool": "self * sizes is_dsa_model is_dsv4_model req_to_token_pool",
    _SIZING + "__init__": "self kvc",
    _SIZING + "calculate_pool_sizes": "self available_bytes page_size",
    _SIZING + "_compute_cell_size": "self kvc num_layers",
}


class DraftHooks:
    """All hooks of one process, for one set of settings."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.geometry = RingGeometry.of(settings)
        self.targets: list[str] = []
        self.cost: pools.TokenCost | None = None
        self.ring_built = False

    def register(self, registry: Any, hook_type: Any) -> None:
        """Check SGLang's signatures, then register every hook.

        Args:
            registry: SGLang's `HookRegistry`.
            hook_type: SGLang's `HookType`.

        Raises:
            ConfigError: this SGLang differs from the one the hooks were written for.
        """
        ring = self.settings.mode == "ring"
        factories = [
            (f"{_FACTORY}_create_{name}_{phase}_backend", name, phase)
            for name in backends.NAMES
            for phase in ("decode", "prefill")
        ]
        signatures = _SIGNATURES | (_RING_SIGNATURES if ring else {})
        compat.require_signatures(signatures | {target: "self" for target, _, _ in factories})
        hooks: list[tuple[str, Callable[..., Any], Any]] = [
            (_CHECK, self.check_arguments, hook_type.AFTER),
            (_RUNNER, self.attach_state, hook_type.AFTER),
            (_FORWARD, self.after_init_new, hook_type.AFTER),
            (_WORKER + "init_attention_backend", self.check_backends, hook_type.AFTER),
            (_WORKER + "_draft_extend_for_prefill", self.draft_prefill, hook_type.AROUND),
        ]
        for target, name, phase in factories:
            hooks.append((target, self.backend_factory(name, phase), hook_type.AROUND))
        if ring:
            hooks.append((_POOLS + "_build_token_to_kv_pool", self.build_pool, hook_type.AROUND))
            hooks.append((_SIZING + "__init__", self.size_target, hook_type.AFTER))
            hooks.append((_SIZING + "calculate_pool_sizes", self.calculate_pool_sizes, hook_type.AROUND))
        for target, hook, kind in hooks:
            registry.register(target, hook, kind)
        self.targets = [target for target, _, _ in hooks]

    # -- start ----------------------------------------------------------------------------------------

    def check_arguments(self, result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        """After SGLang's own checks: refuse what the window cannot honour."""
        from sglang.srt.arg_groups.overrides import resolving_view

        self._require_applied()
        guards.refuse_unsupported_arguments(self.settings, resolving_view(server_args))

    def size_target(self, result: Any, sizing: Any, kvc: Any) -> None:
        """The target's token budget, once the draft costs a fixed amount."""
        if kvc.is_draft_worker or not kvc.spec_algorithm.is_eagle():
            return
        from sglang.srt.configs.hybrid_arch import mambaish_config
        from sglang.srt.runtime_context import get_schedule

        layers = kvc.layer_info
        hybrid = mambaish_config(kvc.model_config)
        if hybrid is None:
            count = layers.num_effective_layers
        else:
            mine = range(layers.start_layer, layers.end_layer)
            count = sum(layer in mine for layer in hybrid.full_attention_layer_ids)
        rows = int(get_schedule().max_running_requests or 0)
        self.cost = pools.token_cost(self.geometry, sizing, kvc, count, rows)
        sizing._cell_size = self.cost.target_bytes

    def calculate_pool_sizes(
        self, original: Callable[..., Any], sizing: Any, available_bytes: int, page_size: int
    ) -> Any:
        """The target's tokens; once the ring exists, free memory no longer includes it."""
        if self.cost is not None and not self.ring_built:
            available_bytes = self.cost.target_budget(available_bytes)
        return original(sizing, available_bytes, page_size)

    def build_pool(self, original: Callable[..., Any], configurator: Any, **arguments: Any) -> Any:
        """The draft's pool holds rings; the target's is left alone."""
        if not configurator.is_draft_worker:
            return original(configurator, **arguments)
        self.ring_built = True
        return pools.build_ring_pool(self.geometry, original, configurator, arguments)

    def attach_state(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Once the draft's pool exists: its state, and the line that names what is on."""
        if not runner.is_draft_worker:
            return
        self._require_applied()
        guards.refuse_unsupported_draft(self.settings, runner)
        runner.windowed_mtp = DraftState(self.settings, runner.req_to_token_pool.req_to_token, runner.device)
        self._announce(runner)

    def backend_factory(self, name: str, phase: str) -> Callable[..., Any]:
        """Hook on SGLang's constructor of one draft backend."""

        def create(original: Callable[..., Any], factory: Any) -> Any:
            windows = phase == "decode" or self.settings.window_extend
            if not windows or not hasattr(factory.draft_model_runner, "windowed_mtp"):
                return original(factory)
            ours = backends.load(name)
            runner = factory.draft_model_runner
            if phase == "decode":
                return name, ours.decode(runner, factory.topk, factory.speculative_num_steps)
            return name, ours.extend(runner)

        return create

    def check_backends(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        """The draft's backends must be ours before anything is served."""
        found = {"decode": worker.draft_attn_backend}
        if self.settings.window_extend:
            found["extend"] = worker.draft_runner.attn_backend
        guards.refuse_foreign_backends(backends.NAMES, found)

    # -- forwards -------------------------------------------------------------------------------------

    def after_init_new(self, forward_batch: Any, cls: Any, batch: Any, runner: Any, **kwargs: Any) -> Any:
        """Every forward's batch is made here: the draft's gets its own slots, and a prefill is pruned."""
        state: DraftState | None = getattr(runner, "windowed_mtp", None)
        if state is None:
            return forward_batch
        if state.may_prune and forward_batch.forward_mode.is_extend_without_speculative():
            pruning.prune(self.geometry, pruning.chunks_of(batch), forward_batch)
        state.remap_writes(forward_batch)
        return forward_batch

    def draft_prefill(
        self,
        original: Callable[..., Any],
        worker: Any,
        batch: Any,
        target_hidden_states: Any,
        next_token_ids: Any,
        mm_input_embeds: Any = None,
        kv_loc_plan: Any = None,
    ) -> Any:
        """The draft's share of a prompt chunk: skipped, pruned, or as it is."""
        state: DraftState = worker.draft_runner.windowed_mtp
        text_only = mm_input_embeds is None and not any(batch.multimodal_inputs or ())
        state.may_prune = self.settings.prune_prefill and text_only and not batch.forward_mode.is_idle()
        try:
            if state.may_prune and pruning.can_skip(self.geometry, batch):
                return pruning.placeholder(worker, batch, next_token_ids)
            return original(worker, batch, target_hidden_states, next_token_ids, mm_input_embeds, kv_loc_plan)
        finally:
            state.may_prune = False

    # -- helpers --------------------------------------------------------------------------------------

    def _require_applied(self) -> None:
        from sglang.srt.plugins.hook_registry import HookRegistry

        compat.require_applied(self.targets, HookRegistry._patched)

    def _announce(self, runner: Any) -> None:
        settings, pool = self.settings, runner.token_to_kv_pool
        state: DraftState = runner.windowed_mtp
        facts: dict[str, Any] = {
            "mode": settings.mode,
            "window": settings.window_tokens,
            "sink": settings.sink_tokens,
            "draft_tokens": settings.draft_tokens,
            "topk": settings.topk,
            "prune_prefill": str(settings.prune_prefill).lower(),
            "window_extend": str(settings.window_extend).lower(),
            "rows": state.rows,
        }
        if state.is_ring:
            facts["slots_per_row"] = self.geometry.row_slots
        facts["draft_slots"] = pool.size
        facts["draft_pool_bytes"] = sum(pool.get_kv_size_bytes())
        facts["target_tokens"] = runner.max_total_num_tokens
        if self.cost is not None:
            facts["target_tokens_without_ring"] = self.cost.native_tokens(runner.max_total_num_tokens)
        logger.info("windowed-mtp: %s", " ".join(f"{name}={value}" for name, value in facts.items()))
        if state.is_ring and pool.size > runner.max_total_num_tokens:
            logger.warning(
                "windowed-mtp: %d rings of %d slots are more than the %d tokens of a full-length draft pool: "
                "lower --max-running-requests.",
                state.rows,
                self.geometry.row_slots,
                runner.max_total_num_tokens,
            )
