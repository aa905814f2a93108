"""`python -m harness model=tiny arm=ring depth=7 context=8192`: measure what the configuration asks for.

Each Hydra job is one configuration. A failed point is a record, not an exception: one bad job of a
multirun neither stops nor hides the others. The exit status is 1 when a point of a single run failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig
from rich.console import Console

from harness import compose, config
from harness.errors import HarnessError
from harness.study import measure

config.register()


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def main(composed: DictConfig) -> None:
    """One Hydra job."""
    console = Console(stderr=True)
    try:
        run = compose.to_run_config(composed)
        outcome = measure([compose.open_cell(run)], Path(run.results), retry=run.retry, console=console)
    except HarnessError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        _failed.append(True)
        return
    if outcome.failed:
        _failed.append(True)
    outcome.print_summary(Console())


_failed: list[bool] = []

if __name__ == "__main__":
    main()
    sys.exit(1 if _failed else 0)
