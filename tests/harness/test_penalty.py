"""The audit of penalties, against a server whose logits and rule are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from harness.measure.penalty import PROMPT_TOKENS, Audit, Penalty, audit

VOCABULARY, STEP = 200, 4
Rule = Callable[[Sequence[int]], Mapping[int, int]]
"""Which of the output's tokens are penalised, and how often each counts."""


def everything(output: Sequence[int]) -> Mapping[int, int]:
    return {token: output.count(token) for token in set(output)}


def nothing(output: Sequence[int]) -> Mapping[int, int]:
    return {}


def last_of_each_step(output: Sequence[int]) -> Mapping[int, int]:
    """SGLang's form under speculation, with every draft accepted: STEP tokens a verify after the first."""
    done = len(output) - (len(output) - 1) % STEP if output else 0
    kept = [output[i] for i in range(0, done, STEP)]
    return {token: kept.count(token) for token in set(kept)}


def one_behind(output: Sequence[int]) -> Mapping[int, int]:
    return everything(output[:-1])


class FakeServer:
    """Greedy decoding of random logits over few likely tokens, so that outputs repeat themselves."""

    def __init__(self, rule: Rule, accepted: int | None, noise: float = 0.0) -> None:
        self.rule, self.accepted, self.noise = rule, accepted, noise
        self.rng = random.Random(1)

    def logits(self, length: int) -> list[float]:
        rng = random.Random(length)
        return [rng.gauss(8.0 if token < 30 else -2.0, 2.0) for token in range(VOCABULARY)]

    def rows(self, length: int, output: Sequence[int], sampling: Mapping[str, Any]) -> list[float]:
        values = self.logits(length)
        for token, count in self.rule(output).items():
            p, f = sampling.get("repetition_penalty", 1.0), sampling.get("frequency_penalty", 0.0)
            values[token] = values[token] / p if values[token] > 0 else values[token] * p
            values[token] -= f * count
        values = [v + self.rng.gauss(0, self.noise) for v in values]
        total = math.log(sum(map(math.exp, values)))
        return [v - total for v in values]

    def __call__(
        self, prompts: Sequence[Sequence[int]], sampling: dict[str, Any], options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        prompt, output, generated = list(prompts[0]), [], []
        for _ in range(sampling["max_new_tokens"]):
            row = self.rows(len(prompt) + len(output), output, sampling)
            generated.append(row)
            output.append(max(range(VOCABULARY), key=row.__getitem__))
        meta: dict[str, Any] = {}
        if self.accepted is not None:
            meta["spec_num_correct_drafts"] = self.accepted
        if "top_logprobs_num" in options:
            best = [sorted(range(VOCABULARY), key=lambda t, r=row: -r[t])[:8] for row in generated]
            rows = zip(best, generated, strict=True)
            meta["output_top_logprobs"] = [[[row[t], t, None] for t in top] for top, row in rows]
        if "token_ids_logprob" in options:
            asked = options["token_ids_logprob"][0]
            meta["output_token_ids_logprobs"] = [[[row[t], t, None] for t in asked] for row in generated]
            start = options.get("logprob_start_len", len(prompt))
            scored = [self.rows(length, (), {}) for length in range(start, len(prompt))]
            # The logits before position `length` predict its token; the first asked for has none.
            meta["input_token_ids_logprobs"] = [[[row[t], t, None] for t in asked] for row in scored]
        return [{"output_ids": output, "meta_info": meta}]


def run(rule: Rule, penalty: Mapping[str, float], accepted: int | None = 40, noise: float = 0.0) -> Audit:
    speculative = accepted is not None
    prompt = [2 + i % (VOCABULARY - 2) for i in range(PROMPT_TOKENS + 50)]
    return audit(FakeServer(rule, accepted, noise), prompt, penalty, STEP if speculative else 1, speculative)


PENALTIES = ({"repetition_penalty": 1.15}, {"frequency_penalty": 0.5})


@pytest.mark.parametrize("penalty", PENALTIES, ids=["repetition", "frequency"])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_server_that_follows_the_rule(penalty: Mapping[str, float], noise: float) -> None:
    found = run(everything, penalty, noise=noise)
    assert found.state is Penalty.HONOURED
    assert found.judged > 200 and found.penalised >= 0.98 * found.judged


@pytest.mark.parametrize("penalty", PENALTIES, ids=["repetition", "frequency"])
def test_a_server_that_ignores_it(penalty: Mapping[str, float]) -> None:
    assert run(nothing, penalty).state is Penalty.IGNORED


@pytest.mark.parametrize("penalty", PENALTIES, ids=["repetition", "frequency"])
def test_a_history_of_last_tokens_is_a_weaker_penalty(penalty: Mapping[str, float]) -> None:
    found = run(last_of_each_step, penalty)
    assert found.state is Penalty.WEAKENED
    assert 0.1 * found.judged < found.penalised < 0.9 * found.judged
    # Forgotten tokens are older than one step: more than lag.
    assert found.missed_latest < found.judged - found.penalised


def test_a_history_one_token_behind_misses_only_the_latest() -> None:
    found = run(one_behind, {"repetition_penalty": 1.3}, accepted=None)
    assert found.judged - found.penalised == found.missed_latest > 0
    assert found.state is Penalty.LATE


def test_without_accepted_drafts_nothing_is_shown() -> None:
    assert run(everything, PENALTIES[0], accepted=0).state is Penalty.NOT_EXERCISED
    assert run(everything, PENALTIES[0], accepted=None).state is Penalty.HONOURED


def test_for_a_record() -> None:
    entry = run(everything, PENALTIES[0]).as_dict(repetition_penalty=1.15)
    assert entry["state"] == "honoured" and entry["repetition_penalty"] == 1.15
    assert type(entry["state"]) is str
