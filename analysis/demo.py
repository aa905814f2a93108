"""What `make demo` shows: table 2 for each context, whether outputs agree over the arms, two figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis import figures
from analysis.equivalence import whole_output
from analysis.estimators import Estimate, StepStatistics, step_statistics
from analysis.outputs import compare_outputs, screen_repetition
from analysis.study import Study, mean_of
from analysis.summary import show as show_estimate
from harness.points import ARMS, SPECULATIVE_ARMS
from harness.printable import printable
from harness.records import Outcome, Record

FIGURES = ("2", "step")

Measured = dict[tuple[str, int, int], tuple[Record, StepStatistics]]


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
    """Records with a steady state by (arm, context, seed); the others are named with their reason."""
    kept: Measured = {}
    prompts: dict[tuple[int, int], str] = {}
    for record in sorted(
        records, key=lambda r: (r.point.context_tokens, ARMS.index(r.point.arm), r.point.seed)
    ):
        found = step_statistics(record) if record.outcome is Outcome.OK else None
        reason = record.reason or str(record.outcome)
        if found is not None and any(
            screen_repetition(r.output_ids).verdict == "loop" for r in record.requests
        ):
            console.print(
                f"note: {record.point.label} seed {record.point.seed}: the output repeats itself; "
                "its acceptance length is inflated, its step time is not",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        if found is not None and record.input is not None:
            mine, place = record.input.sha256_ids, (record.point.context_tokens, record.point.seed)
            if prompts.setdefault(place, mine) != mine:
                found, reason = None, "its prompt is another one than the other arms': measure it again"
        elif found is None and record.outcome is Outcome.OK:
            reason = "too few decode steps for a steady state"
        if found is None:
            console.print(
                f"left out: {record.point.label} seed {record.point.seed}: {printable(reason)}",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
            continue
        kept[record.point.arm, record.point.context_tokens, record.point.seed] = (record, found)
    return kept


def table_2(measured: Measured, context: int) -> Table:
    """The paper's table 2 for one context: every arm, ratios by TPOT (end to end) and by step (cost only)."""
    cells = {key: value for key, value in measured.items() if key[1] == context}
    first = next(iter(cells.values()))[0].point
    seeds = sorted({key[2] for key in cells})
    title = (
        f"Table 2 on {first.model} / {first.hardware}: S = {context:,}, d = "
        f"{max(key.depth for key in (r.point for r, _ in cells.values()))}, B = {first.batch}, {first.task}, "
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
            _shown(cells, arm, lambda s: s.accept_length),
            _shown(cells, arm, lambda s: s.step_ms),
            _shown(cells, arm, lambda s: s.tpot_ms),
            _shown_ratio(cells, "native", arm, lambda s: s.step_ms) if arm in SPECULATIVE_ARMS else "-",
            _shown_ratio(cells, "native", arm, lambda s: s.tpot_ms),
            _shown_ratio(cells, "dense", arm, lambda s: s.tpot_ms),
        )
    return table


def _shown(cells: Measured, arm: str, pick: Callable[[StepStatistics], Estimate]) -> str:
    return show_estimate(mean_of([pick(found) for key, (_, found) in cells.items() if key[0] == arm]))


def _shown_ratio(cells: Measured, over: str, arm: str, pick: Callable[[StepStatistics], Estimate]) -> str:
    if over == arm:
        return "1"
    pairs = [
        pick(cells[over, context, seed][1]).ratio_to(pick(found))
        for (name, context, seed), (_, found) in cells.items()
        if name == arm and (over, context, seed) in cells
    ]
    return show_estimate(mean_of(pairs)) if pairs else "-"


def agreement_lines(measured: Measured, context: int) -> list[str]:
    """Whether greedy outputs are the same tokens in every arm, prompt by prompt."""
    lines = []
    for seed in sorted({key[2] for key in measured if key[1] == context}):
        outputs = {
            arm: measured[arm, context, seed][0].requests[0].output_ids
            for arm in ARMS
            if (arm, context, seed) in measured and whole_output(measured[arm, context, seed][0])
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
