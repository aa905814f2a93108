"""Muon for weight matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95
_MATRIX_DECAY = 0.01
_TABLE_SHARE = 0.3


def orthogonalised(matrix: Tensor, rounds: int = 5) -> Tensor:
    """A matrix with the singular vectors of `matrix` and singular values near one.

    Newton-Schulz iteration with the quintic of Jordan et al., "Muon" (2024); works on [..., rows, columns].
    """
    x = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    a, b, c = _COEFFICIENTS
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def _is_table(name: str) -> bool:
    return "embed_tokens" in name or "lm_head" in name


def _is_matrix(name: str, weight: Tensor) -> bool:
    return weight.dim() >= 2 and min(weight.shape[-2:]) >= 16 and "conv1d" not in name and not _is_table(name)


class Optimiser:
    """Both optimisers over one group of named parameters.

    Args:
        named: parameters to train.
        matrix_rate, other_rate: learning rates at full scale.
        clip: largest norm of all gradients together.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        matrix_rate: float = 0.02,
        other_rate: float = 3e-3,
        clip: float = 1.0,
    ) -> None:
        pairs = list(named)
        self._parameters = [p for _, p in pairs]
        self._matrices = [p for name, p in pairs if _is_matrix(name, p)]
        self._momentum = [torch.zeros_like(p) for p in self._matrices]
        tables = [p for name, p in pairs if _is_table(name)]
        rest = [p for name, p in pairs if not _is_matrix(name, p) and not _is_table(name)]
        # Adam moves a rare token's row as far as a frequent one's: slow rows keep rare words apart.
        groups = [{"params": rest, "share": 1.0}, {"params": tables, "share": _TABLE_SHARE}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self._matrix_rate, self._other_rate, self._clip = matrix_rate, other_rate, clip

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply and clear the gradients, with learning rates times `scale`."""
        nn.utils.clip_grad_norm_(self._parameters, self._clip)
        for weight, momentum in zip(self._matrices, self._momentum, strict=True):
            if weight.grad is None:
                continue
            momentum.mul_(_MOMENTUM).add_(weight.grad)
            update = orthogonalised(weight.grad + _MOMENTUM * momentum)
            shape_scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
            weight.mul_(1 - _MATRIX_DECAY * self._matrix_rate * scale)
            weight.add_(update, alpha=-self._matrix_rate * scale * shape_scale)
        for group in self._adam.param_groups:
            group["lr"] = self._other_rate * scale * group["share"]
        self._adam.step()
        self.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        for weight in self._parameters:
            weight.grad = None
