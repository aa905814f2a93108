"""What a point asks besides its timed run: margins and sampled draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.errors import ServerError
from harness.measure import besides, draws
from harness.measure.margins import margins, without_logprobs
from harness.measure.protocol import TimedRun
from harness.points import Point
from harness.records import DecodeSteps, PrefillSteps


def reply(rows: list[Any], ids: list[int]) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"output_top_logprobs": rows, "completion_tokens": len(ids)}}


def test_margins_are_between_the_two_best() -> None:
    rows = [[[-0.25, 7, None], [-1.75, 9, None]], [[-3.0, 1, None], [-2.0, 4, None]], [[0, 0, None]] * 2]
    assert margins(reply(rows, [7, 4])) == [1.5, 1.0], "best first or not, and no more than the output has"


@pytest.mark.parametrize("rows", [[], [[[-0.25, 7, None]]], [None]])
def test_margins_need_two_candidates_for_each_token(rows: list[Any]) -> None:
    with pytest.raises(ServerError, match="margins cannot be told"):
        margins(reply(rows, [7]))


def test_log_probabilities_stay_out_of_records() -> None:
    meta = {
        "e2e_latency": 1.0,
        "output_top_logprobs": [1],
        "input_token_logprobs": [2],
        "finish_reason": None,
    }
    assert without_logprobs(meta) == {"e2e_latency": 1.0, "finish_reason": None}


def test_draws_are_counted_by_position() -> None:
    asked: list[int] = []

    def ask(prompts: Sequence[Sequence[int]], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        assert (sampling["temperature"], sampling["max_new_tokens"]) == (0.7, draws.TOKENS)
        asked.append(len(prompts))
        meta = {"spec_verify_ct": 3, "spec_num_correct_drafts": 4}
        return [{"output_ids": [5, 6, i, *range(10, 15)], "meta_info": meta} for i, _ in enumerate(prompts)]

    point = Point(
        model="m", checkpoint="c", hardware="cpu", arm="native", depth=7, batch=4, context_tokens=9, task="t",
        draft_backend="x", temperature=0.7, probe="draws",
    )  # fmt: skip
    found = draws.draw(ask, point, list(range(9)), draws=10)
    assert asked == [1, 1, 4, 4, 4], "whole batches, after draws that are thrown away"
    assert (found["requests"], found["verify_steps"], found["accepted_drafts"]) == (12, 36, 48)
    assert found["positions"][0] == {"5": 12}
    assert found["positions"][2] == {"0": 3, "1": 3, "2": 3, "3": 3}
    assert len(found["positions"]) == draws.TOKENS


def test_an_audit_that_showed_nothing_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(["not exercised", "weakened", "honoured"])
    monkeypatch.setattr(besides, "_audit", lambda ask, point, prompt: {"state": next(states)})
    point = Point(
        model="m", checkpoint="c", hardware="cpu", arm="native", depth=7, context_tokens=9, task="t",
        draft_backend="x",
    )  # fmt: skip
    run = TimedRun([], DecodeSteps(), PrefillSteps(), {}, b"", 1.0)
    audits: besides.Audits = {}
    server: Any = None
    found = [besides.ask_besides(server, point, [1], run, 1.0, audits)["penalty"]["state"] for _ in range(3)]
    assert found == ["not exercised", "weakened", "weakened"]
    plain = point.model_copy(update={"repetition_penalty": 1.0})
    assert besides.ask_besides(server, plain, [1], run, 1.0, audits) == {}
