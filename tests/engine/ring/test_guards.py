"""Each thing the windowed draft does not work with is refused, by name and with a way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine import guards
from harness.engine.settings import EngineSettings
from harness.errors import ConfigError

SETTINGS = EngineSettings("ring", 64, 4, 7)


def arguments(**changes: Any) -> SimpleNamespace:
    """Resolved server arguments that fit SETTINGS, with changes."""
    fitting = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 6,
        "speculative_num_draft_tokens": 7,
        "speculative_eagle_topk": 1,
        "speculative_draft_window_size": 64,
        "speculative_draft_sink_size": 4,
        "page_size": 1,
        "disaggregation_mode": "null",
        "pp_size": 1,
        "dcp_size": 1,
        "disable_radix_cache": True,
        "max_running_requests": 8,
        "enable_lora": False,
        **dict.fromkeys(guards._SWITCHES, False),
    }
    return SimpleNamespace(**(fitting | changes))


def test_fitting_arguments_pass() -> None:
    guards.refuse_unsupported_arguments(SETTINGS, arguments())
    without_flags = arguments(speculative_draft_window_size=None, speculative_draft_sink_size=None)
    guards.refuse_unsupported_arguments(SETTINGS, without_flags)


def test_the_switches_are_arguments_of_this_sglang() -> None:
    """A renamed flag would otherwise never be seen again."""
    from sglang.srt.arg_groups.field_order import POSITIONAL_FIELD_ORDER

    assert set(vars(arguments())) <= set(POSITIONAL_FIELD_ORDER)


@pytest.mark.parametrize("name", list(guards._SWITCHES))
def test_switches_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is not supported: "):
        guards.refuse_unsupported_arguments(SETTINGS, arguments(**{name: True}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_algorithm": None}, "does not speculate"),
        ({"speculative_algorithm": "STANDALONE"}, "STANDALONE is not one of"),
        ({"speculative_num_draft_tokens": 5}, "draft-tokens is 5 but the engine settings say 7"),
        ({"speculative_eagle_topk": 4}, "eagle-topk is 4 but the engine settings say 1"),
        ({"speculative_draft_window_size": 32}, "window-size is 32 but the engine settings say 64"),
        ({"speculative_draft_sink_size": 0}, "sink-size is 0 but the engine settings say 4"),
        ({"speculative_num_steps": 7}, "between 1 and draft_tokens - 1"),
        ({"page_size": 16}, "use --page-size 1"),
        ({"disaggregation_mode": "decode"}, "disaggregated"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"dcp_size": 2}, "--dcp-size 2"),
        ({"disable_radix_cache": False}, "never stored: add --disable-radix-cache"),
        ({"enable_lora": True}, "set prune_prefill=false"),
        ({"max_running_requests": None}, "set --max-running-requests"),
    ],
)
def test_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        guards.refuse_unsupported_arguments(SETTINGS, arguments(**changes))


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        guards.refuse_unsupported_arguments(SETTINGS, arguments(page_size=16, enable_pdmux=True))
    assert "--page-size" in str(caught.value)
    assert "--enable-pdmux" in str(caught.value)


def test_prefixes_are_shared_only_where_their_draft_keys_exist() -> None:
    radix = arguments(disable_radix_cache=False)
    with pytest.raises(ConfigError, match="pruned prefill never computed"):
        guards.refuse_unsupported_arguments(EngineSettings("windowed", 64, 4, 7), radix)
    guards.refuse_unsupported_arguments(EngineSettings("windowed", 64, 4, 7, prune_prefill=False), radix)


def runner(**changes: Any) -> SimpleNamespace:
    """A draft runner that can be windowed, with changes."""
    fitting = {
        "use_mla_backend": False,
        "is_hybrid_swa": False,
        "sliding_window_size": None,
        "kv_index_translator": SimpleNamespace(is_translating=False),
        "token_to_kv_pool": SimpleNamespace(),
        "layer_info": SimpleNamespace(num_effective_layers=1),
    }
    return SimpleNamespace(**(fitting | changes))


def test_a_plain_draft_passes() -> None:
    guards.refuse_unsupported_draft(SETTINGS, runner())
    hybrid = SimpleNamespace(full_attention_layer_id_mapping={0: 0})
    deep = SimpleNamespace(num_effective_layers=4)
    guards.refuse_unsupported_draft(SETTINGS, runner(token_to_kv_pool=hybrid, layer_info=deep))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_mla_backend": True}, "MLA"),
        ({"is_hybrid_swa": True}, "sliding window of its own"),
        ({"sliding_window_size": 128}, "sliding window of its own"),
        ({"kv_index_translator": SimpleNamespace(is_translating=True)}, "page table"),
        ({"layer_info": SimpleNamespace(num_effective_layers=2)}, "2 layers.*set prune_prefill=false"),
    ],
)
def test_drafts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        guards.refuse_unsupported_draft(SETTINGS, runner(**changes))


def test_a_foreign_backend_is_refused() -> None:
    ours = SimpleNamespace(reads_windowed=True)
    guards.refuse_foreign_backends(("triton",), {"decode": None, "extend": ours})
    # SGLang's own decode window is not ours: the plugin takes its place.
    upstream = SimpleNamespace(draft_window_size=64, draft_sink_size=4)
    for backends, phase in (
        ({"decode": ours, "extend": upstream}, "extend"),
        ({"decode": upstream}, "decode"),
    ):
        with pytest.raises(ConfigError, match=rf"{phase} runs on SimpleNamespace.*one of triton"):
            guards.refuse_foreign_backends(("triton",), backends)
