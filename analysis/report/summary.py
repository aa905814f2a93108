"""The report's first page in plain sentences, and the environment it was measured in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from analysis.equivalence import ArmPair, arm_pairs
from analysis.estimators import Estimate
from analysis.paper import MODELS, paper_model
from analysis.study import Study, pooled_ratio, step_ms, tpot_ms
from analysis.tables.sites import Site, contexts, main_depth, main_task, sites
from analysis.unlike import unlike


@dataclass(frozen=True)
class Summary:
    """Sentences by subject; each list may be empty."""

    measured: list[str]
    headline: list[str]
    outputs: list[str]
    doubtful: list[str]
    missing: list[str]


def summarise(study: Study) -> Summary:
    """What was measured, on what, the headline ratios, what is invalid, what is missing."""
    measured, headline, outputs = [], [], []
    for site in sites(study):
        if site.group is None:
            continue
        cells = site.group.cells
        ok = sum(cell.verdict.valid for cell in cells)
        arms, spans = Counter(c.point.arm for c in cells), site.values("context_tokens")
        reach = f"{spans[0]:,}" if len(spans) == 1 else f"{spans[0]:,} to {spans[-1]:,}"
        noun = "record" if len(cells) == 1 else "records"
        counts = ", ".join(f"{n} {arm}" for arm, n in arms.items())
        measured.append(
            f"{site.model} on {site.hardware}: {len(cells)} {noun} ({counts}), contexts of {reach} tokens; "
            f"{ok} of {len(cells)} are valid measurements."
        )
        headline += _ratios(site)
        outputs += _agreement(site)
    doubtful = [
        f"{cell.point.label}, seed {cell.point.seed}: {cell.verdict.label}. {cell.verdict.text}."
        for cell in study.cells
        if not cell.verdict.acceptance_valid
    ]
    doubtful = [text for text in (study.left_out,) if text] + doubtful
    doubtful = [
        f"{site.model} on {site.hardware}: unlike machines, versions or settings stand together, and ratios "
        f"across them mean nothing: {differences}."
        for site in sites(study) if site.group and (differences := unlike(site.group.cells))
    ] + doubtful  # fmt: skip
    present = {paper_model(g.model) for g in study.groups}
    absent = [title for name, title in MODELS.items() if name not in present]
    missing = [f"The paper's {', '.join(absent)} were not measured here."] if absent else []
    return Summary(measured, headline, outputs, doubtful, missing)


def _agreement(site: Site) -> list[str]:
    """One sentence a pair of arms and a precision, over all inputs and contexts."""
    by_pair: dict[tuple[str, float, str, str], list[ArmPair]] = {}
    for pair in arm_pairs(site.group) if site.group else []:
        setting = pair.setting
        by_pair.setdefault((setting.precision, setting.penalty, pair.first, pair.second), []).append(pair)
    out = []
    for (precision, penalty, first, second), pairs in by_pair.items():
        prompts, same = sum(p.prompts for p in pairs), sum(p.identical for p in pairs)
        places = [place for p in pairs for place in p.first_differences]
        how = precision if penalty == 1 else f"{precision}, repetition penalty {penalty:g}"
        text = (
            f"{site.model} ({how}): {first} and {second} give the same tokens for {same} of {prompts} prompts"
        )
        text += f", the earliest difference at token {min(places)}" if places else ""
        relaxed = " Under speculation SGLang applies the penalty in a relaxed form: see the table `penalty`."
        out.append(f"{text}." + (relaxed if places and penalty != 1 else ""))
    return out


def _ratios(site: Site) -> list[str]:
    """Step and TPOT of the window arm against native and dense, at every context of the main task."""
    task, arm = main_task(site), site.window_arm
    out = []
    for context in contexts(site, task=task):
        depth = main_depth(site, task=task, context_tokens=context)
        where = {"task": task, "context_tokens": context}
        window = site.cells(arm, depth=depth, **where)
        native = site.cells("native", depth=depth, **where)
        parts = []
        for name, over, pick in (
            ("a step takes", native, step_ms),
            ("a token takes", native, tpot_ms),
            ("a token takes", site.cells("dense", **where), tpot_ms),
        ):
            found = pooled_ratio(over, window, pick)
            if found.estimate is not None:
                against = "dense" if over and over[0].point.arm == "dense" else "native"
                doubt = f" ({found.flag})" if found.flag else ""
                parts.append(f"{name} {_times(found.estimate)} as long with {against} as with {arm}{doubt}")
        if parts:
            out.append(f"{site.model} on {site.hardware}, S = {context:,}, d = {depth}: {'; '.join(parts)}.")
    return out


def _times(ratio: Estimate) -> str:
    text = f"{ratio.value:.2f} times"
    if ratio.low == ratio.low:
        text += f" [{ratio.low:.2f}, {ratio.high:.2f}]"
        if ratio.low <= 1 <= ratio.high:
            text += " (cannot be told apart from 1)"
    return text


def environment_rows(study: Study) -> list[tuple[str, str]]:
    """Facts of the environment and how many records share each value."""
    facts: dict[str, Counter[str]] = {}
    for cell in study.cells:
        for name, value in _flat(cell.record.environment):
            facts.setdefault(name, Counter())[value] += 1
    rows = []
    for name, values in facts.items():
        if len(values) == 1:
            rows.append((name, next(iter(values))))
        elif len(values) <= 4:
            rows.append((name, "; ".join(f"{v} ({n} records)" for v, n in values.most_common())))
        else:
            rows.append((name, f"{len(values)} different values"))
    return rows


def _flat(facts: dict[str, object], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            out += _flat(value, f"{prefix}{name}.")
        elif value not in (None, [], ""):
            out.append((f"{prefix}{name}", str(value)))
    return out
