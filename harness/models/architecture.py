"""The numbers of a checkpoint's config.json that the study needs, whatever the family calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigError

_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_MTP_COUNT_KEYS = (
    "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers",
    "num_mtp_modules",
)  # fmt: skip
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_MTP_NAME = re.compile(r"(^|\.)(mtp|nextn|mtp_layers|mtp_block|nextn_predict_layers)(\.|$)")
_LAYER_NAME = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_ATTENTION_MARK = "*"
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one KV element by dtype name."""


@dataclass(frozen=True)
class Architecture:
    """What the KV memory and the draft follow from.

    Attributes:
        layers: decoder layers of the target.
        heads: query heads of an attention layer, before tensor parallelism.
        full_attention_layers: F, those whose KV grows with the context.
        kv_heads: KV heads of an attention layer, before tensor parallelism.
        head_dim: elements of one head.
        mtp_layers: MTP layers that the config promises; 0 for none.
        mtp_attention_layers: those of them that keep KV.
        context_tokens: longest context by the config; None where it says nothing.
        model_type: the config's own name of the family.
    """

    layers: int
    full_attention_layers: int
    kv_heads: int
    head_dim: int
    mtp_layers: int
    mtp_attention_layers: int
    context_tokens: int | None
    model_type: str
    heads: int = 0

    def kv_bytes_per_token(self, layers: int, dtype: str) -> int:
        """K and V of one token over `layers` attention layers, in bytes.

        Raises:
            ConfigError: unknown dtype.
        """
        return kv_bytes_per_token(layers, self.kv_heads, self.head_dim, dtype)

    def draft_kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """KV bytes of one token in the draft's pool, over all GPUs."""
        return self.kv_bytes_per_token(self.mtp_attention_layers, dtype)

    def target_kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """KV bytes of one token in the target's pool, over all GPUs."""
        return self.kv_bytes_per_token(self.full_attention_layers, dtype)

    @property
    def draft_share(self) -> float:
        """Draft share of the KV memory by architecture, 1 / (F + 1) for one MTP layer."""
        total = self.mtp_attention_layers + self.full_attention_layers
        return self.mtp_attention_layers / total if total else 0.0


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """K and V of one token in `layers` attention layers of that many heads, in bytes.

    Raises:
        ConfigError: unknown dtype.
    """
    if dtype not in ELEMENT_BYTES:
        raise ConfigError(f"kv_dtype={dtype} is unknown: choose one of {', '.join(ELEMENT_BYTES)}")
    return 2 * layers * kv_heads * head_dim * ELEMENT_BYTES[dtype]


def described(model_path: str) -> tuple[dict[str, Any], int | None]:
    """What the config.json of a checkpoint directory says, for records and for checking replies.

    Returns:
        The architecture as plain values, empty where none can be read there; and how many tokens the model
        has, None where it does not say.
    """
    try:
        config = orjson.loads((Path(model_path) / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}, None
    if not isinstance(config, dict):
        return {}, None
    try:
        architecture = asdict(read_architecture(config))
    except ConfigError:
        architecture = {}
    return architecture, _count(text_config(config), "vocab_size") or None


def text_key(config: Mapping[str, Any]) -> str | None:
    """The key that holds the language model's part of a multimodal config; None where it is not nested."""
    return next((key for key in _TEXT_KEYS if isinstance(config.get(key), dict)), None)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config."""
    key = text_key(config)
    nested: Mapping[str, Any] = config if key is None else config[key]
    return nested


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Read the architecture from a parsed config.json.

    Raises:
        ConfigError: it names no layers or heads.
    """
    text = text_config(config)
    layers = _count(text, "num_hidden_layers", "n_layer", "num_layers")
    heads = _count(text, "num_attention_heads", "n_head")
    if not layers or not heads:
        raise ConfigError(
            "config.json names no num_hidden_layers or num_attention_heads: this is no decoder checkpoint"
        )
    head_dim = (
        _count(text, "head_dim", "attention_head_dim") or _count(text, "hidden_size", "n_embd") // heads
    )
    mtp_layers = _count(text, *_MTP_COUNT_KEYS) or _count(config, *_MTP_COUNT_KEYS)
    pattern = text.get("mtp_hybrid_override_pattern")
    per_layer = pattern.count(_ATTENTION_MARK) if isinstance(pattern, str) else 1
    return Architecture(
        layers=layers,
        full_attention_layers=_full_attention_layers(text, layers),
        kv_heads=_count(text, "num_key_value_heads") or heads,
        head_dim=head_dim,
        mtp_layers=mtp_layers,
        mtp_attention_layers=mtp_layers * per_layer,
        context_tokens=_count(text, *_CONTEXT_KEYS) or None,
        model_type=str(text.get("model_type") or config.get("model_type") or "unknown"),
        heads=heads,
    )


def _count(values: Mapping[str, Any], *keys: str) -> int:
    """The first of the keys that holds a positive whole number; 0 for none."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _full_attention_layers(text: Mapping[str, Any], layers: int) -> int:
    """Families say it by a list of layer types, by an interval or by a pattern string."""
    for key in ("layer_types", "layers_block_type"):
        types = text.get(key)
        if isinstance(types, list) and types:
            return sum(str(kind) in {"full_attention", "attention"} for kind in types)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return pattern.count(_ATTENTION_MARK)
    interval = _count(text, "full_attention_interval")
    return layers // interval if interval else layers


def mtp_tensors(tensors: Iterable[str], target_layers: int) -> list[str]:
    """The tensors of an MTP head, by name: `mtp.*`, `*.nextn.*`, or a layer after the target's last.

    Sorted. Towers of other modalities have layers of their own and are left out.
    """
    found = []
    for name in tensors:
        if _MTP_NAME.search(name):
            found.append(name)
            continue
        layer = _LAYER_NAME.search(name)
        tower = re.search(r"(^|\.)(visual|vision\w*|audio\w*|encoder)\.", name)
        if layer and not tower and int(layer.group(1)) >= target_layers:
            found.append(name)
    return sorted(found)


def mtp_layer_count(names: Iterable[str]) -> int:
    """How many different layers these MTP tensors belong to (one where names carry no layer number)."""
    numbers = set()
    any_name = False
    for name in names:
        any_name = True
        layer = re.search(r"(?:layers|mtp|nextn|mtp_layers)\.(\d+)\.", name)
        if layer:
            numbers.add(int(layer.group(1)))
    return len(numbers) or int(any_name)
