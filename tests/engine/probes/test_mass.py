"""Attention mass of one query: against float64, and on attention whose place is known."""

import itertools
import math

import numpy as np
import pytest
import torch

from harness.engine.probes import cached as cached_module
from harness.engine.probes.cached import CachedKeys
from harness.engine.probes.mass import Layout, distance_edges, measure
from tests.engine.probes.slow_attention import logits_and_values, random_case, read_out, shares

SCALE = 0.4
WINDOWS = ((20, 4), (5, 2), (40, 4), (500, 0))


def kept_positions(window, committed, position):
    """Plainly: the sink, the window before `committed`, and what the step wrote."""
    tokens, sink = window
    return [
        p for p in range(position + 1) if p >= committed or p < sink or p >= committed - tokens
    ]  # fmt: skip


@pytest.mark.parametrize("case", [(100, 100), (100, 104), (3, 3), (23, 25), (24, 24), (64, 66)])
def test_every_measure_against_float64(monkeypatch, case):
    committed, position = case
    monkeypatch.setattr(cached_module, "CHUNK_KEYS", 7)
    query, cached = random_case(position + 9, spread=1.5, seed=position)
    found = measure(query, cached, committed, position, WINDOWS, scale=SCALE)
    logits, values = logits_and_values(query, cached, position + 1, SCALE)
    p = shares(logits)
    full = np.einsum("hn,hnd->hd", p, values)
    for window, got in zip(WINDOWS, found["windows"], strict=True):
        seen = kept_positions(window, committed, position)
        tail = sorted(set(range(position + 1)) - set(seen))
        assert (got["window_tokens"], got["sink_tokens"]) == window
        assert got["mass"] == pytest.approx(p[:, seen].sum(-1).mean(), rel=1e-4)
        change = full - read_out(logits, values, seen)
        lost = np.einsum("hn,hnd->hd", p[:, tail], values[:, tail])
        norm, joint = np.linalg.norm(full, axis=-1), np.linalg.norm(full)
        by_head = {"perturbation": change, "tail_share": lost}
        for name, vector in by_head.items():
            assert got[name] == pytest.approx(
                (np.linalg.norm(vector, axis=-1) / norm).mean(), rel=1e-3, abs=1e-5
            )
            assert got[f"{name}_joint"] == pytest.approx(np.linalg.norm(vector) / joint, rel=1e-3, abs=1e-5)
        assert got["tail_keys"] == len(tail)
        if tail:
            q = p[:, tail] / p[:, tail].sum(-1, keepdims=True)
            assert got["tail_entropy_nats"] == pytest.approx(
                -(q * np.log(q)).sum(-1).mean(), rel=1e-3, abs=1e-5
            )
            assert got["tail_participation_keys"] == pytest.approx((1 / (q**2).sum(-1)).mean(), rel=1e-3)
        else:
            assert got["tail_entropy_nats"] is None and got["tail_participation_keys"] is None
    sink = min(WINDOWS[0][1], committed)
    assert found["sink_mass"] == pytest.approx(p[:, :sink].sum(-1).mean(), rel=1e-4)
    edges = distance_edges(position + 1)
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        at = [k for k in range(sink, position + 1) if low <= position - k < high]
        assert found["distance_mass"][i] == pytest.approx(p[:, at].sum(-1).mean(), rel=1e-4, abs=1e-6)
    assert found["sink_mass"] + sum(found["distance_mass"]) == pytest.approx(1, rel=1e-5)


def looking_at(positions, where, dim=8, strength=80.0):
    """Keys of which the query sees those in `where`, all alike, and no others; values tell them apart."""
    keys = torch.zeros(positions, 1, dim)
    keys[list(where), 0, 0] = strength
    values = torch.zeros(positions, 1, 2)
    values[:, 0, 0] = 1.0
    values[list(where), 0, 1] = 3.0
    query = torch.zeros(2, dim)
    query[:, 0] = 1.0
    return query, CachedKeys(torch.arange(positions, dtype=torch.int32), keys, values)


def test_attention_that_looks_only_inside():
    query, cached = looking_at(200, where=[2, 195, 199])
    (near,) = measure(query, cached, 198, 199, [(16, 4)], scale=1.0)["windows"]
    assert near["mass"] == pytest.approx(1)
    assert near["perturbation"] == near["tail_share"] == pytest.approx(0, abs=1e-6)
    assert near["tail_keys"] == 200 - 4 - 16 - 2


def test_attention_that_looks_only_outside():
    query, cached = looking_at(200, where=[50, 51, 52, 53])
    found = measure(query, cached, 198, 199, [(16, 4), (190, 4)], scale=1.0)
    near, wide = found["windows"]
    assert near["mass"] == pytest.approx(0, abs=1e-6)
    assert near["tail_share"] == pytest.approx(1)
    # all keys: (1, 3); inside alone: (1, 0)
    assert near["perturbation"] == near["perturbation_joint"] == pytest.approx(3 / math.sqrt(10))
    assert near["tail_participation_keys"] == pytest.approx(4)
    assert near["tail_entropy_nats"] == pytest.approx(math.log(4))
    assert wide["mass"] == pytest.approx(1) and wide["perturbation"] == pytest.approx(0, abs=1e-6)
    assert found["distance_mass"][8] == pytest.approx(1), "distances 128 to 255"


def test_even_attention():
    query, cached = looking_at(1000, where=range(1000))
    (near,) = measure(query, cached, 999, 999, [(95, 4)], scale=1.0)["windows"]
    assert near["mass"] == pytest.approx(0.1)
    assert near["tail_share"] == pytest.approx(0.9)
    assert near["tail_keys"] == 900
    assert near["tail_participation_keys"] == pytest.approx(900, rel=1e-3)
    assert near["tail_entropy_nats"] == pytest.approx(math.log(900), rel=1e-4)


@pytest.mark.parametrize(("committed", "position"), [(0, 0), (1, 3), (4096, 4098), (5000, 5000)])
def test_runs_are_a_partition_and_sets_are_unions_of_them(committed, position):
    layout = Layout.of(committed, position, ((252, 4), (60, 4), (8000, 16)))
    keys = [p for run in layout.runs for p in run]
    assert keys == list(range(position + 1))
    for window, ranges in zip(((252, 4), (60, 4), (8000, 16)), layout.kept, strict=True):
        (row,) = layout.member([ranges])
        inside = [p for run, chosen in zip(layout.runs, row, strict=True) if chosen for p in run]
        assert inside == kept_positions(window, committed, position)
    assert len(layout.runs) < 40


def test_memory_does_not_grow_with_the_context(monkeypatch):
    largest = 0
    original = CachedKeys.read

    def reading(self, first, end):
        nonlocal largest
        largest = max(largest, end - first)
        return original(self, first, end)

    monkeypatch.setattr(CachedKeys, "read", reading)
    positions = 100_000
    one = torch.ones(1, 1, 4)
    cached = CachedKeys(torch.zeros(positions, dtype=torch.int32), one, one)
    found = measure(torch.ones(2, 4), cached, positions - 1, positions - 1, [(4032, 64)], scale=1.0)
    assert largest == cached_module.CHUNK_KEYS < positions
    assert found["windows"][0]["mass"] == pytest.approx((4032 + 64 + 1) / positions, rel=1e-4)
