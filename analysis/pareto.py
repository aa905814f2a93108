"""Strict Pareto frontiers of two rates, both to be maximised."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Frontier(Generic[T]):
    """Names on the frontier, dominated ones, and ones without two finite values; each in input order.

    A point is dominated when another is at least as good in both and better in one, so a tie in one value
    falls out and exact duplicates stay.
    """

    frontier: tuple[T, ...]
    dominated: tuple[T, ...]
    excluded: tuple[T, ...]


def pareto(points: Iterable[tuple[T, float, float]]) -> Frontier[T]:
    """Split (name, x, y) points."""
    given = list(points)
    finite = [(x, y) for _, x, y in given if math.isfinite(x) and math.isfinite(y)]
    # Walking from large x down, a point stands when its y beats every y at a larger x.
    best_beyond: dict[float, float] = {}
    best_at: dict[float, float] = {}
    for x, y in finite:
        best_at[x] = max(y, best_at.get(x, -math.inf))
    seen = -math.inf
    for x in sorted(best_at, reverse=True):
        best_beyond[x] = seen
        seen = max(seen, best_at[x])
    frontier, dominated, excluded = [], [], []
    for name, x, y in given:
        if not (math.isfinite(x) and math.isfinite(y)):
            excluded.append(name)
        elif y == best_at[x] and y > best_beyond[x]:
            frontier.append(name)
        else:
            dominated.append(name)
    return Frontier(tuple(frontier), tuple(dominated), tuple(excluded))
