"""A checkpoint on disk: where it lies, what it is (fingerprint), and whether it can do what is asked."""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigError
from harness.models.architecture import Architecture, mtp_layer_count, mtp_tensors, read_architecture
from harness.models.draft_head import head_digest
from harness.models.finite import without_numbers
from harness.models.vocabulary import tokenizer_problem
from harness.models.weights import Weights, read_json, read_weights
from harness.models.yarn import yarn_copy
from harness.records import Outcome

PACKAGED = {"tiny": "harness.engine.tiny"}
"""Checkpoints that ship with the package: name -> module with `checkpoint_path()`."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Small files that decide what is computed. A tokenizer is fingerprinted with the inputs it makes.
_CONFIG_FILES = ("generation_config.json", "hf_quant_config.json", "quantize_config.json")
# Where a copy was downloaded from says nothing of what it is.
_IGNORED_KEYS = {"_name_or_path", "transformers_version"}


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot serve a request.

    Attributes:
        name: `mtp_not_configured`, `mtp_weights_missing`, `mtp_weights_incomplete`, `weights_not_finite` or
            `context_too_long`.
        outcome: what a point that needs it ends with.
        message: one sentence, with what to do.
    """

    name: str
    outcome: Outcome
    message: str


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        path: its directory.
        source: as it was asked for.
        config: the parsed config.json.
        fingerprint: 16 hex digits over configs and weights, the same wherever the checkpoint lies.
        revision: commit of a Hugging Face snapshot; None elsewhere.
        tokenizer_problem: why the tokenizer beside it cannot make its prompts; empty where it can.
        not_finite: sampled tensors that hold no finite number.
    """

    path: Path
    source: str
    config: Mapping[str, Any]
    weights: Weights
    fingerprint: str
    revision: str | None = None
    tokenizer_problem: str = ""
    not_finite: tuple[str, ...] = ()

    @functools.cached_property
    def draft_head(self) -> str:
        """16 hex digits over the MTP head's weights, which `fingerprint` only samples; empty for none."""
        names = mtp_tensors(self.weights.tensors, self.architecture.layers)
        return head_digest([self.path / file.name for file in self.weights.files], names)

    @property
    def architecture(self) -> Architecture:
        """The numbers of its config."""
        return read_architecture(self.config)

    def serving_path(self, yarn_factor: float | None = None) -> Path:
        """The directory to start a server with: its own, or a copy with YaRN in the config."""
        if yarn_factor is None or yarn_factor == 1:
            return self.path
        return yarn_copy(self.path, yarn_factor, self.fingerprint)

    def describe(self) -> dict[str, Any]:
        """Plain values for a record."""
        architecture = self.architecture
        return {
            "source": self.source,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "config_sha256": config_digest(self.config),
            "model_type": architecture.model_type,
            "weight_bytes": self.weights.size_bytes,
            "full_attention_layers": architecture.full_attention_layers,
            "mtp_layers": architecture.mtp_layers,
            "kv_heads": architecture.kv_heads,
            "head_dim": architecture.head_dim,
        }


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a config without the keys that say where it came from."""
    body = {key: value for key, value in config.items() if key not in _IGNORED_KEYS}
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def open_checkpoint(source: str, download: bool = True) -> Checkpoint:
    """Find and read a checkpoint.

    Args:
        source: `package:<name>`, a local directory, or a Hugging Face id (`owner/name`,
            `owner/name@revision`).
        download: whether an id that is not in the local cache may be fetched.

    Raises:
        ConfigError: it cannot be found or is incomplete; the text says what to do.
    """
    directory, revision = _locate(source, download)
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise ConfigError(f"{directory} holds no config.json: it is no checkpoint; fix model.path")
    return _open(directory, source, revision, _stamp(directory))


@functools.lru_cache(maxsize=64)
def _open(directory: Path, source: str, revision: str | None, stamp: str) -> Checkpoint:
    """Reads once for as long as no file changes (`stamp`): a study opens the same checkpoint many times."""
    config = read_json(directory / "config.json")
    weights = read_weights(directory)
    digest = hashlib.sha256(config_digest(config).encode())
    digest.update(weights.digest.encode())
    for name in _CONFIG_FILES:
        path = directory / name
        if path.is_file():
            digest.update(name.encode() + b"\0" + config_digest(read_json(path)).encode())
    unfit = tokenizer_problem(directory, config)
    return Checkpoint(
        directory, source, config, weights, digest.hexdigest()[:16], revision, unfit,
        _not_finite(directory, config, weights),
    )  # fmt: skip


def _not_finite(directory: Path, config: Mapping[str, Any], weights: Weights) -> tuple[str, ...]:
    """The draft head is looked at by itself: only its acceptance would show that it is damaged."""
    try:
        layers = read_architecture(config).layers
    except ConfigError:  # said where the architecture is needed
        return ()
    head = mtp_tensors(weights.tensors, layers)
    files = [directory / file.name for file in weights.files]
    return tuple(without_numbers(files, head, sorted(weights.tensors - set(head))))


def _stamp(directory: Path) -> str:
    """Names, sizes and times of the directory's files."""
    rows = []
    for path in sorted(directory.iterdir()):
        if path.is_file():
            stat = path.stat()
            rows.append((path.name, stat.st_size, stat.st_mtime_ns))
        elif path.is_symlink() and not path.exists():
            raise ConfigError(f"{path} points nowhere: finish the download")
    return hashlib.sha256(orjson.dumps(rows)).hexdigest()


def is_hub_id(source: str) -> bool:
    """Whether a checkpoint's source can be a Hugging Face id (`owner/name`)."""
    return not source.startswith((".", "/", "~")) and _HUB_ID.fullmatch(source) is not None


def _locate(source: str, download: bool) -> tuple[Path, str | None]:
    if source.startswith("package:"):
        return _packaged(source.removeprefix("package:")), None
    local = Path(source).expanduser()
    try:
        is_there = local.is_dir()
    except OSError as error:  # a name longer than any file's
        raise ConfigError(f"model.path={source[:80]}... cannot be looked for: {error.strerror}") from error
    if is_there:
        return local.resolve(), None
    if local.exists():
        raise ConfigError(f"model.path={source} is a file: name the directory that holds config.json")
    name, _, revision = source.partition("@")
    if not is_hub_id(name):
        raise ConfigError(f"model.path={source} does not exist and is no Hugging Face id (owner/name)")
    return _snapshot(name, revision or None, download)


def _packaged(name: str) -> Path:
    if name not in PACKAGED:
        raise ConfigError(f"package:{name} is not shipped: choose one of {', '.join(sorted(PACKAGED))}")
    try:
        module = importlib.import_module(PACKAGED[name])
        path = Path(module.checkpoint_path())
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ConfigError(
            f"package:{name} is not part of this installation ({error}): install it again"
        ) from error
    return path


def _snapshot(name: str, revision: str | None, download: bool) -> tuple[Path, str | None]:
    """A snapshot from the local Hugging Face cache, or from the hub."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{name} is no local directory, and huggingface_hub is not installed: "
            "pip install huggingface_hub, or download the checkpoint and give its directory"
        ) from None
    try:
        path = Path(hub.snapshot_download(name, revision=revision, local_files_only=True))
        complete = (path / "config.json").is_file()
    except (OSError, ValueError):
        complete = False
    if not complete:
        if not download:
            raise ConfigError(
                f"{name} is not downloaded: run `hf download {name}`, or name the place of a copy, "
                "model.path=FOLDER for one model, checkpoints=FOLDER for a folder of several"
            )
        try:
            path = Path(
                hub.snapshot_download(name, revision=revision, ignore_patterns=["*.pth", "original/*"])
            )
        except Exception as error:  # HTTP, SSL, lock and validation errors
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"cannot get {name} from the Hugging Face hub ({reason}): check the name, the network and "
                "access rights, or download it elsewhere and give its directory"
            ) from error
    return path, path.name if path.parent.name == "snapshots" else None


def preflight(
    checkpoint: Checkpoint,
    *,
    speculative: bool,
    context_length: int | None = None,
    yarn_factor: float | None = None,
    native_context_tokens: int | None = None,
) -> list[Problem]:
    """What would make a server start in vain, found without starting one; empty where nothing does.

    Args:
        speculative: whether the arm drafts with the checkpoint's own MTP head.
        context_length: the server's context length in tokens.
        yarn_factor: as `Checkpoint.serving_path`.
        native_context_tokens: what the checkpoint serves as it is; None takes it from its config. Models
            without positional encoding serve more than their config says.
    """
    architecture = checkpoint.architecture
    problems = []
    if speculative:
        problem = _mtp_problem(architecture, checkpoint.weights.tensors, checkpoint.source)
        if problem:
            problems.append(problem)
    head = set(mtp_tensors(checkpoint.not_finite, architecture.layers))
    damaged = [name for name in checkpoint.not_finite if speculative or name not in head]
    if damaged:
        text = (
            f"the weights of {checkpoint.source} are no numbers (NaN or infinite), such as {damaged[0]}: "
            "get the checkpoint again, or look at what converted it"
        )
        problems.append(Problem("weights_not_finite", Outcome.INVALID, text))
    limit = native_context_tokens or architecture.context_tokens
    if context_length is not None and limit is not None:
        served = int(limit * (yarn_factor or 1))
        if context_length > served:
            problems.append(
                Problem(
                    "context_too_long",
                    Outcome.DOES_NOT_FIT,
                    f"{checkpoint.source} serves {served} tokens, {context_length} are needed; "
                    "shorten context= or set model.yarn_factor=",
                )
            )
    return problems


def _mtp_problem(architecture: Architecture, tensors: frozenset[str], source: str) -> Problem | None:
    present = mtp_tensors(tensors, architecture.layers)
    promised = architecture.mtp_layers
    if not present:
        if promised:
            text = (
                f"{source} promises {promised} MTP layer(s) in config.json, but its weights hold none "
                f"(no mtp.*, *nextn* or layer-{architecture.layers} tensors): drafts would come from an "
                "untrained head and acceptance stay at 1.00; use a copy with MTP weights"
            )
            return Problem("mtp_weights_missing", Outcome.NO_DRAFT_WEIGHTS, text)
        text = f"{source} has no MTP head: use arm=dense or another checkpoint"
        return Problem("mtp_not_configured", Outcome.NO_DRAFT_WEIGHTS, text)
    layers = mtp_layer_count(present)
    if layers < promised or not any(_is_block_weight(name) for name in present):
        text = (
            f"{source} promises {promised} MTP layer(s) in config.json, holds {len(present)} MTP tensors "
            f"of {layers} layer(s), without which drafts are noise (such as {present[0]}): "
            "use a copy with all MTP weights"
        )
        return Problem("mtp_weights_incomplete", Outcome.NO_DRAFT_WEIGHTS, text)
    return None


def _is_block_weight(name: str) -> bool:
    """Whether a tensor belongs to the decoder block itself, not to the projection or norms around it."""
    return re.search(r"attn|attention|mixer|mlp|experts", name) is not None
