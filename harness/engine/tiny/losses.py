"""Next-token loss of the trunk and the draft layer's distillation loss over its recursive steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.tiny.model import TinyHybrid

_STEP_DISCOUNT = 0.9
_PROMPT_SHARE = 0.125


@dataclass(frozen=True)
class Batch:
    """Rows of training text.

    Attributes:
        ids: [batch, tokens + 1].
        answer: [batch, tokens + 1], whether a token belongs to an answer.
        positions: [batch, tokens + 1], rotary positions (gaps stand for text that was left out).
    """

    ids: Tensor
    answer: Tensor
    positions: Tensor


def trunk_loss(
    model: TinyHybrid, batch: Batch, states: Tensor, prompt_weight: float, random: torch.Generator
) -> Tensor:
    """Mean cross-entropy over all answer tokens and an eighth of the prompt's, the latter down-weighted.

    Args:
        states: [batch, tokens, hidden] of `batch.ids[:, :-1]`.
        prompt_weight: weight of all prompt tokens beside as many answer tokens.
    """
    target, answer = batch.ids[:, 1:], batch.answer[:, 1:]
    kept = answer | (torch.rand(answer.shape, generator=random) < _PROMPT_SHARE)
    weight = torch.where(answer[kept], 1.0, prompt_weight / _PROMPT_SHARE)
    loss = F.cross_entropy(model.lm_head(states[kept]), target[kept], reduction="none")
    return (loss * weight).sum() / weight.sum()


def draft_loss(
    model: TinyHybrid, batch: Batch, states: Tensor, steps: int, chains: int, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each draft step against the trunk's own distribution, on sampled chains.

    A chain from place i predicts tokens i + 2, i + 3, ...; step s is fed token i + s (the true one) and its
    own state of the step before, as at serving time after s - 1 accepted drafts.

    Args:
        states: [batch, tokens, hidden], detached.
        steps: draft steps a chain.
        chains: chains a row, mostly inside answers.

    Returns:
        The loss, and for each step how often the draft's best token is the trunk's where all steps before
        agreed: [steps, 2] as (agreed, tried), answer tokens only.
    """
    ids, tokens = batch.ids, batch.ids.shape[1] - 1
    places = tokens - steps - 1
    head, embed = model.lm_head.weight.detach(), model.model.embed_tokens.weight.detach()
    positions = batch.positions[:, : tokens - 1]
    state, cache = model.mtp.first(F.embedding(ids[:, 1:tokens], embed), states[:, :-1], positions)
    odds = torch.where(batch.answer[:, 2 : places + 2], 1.0, 0.05)
    base = torch.multinomial(odds, min(chains, places), generator=random)
    row = torch.arange(ids.shape[0])[:, None]
    state = state[row, base]
    counted = batch.answer[row, base + 2]
    weight = torch.where(counted, 1.0, 0.1)
    with torch.no_grad():
        teacher = F.linear(states[row[..., None], base[..., None] + 1 + torch.arange(steps)], head)
        wanted, best = teacher.softmax(-1), teacher.argmax(-1)
    agreed, counts = counted, []
    loss = states.new_zeros(())
    for step in range(steps):
        if step:
            fed = F.embedding(ids[row, base + step + 1], embed)
            state = model.mtp.next(fed, state, positions[row, base] + step, base, cache)
        said = F.linear(state, head).log_softmax(-1)
        each = -(wanted[:, :, step] * said).sum(-1)
        loss = loss + _STEP_DISCOUNT**step * (each * weight).sum() / weight.sum()
        tried, agreed = agreed, agreed & (said.argmax(-1) == best[:, :, step])
        counts.append(torch.stack([agreed.sum(), tried.sum()]))
    return loss / steps, torch.stack(counts)
