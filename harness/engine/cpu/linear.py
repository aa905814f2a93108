"""Matrix products whose rows don't depend on how many rows share the call.

Libraries pick another kernel, with another order of summation, for one row than for several. A verify pass
multiplies several rows where decoding multiplies one, and a last-bit difference can flip a greedy choice.
Where the processor's library does so for a weight, small calls are padded to a fixed number of rows. Larger
calls are left alone: for more than one output their rows have been found to agree with those of padded calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PADDED_ROWS = 16

_needs_padding: dict[tuple[int, int, int, torch.dtype], bool] = {}


def stable_linear(
    original: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`torch.nn.functional.linear`, padded where x [rows, in] has few rows and the weight asks for it."""
    if x.dim() != 2 or not 0 < x.shape[0] < PADDED_ROWS or not _must_pad(original, x, weight):
        return original(x, weight, bias)
    rows = x.shape[0]
    return original(_padded(x), weight, bias)[:rows]


def stable_lm_head(
    original: Callable[..., Tensor], self: Any, hidden_states: Tensor, lm_head: Any, *args: Any, **kwargs: Any
) -> Tensor:
    """The same for the output layer, which SGLang multiplies by other means."""
    rows = hidden_states.shape[0]
    weight = getattr(lm_head, "weight", None)
    if weight is None or not 0 < rows < PADDED_ROWS or not _must_pad(_matmul, hidden_states, weight):
        return original(self, hidden_states, lm_head, *args, **kwargs)
    return original(self, _padded(hidden_states), lm_head, *args, **kwargs)[:rows]


def _padded(x: Tensor) -> Tensor:
    return functional.pad(x, (0, 0, 0, PADDED_ROWS - x.shape[0]))


def _must_pad(product: Callable[..., Tensor], x: Tensor, weight: Tensor) -> bool:
    """Whether calls of fewer rows give other bits for this shape; found out once per shape, by trying."""
    key = (weight.shape[0], weight.shape[1], weight.stride(0), x.dtype)
    answer = _needs_padding.get(key)
    if answer is None:
        answer = _rows_differ(product, x, weight)
        _needs_padding[key] = answer
    return answer


def _rows_differ(product: Callable[..., Tensor], x: Tensor, weight: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(PADDED_ROWS, x.shape[1], generator=generator).to(x.dtype)
    whole = product(probe, weight)
    return any(not torch.equal(product(probe[:n], weight), whole[:n]) for n in range(1, PADDED_ROWS))


def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(x.to(weight.dtype), weight.T)
