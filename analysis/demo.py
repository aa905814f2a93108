"""What `make demo` shows: table 2 for each context, whether outputs agree over the arms, two figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis import figures
from analysis.equivalence import whole_output
from analysis.machine import busy_text
from analysis.outputs import compare_outputs
from analysis.study import (
    Cell,
    Pick,
    Pooled,
    Study,
    accept_length,
    cells_of,
    pooled,
    pooled_ratio,
    prompt_hash,
    step_ms,
    tpot_ms,
)
from analysis.summary import show as show_estimate
from harness.points import ARMS, SPECULATIVE_ARMS
from harness.printable import printable
from harness.records import Record

FIGURES = ("2", "step")

Measured = dict[tuple[str, int, int], Cell]


def show(records: Sequence[Record], figures_dir: Path, console: Console) -> None:
    """Print the tables and write the figures.

    Args:
        records: of one model and hardware; arms, contexts and seeds may vary.
        figures_dir: created if missing.
        console: where the tables go.
    """
    measured = usable(records, console)
    for context in sorted({key[1] for key in measured}):
        console.print(table_2(measured, context))
        for line in agreement_lines(measured, context):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if measured:
        study = Study(records)
        for name in FIGURES:
            figures.draw(name, study, figures_dir)


def usable(records: Sequence[Record], console: Console) -> Measured:
    """Valid measurements by (arm, context, seed); the others are named with their reason."""

    def say(kind: str, cell: Cell, text: str) -> None:
        where = f"{cell.point.label} seed {cell.point.seed}"
        console.print(printable(f"{kind}: {where}: {text}"), markup=False, highlight=False, soft_wrap=True)

    kept: Measured = {}
    prompts: dict[tuple[int, int], str | None] = {}

    def order(cell: Cell) -> tuple[int, ...]:
        return cell.point.context_tokens, ARMS.index(cell.point.arm), cell.point.seed

    for cell in sorted(cells_of(records), key=order):
        p, verdict = cell.point, cell.verdict
        mine = prompt_hash(cell)
        if not verdict.valid:
            say("left out", cell, verdict.text)
        elif prompts.setdefault((p.context_tokens, p.seed), mine) != mine:
            say("left out", cell, "its prompt is another one than the other arms': measure it again")
        else:
            if not verdict.acceptance_valid:
                say("note", cell, f"{verdict.text}. Its AL and TPOT enter no average that has another")
            kept[p.arm, p.context_tokens, p.seed] = cell
    busy = sum(bool(busy_text(cell.record)) for cell in kept.values())
    if busy:
        console.print(
            f"note: {busy} of {len(kept)} were measured on a busy machine, where steps take longer: arms "
            "that ran at unlike times may not be comparable",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    return kept


def table_2(measured: Measured, context: int) -> Table:
    """The paper's table 2 for one context: every arm, ratios by TPOT (end to end) and by step (cost only)."""
    cells = {key: value for key, value in measured.items() if key[1] == context}
    first = next(iter(cells.values())).point
    seeds = sorted({key[2] for key in cells})
    title = (
        f"Table 2 on {first.model} / {first.hardware}: S = {context:,}, d = "
        f"{max(cell.point.depth for cell in cells.values())}, B = {first.batch}, {first.task}, "
        f"{len(seeds)} prompts"
    )
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = (
        "means over prompts with 95 % intervals (Student's t over prompts from 3 on, else over steps); "
        "ratios above 1: the row's arm is faster. Numbers of the tiny model say nothing about large ones."
    )
    for name in (
        "arm",
        "AL",
        "step ms",
        "TPOT ms",
        "step: native / arm",
        "TPOT: native / arm",
        "TPOT: dense / arm",
    ):
        # A digit that does not fit goes to the next line: an ellipsis would take it away.
        table.add_column(name, justify="left" if name == "arm" else "right", overflow="fold")
    for arm in ARMS:
        if not any(key[0] == arm for key in cells):
            continue
        table.add_row(
            arm,
            _shown(cells, arm, accept_length),
            _shown(cells, arm, step_ms),
            _shown(cells, arm, tpot_ms),
            _shown_ratio(cells, "native", arm, step_ms) if arm in SPECULATIVE_ARMS else "-",
            _shown_ratio(cells, "native", arm, tpot_ms),
            _shown_ratio(cells, "dense", arm, tpot_ms),
        )
    return table


def _of(cells: Measured, arm: str) -> list[Cell]:
    return [cell for key, cell in cells.items() if key[0] == arm]


def _shown(cells: Measured, arm: str, pick: Pick) -> str:
    return _text(pooled(_of(cells, arm), pick))


def _shown_ratio(cells: Measured, over: str, arm: str, pick: Pick) -> str:
    return "1" if over == arm else _text(pooled_ratio(_of(cells, over), _of(cells, arm), pick))


def _text(found: Pooled) -> str:
    if found.estimate is None:
        return "-"
    return show_estimate(found.estimate) + (f" ({found.flag})" if found.flag else "")


def agreement_lines(measured: Measured, context: int) -> list[str]:
    """Whether greedy outputs are the same tokens in every arm, prompt by prompt."""
    lines = []
    for seed in sorted({key[2] for key in measured if key[1] == context}):
        outputs = {
            arm: measured[arm, context, seed].record.requests[0].output_ids
            for arm in ARMS
            if (arm, context, seed) in measured and whole_output(measured[arm, context, seed].record)
        }
        if len(outputs) < 2:
            continue
        base, *others = outputs
        differing = []
        for arm in others:
            found = compare_outputs(outputs[base], outputs[arm])
            if not found.identical:
                differing.append(f"{arm} differs from {base} at token {found.first_difference}")
        verdict = "; ".join(differing) or f"identical in {', '.join(outputs)}"
        lines.append(f"outputs, S = {context:,}, prompt {seed}: {verdict} ({len(outputs[base])} tokens)")
    return lines
