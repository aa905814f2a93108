"""`make demo`: the main job on this machine, with the shipped model and no GPU.

Dense, native, windowed and ring at d = 7 on two context lengths, one server an arm; then the paper's table 2
for them, whether the outputs agree, and two figures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commandline import guarded, place

if TYPE_CHECKING:  # slow modules are loaded once Ctrl-C can end in a line
    from rich.console import Console

    from harness.compose import Cell
    from harness.study import StudyOutcome

CONTEXTS = (8192, 32768)
SEEDS = (0, 1, 2)
# Needles in the haystack: few enough for a model of a million parameters, enough for a long answer.
KEYS = 8
# SGLang applies a penalty to drafts in a relaxed form, so that with one the arms' outputs would differ.
PENALTY = "repetition_penalty=1.0"
_PLAIN_WIDTH = 150


def cells(contexts: tuple[int, ...], seeds: tuple[int, ...], hardware: str) -> list[Cell]:
    """The demo's configurations: every arm on every context and seed."""
    from harness import compose  # noqa: PLC0415
    from harness.points import ARMS  # noqa: PLC0415

    common = ["model=tiny", f"hardware={hardware}", "depth=7", f"input.params.keys={KEYS}", PENALTY]
    return [
        compose.open_cell(compose.load([*common, f"arm={arm}", f"context={context}", f"seed={seed}"]))
        for arm in ARMS
        for context in contexts
        for seed in seeds
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.demo", description=__doc__)
    parser.add_argument(
        "--results", type=place, default=Path("results/demo"), help="where records and figures go"
    )
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=list(CONTEXTS), help="prompt lengths in tokens"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="one prompt a seed")
    parser.add_argument("--hardware", default="cpu", help="a name in conf/hardware")
    parser.add_argument("--again", action="store_true", help="measure again what is stored already")
    options = parser.parse_args(arguments)

    def run() -> int:
        from rich.console import Console  # noqa: PLC0415

        from harness.study import measure  # noqa: PLC0415

        progress = Console(stderr=True)
        out = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
        wanted = cells(tuple(options.contexts), tuple(options.seeds), options.hardware)
        retry = "all" if options.again else "failed"
        outcome = measure(wanted, options.results, retry=retry, console=progress)
        report(outcome, options.results, out)
        return 1 if outcome.failed else 0

    return guarded(run, failure=1)


def report(outcome: StudyOutcome, results: Path, out: Console) -> None:
    """Print the table and the comparison of outputs, draw the figures, say what to do next."""
    from analysis import demo  # noqa: PLC0415  (pandas and matplotlib only at the end)

    demo.show(outcome.records, results / "figures", out)
    out.print(
        f"\nRecords: {results / 'points'}   figures: {results / 'figures'}\n"
        f"Next: {_python()} -m analysis report --results {results}   "
        f"or measure one point of your own: {_python()} -m harness model=tiny arm=ring context=16384",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _python() -> str:
    """The interpreter that runs this, short where it lies under the current directory."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
