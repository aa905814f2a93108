"""Shape of the tiny hybrid, and its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of the model; names are those of `Qwen3_5TextConfig`.

    Every `full_attention_interval`-th layer is full attention, the others are gated delta rule layers. With
    `num_experts` = 0 the feed-forward is dense.
    """

    vocab_size: int = 3072
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 4
    full_attention_interval: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 64
    partial_rotary_factor: float = 0.5
    rope_theta: float = 10000.0
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 131072
    num_experts: int = 0
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64

    @property
    def layer_types(self) -> list[str]:
        """Kind of each hidden layer, first to last."""
        return [
            "linear_attention" if (i + 1) % self.full_attention_interval else "full_attention"
            for i in range(self.num_hidden_layers)
        ]

    @property
    def linear_key_size(self) -> int:
        """Width of all query (or key) heads of a delta rule layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_size(self) -> int:
        """Width of all value heads of a delta rule layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that carry position; the rest see content only, at any distance."""
        return int(self.head_dim * self.partial_rotary_factor)

    def hugging_face(self, bos_id: int, eos_id: int, dtype: str) -> dict[str, Any]:
        """`config.json` for transformers and SGLang (dense or mixture-of-experts text model)."""
        moe = self.num_experts > 0
        rope = {
            "rope_type": "default",
            "rope_theta": self.rope_theta,
            "partial_rotary_factor": self.partial_rotary_factor,
        }
        shared = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "full_attention_interval",
            "num_attention_heads", "num_key_value_heads", "head_dim", "partial_rotary_factor", "rope_theta",
            "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
            "linear_conv_kernel_dim", "rms_norm_eps", "max_position_embeddings",
        )  # fmt: skip
        config: dict[str, Any] = {
            "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
            **{name: getattr(self, name) for name in shared},
            "layer_types": self.layer_types,
            "rope_parameters": rope,
            "hidden_act": "silu",
            "attn_output_gate": True,
            "attention_bias": False,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "tie_word_embeddings": False,
            "bos_token_id": bos_id,
            "eos_token_id": eos_id,
            "dtype": dtype,
            "use_cache": True,
        }
        if moe:
            config |= {
                "num_experts": self.num_experts,
                "num_experts_per_tok": self.num_experts_per_tok,
                "moe_intermediate_size": self.moe_intermediate_size,
                "shared_expert_intermediate_size": self.shared_expert_intermediate_size,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return config

    @classmethod
    def read(cls, config: dict[str, Any]) -> TinyConfig:
        """The shape that a `config.json` describes; keys it does not know are left aside."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})
