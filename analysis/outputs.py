"""Generated tokens: do they loop, and do two arms agree?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MIN_TOKENS = 24
_MAX_PERIOD = 64
_MIN_REPEATS = 3
# A tail counts as looping when the cycle covers this much of the output, or this many tokens.
_MIN_SHARE = 0.3
_MIN_LOOP_TOKENS = 16
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Repetition:
    """Verdict of the screen.

    Attributes:
        verdict: `loop` for one that reaches the output's end, `ok`, or `too_short_to_judge`.
        period: tokens of one turn of that loop.
        loop_tokens: tokens it covers.
        coverage: share of all tokens that lie in loops, also in those that the output left again.
    """

    verdict: str
    period: int = 0
    loop_tokens: int = 0
    coverage: float = 0.0

    @property
    def inflates(self) -> bool:
        """Enough of the output repeats to make drafting too easy: acceptance length and TPOT are off."""
        return self.verdict == "loop" or self.coverage >= _MIN_SHARE

    def __str__(self) -> str:
        return f"loop(period={self.period})" if self.verdict == "loop" else self.verdict


def screen_repetition(ids: Sequence[int]) -> Repetition:
    """Look for a cycle at the end of an output.

    A period p repeats when ids[i] == ids[i - p] over a run that reaches the end (a tenth of its tokens may
    differ, as counters inside a loop do), at least 3 times and long enough to matter.
    """
    n = len(ids)
    if n < _MIN_TOKENS:
        return Repetition("too_short_to_judge")
    inside = _in_loops(ids)
    for period in range(1, min(_MAX_PERIOD, n // _MIN_REPEATS) + 1):
        run = _run_length(ids, period)
        enough = max(_MIN_REPEATS * period, _MIN_LOOP_TOKENS, int(_MIN_SHARE * n))
        if run >= enough:
            inside[n - run :] = True
            return Repetition("loop", period, run, float(inside.mean()))
    return Repetition("ok", coverage=float(inside.mean()))


def _in_loops(ids: Sequence[int]) -> NDArray[np.bool_]:
    """Which tokens lie in an exact cycle anywhere: 3 turns and 16 tokens at least."""
    values = np.asarray(ids)
    inside = np.zeros(values.size, dtype=np.bool_)
    for period in range(1, min(_MAX_PERIOD, values.size // _MIN_REPEATS) + 1):
        same = np.concatenate(([False], values[period:] == values[:-period], [False]))
        starts, ends = np.flatnonzero(np.diff(same.astype(np.int8))).reshape(-1, 2).T
        for start, end in zip(starts, ends, strict=True):
            if end - start + period >= max(_MIN_REPEATS * period, _MIN_LOOP_TOKENS):
                inside[start : end + period] = True
    return inside


def _run_length(ids: Sequence[int], period: int) -> int:
    """Longest tail of period `period` with at most a tenth of its comparisons failing."""
    misses, longest = 0, 0
    for compared, i in enumerate(range(len(ids) - 1, period - 1, -1), start=1):
        misses += ids[i] != ids[i - period]
        if misses > _TOLERANCE * compared + 1:
            break
        if ids[i] == ids[i - period] and misses <= _TOLERANCE * compared:
            longest = compared + period
    return longest


@dataclass(frozen=True)
class Comparison:
    """Two outputs of the same prompt: identical, or the first position where they differ."""

    identical: bool
    first_difference: int | None
    tokens: int


def compare_outputs(a: Sequence[int], b: Sequence[int]) -> Comparison:
    """Compare token ids; an output that is a prefix of the other differs where it ends."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return Comparison(False, position, position)
    shorter = min(len(a), len(b))
    if len(a) != len(b):
        return Comparison(False, shorter, shorter)
    return Comparison(True, None, shorter)
