"""What the native draft's probes refuse, and that a failing one leaves the server alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine.probes.native import NativeProbe, unsupported
from harness.engine.probes.settings import ProbeSettings
from harness.engine.probes.writer import StepWriter
from harness.engine.settings import VARIABLE, EngineSettings
from harness.errors import ConfigError


def arguments(**changes: Any) -> Any:
    graphs = SimpleNamespace(
        decode=SimpleNamespace(backend="disabled"), prefill=SimpleNamespace(backend="disabled")
    )
    plain = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1, "cuda_graph_config": graphs,
             "disaggregation_mode": "null", "pp_size": 1}  # fmt: skip
    return SimpleNamespace(**(plain | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculative_algorithm": None}, "does not speculate"),
        ({"speculative_eagle_topk": 2}, "use --speculative-eagle-topk 1"),
        (
            {"cuda_graph_config": SimpleNamespace(decode=SimpleNamespace(backend="full"),
                                                  prefill=SimpleNamespace(backend="disabled"))},
            "add --disable-cuda-graph",
        ),
        ({"pp_size": 2}, "--pp-size above 1"),
        ({"enable_dp_attention": True}, "--enable-dp-attention is not supported"),
        ({"disaggregation_mode": "prefill"}, "disaggregated prefill"),
    ],
)  # fmt: skip
def test_servers_that_cannot_be_looked_at(changes: dict[str, Any], said: str) -> None:
    assert unsupported(arguments()) == []
    (reason,) = unsupported(arguments(**changes))
    assert said in reason


def test_a_windowed_draft_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    windowed = EngineSettings("windowed", 64, 4, 7).environment()
    monkeypatch.setenv(VARIABLE, windowed[VARIABLE])
    probe = NativeProbe(ProbeSettings("decision", str(tmp_path), ((64, 4),)))
    with pytest.raises(ConfigError, match="at full length"):
        probe.register(None, None)


class Counting(NativeProbe):
    """Looks by counting, and fails from the second time on."""

    def look(self, run: Callable[[], Any], original: Any, runner: Any, forward_batch: Any) -> Any:
        result = run()
        self.safely(self.count)
        return result

    def count(self) -> list[dict[str, Any]]:
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen > 1:
            raise ValueError("odd")
        return [{"n": self.seen}]


def forward(mode: str) -> Any:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(
            is_decode=lambda: mode == "decode", is_draft_extend_v2=lambda: mode == "extend"
        )
    )


def test_a_probe_that_fails_says_so_once_and_lets_the_forwards_go_on(tmp_path: Path) -> None:
    settings = ProbeSettings("decision", str(tmp_path), ((64, 4),))
    probe = Counting(settings)
    draft, target = SimpleNamespace(is_draft_worker=True), SimpleNamespace(is_draft_worker=False)
    ran: list[str] = []

    def run(runner: Any, mode: str) -> Any:
        def original(runner: Any, batch: Any) -> str:
            ran.append(mode)
            return mode

        return probe.forward(original, runner, forward(mode))

    assert run(draft, "decode") == "decode", "nothing is attached yet"
    probe.writer = StepWriter(settings.path(0))
    assert run(draft, "decode") == "decode", "no prompt was prefilled yet"
    probe.run_begins(None)
    for runner, mode in ((target, "decode"), (draft, "prefill"), (draft, "extend"), (draft, "decode"),
                         (draft, "decode")):  # fmt: skip
        assert run(runner, mode) == mode
    assert len(ran) == 7, "every forward ran once"
    lines = [json.loads(line) for line in settings.path(0).read_text().splitlines()]
    assert [line.get("n") for line in lines] == [1, None]
    assert lines[1]["error"] == "ValueError: odd"
    assert not probe.looking
