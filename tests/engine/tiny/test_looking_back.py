"""The drafts of known attention look where they say, whatever the tokens, and say what they find there."""

from pathlib import Path

import pytest
import torch

from harness.engine.tiny.export import read_model
from harness.engine.tiny.layers import rotation
from harness.engine.tiny.looking_back import INSIDE_PLACES, OUTSIDE_PLACES, READ_GAIN
from harness.engine.tiny.variants import write_variant


@pytest.mark.parametrize(("name", "places"), [("inside_mtp", INSIDE_PLACES), ("outside_mtp", OUTSIDE_PLACES)])
@torch.no_grad()
def test_a_draft_that_looks_back(name: str, places: int, tmp_path: Path) -> None:
    model = read_model(write_variant(name, tmp_path))
    tokens = 1500
    ids = torch.randint(3, 3000, (1, tokens), generator=torch.Generator().manual_seed(places))
    embedded = model.model.embed_tokens(ids)
    layer, draft = model.mtp.layers[0], model.mtp
    entry = draft._entry(embedded, torch.randn_like(embedded))
    by = rotation(model.config, torch.arange(tokens)[None])
    q, k, _, gate = layer.self_attn.project(layer.input_layernorm(entry), by)
    late = torch.arange(tokens - 300, tokens)
    scores = torch.einsum("thd,nhd->htn", q[0, late], k[0]) * model.config.head_dim**-0.5
    scores.masked_fill_(torch.arange(tokens) > late[:, None], float("-inf"))
    at = scores.softmax(-1)[:, torch.arange(300), late - places]
    assert float(at.min()) > 0.99
    assert torch.equal(gate, torch.zeros_like(gate))

    mixed = layer.self_attn(layer.input_layernorm(entry), by)[0][0, late]
    ratio = mixed.norm(dim=-1) / entry[0, late].norm(dim=-1)
    torch.testing.assert_close(ratio, torch.full_like(ratio, READ_GAIN), rtol=0.01, atol=0)
    state, _ = draft.first(embedded, torch.randn_like(embedded), torch.arange(tokens)[None])
    said = model.lm_head(state)[0, late].argmax(-1)
    assert float((said == ids[0, late - places]).float().mean()) > 0.9
