"""Other programs' answers, where having none is no error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def output_of(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> str | None:
    """What a command prints on standard output; None where it is missing, fails or takes too long.

    Args:
        environment: the whole environment of the command; None: this process's.
    """
    try:
        done = subprocess.run(
            list(command), check=False, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
