"""Tiny Qwen3.5-style checkpoints with random weights, in which drafts are right some of the time.

The output layer answers each token with its successor in a fixed random permutation, and so does the draft
head, which passes on the token's embedding. Layers with random weights disturb both, in different ways: the
target still has a clear favourite, and a draft is accepted to a random depth.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 256


def write_checkpoint(
    folder: Path, experts: int = 0, head_dim: int = 32, noise: float = 1.0, seed: int = 0
) -> Path:
    """A hybrid of two gated-delta-rule and two full-attention layers with one MTP layer, in float32.

    `experts` > 0 makes every feed-forward a mixture of experts, two of them active, with a shared one.
    """
    folder.mkdir(parents=True)
    config = _config(experts, head_dim)
    weights = _Weights(config, noise, torch.Generator().manual_seed(seed)).build()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    return folder


def _config(experts: int, head_dim: int) -> dict:
    mixture = {
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return {
        "architectures": ["Qwen3_5MoeForCausalLM" if experts else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if experts else "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attn_output_gate": True,
        "attention_bias": False,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
        "use_cache": True,
        **(mixture if experts else {}),
    }


class _Weights:
    def __init__(self, config: dict, noise: float, generator: torch.Generator) -> None:
        self.config, self.noise, self.generator = config, noise, generator
        self.hidden = config["hidden_size"]

    def build(self) -> dict[str, Tensor]:
        embeddings = self._normal(VOCABULARY, self.hidden)
        successor = torch.randperm(VOCABULARY, generator=self.generator)
        output = torch.empty_like(embeddings)
        output[successor] = embeddings
        weights = {
            "model.embed_tokens.weight": embeddings,
            "lm_head.weight": output / self.hidden**0.5,
            "model.norm.weight": torch.zeros(self.hidden),
            "mtp.fc.weight": torch.cat(
                [torch.eye(self.hidden), 0.1 * self._matrix(self.hidden, self.hidden)], 1
            ),
            "mtp.norm.weight": torch.zeros(self.hidden),
            "mtp.pre_fc_norm_embedding.weight": torch.zeros(self.hidden),
            "mtp.pre_fc_norm_hidden.weight": torch.zeros(self.hidden),
        }
        for i, kind in enumerate(self.config["layer_types"]):
            weights |= self._layer(f"model.layers.{i}.", kind == "full_attention")
        return weights | self._layer("mtp.layers.0.", True)

    def _layer(self, prefix: str, full: bool) -> dict[str, Tensor]:
        layer = {
            "input_layernorm.weight": 0.1 * self._normal(self.hidden),
            "post_attention_layernorm.weight": 0.1 * self._normal(self.hidden),
            **(self._attention() if full else self._delta_rule()),
            **(self._mixture() if self.config.get("num_experts") else self._feed_forward("mlp.", 96)),
        }
        return {prefix + name: tensor.contiguous() for name, tensor in layer.items()}

    def _attention(self) -> dict[str, Tensor]:
        heads, kv_heads, dim = 4, 2, self.config["head_dim"]
        return {
            "self_attn.q_proj.weight": self._matrix(heads * 2 * dim, self.hidden),
            "self_attn.k_proj.weight": self._matrix(kv_heads * dim, self.hidden),
            "self_attn.v_proj.weight": self._matrix(kv_heads * dim, self.hidden),
            "self_attn.o_proj.weight": self.noise * self._matrix(self.hidden, heads * dim),
            "self_attn.q_norm.weight": torch.ones(dim),
            "self_attn.k_norm.weight": torch.ones(dim),
        }

    def _delta_rule(self) -> dict[str, Tensor]:
        keys, values, value_heads = 32, 64, 4
        channels = 2 * keys + values
        return {
            "linear_attn.in_proj_qkv.weight": self._matrix(channels, self.hidden),
            "linear_attn.in_proj_z.weight": self._matrix(values, self.hidden),
            "linear_attn.in_proj_b.weight": self._matrix(value_heads, self.hidden),
            "linear_attn.in_proj_a.weight": self._matrix(value_heads, self.hidden),
            "linear_attn.conv1d.weight": 0.5 * self._normal(channels, 1, 4),
            "linear_attn.dt_bias": self._normal(value_heads) - 2,
            "linear_attn.A_log": torch.zeros(value_heads),
            "linear_attn.norm.weight": torch.ones(16),
            "linear_attn.out_proj.weight": self.noise * self._matrix(self.hidden, values),
        }

    def _feed_forward(self, prefix: str, width: int) -> dict[str, Tensor]:
        return {
            prefix + "gate_proj.weight": self._matrix(width, self.hidden),
            prefix + "up_proj.weight": self._matrix(width, self.hidden),
            prefix + "down_proj.weight": self.noise * self._matrix(self.hidden, width),
        }

    def _mixture(self) -> dict[str, Tensor]:
        experts, width = self.config["num_experts"], self.config["moe_intermediate_size"]
        return {
            "mlp.gate.weight": 4 * self._matrix(experts, self.hidden),
            "mlp.experts.gate_up_proj": self._normal(experts, 2 * width, self.hidden) / self.hidden**0.5,
            "mlp.experts.down_proj": self.noise * self._normal(experts, self.hidden, width) / width**0.5,
            "mlp.shared_expert_gate.weight": self._matrix(1, self.hidden),
            **self._feed_forward("mlp.shared_expert.", width),
        }

    def _matrix(self, rows: int, columns: int) -> Tensor:
        return self._normal(rows, columns) / columns**0.5

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)
