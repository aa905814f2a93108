"""Prompts of exactly S tokens for points, built once per (task, length, seed) in a process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import generators
from harness.errors import InputError
from harness.measure.origins import origins_of
from harness.points import Point
from harness.records import InputInfo


@dataclass
class InputStore:
    """Builds and keeps the inputs of one tokenizer.

    The tokenizer is the checkpoint's own, so that the server counts what was built.
    """

    tokenizer_path: Path
    _tokenizer: generators.Tokenizer | None = None
    _records: dict[tuple[Any, ...], generators.Record] = field(default_factory=dict)
    _origins: dict[tuple[Any, ...], dict[str, str]] = field(default_factory=dict)

    @property
    def tokenizer(self) -> generators.Tokenizer:
        """Loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = generators.Tokenizer.load(self.tokenizer_path)
        return self._tokenizer

    def record(self, point: Point) -> generators.Record:
        """The generator record that a point's prompt comes from.

        Raises:
            ConfigError, InputError: it cannot be built, or what it is made from changed meanwhile.
        """
        key = _key(point)
        if key not in self._records:
            origins = origins_of(point.task, point.task_params, self.tokenizer_path)
            record = generators.build(
                point.task,
                context_tokens=point.context_tokens,
                tokenizer=self.tokenizer,
                seed=point.seed,
                **point.task_params,
            )
            if origins_of(point.task, point.task_params, self.tokenizer_path) != origins:
                raise InputError(
                    "A file that the prompt is made from was changed while it was read: run again."
                )
            self._records[key], self._origins[key] = record, origins
        return self._records[key]

    def origins(self, point: Point) -> dict[str, str]:
        """What the prompt was made from (`origins_of`)."""
        self.record(point)
        return self._origins[_key(point)]

    def prompt_ids(self, point: Point) -> list[int]:
        """The ids that are sent: `point.context_tokens` of them.

        Raises:
            InputError: the input cannot be built, or is used as it is and has another length.
        """
        ids: list[int] = np.asarray(self.record(point).input_ids).tolist()
        if len(ids) != point.context_tokens:
            raise InputError(
                f"the prompt of input={point.task} is used as it is and has {len(ids)} tokens, not "
                f"{point.context_tokens}: give context={len(ids)} (in an experiment force.context={len(ids)})"
            )
        return ids

    def info(self, point: Point) -> InputInfo:
        """What the point's record says of its input; the hash is over little-endian 32-bit ids."""
        record = self.record(point)
        ids = np.asarray(record.input_ids, dtype="<u4")
        return InputInfo(
            task=point.task,
            sample_id=record.sample_id,
            prompt_tokens=ids.size,
            sha256_ids=hashlib.sha256(ids.tobytes()).hexdigest(),
            gold=list(record.gold),
            tokenizer=self.tokenizer.fingerprint,
            source=record.sources or "generated",
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids -> text."""
        return self.tokenizer.decode(ids)

    def scores(self, point: Point, output_text: str) -> dict[str, float]:
        """The task's own scores of an output, strict and upstream; none where no answer is right."""
        found = generators.score(point.task, self.record(point), output_text)
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _key(point: Point) -> tuple[Any, ...]:
    return point.task, point.context_tokens, point.seed, repr(sorted(point.task_params.items()))
