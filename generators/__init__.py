"""Inputs of exactly S tokens after RULER, LongBench-v2 and BABILong, and scoring of the answers.

tokenizer = generators.Tokenizer.load("path/to/model")
record = generators.build("niah_multiquery_enum", context_tokens=1_040_000, tokenizer=tokenizer, seed=0)
generators.score("niah_multiquery_enum", record, output_text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generators.record import GENERATOR_VERSION, Needle, Record
    from generators.scoring import score
    from generators.tasks import TASKS, build
    from generators.tokenizer import Tokenizer

__all__ = ["GENERATOR_VERSION", "TASKS", "Needle", "Record", "Tokenizer", "build", "score"]
_HOMES = {
    "GENERATOR_VERSION": "record", "Needle": "record", "Record": "record", "score": "scoring",
    "TASKS": "tasks", "build": "tasks", "Tokenizer": "tokenizer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what is asked for: `python -m generators` imports this before Ctrl-C can end in a line."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
