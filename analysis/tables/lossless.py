"""Losslessness: greedy outputs over the arms, the test on them, sampled distributions, and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from analysis.acceptance import wilson
from analysis.distribution import compare_draws
from analysis.equivalence import (
    ArmPair,
    Divergence,
    Setting,
    arm_pairs,
    divergences,
    precision,
    typical_margins,
)
from analysis.estimators import Estimate
from analysis.extras import Draws, PenaltyAudit, read_extra
from analysis.study import Cell, Study, pair_key
from analysis.tables.base import SITE_COLUMNS, Column, Table, Value
from analysis.tables.heading import header
from analysis.tables.sites import sites
from harness.points import ARMS, Point
from harness.records import Outcome

_SETTING = (Column("precision", "precision"), Column("penalty", "penalty"))
_YARDSTICK = (
    "Dense against native is the verifier's own arithmetic noise: the yardstick for native against a window. "
    "In exact arithmetic all arms agree."
)
_PENALTY_NOTE = (
    "With a repetition penalty the arms may differ for another reason: see the table `penalty`. A margin is "
    "the gap between the two best logits where the outputs part; `all` is its median over every output token."
)
_MCNEMAR_NOTE = (
    "Exact McNemar test over prompts: of those where just one pair of arms differs, either is as likely if "
    "windowing adds nothing to the verifier's own noise. One-sided: a small p says that the window differs "
    "more often."
)
_SAMPLING_NOTE = (
    "Chi-square test of homogeneity at each output position from the second on; a small p says that the arms "
    "differ. Two finite samples differ by chance alone, so that the total variation is above 0."
)
_AUDIT_NOTE = (
    "Log probabilities with the penalty beside those of the same output as a prompt. A place is a position "
    "and a token that the output held before it: the rule penalises every one."
)
ALPHA = 0.05


def lossless(study: Study) -> Table:
    """Greedy outputs over pairs of arms and all inputs: identical, or where they first differ."""
    table = _lossless_table(study, "lossless", "Losslessness: greedy outputs of all arms", ())
    for site in sites(study):
        if site.group is not None:
            margins = typical_margins(site.group)
            for pair in arm_pairs(site.group):
                _add_pair(table, site.model, site.hardware, pair, margins)
    return table


def lossless_inputs(study: Study) -> Table:
    """The same, input by input."""
    extra = (Column("task", "input"),)
    table = _lossless_table(study, "lossless_inputs", "Losslessness by input", extra)
    for site in sites(study):
        if site.group is not None:
            margins = typical_margins(site.group)
            for pair in arm_pairs(site.group, by_input=True):
                _add_pair(table, site.model, site.hardware, pair, margins, task=pair.task)
    return table


def _lossless_table(study: Study, name: str, title: str, extra: Sequence[Column]) -> Table:
    return Table(
        name,
        title,
        [*SITE_COLUMNS, *_SETTING, *extra, Column("pair", "arms"), Column("prompts", "prompts"),
         Column("identical", "identical"), Column("identical_percent", "identical %", 1),
         Column("tokens", "tokens"), Column("first_difference", "first difference (tokens)"),
         Column("margin", "margin there, logits", 3), Column("typical", "all", 2)],
        header(study, _YARDSTICK, _PENALTY_NOTE, stand_for="nothing"),
    )  # fmt: skip


def _add_pair(
    table: Table, model: str, hardware: str, pair: ArmPair, typical: dict[Setting, float], **extra: str
) -> None:
    low, high = wilson(pair.identical, pair.prompts)
    share = Estimate(100 * pair.identical / pair.prompts, 100 * low, 100 * high, pair.prompts)
    places, margins, setting = pair.first_differences, pair.margins, pair.setting
    there = Estimate(float(np.median(margins)), n=len(margins)) if margins else None
    untold = f"{len(places) - len(margins)} not recorded" if margins and len(margins) < len(places) else ""
    usual = typical.get(setting)
    table.add(
        model=model, hardware=hardware, context_tokens=setting.context_tokens, precision=setting.precision,
        penalty=_penalty(setting.penalty), pair=f"{pair.first} / {pair.second}", prompts=pair.prompts,
        identical=pair.identical, identical_percent=Value(share), tokens=pair.tokens,
        first_difference=f"median {np.median(places):.0f}, earliest {min(places)}" if places else "none",
        margin=Value(there, note="not recorded" if places else "-", flag=untold),
        typical=Value(Estimate(usual) if usual is not None else None, note="not recorded" if places else "-"),
        **extra,
    )  # fmt: skip


def _penalty(value: float) -> str:
    return "none" if value == 1 else f"{value:g}"


def divergence(study: Study) -> Table:
    """Does a window differ from native more often than native differs from dense?"""
    table = Table(
        "divergence",
        "Divergence of outputs: window against native, beside native against dense",
        [*SITE_COLUMNS, *_SETTING, Column("arm", "window arm"), Column("prompts", "prompts"),
         Column("neither", "neither differs"), Column("both", "both differ"),
         Column("only_baseline", "only native / dense"), Column("only_window", "only window / native"),
         Column("p", "p (one-sided)", 4), Column("reading", "reading")],
        header(study, _MCNEMAR_NOTE, stand_for="nothing"),
    )  # fmt: skip
    for site in sites(study):
        for found in divergences(site.group) if site.group else []:
            table.add(
                model=site.model, hardware=site.hardware, context_tokens=found.setting.context_tokens,
                precision=found.setting.precision, penalty=_penalty(found.setting.penalty), arm=found.arm,
                prompts=found.prompts, neither=found.neither, both=found.both,
                only_baseline=found.only_baseline, only_window=found.only_window,
                p=Value(Estimate(found.p, n=found.prompts)), reading=reading(found),
            )  # fmt: skip
    return table


def reading(found: Divergence) -> str:
    """What one exact test says, in words."""
    if not found.only_baseline and not found.only_window:
        return "no difference" if not found.both else "the same prompts differ"
    if found.p < ALPHA:
        return "more often than the noise"
    if found.least_p > ALPHA:
        count = found.only_baseline + found.only_window
        return f"cannot be told: the pairs differ on {count} of {found.prompts} prompts, 5 are needed"
    return "not more often than the noise"


def sampling(study: Study) -> Table:
    """Sampled tokens: do two arms draw from the same distribution?"""
    table = Table(
        "sampling",
        "Losslessness under sampling: the same distribution of tokens",
        [*SITE_COLUMNS, Column("precision", "precision"), Column("task", "input"), Column("temperature", "T"),
         Column("pair", "arms"), Column("position", "output token"), Column("draws", "draws each"),
         Column("accepted", "drafts accepted a draw"), Column("kinds", "kinds of token"),
         Column("statistic", "chi-square", 1), Column("distance", "total variation", 3),
         Column("p", "p", 4), Column("adjusted_p", "p, Holm", 4)],
        header(study, _SAMPLING_NOTE, stand_for="nothing"),
    )  # fmt: skip
    for site in sites(study):
        by_prompt: dict[str, list[tuple[Cell, Draws]]] = {}
        for cell in site.group.cells if site.group else ():
            draws = read_extra(cell.record, "draws", Draws)
            if draws is None or cell.record.outcome is not Outcome.OK or not cell.verdict.of_point:
                continue
            by_prompt.setdefault(pair_key(cell), []).append((cell, draws))
        for found in by_prompt.values():
            found.sort(key=lambda one: ARMS.index(one[0].point.arm))
            for a, b in combinations(found, 2):
                _add_draws(table, site.model, site.hardware, a, b)
    return table


def _variant(point: Point) -> str:
    """An arm and what tells it from others of its kind."""
    if point.arm == "dense":
        return point.arm
    window = f", W = {point.window_tokens}+{point.sink_tokens or 0}" if point.window_tokens else ""
    return f"{point.arm} (d = {point.depth}{window})"


def _add_draws(
    table: Table, model: str, hardware: str, first: tuple[Cell, Draws], second: tuple[Cell, Draws]
) -> None:
    p, q = first[0].point, second[0].point
    accepted = " / ".join(f"{d.accepted_drafts / d.requests:.2f}" for _, d in (first, second))
    for row in compare_draws(first[1], second[1]):
        n = min(row.draws)
        table.add(
            model=model, hardware=hardware, context_tokens=p.context_tokens, precision=precision(p),
            task=p.task, temperature=f"{p.temperature:g}", pair=f"{_variant(p)} / {_variant(q)}",
            position=row.position,
            draws=" / ".join(f"{d:,}" for d in dict.fromkeys(row.draws)), accepted=accepted, kinds=row.kinds,
            statistic=Value(Estimate(row.statistic, n=n)), distance=Value(Estimate(row.distance, n=n)),
            p=Value(Estimate(row.p, n=n)), adjusted_p=Value(Estimate(row.adjusted_p, n=n)),
        )  # fmt: skip


def penalty(study: Study) -> Table:
    """What each arm's servers did with the repetition penalty they were given."""
    table = Table(
        "penalty",
        "Repetition penalty: honoured?",
        [Column("model", "model"), Column("hardware", "hardware"), Column("arm", "arm"), Column("depth", "d"),
         Column("penalty", "penalty"), Column("state", "state"), Column("servers", "servers"),
         Column("judged", "places"), Column("penalised_percent", "penalised %", 1),
         Column("latest_percent", "missed, lag of a step %", 1), Column("accepted", "accepted drafts")],
        header(study, _AUDIT_NOTE, stand_for="nothing"),
    )  # fmt: skip
    for site in sites(study):
        found: dict[tuple[int, int, float, str], dict[str, PenaltyAudit]] = {}
        for cell in site.group.cells if site.group else ():
            p, audit = cell.point, read_extra(cell.record, "penalty", PenaltyAudit)
            if audit is not None and cell.verdict.of_point:
                key = (ARMS.index(p.arm), p.depth, audit.repetition_penalty, audit.state)
                # One audit a server start, copied into each of its records.
                found.setdefault(key, {})[cell.record.server.boot_id + repr(audit)] = audit
        for (arm, depth, asked, state), audits in sorted(found.items()):
            judged = sum(a.judged for a in audits.values())
            share, latest = (
                Estimate(100 * sum(getattr(a, name) for a in audits.values()) / judged, n=judged)
                if judged
                else None
                for name in ("penalised", "missed_latest")
            )
            drafts = [a.accepted_drafts for a in audits.values() if a.accepted_drafts is not None]
            table.add(
                model=site.model, hardware=site.hardware, arm=ARMS[arm], depth=depth, penalty=f"{asked:g}",
                state=state, servers=len(audits), judged=judged, penalised_percent=Value(share, note="-"),
                latest_percent=Value(latest, note="-"), accepted=sum(drafts) if drafts else None,
            )  # fmt: skip
    return table
