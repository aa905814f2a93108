"""Admission arithmetic against what SGLang 0.5.23 was observed to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.server.capacity import (
    Verdict,
    admission,
    context_length_for,
    largest_prompt,
    tokens_needed,
    why_not,
)

# context length, pool, draft slots, prompt, max_new_tokens, verdict, tokens returned
OBSERVED = [
    (1100, 20000, 0, 1000, 100, "clamped", 98),
    (1100, 20000, 0, 1000, 94, "ok", 94),
    (1100, 20000, 0, 1093, 1, "ok", 1),
    (1100, 20000, 0, 1094, 1, "reject_pool", 0),
    (1100, 20000, 7, 1000, 100, "reject_total", 0),
    (1100, 20000, 7, 1000, 93, "ok", 93),
    (1100, 20000, 7, 1000, 94, "reject_total", 0),
    (1100, 20000, 7, 1092, 1, "ok", 1),
    (1100, 20000, 7, 1093, 1, "reject_input", 0),
    (1048576, 2000000, 0, 1040000, 8576, "clamped", 8574),
    (1048576, 2000000, 7, 1040000, 8569, "ok", 8569),
    (1048576, 2000000, 7, 1040000, 8570, "reject_total", 0),
    (1040000, 2000000, 0, 1040000, 1, "reject_input", 0),
    (1048576, 1040006, 0, 1040000, 1, "reject_pool", 0),
    (1048576, 1040007, 0, 1040000, 1, "ok", 1),
]


@pytest.mark.parametrize(("context", "pool", "drafts", "prompt", "new", "verdict", "completion"), OBSERVED)
def test_admission_as_observed(context, pool, drafts, prompt, new, verdict, completion):
    found = admission(context, pool, drafts, prompt, new)
    assert (found.verdict, found.completion_tokens) == (verdict, completion)


@given(
    prompt=st.integers(1, 2_000_000), new=st.integers(1, 10_000), deepest=st.integers(0, 64), data=st.data()
)
def test_one_context_length_is_safe_for_every_arm(prompt, new, deepest, data):
    context = context_length_for(prompt, new, deepest)
    drafts = data.draw(st.integers(0, deepest))
    assert admission(context, context, drafts, prompt, new).verdict is Verdict.OK


@given(prompt=st.integers(1, 10_000), new=st.integers(7, 600), drafts=st.integers(0, 9))
def test_without_the_slack_some_arm_suffers(prompt, new, drafts):
    verdicts = {admission(prompt + new, 1 << 40, d, prompt, new).verdict for d in (0, drafts)}
    assert verdicts != {Verdict.OK}


def test_negative_lengths_are_refused():
    with pytest.raises(ValueError, match="negative"):
        context_length_for(100, 10, -1)


def test_largest_prompt_of_a_small_pool():
    assert largest_prompt(1_048_576, 524_288) == 524_281
    assert admission(1_048_576, 524_288, 0, 524_281, 1).verdict is Verdict.OK
    assert admission(1_048_576, 524_288, 0, 524_282, 1).verdict is Verdict.REJECT_POOL
    assert largest_prompt(3, 3) == 0


def reason(**changes):
    values = {
        "prompt_tokens": 1000, "max_new_tokens": 100, "draft_tokens": 7, "batch": 1, "context_length": 2000,
        "pool_tokens": 5000, "max_running_requests": 4,
    }  # fmt: skip
    return why_not(**(values | changes))


def test_what_fits_has_no_reason():
    assert reason() == ""
    assert reason(batch=4) == ""
    assert reason(context_length=None, pool_tokens=None, max_running_requests=None) == ""


def test_a_million_tokens_do_not_fit_a_small_pool():
    text = reason(prompt_tokens=1_040_000, context_length=1_048_576, pool_tokens=524_288, draft_tokens=0)
    assert text.startswith("pool 524288")


def test_each_limit_is_named():
    assert "context length 1100" in reason(context_length=1100)
    assert "--context-length 1114" in reason(context_length=1100)
    assert "max_running_requests 4" in reason(batch=5)
    needed = tokens_needed(1000, 100, 7, 4)
    assert reason(batch=4, pool_tokens=needed) == ""
    assert f"pool {needed - 1} " in reason(batch=4, pool_tokens=needed - 1)


def test_a_pool_that_would_cut_the_reply_does_not_fit():
    assert "pool 1101" in reason(pool_tokens=1101, draft_tokens=0)


def test_dense_requests_reserve_their_next_token():
    assert tokens_needed(10, 5, 0, 3) == 3 * 17
