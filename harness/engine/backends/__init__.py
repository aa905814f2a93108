"""Draft attention backends that read through compact tables, one module per SGLang backend."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NAMES = ("triton", "flashinfer", "intel_amx")


@dataclass(frozen=True)
class DraftBackends:
    """Constructors of one backend's draft classes, called as SGLang's factory calls its own.

    Attributes:
        decode: (runner, topk, steps) -> backend of the draft's decode steps.
        extend: (runner) -> backend of draft extend and draft prefill.
    """

    decode: Callable[[Any, int, int], Any]
    extend: Callable[[Any], Any]


@functools.cache
def load(name: str) -> DraftBackends:
    """The draft classes of backend `name`; imports SGLang's module of it on first use."""
    module = importlib.import_module(f"harness.engine.backends.{name}")
    backends: DraftBackends = module.build()
    return backends
