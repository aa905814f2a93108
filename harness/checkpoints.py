"""Where a model's checkpoint is looked for: at `model.path`, and in the folder that `checkpoints=` names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.config import ModelConfig, RunConfig
from harness.errors import ConfigError
from harness.labels import profile_of
from harness.models.checkpoint import Checkpoint, is_hub_id, open_checkpoint


def located(config: RunConfig) -> RunConfig:
    """The configuration with `model.path` led to the model's folder under `checkpoints`, where there is one.

    A `model.path` that is a folder stays: it was named for this model alone.
    """
    folder = _folder(config)
    if folder is None or _is_folder(Path(config.model.path).expanduser()):
        return config
    found = next((folder / name for name in names_of(config.model) if _is_folder(folder / name)), None)
    return config if found is None else replace(config, model=replace(config.model, path=str(found)))


def names_of(model: ModelConfig) -> tuple[str, ...]:
    """The names under which a folder of checkpoints may hold a model, the first found counts."""
    names = [model.name, profile_of(model.name)]
    repository = model.path.partition("@")[0]
    if is_hub_id(repository):
        names += [repository.rpartition("/")[2], repository.replace("/", "--"), repository]
    return tuple(dict.fromkeys(name for name in names if name))


def opened(config: RunConfig, download: bool) -> Checkpoint:
    """The checkpoint of a configuration.

    Args:
        download: as `open_checkpoint`.

    Raises:
        ConfigError: it is nowhere; the text says where it was looked for and how to name its place.
    """
    try:
        return open_checkpoint(config.model.path, download)
    except ConfigError as error:
        folder = _folder(config)
        if folder is None or folder in Path(config.model.path).parents:
            raise
        lacks = f"holds no {', '.join(names_of(config.model))}" if _is_folder(folder) else "is no folder"
        raise ConfigError(f"{error}; checkpoints={folder} {lacks}") from error


def _folder(config: RunConfig) -> Path | None:
    return Path(config.checkpoints).expanduser() if config.checkpoints else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than any file's
        return False
