"""A dense model made, not trained, whose draft is good exactly as far as it reads the right keys.

One decoder layer, and a draft layer with the same weights that sees the next token's embedding alone: at
position p it computes what the target computes at p + 1, but for its first key. So it is nearly always right
with full attention, and one wrong key shows in the acceptance. MiMo's architecture: plain attention, and a
config that names its draft layer, which SGLang's memory profile then charges.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY = 128, 4, 2, 32, 192, 256


def write_dense_model(folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    block = {
        "input_layernorm.weight": torch.ones(HIDDEN),
        "post_attention_layernorm.weight": torch.ones(HIDDEN),
        "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM, scale=0.35),
        "mlp.gate_proj.weight": normal(FEED_FORWARD, HIDDEN, scale=0.15),
        "mlp.up_proj.weight": normal(FEED_FORWARD, HIDDEN, scale=0.15),
        "mlp.down_proj.weight": normal(HIDDEN, FEED_FORWARD, scale=0.15),
    }
    for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
        block[f"self_attn.{name}.weight"] = normal(heads * HEAD_DIM, HIDDEN, scale=0.15)
        block[f"self_attn.{name}.bias"] = torch.zeros(heads * HEAD_DIM)
    embedding = normal(VOCABULARY, HIDDEN, scale=1.0)
    # Of unit mean square, so that the draft's norm of it changes nothing.
    embedding = embedding * embedding.pow(2).mean(-1, keepdim=True).rsqrt()
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": normal(VOCABULARY, HIDDEN, scale=0.5),
        "model.norm.weight": torch.ones(HIDDEN),
        "model.mtp_layers.0.token_layernorm.weight": torch.ones(HIDDEN),
        "model.mtp_layers.0.hidden_layernorm.weight": torch.ones(HIDDEN),
        "model.mtp_layers.0.final_layernorm.weight": torch.ones(HIDDEN),
        # [hidden, embedding] -> embedding.
        "model.mtp_layers.0.input_proj.weight": torch.cat(
            [torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], 1
        ),
    }
    for prefix in ("model.layers.0.", "model.mtp_layers.0."):
        weights |= {prefix + name: value.clone() for name, value in block.items()}
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 1,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def random_prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of `tokens` random ids of the dense model."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (tokens,), generator=generator).tolist()
