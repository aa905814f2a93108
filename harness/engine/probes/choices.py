"""What a draft head decides: its first choice, how sure it is, and which experts it asks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def margins(logits: Tensor) -> tuple[Tensor, Tensor]:
    """First choices [rows] and top-1 minus top-2 logit [rows], float32, of logits [rows, vocabulary]."""
    top, ids = logits.float().topk(2, dim=-1)
    return ids[:, 0], top[:, 0] - top[:, 1]


def overlap(chosen: Tensor, others: Tensor, experts: int) -> Tensor:
    """Jaccard index of two choices of experts, |A and B| / |A or B|, [rows].

    Args:
        chosen, others: [rows, k] expert ids; an id outside 0 .. experts - 1 (a shared expert's column, an
            unused place) counts for nothing.
        experts: routed experts.
    """
    a, b = _as_sets(chosen, experts), _as_sets(others, experts)
    return (a & b).sum(-1) / (a | b).sum(-1).clamp_min(1)


def _as_sets(ids: Tensor, experts: int) -> Tensor:
    ids = ids.to(torch.int64)
    inside = (ids >= 0) & (ids < experts)
    sets = torch.zeros((ids.shape[0], experts + 1), dtype=torch.bool, device=ids.device)
    sets.scatter_(1, torch.where(inside, ids, experts), True)
    return sets[:, :experts]


class Routes:
    """Experts that a draft's routers chose, layer by layer, during a forward.

    Listens to SGLang's `TopK` modules; a router whose kernel keeps its choice to itself is not seen.
    """

    def __init__(self) -> None:
        self.experts = 0
        self._chosen: list[Tensor] | None = None

    def listen(self, model: Any) -> None:
        """Listen to every router of a torch module."""
        for module in model.modules():
            if type(module).__name__ == "TopK":
                module.register_forward_hook(self._heard)

    def start(self) -> None:
        """Collect the choices of the forward that comes."""
        self._chosen = []

    def stop(self) -> list[Tensor]:
        """What was collected, [tokens, k] a router, and no more."""
        chosen, self._chosen = self._chosen or [], None
        return chosen

    def _heard(self, router: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._chosen is None:
            return
        if not hasattr(output, "topk_ids") and hasattr(output, "to_standard"):
            output = output.to_standard()
        ids = getattr(output, "topk_ids", None)
        if ids is not None:
            self.experts = int(output.router_logits.shape[-1])
            self._chosen.append(ids.clone())


def route_overlap(routes: list[Tensor], others: list[Tensor], tokens: list[int], experts: int) -> Any:
    """Mean overlap over the routers for chosen tokens, a list of floats; None without routers."""
    if not routes or len(routes) != len(others):
        return None
    each = [overlap(a[tokens], b[tokens], experts) for a, b in zip(routes, others, strict=True)]
    return torch.stack(each).mean(0).tolist()
