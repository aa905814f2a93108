"""Random request lifetimes against a dense map: a forward must read exactly what its request last wrote.

End-to-end equality alone is no proof: a ring one slot short keeps most acceptance histograms as they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from harness.engine.geometry import RingGeometry
from harness.engine.pruning import needed_spans


class StaleReadError(AssertionError):
    """A forward read a slot that does not hold its position."""


class ShortRing(RingGeometry):
    """One slot short."""

    @property
    def period_slots(self) -> int:
        return self.window_tokens + self.step_tokens - 1


class LateWrites(RingGeometry):
    """Writes land one slot late (reads do not)."""


class OverlappingRows(RingGeometry):
    """Each row starts one slot early."""

    def slot(self, row: int, position: int) -> int:
        return super().slot(row, position) - (row > 1)


class LongReads(RingGeometry):
    """Reads one key too many."""

    def kept(self, committed: int, recent_from: int) -> tuple[range, range]:
        return super().kept(committed, recent_from - 1)


@dataclass
class Pool:
    """The draft's pool and, beside it, what each request wrote."""

    geometry: RingGeometry
    slots: dict[int, int] = field(default_factory=dict)
    written: dict[tuple[int, int], int] = field(default_factory=dict)
    clock: int = 0

    def write(self, row: int, positions: list[int], kept: list[bool] | None = None) -> None:
        for i, position in enumerate(positions):
            self.clock += 1
            late = isinstance(self.geometry, LateWrites)
            live = kept is None or kept[i]
            slot = self.geometry.slot(row, position + late) if live else 0
            self.slots[slot] = self.clock
            self.written[row, position] = self.clock

    def read(self, row: int, positions: list[int]) -> None:
        for position in positions:
            if self.slots.get(self.geometry.slot(row, position)) != self.written[row, position]:
                raise StaleReadError(f"row {row}, position {position}")

    def forget(self, row: int) -> None:
        """The row gets a new request, which knows nothing of the old one's positions."""
        self.written = {key: when for key, when in self.written.items() if key[0] != row}


@dataclass
class Request:
    """One request: a prompt in chunks, then speculative steps, then the row is free again."""

    prompt: int
    chunk: int
    steps: int
    done: int = 0


def lifetimes(
    geometry: RingGeometry, depth: int, topk: int, prune: bool, seed: int, rounds: int = 120
) -> Pool:
    """Serve random requests in three rows."""
    rng = random.Random(seed)
    pool = Pool(geometry)
    active: dict[int, Request] = {}
    reach = geometry.window_tokens + geometry.sink_tokens
    for _ in range(rounds):
        row = rng.randint(1, 3)
        request = active.get(row)
        if request is None:
            pool.forget(row)
            prompt = rng.randint(1, 4 * reach + 3)
            active[row] = Request(prompt, rng.randint(1, 2 * reach), rng.randint(1, 12))
        elif request.done < request.prompt:
            _prefill(pool, row, request, prune)
        elif request.steps == 0:
            del active[row]
        else:
            _step(pool, row, request, depth, topk, rng)
            if rng.random() < 0.05:
                # Retracted: everything so far is computed again, as one longer prompt.
                request.prompt, request.done = request.done, 0
                pool.forget(row)
    return pool


def _flat(spans: tuple[range, range]) -> list[int]:
    return [position for span in spans for position in span]


def _prefill(pool: Pool, row: int, request: Request, prune: bool) -> None:
    geometry = pool.geometry
    first = request.done
    tokens = min(request.chunk, request.prompt - first)
    end = first + tokens
    if prune:
        spans = needed_spans(geometry, first, tokens, request.prompt)
        positions = [first + offset for offset in _flat(spans)]
        if positions and positions[-1] != end - 1:
            positions.append(end - 1)
    else:
        positions = list(range(first, end))
    # A backend stores a chunk's keys before it reads the chunk's prefix.
    pool.write(row, positions, [geometry.survives(position, end) for position in positions])
    request.done = end
    if end < request.prompt and prune:
        return
    window = geometry.window_tokens
    pool.read(row, _flat(geometry.kept(first, end - window)))
    if end == request.prompt:
        # What the last token sees: the sink and the window, whatever was cut where.
        wanted = {p for p in range(end) if p < geometry.sink_tokens or p >= end - window}
        assert wanted <= set(_flat(geometry.kept(first, end - window))) | set(positions)
        pool.read(row, sorted(wanted))


def _step(pool: Pool, row: int, request: Request, depth: int, topk: int, rng: random.Random) -> None:
    geometry, committed = pool.geometry, request.done
    steps = depth - 1
    kept = _flat(geometry.kept(committed, committed - geometry.window_tokens))
    for step in range(steps):
        pool.write(row, [committed + branch * steps + step for branch in range(topk)])
        for branch in range(topk):
            start = committed + branch * steps
            pool.read(row, [*kept, *range(start, start + step + 1)])
    # Draft extend stores the verified window, then reads its prefix.
    pool.write(row, list(range(committed, committed + depth)))
    pool.read(row, kept)
    request.done = committed + rng.randint(1, depth)
    request.steps -= 1


SHAPES = [
    (sink, window, depth, topk)
    for sink, window, depth, topk in [
        (0, 4, 4, 1), (1, 7, 3, 1), (4, 32, 7, 1), (3, 9, 5, 1), (2, 5, 2, 1), (5, 6, 6, 1),
        (0, 8, 3, 2), (4, 24, 8, 3), (1, 12, 4, 3),
    ]
]  # fmt: skip


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize(("sink", "window", "depth", "topk"), SHAPES)
def test_no_forward_reads_a_foreign_or_evicted_slot(
    sink: int, window: int, depth: int, topk: int, prune: bool
) -> None:
    for seed in range(12):
        geometry = RingGeometry(sink, window, depth * topk)
        pool = lifetimes(geometry, depth, topk, prune, seed)
        assert max(pool.slots) <= geometry.pool_slots(3)
        assert min(pool.slots) >= 0


@pytest.mark.parametrize("wrong", [ShortRing, LateWrites, OverlappingRows, LongReads])
@pytest.mark.parametrize(("sink", "window", "depth", "topk"), [shape for shape in SHAPES if shape[3] == 1])
def test_the_replay_catches_a_wrong_ring(
    wrong: type[RingGeometry], sink: int, window: int, depth: int, topk: int
) -> None:
    caught = 0
    for seed in range(12):
        try:
            lifetimes(wrong(sink, window, depth * topk), depth, topk, False, seed)
        except (StaleReadError, KeyError):
            caught += 1
    assert caught >= 11, f"{wrong.__name__} caught in {caught} of 12 replays"


def test_a_full_pool_ends_at_its_last_slot() -> None:
    geometry = RingGeometry(64, 4032, 7)
    assert geometry.row_slots == 4103
    last = max(geometry.slot(5, position) for position in range(3 * geometry.row_slots))
    assert last == geometry.pool_slots(5)
    assert {geometry.slot(0, position) for position in range(9000)} == {0}
    assert min(geometry.slot(1, position) for position in range(9000)) == 1


def test_short_contexts_are_read_whole() -> None:
    geometry = RingGeometry(4, 16, 5)
    for committed in range(21):
        assert _flat(geometry.kept(committed, committed - 16)) == list(range(committed))
    assert _flat(geometry.kept(21, 5)) == [0, 1, 2, 3, *range(5, 21)]


def test_a_chunk_overfills_where_its_own_keys_are_more_than_may_be_read() -> None:
    geometry = RingGeometry(4, 6, 3)
    for first in range(12):
        for tokens in range(1, 16):
            end = first + tokens
            allowed = set(_flat(geometry.kept(end, end - 6)))
            assert geometry.overfills(first, tokens) == (not set(range(first, end)) <= allowed)
