"""What Hydra complains of, in one sentence."""

from __future__ import annotations

import re

_INTERNALS = ("full_key:", "object_type=", "reference_type=", "Config search path:", "provider=")
# Offered among the choices of a group; no file of conf/, and nothing that anybody chooses.
_SCHEMA = re.compile(r"\w+_schema")


def one_sentence(error: Exception) -> str:
    """Hydra's lines as one, the cause included, its internals left out."""
    cause = error.__cause__ or error
    text = f"{error}\n{cause if cause is not error else ''}"
    lines = [line.strip() for line in text.splitlines()]
    said = [
        line for line in lines if line and not line.startswith(_INTERNALS) and not _SCHEMA.fullmatch(line)
    ]
    return " ".join(dict.fromkeys(said))
