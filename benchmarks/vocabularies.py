"""Real vocabularies from installed packages, written as Hugging Face tokenizer folders.

`qwen`: 151,643 byte-level BPE tokens (package dashscope). `tekken`: 131,072 byte-level BPE tokens with
another pattern, and `mistral`: 32,000 SentencePiece BPE tokens with byte fallback (package mistral-common).
The chat templates are plain ones in each model's style. `tiny` is the shipped checkpoint's own.
"""

from __future__ import annotations

import argparse
import base64
import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

QWEN_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
QWEN_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] | trim }} [/INST]{% endfor %}"
)


NAMES = ("qwen", "tekken", "mistral", "tiny")
_TINY = Path(__file__).parents[1] / "harness/engine/tiny/checkpoint"


def tokenizer_folder(name: str, cache: Path) -> Path:
    """The tokenizer folder of one of `NAMES`, converted into `cache` where that has not been done yet.

    Raises:
        ModuleNotFoundError: the package that ships the vocabulary is not installed.
    """
    if name == "tiny":
        return _TINY
    folder = cache / name
    # The configuration is written last.
    if not (folder / "tokenizer_config.json").is_file():
        {"qwen": qwen, "tekken": tekken, "mistral": mistral}[name](folder)
    return folder


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"The package {name} is not installed: pip install -e '.[dev]'.")
    return Path(spec.origin).parent


def qwen(folder: Path) -> Path:
    """Qwen's vocabulary."""
    lines = (package_folder("dashscope") / "resources/qwen.tiktoken").read_text().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    special = {name: len(ranks) + i for i, name in enumerate(names)}
    spec = _byte_level(ranks, QWEN_PATTERN, special, {"type": "NFC"}, 0)
    return _write(folder, spec, {"eos_token": "<|im_end|>", "chat_template": QWEN_TEMPLATE})


def tekken(folder: Path) -> Path:
    """Mistral's Tekken vocabulary."""
    data = json.loads((package_folder("mistral_common") / "data/tekken_240911.json").read_text())
    config = data["config"]
    shift = config["default_num_special_tokens"]
    size = config["default_vocab_size"] - shift
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in data["vocab"][:size]}
    special = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4}
    spec = _byte_level(ranks, config["pattern"], special, None, shift)
    template = MISTRAL_TEMPLATE.replace("[INST] ", "[INST]").replace(" [/INST]", "[/INST]")
    return _write(folder, spec, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})


def mistral(folder: Path) -> Path:
    """Mistral's SentencePiece vocabulary; tokens are merged over the whole text, without pre-tokens."""
    from sentencepiece import SentencePieceProcessor  # comes with mistral-common; the others do without

    model = SentencePieceProcessor(str(package_folder("mistral_common") / "data/tokenizer.model.v1"))
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, rank in ids.items():
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        merges += [
            (-model.get_score(rank), ids[a], a, b)
            for a, b in splits
            if a in ids and b in ids and not model.is_control(rank)
        ]
    merges.sort()
    spec = {
        **_EMPTY,
        "added_tokens": [_added(name, i) for i, name in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            **_BPE,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": [[a, b] for _, _, a, b in merges],
        },
    }
    return _write(folder, spec, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": MISTRAL_TEMPLATE})


_EMPTY: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
_BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def _added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


def _byte_level(
    ranks: dict[bytes, int],
    pattern: str,
    special: dict[str, int],
    normalizer: dict[str, Any] | None,
    shift: int,
) -> dict[str, Any]:
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    pairs = ((rank, _last_merge(token, ranks)) for token, rank in ranks.items() if len(token) > 1)
    merges = sorted((rank, spell(first), spell(second)) for rank, (first, second) in pairs)
    # Special tokens with ids below the others are part of the vocabulary.
    inside = {name: number for name, number in special.items() if number < shift}
    return {
        **_EMPTY,
        "added_tokens": [_added(name, number) for name, number in special.items()],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            **_BPE,
            "vocab": {**inside, **{spell(token): rank + shift for token, rank in ranks.items()}},
            "merges": [[a, b] for _, a, b in merges],
        },
    }


def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that byte-pair encoding joins last to make a token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, ranks[token]) for a, b in pairwise(parts)]
        place = min(range(len(pairs)), key=pairs.__getitem__)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _write(folder: Path, spec: dict[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def main() -> None:
    """Write the vocabularies that are asked for, and print where each lies."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vocabularies", description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write them into")
    options = parser.parse_args()
    for name in options.names:
        try:
            print(tokenizer_folder(name, options.out))
        except ModuleNotFoundError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
