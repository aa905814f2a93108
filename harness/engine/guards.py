"""What the windowed draft does not work with: each is refused at start, in a plain sentence.

Radix cache: refused with a ring, and with a pruned prefill. A prefix hit hands a request slots whose draft
keys were never stored for it (ring) or never computed (pruned prefill). A full-size, unpruned draft pool
shares the target's slots, so that `mode=windowed` with `prune_prefill=false` keeps prefix sharing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.engine.settings import EngineSettings
from harness.errors import ConfigError

_SPECULATION = ("EAGLE", "EAGLE3", "NEXTN")

_SWITCHES = {
    "enable_multi_layer_eagle": "it has a draft worker of its own",
    "speculative_adaptive": "the draft's depth changes while it runs",
    "enable_hierarchical_cache": "it moves draft keys by the target's slots",
    "enable_unified_memory": "target and draft share one pool there",
    "enable_page_major_kv_layout": "target and draft share one layout there",
    "enable_hisparse": "it addresses the draft's pool by the target's slots",
    "enable_mixed_chunk": "it mixes prompt chunks with decoding requests",
    "enable_dp_attention": "ranks agree on token counts before the draft's batch is cut",
    "enable_kv_cache_sharding": "it stripes the draft's pool across ranks",
    "enable_two_batch_overlap": "it splits the draft's batch after its slots are chosen",
    "enable_pdmux": "it splits prefill by layers",
    "enable_streaming_session": "a session's next request continues from keys that the draft dropped",
    "enable_deterministic_inference": "its attention reads a forward's own keys back from the pool",
}


def refuse_unsupported_arguments(settings: EngineSettings, arguments: Any) -> None:
    """Stop a server whose arguments the windowed draft cannot honour.

    Args:
        arguments: a resolved view of SGLang's `ServerArgs`.

    Raises:
        ConfigError: with every reason, and what to change.
    """
    reasons = [
        *_speculation_reasons(settings, arguments),
        *(
            f"--{name.replace('_', '-')} is not supported: {why}"
            for name, why in _SWITCHES.items()
            if getattr(arguments, name, False)
        ),
        *_layout_reasons(settings, arguments),
    ]
    if reasons:
        raise ConfigError(f"windowed-mtp mode={settings.mode} cannot start: {'; '.join(reasons)}.")


def _speculation_reasons(settings: EngineSettings, arguments: Any) -> list[str]:
    algorithm = arguments.speculative_algorithm
    if algorithm is None:
        return ["the server does not speculate (add --speculative-algorithm NEXTN, or set mode=off)"]
    reasons = []
    if algorithm not in _SPECULATION:
        reasons.append(f"--speculative-algorithm {algorithm} is not one of {', '.join(_SPECULATION)}")
    agreed = {"speculative_num_draft_tokens": settings.draft_tokens, "speculative_eagle_topk": settings.topk}
    if arguments.speculative_draft_window_size:
        agreed["speculative_draft_window_size"] = settings.window_tokens
        agreed["speculative_draft_sink_size"] = settings.sink_tokens
    for name, wanted in agreed.items():
        given = getattr(arguments, name) or 0
        if given != wanted:
            flag = f"--{name.replace('_', '-')}"
            reasons.append(f"{flag} is {given} but the engine settings say {wanted}")
    steps = arguments.speculative_num_steps or 0
    if steps < 1 or steps >= settings.draft_tokens:
        reasons.append(f"--speculative-num-steps is {steps}: it must lie between 1 and draft_tokens - 1")
    return reasons


def _layout_reasons(settings: EngineSettings, arguments: Any) -> list[str]:
    reasons = []
    if (arguments.page_size or 1) != 1:
        trees = ", with trees even less so" if settings.topk > 1 else ""
        reasons.append(f"--page-size {arguments.page_size} is not supported{trees}: use --page-size 1")
    if arguments.disaggregation_mode != "null":
        reasons.append(
            "disaggregated prefill is not supported: it transfers draft keys by the target's slots"
        )
    for name in ("pp_size", "dcp_size"):
        if (getattr(arguments, name, 1) or 1) != 1:
            reasons.append(f"--{name.replace('_', '-')} {getattr(arguments, name)} is not supported")
    if not arguments.disable_radix_cache:
        if settings.mode == "ring":
            reasons.append(
                "a prefix-cache hit would read draft keys that the ring never stored: "
                "add --disable-radix-cache"
            )
        elif settings.prune_prefill:
            reasons.append(
                "a prefix-cache hit would read draft keys that the pruned prefill never computed: "
                "add --disable-radix-cache or set prune_prefill=false"
            )
    if settings.prune_prefill and getattr(arguments, "enable_lora", False):
        reasons.append("a pruned prefill with --enable-lora is not supported: set prune_prefill=false")
    if settings.mode == "ring" and not arguments.max_running_requests:
        reasons.append("a ring is sized by requests: set --max-running-requests")
    return reasons


def refuse_unsupported_draft(settings: EngineSettings, runner: Any) -> None:
    """Stop at a draft whose keys are not plain, full-attention heads.

    Args:
        runner: the draft's `ModelRunner`, pools built.

    Raises:
        ConfigError: naming what the draft has.
    """
    found = unreadable_keys(runner)
    if settings.prune_prefill and draft_layers(runner) != 1:
        layers = draft_layers(runner)
        found.append(f"it has {layers} layers, and a pruned prefill needs one: set prune_prefill=false")
    if found:
        raise ConfigError(f"windowed-mtp cannot window this draft: {'; '.join(found)}.")


def unreadable_keys(runner: Any) -> list[str]:
    """Why a draft's keys cannot be found by row and position alone; empty where they can.

    Args:
        runner: the draft's `ModelRunner`, pools built.
    """
    reasons: list[tuple[Callable[[], bool], str]] = [
        (lambda: runner.use_mla_backend, "its attention is MLA"),
        (
            lambda: runner.is_hybrid_swa or (runner.sliding_window_size or 0) > 0,
            "it has a sliding window of its own",
        ),
        (lambda: runner.kv_index_translator.is_translating, "its pool is addressed through a page table"),
    ]
    return [text for applies, text in reasons if applies()]


def draft_layers(runner: Any) -> int:
    """Attention layers that hold keys in the draft's pool."""
    mapping = getattr(runner.token_to_kv_pool, "full_attention_layer_id_mapping", None)
    return len(mapping) if mapping is not None else int(runner.layer_info.num_effective_layers)


def refuse_foreign_backends(names: tuple[str, ...], backends: dict[str, Any]) -> None:
    """Stop where SGLang gave the draft an attention backend that does not window.

    Args:
        names: backends of ours.
        backends: what the draft got, by phase; None where it needs none.

    Raises:
        ConfigError: naming the backend and the argument that gives another.
    """
    for phase, backend in backends.items():
        if backend is not None and not getattr(backend, "reads_windowed", False):
            raise ConfigError(
                f"windowed-mtp: the draft's {phase} runs on {type(backend).__name__}, which is not windowed: "
                f"pass --speculative-draft-attention-backend with one of {', '.join(names)}."
            )
