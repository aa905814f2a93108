"""What the native draft's far reads are worth: tables 11 (its decisions) and 12 (its attention)."""

from __future__ import annotations

import math

from analysis.acceptance import wilson
from analysis.estimators import Estimate
from analysis.extras import AttentionMass, DecisionProbe, WindowDecision, WindowMass
from analysis.paper import Claim
from analysis.study import Study
from analysis.tables.base import SITE_COLUMNS, Column, Table, Value
from analysis.tables.heading import header
from analysis.tables.probes import probed
from analysis.tables.sites import Site, sites

_PAPER_TASK = "niah_multiquery_enum"


def table_11(study: Study) -> Table:
    """Does the windowed read change the draft's top-1 proposal? A row a window, the operating one first."""
    table = Table(
        "table_11",
        "Table 11: decision probe",
        [*SITE_COLUMNS, Column("task", "input"), Column("depth", "d"), Column("window", "W + sink"),
         Column("steps", "steps"),
         Column("agree_percent", "agree %", 1), Column("flip_percent", "flip %", 1),
         Column("margin_mean", "margin, all steps"), Column("margin_at_flip", "margin at flips"),
         Column("router_jaccard", "router overlap"), Column("control_percent", "control agree %", 1)],
        header(
            study,
            "Margins: top-1 minus top-2 logit of the full read. Brackets: 95 % Wilson intervals.",
            "Control: the head run again with all its reads, by the arithmetic of the windowed repetition.",
            stand_for="group",
        ),
    )  # fmt: skip
    for site in sites(study):
        rows = probed(site, "native", "decision_probe", DecisionProbe)
        for shown, probe in rows:
            p = shown.cell.point
            control = probe.control_agreeing_steps
            for i, one in enumerate(probe.windows or [probe]):
                said = _Said(site, "table_11", p.task, p.context_tokens if i == 0 else 0)
                agree = _share(one.agreeing_steps, probe.steps)
                flip = _share(probe.steps - one.agreeing_steps, probe.steps)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=p.context_tokens,
                    task=shown.titled(p.task), depth=p.depth,
                    window=_window(one), steps=probe.steps,
                    agree_percent=shown.value(agree, said("decision_agreement")),
                    flip_percent=shown.value(flip),
                    margin_mean=shown.value(_known(probe.margin_mean), said("margin_mean")),
                    margin_at_flip=shown.value(_known(one.margin_at_flip), said("margin_at_flip")),
                    router_jaccard=shown.value(_known(one.router_jaccard), said("router_jaccard")),
                    control_percent=shown.value(None if control is None else _share(control, probe.steps)),
                )  # fmt: skip
        if not rows:
            said = _Said(site, "table_11", _PAPER_TASK)
            note = "not probed" if site.group else ""
            table.add(model=site.model, hardware=site.hardware, depth=7,
                      agree_percent=Value(None, said("decision_agreement"), note),
                      margin_mean=Value(None, said("margin_mean"), note),
                      margin_at_flip=Value(None, said("margin_at_flip"), note),
                      router_jaccard=Value(None, said("router_jaccard"), note))  # fmt: skip
    return table


def table_12(study: Study) -> Table:
    """Where the native draft's attention goes, and what windowing would change of its read-out."""
    table = Table(
        "table_12",
        "Table 12: attention mass of the native draft",
        [*SITE_COLUMNS, Column("task", "input"), Column("depth", "d"), Column("window", "W + sink"),
         Column("steps", "steps"),
         Column("in_window_percent", "in window %", 1),
         Column("perturbation_percent", "read-out change %", 1), Column("tail_percent", "tail share %", 1),
         Column("tail_keys", "tail keys", 0), Column("tail_participation", "spread over, keys", 0),
         Column("tail_entropy_percent", "entropy, % of even", 1),
         Column("residual_share", "|W_o o| / |h|")],
        header(study, "Means over draft forwards, layers and heads. Tail: keys that the window leaves out.",
               stand_for="group"),
    )  # fmt: skip
    for site in sites(study):
        rows = probed(site, "native", "attention_mass", AttentionMass)
        for shown, mass in rows:
            p = shown.cell.point
            for i, one in enumerate(mass.windows or [_operating(mass)]):
                said = _Said(site, "table_12", p.task, p.context_tokens if i == 0 else 0)

                def share(part: float | None, steps: int = mass.steps) -> Estimate | None:
                    return _known(None if part is None else 100 * part, steps)

                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=p.context_tokens,
                    task=shown.titled(p.task), depth=p.depth,
                    window=_window(one), steps=mass.steps,
                    in_window_percent=shown.value(share(one.mass), said("in_window_mass")),
                    perturbation_percent=shown.value(share(one.perturbation), said("window_perturbation")),
                    tail_percent=shown.value(share(one.tail_share)),
                    tail_keys=shown.value(_known(one.tail_keys, mass.steps)),
                    tail_participation=shown.value(_known(one.tail_participation_keys, mass.steps)),
                    tail_entropy_percent=shown.value(share(_evenness(one))),
                    residual_share=shown.value(None if i else _known(mass.residual_share, mass.steps)),
                )  # fmt: skip
        if not rows:
            said = _Said(site, "table_12", _PAPER_TASK)
            note = "not probed" if site.group else ""
            table.add(model=site.model, hardware=site.hardware, depth=5,
                      in_window_percent=Value(None, said("in_window_mass"), note),
                      perturbation_percent=Value(None, said("window_perturbation"), note))  # fmt: skip
    return table


class _Said:
    """The paper's values of one row; none where the context is not the paper's."""

    def __init__(self, site: Site, artifact: str, task: str, context_tokens: int | None = None) -> None:
        self._site, self._artifact, self._task, self._context = site, artifact, task, context_tokens

    def __call__(self, quantity: str) -> Claim | None:
        return self._site.claim(self._artifact, self._task, "native", quantity, self._context)


def _share(count: int, steps: int) -> Estimate:
    low, high = wilson(count, steps)
    return Estimate(100 * count / steps, 100 * low, 100 * high, steps)


def _known(value: float | None, n: int = 0) -> Estimate | None:
    return None if value is None else Estimate(value, n=n)


def _window(one: WindowDecision | WindowMass) -> str:
    return "" if one.window_tokens is None else f"{one.window_tokens}+{one.sink_tokens or 0}"


def _evenness(one: WindowMass) -> float | None:
    """Entropy of the tail's shares over that of even ones; 1 where all tail keys weigh the same."""
    if one.tail_entropy_nats is None or one.tail_keys is None or one.tail_keys <= 1:
        return None
    return one.tail_entropy_nats / math.log(one.tail_keys)


def _operating(mass: AttentionMass) -> WindowMass:
    """The one window of a record that lists none."""
    return WindowMass(
        window_tokens=mass.window_tokens, sink_tokens=mass.sink_tokens, mass=mass.in_window_mass,
        perturbation=mass.perturbation, perturbation_joint=mass.perturbation, tail_share=mass.tail_share,
        tail_share_joint=mass.tail_share,
    )  # fmt: skip
