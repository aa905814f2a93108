"""First choices, margins, overlaps of chosen experts, and which forwards are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine.probes.choices import Routes, margins, overlap, route_overlap
from harness.engine.probes.forwards import Budget, DraftForward


def test_margins_are_top_1_minus_top_2() -> None:
    ids, gaps = margins(torch.tensor([[0.0, 3.0, 2.5], [-1.0, -4.0, -1.0]], dtype=torch.bfloat16))
    assert ids.tolist()[0] == 1
    assert gaps.tolist() == [0.5, 0.0]


def test_overlap_is_of_sets() -> None:
    chosen = torch.tensor([[0, 1], [0, 1], [2, 3], [5, 7]], dtype=torch.int32)
    others = torch.tensor([[1, 0], [1, 2], [0, 1], [5, 8]], dtype=torch.int32)
    assert overlap(chosen, others, 8).tolist() == pytest.approx([1, 1 / 3, 0, 1 / 2])


def test_places_that_are_no_routed_expert_do_not_count() -> None:
    """Column 8 is a shared expert that every token gets, -1 an unused place."""
    chosen = torch.tensor([[0, 8], [0, -1]])
    others = torch.tensor([[1, 8], [0, -1]])
    assert overlap(chosen, others, 8).tolist() == [0, 1]


class TopK(torch.nn.Module):
    """Stands for SGLang's router: listened to by its class's name."""

    def __init__(self, materialised: bool = True) -> None:
        super().__init__()
        self.materialised = materialised

    def forward(self, hidden: torch.Tensor, logits: torch.Tensor) -> Any:
        done = SimpleNamespace(topk_ids=logits.topk(2, -1).indices, router_logits=logits)
        return done if self.materialised else SimpleNamespace(to_standard=lambda: done)


@pytest.mark.parametrize("materialised", [True, False])
def test_routers_are_heard_only_when_listened_to(materialised: bool) -> None:
    model = torch.nn.ModuleList([TopK(materialised), torch.nn.Linear(2, 2), TopK(materialised)])
    routes = Routes()
    routes.listen(model)
    logits = torch.tensor([[0.0, 1, 2, 3], [3, 2, 1, 0]])

    def forward(one: torch.Tensor) -> None:
        for layer in (model[0], model[2]):
            layer(one, one)

    forward(logits)
    routes.start()
    forward(logits)
    first = routes.stop()
    assert [ids.tolist() for ids in first] == [[[3, 2], [0, 1]]] * 2
    assert routes.experts == 4
    routes.start()
    forward(logits.flip(0))
    second = routes.stop()
    assert route_overlap(first, second, [0, 1], 4) == [0, 0]
    assert route_overlap(first, first, [1], 4) == [1]
    assert route_overlap([], [], [0], 0) is None


def batch(**fields: Any) -> Any:
    mode = fields.pop("mode")
    modes = SimpleNamespace(
        is_idle=lambda: mode == "idle",
        is_decode=lambda: mode == "decode",
        is_draft_extend_v2=lambda: mode == "extend",
    )
    known = {
        name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return SimpleNamespace(forward_mode=modes, **known)


def test_a_decode_forward_proposes_for_every_request() -> None:
    found = DraftForward.of(
        batch(mode="decode", batch_size=2, req_pool_indices=[3, 1], seq_lens=[100, 40], positions=[102, 42])
    )
    assert found == DraftForward(4, (3, 1), (100, 40), (102, 42), (0, 1), 1)
    assert found is not None
    assert found.facts(1) == {"batch": 2, "context_tokens": 100, "request": 1, "draft_position": 4}


def test_the_extend_proposes_after_its_last_accepted_token() -> None:
    spec = SimpleNamespace(num_accept_tokens=torch.tensor([3, 1], dtype=torch.int32))
    found = DraftForward.of(
        batch(mode="extend", batch_size=2, req_pool_indices=[3, 1], extend_prefix_lens=[100, 40],
              input_ids=list(range(14)), spec_info=spec)
    )  # fmt: skip
    assert found == DraftForward(1, (3, 1), (100, 40), (102, 40), (2, 7), 7)


@pytest.mark.parametrize("mode", ["idle", "prefill"])
def test_other_forwards_are_not_looked_at(mode: str) -> None:
    assert DraftForward.of(batch(mode=mode, batch_size=1)) is None


def test_a_budget_begins_anew_with_each_prefill() -> None:
    budget = Budget(warm=2, most=3)
    assert [budget.take() for _ in range(3)] == [False] * 3, "nothing before the first prefill"
    for _ in range(2):
        budget.restart()
        assert [budget.take() for _ in range(7)] == [False, False, True, True, True, False, False]
