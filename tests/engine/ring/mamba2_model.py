"""A tiny hybrid of Mamba2, attention, feed-forward and expert layers with an MTP head, made, not trained.

Nemotron-H's architecture. The draft head has the weights of the target's last two layers (attention and
experts) and sees the next token's embedding alone; the target's first four layers disturb what its last two
are given. So the draft is right as often as those are weak, and as far as it reads the right keys.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

PATTERN, MTP_PATTERN = "M*-M*E", "*E"
"""M Mamba2, * attention, - feed-forward, E experts."""
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY = 128, 4, 2, 32, 96, 256
EXPERTS, EXPERT_WIDTH = 4, 64
MAMBA_HEADS, MAMBA_HEAD_DIM, GROUPS, STATE, TAPS = 8, 16, 2, 16, 4
ATTENTION_LAYERS = PATTERN.count("*")
KEY_BYTES = 2 * KV_HEADS * HEAD_DIM * 4
"""Of one token in one attention layer, float32."""


def write_mamba2_model(folder: Path, noise: float = 0.06, seed: int = 0) -> Path:
    """Write the checkpoint into `folder` and return it; `noise` scales what the first four layers add."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_Weights(noise, seed).build(), folder / "model.safetensors")
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": PATTERN,
        "num_hidden_layers": len(PATTERN),
        "mtp_hybrid_override_pattern": MTP_PATTERN,
        "num_nextn_predict_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "layer_norm_epsilon": 1e-5,
        "mlp_hidden_act": "relu2",
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": EXPERT_WIDTH,
        "moe_shared_expert_intermediate_size": EXPERT_WIDTH,
        "mamba_num_heads": MAMBA_HEADS,
        "mamba_head_dim": MAMBA_HEAD_DIM,
        # SGLang's config takes the mixer's groups from the one name and the pool's from the other.
        "mamba_n_groups": GROUPS,
        "n_groups": GROUPS,
        "ssm_state_size": STATE,
        "mamba_d_conv": TAPS,
        "chunk_size": 32,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class _Weights:
    def __init__(self, noise: float, seed: int) -> None:
        self.noise = noise
        self.generator = torch.Generator().manual_seed(seed)

    def build(self) -> dict[str, Tensor]:
        embedding = self._normal(VOCABULARY, HIDDEN, scale=1.0)
        # Of unit mean square, so that the draft's norm of it changes nothing.
        embedding = embedding * embedding.pow(2).mean(-1, keepdim=True).rsqrt()
        weights = {
            "backbone.embeddings.weight": embedding,
            "backbone.norm_f.weight": torch.ones(HIDDEN),
            "lm_head.weight": self._normal(VOCABULARY, HIDDEN, scale=0.5),
            "mtp.layers.0.enorm.weight": torch.ones(HIDDEN),
            "mtp.layers.0.hnorm.weight": torch.ones(HIDDEN),
            # [embedding, hidden] -> embedding.
            "mtp.layers.0.eh_proj.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1),
            "mtp.layers.1.final_layernorm.weight": torch.ones(HIDDEN),
        }
        makers = {"M": self._mamba2, "*": self._attention, "-": self._feed_forward, "E": self._experts}
        shared = len(PATTERN) - len(MTP_PATTERN)
        for i, kind in enumerate(PATTERN):
            layer = {"norm.weight": torch.ones(HIDDEN)}
            scale = self.noise if i < shared else 1.0
            layer |= {f"mixer.{name}": value for name, value in makers[kind](scale).items()}
            weights |= {f"backbone.layers.{i}.{name}": value for name, value in layer.items()}
            if i >= shared:
                weights |= {f"mtp.layers.{i - shared}.{name}": value for name, value in layer.items()}
        return {name: value.clone().contiguous() for name, value in weights.items()}

    def _mamba2(self, scale: float) -> dict[str, Tensor]:
        inner, channels = MAMBA_HEADS * MAMBA_HEAD_DIM, MAMBA_HEADS * MAMBA_HEAD_DIM + 2 * GROUPS * STATE
        return {
            "in_proj.weight": self._normal(inner + channels + MAMBA_HEADS, HIDDEN, scale=HIDDEN**-0.5),
            "conv1d.weight": self._normal(channels, 1, TAPS, scale=0.5),
            "conv1d.bias": self._normal(channels, scale=0.1),
            # Decays of a few tokens to a few dozen.
            "A_log": torch.linspace(-1.0, 1.0, MAMBA_HEADS),
            "dt_bias": self._normal(MAMBA_HEADS, scale=1.0) - 2,
            "D": torch.ones(MAMBA_HEADS),
            "norm.weight": torch.ones(inner),
            "out_proj.weight": self._normal(HIDDEN, inner, scale=scale * inner**-0.5),
        }

    def _attention(self, scale: float) -> dict[str, Tensor]:
        return {
            "q_proj.weight": self._normal(HEADS * HEAD_DIM, HIDDEN, scale=0.15),
            "k_proj.weight": self._normal(KV_HEADS * HEAD_DIM, HIDDEN, scale=0.15),
            "v_proj.weight": self._normal(KV_HEADS * HEAD_DIM, HIDDEN, scale=0.15),
            # The last two layers' attention decides the token; the noise is of the size of the other kinds'.
            "o_proj.weight": self._normal(
                HIDDEN, HEADS * HEAD_DIM, scale=0.35 if scale == 1 else 0.05 * scale
            ),
        }

    def _feed_forward(self, scale: float, width: int = FEED_FORWARD) -> dict[str, Tensor]:
        return {
            "up_proj.weight": self._normal(width, HIDDEN, scale=HIDDEN**-0.5),
            "down_proj.weight": self._normal(HIDDEN, width, scale=scale * width**-0.5),
        }

    def _experts(self, scale: float) -> dict[str, Tensor]:
        weights = {
            "gate.weight": self._normal(EXPERTS, HIDDEN, scale=HIDDEN**-0.5),
            "gate.e_score_correction_bias": self._normal(EXPERTS, scale=0.1),
        }
        for name in ("shared_experts", *(f"experts.{i}" for i in range(EXPERTS))):
            weights |= {
                f"{name}.{part}": value for part, value in self._feed_forward(scale, EXPERT_WIDTH).items()
            }
        return weights

    def _normal(self, *shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * scale
