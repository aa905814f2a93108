"""Real servers on tiny random models: speculation changes how fast tokens come, never which."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.engine.settings import EngineSettings
from harness.measure import penalty
from harness.server.lifecycle import Server
from harness.server.spec import ServerSpec
from tests.engine.cpu.checkpoints import write_checkpoint
from tests.engine.ring.engines import Arm, Round, run

# Two arms in float32 are compared by the default run as well, in tests/harness/test_one_point.py.
pytestmark = [pytest.mark.server, pytest.mark.slow]

DEPTH = 7
NEW_TOKENS = 60
NOISE = 1.6
DRAWS = 16


@dataclass(frozen=True)
class Answers:
    """What one server said: each prompt alone on a flushed cache, all at once, sampled, and audited."""

    alone: list[dict[str, Any]]
    together: list[dict[str, Any]]
    drawn: list[list[int]]
    audit: penalty.Audit

    @property
    def ids(self) -> list[list[int]]:
        return [answer["output_ids"] for answer in self.alone]

    @property
    def ids_together(self) -> list[list[int]]:
        return [answer["output_ids"] for answer in self.together]


def prompts() -> list[list[int]]:
    """One token, shorter than a chunk of the recurrence, and longer than a chunk of the prefill."""
    rng = random.Random(0)
    return [[rng.randrange(2, 256) for _ in range(n)] for n in (1, 40, 300, 700)]


def ask(model: Path, log: Path, arm: str, dtype: str, tp: int = 1) -> Answers:
    spec = ServerSpec(
        model_path=str(model), device="cpu", arm=arm, depth=DEPTH, window_tokens=None, sink_tokens=None,
        tp=tp, dtype=dtype, kv_dtype=dtype, target_backend="intel_amx", draft_backend="intel_amx",
        context_length=4096,
        max_running_requests=4, chunked_prefill_tokens=256, max_total_tokens=8192, threads=tp,
        extra_arguments=("--max-mamba-cache-size", "16"),
    )  # fmt: skip
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    with Server(spec, log, startup_timeout_s=600) as server:
        alone = []
        for prompt in prompts():
            alone += server.client.generate([prompt], sampling, timeout_s=300)
            server.client.flush_cache()
        together = server.client.generate(prompts(), sampling, timeout_s=300)
        warm = {"temperature": 1.0, "max_new_tokens": 6, "ignore_eos": True}
        drawn = server.client.generate([prompts()[1]] * DRAWS, warm, timeout_s=300)

        def more(
            asked: Sequence[Sequence[int]], sampling: dict[str, Any], options: dict[str, Any]
        ) -> list[dict[str, Any]]:
            return server.client.generate(asked, sampling, timeout_s=300, **options)

        audit = penalty.audit(more, prompts()[2], {"repetition_penalty": 1.3}, DEPTH, arm != "dense")
        return Answers(alone, together, [answer["output_ids"] for answer in drawn], audit)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Answers]]:
    """Ask each server once, however many tests look at its answers."""
    folder = tmp_path_factory.mktemp("servers")
    models = {
        "hybrid": write_checkpoint(folder / "hybrid", noise=NOISE),
        "experts": write_checkpoint(folder / "experts", experts=8, head_dim=64, noise=NOISE),
    }
    kept: dict[tuple, Answers] = {}

    def once(model: str, arm: str, dtype: str = "float32", tp: int = 1) -> Answers:
        key = (model, arm, dtype, tp)
        if key not in kept:
            kept[key] = ask(models[model], folder / f"{len(kept)}.log", arm, dtype, tp)
        return kept[key]

    yield once


def check_speculation(answers: Answers, levels: int) -> None:
    """The counts SGLang reports add up, and drafts were accepted as well as rejected."""
    accepted_of_all: list[int] = [0] * (levels + 1)
    for answer in [*answers.alone, *answers.together]:
        meta = answer["meta_info"]
        histogram = meta["spec_correct_drafts_histogram"]
        assert len(histogram) <= levels + 1
        assert sum(histogram) == meta["spec_verify_ct"]
        accepted = sum(n * count for n, count in enumerate(histogram))
        assert accepted == meta["spec_num_correct_drafts"]
        # the prefill emits a token as well; the last step may emit more than were asked for
        emitted = 1 + meta["spec_verify_ct"] + accepted
        assert meta["completion_tokens"] == NEW_TOKENS <= emitted <= NEW_TOKENS + levels
        assert meta["spec_num_proposed_drafts"] == levels * meta["spec_verify_ct"]
        for n, count in enumerate(histogram):
            accepted_of_all[n] += count
    assert accepted_of_all[0] > 0, "no draft was ever rejected at once: nothing to roll back"
    assert sum(accepted_of_all[2:]) > 0, "no two drafts in a row were accepted"


def test_native_equals_dense(asked) -> None:
    dense, native = asked("hybrid", "dense"), asked("hybrid", "native")
    assert native.ids == dense.ids
    assert native.ids_together == dense.ids_together == dense.ids
    check_speculation(native, DEPTH - 1)


def test_two_ranks_equal_one(asked) -> None:
    one, two = asked("hybrid", "native"), asked("hybrid", "native", tp=2)
    assert two.ids == one.ids
    assert two.ids_together == one.ids_together
    name = "spec_correct_drafts_histogram"
    for mine, theirs in zip(one.alone, two.alone, strict=True):
        assert mine["meta_info"][name] == theirs["meta_info"][name]


def test_repetition_penalty(asked) -> None:
    """Dense decoding penalises every token that was generated; a verify adds only its last one."""
    dense, native = asked("hybrid", "dense").audit, asked("hybrid", "native").audit
    assert dense.state is penalty.Penalty.HONOURED and dense.judged > 500
    assert native.accepted_drafts, "nothing accepted, nothing left out"
    assert native.state is penalty.Penalty.WEAKENED
    assert native.judged - native.penalised > native.missed_latest, "more is missed than a lag of one step"


def test_sampled_requests_are_verified_by_sampling(asked) -> None:
    """Not by the likeliest token: then answers with the same first token would be the same."""
    for arm in ("dense", "native"):
        rest: dict[int, set[tuple[int, ...]]] = {}
        for ids in asked("hybrid", arm).drawn:
            rest.setdefault(ids[0], set()).add(tuple(ids[1:]))
        assert max(map(len, rest.values())) > 1, arm


def test_native_equals_dense_in_bfloat16(asked) -> None:
    """One request at a time, so that every product has the rows of one request."""
    dense, native = asked("hybrid", "dense", "bfloat16"), asked("hybrid", "native", "bfloat16")
    assert native.ids == dense.ids
    check_speculation(native, DEPTH - 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_equals_dense_with_experts(asked, dtype) -> None:
    dense, native = asked("experts", "dense", dtype), asked("experts", "native", dtype)
    assert native.ids == dense.ids
    check_speculation(native, DEPTH - 1)


def test_trees_equal_dense(tmp_path: Path) -> None:
    """Two branches a level: attention by the tree's mask, recurrence by its parents, KV moved after.

    No point of the harness has a tree, and its servers refuse one: an engine by itself takes it.
    """
    model = write_checkpoint(tmp_path / "hybrid", noise=NOISE)
    rounds = [Round([prompt], [NEW_TOKENS]) for prompt in prompts()]
    rounds.append(Round(prompts(), [NEW_TOKENS] * len(prompts())))
    chunks = {"chunked_prefill_size": 256}
    tree = Arm(
        EngineSettings(draft_tokens=6, topk=2), model=model, engine={"speculative_num_steps": 3, **chunks}
    )
    dense = run(Arm(None, model=model, engine=chunks), rounds, tmp_path / "dense")
    trees = run(tree, rounds, tmp_path / "trees")
    assert trees.values("ids") == dense.values("ids")
    accepted: Counter[int] = Counter()
    for histogram, steps in zip(trees.values("histogram"), trees.values("verify_steps"), strict=True):
        assert len(histogram) <= 4
        assert sum(histogram) == steps
        emitted = 1 + steps + sum(n * count for n, count in enumerate(histogram))
        assert NEW_TOKENS <= emitted <= NEW_TOKENS + 3
        accepted.update(dict(enumerate(histogram)))
    assert accepted[0] > 0, "no draft was ever rejected at once: nothing to roll back"
    assert accepted[2] + accepted[3] > 0, "no two drafts in a row were accepted"
