"""Sums over sets of keys: exact against float64, however the keys are cut, and with nothing in a set."""

import itertools

import numpy as np
import pytest
import torch

from harness.engine.probes import cached as cached_module
from harness.engine.probes.cached import attend
from harness.engine.probes.partials import combine, over_keys, stack, union
from tests.engine.probes.slow_attention import logits_and_values, random_case, read_out, shares

SCALE = 0.3


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_sums_of_one_set(cap):
    query, cached = random_case(57, spread=2.0)
    logits, values = logits_and_values(query, cached, 57, SCALE, cap)
    found = over_keys(query[None], *cached.read(0, 57), SCALE, cap)
    p = shares(logits)
    np.testing.assert_allclose(found.output[0], np.einsum("hn,hnd->hd", p, values), rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(found.entropy_nats[0], -(p * np.log(p)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(found.participation_keys[0], 1 / (p**2).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_pieces_put_together_are_the_whole(spread):
    """With a spread of 60 most pieces weigh nothing beside the largest: their sums must not overflow."""
    query, cached = random_case(64, spread=spread)
    cuts = [0, 1, 2, 9, 40, 64]
    pieces = [over_keys(query[None], *cached.read(a, b), SCALE) for a, b in itertools.pairwise(cuts)]
    whole = over_keys(query[None], *cached.read(0, 64), SCALE)
    together = union(pieces)
    for name in ("output", "entropy_nats", "participation_keys"):
        torch.testing.assert_close(getattr(together, name), getattr(whole, name), rtol=1e-4, atol=1e-5)
    logits, _ = logits_and_values(query, cached, 64, SCALE)
    ends = combine(stack(pieces), torch.tensor([[True, False, False, False, True]]))
    expected = shares(logits)[:, [0, *range(40, 64)]].sum(-1)
    np.testing.assert_allclose(ends.share_of(whole)[0, 0], expected, rtol=1e-4, atol=1e-6)


def test_a_set_of_no_keys_weighs_nothing():
    query, cached = random_case(6)
    none = over_keys(query[None], *cached.read(3, 3), SCALE)
    some = over_keys(query[None], *cached.read(0, 6), SCALE)
    sets = combine(stack([none, some]), torch.tensor([[True, True], [True, False], [False, False]]))
    assert sets.share_of(some)[:, 0].tolist() == [[1.0] * 4, [0.0] * 4, [0.0] * 4]
    assert float(sets.output[1:].abs().max()) == 0
    torch.testing.assert_close(union([none, some]).output, some.output)


def test_rows_see_what_they_are_shown():
    query, cached = random_case(12)
    rows = torch.stack([query, 2 * query, -query])
    visible = torch.ones(3, 12, dtype=torch.bool)
    visible[1, 5:] = False
    visible[2] = False
    found = over_keys(rows, *cached.read(0, 12), SCALE, visible=visible)
    alone = over_keys(rows[1:2], *cached.read(0, 5), SCALE)
    torch.testing.assert_close(found.output[1], alone.output[0])
    torch.testing.assert_close(found.entropy_nats[1], alone.entropy_nats[0])
    assert found.weight[2].tolist() == [0.0] * 4
    assert bool(found.read.isfinite().all())


@pytest.mark.parametrize("chunk", [3, 4, 1000])
def test_attention_over_ranges_and_own_tokens(monkeypatch, chunk):
    """Row r of a forward's own tokens sees its ranges of the cache, and own tokens 0 .. r."""
    monkeypatch.setattr(cached_module, "CHUNK_KEYS", chunk)
    query, cached = random_case(30)
    rows = torch.stack([query, query.flip(0), query * 0.5])
    own_keys, own_values = cached.read(20, 23)
    found = attend(rows, cached, [range(0, 4), range(11, 20)], own_keys, own_values, SCALE)
    for row in range(3):
        logits, values = logits_and_values(rows[row], cached, 30, SCALE)
        seen = [*range(0, 4), *range(11, 20), *range(20, 21 + row)]
        np.testing.assert_allclose(found[row], read_out(logits, values, seen), rtol=2e-4, atol=2e-6)


def test_quantised_keys_are_scaled_back():
    _, cached = random_case(5)
    stored = type(cached)(
        cached.slots,
        (cached.keys / 4).to(torch.float8_e4m3fn),
        cached.values.to(torch.float8_e4m3fn),
        4.0,
        1.0,
    )
    keys, values = stored.read(0, 5)
    wanted_keys, wanted_values = cached.read(0, 5)
    torch.testing.assert_close(keys, wanted_keys, rtol=0.07, atol=0.05)
    torch.testing.assert_close(values, wanted_values, rtol=0.07, atol=0.05)
