"""The models of an experiment, with what the command line changes of them (`model.path=/models/mine`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from harness import compose
from harness.config import ModelConfig, RunConfig
from harness.errors import ConfigError


class Models:
    """The models that an experiment names, each composed once.

    Args:
        overrides: the command line; its `model.*` keys hold for the experiment's model.
    """

    def __init__(self, config: RunConfig, overrides: Sequence[str]) -> None:
        self._own = config.model
        keys = [override.partition("=")[0].lstrip("+") for override in overrides]
        names = [key.split(".")[1] for key in keys if key.startswith("model.")]
        self.changes: dict[str, Any] = {name: getattr(config.model, name) for name in names}
        self._known: dict[str, ModelConfig] = {}

    def of(self, name: str | None) -> ModelConfig:
        """The model of a combination; None for the configuration's own.

        Raises:
            ConfigError: there is no such file, or it leaves open what nobody gave.
        """
        if name is None:
            return self._own
        if name not in self._known:
            named = compose.model_config(name, self.changes)
            # A configuration made in Python carries its changes itself.
            self._known[name] = self._own if named.name == self._own.name else named
        return self._known[name]

    def check(self, names: Collection[str]) -> None:
        """Refuse changes that would make several models one.

        Args:
            names: files of conf/model/ that the experiment's combinations name.

        Raises:
            ConfigError: there are several; names them and how to keep one.
        """
        if self.changes and len(names) > 1:
            given = ", ".join(f"model.{name}=..." for name in self.changes)
            raise ConfigError(
                f"{given} is of one model, and this experiment has {', '.join(names)}: keep one by "
                "only.model=NAME, or measure another one by force.model=NAME"
            )
