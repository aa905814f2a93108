"""Lines that stand above every table."""

from __future__ import annotations

from typing import Literal

from analysis.machine import busy_text
from analysis.paper import paper_model
from analysis.setting import changes, penalty_text, setting_text
from analysis.study import Study
from analysis.tables.sites import Site, main_depth, sites
from analysis.unlike import unlike
from harness.printable import printable

StandFor = Literal["place", "group", "nothing"]


def header(study: Study, *more: str, stand_for: StandFor = "place") -> list[str]:
    """Lines that every table carries: what was measured where, and how to read it.

    Args:
        more: a table's own notes.
        stand_for: what rows without a column for a setting stand for: the operating conditions of their place
            (context and input), those of the group, or nothing, as their columns say all.
    """
    lines = [f"Measured: {study.where}. The paper: B200 unless the row says otherwise, S = 1,040,000."]
    others = [g.model for g in study.groups if paper_model(g.model) is None]
    if others:
        lines.append(
            f"{', '.join(sorted(set(others)))}: no model of the paper: the numbers say nothing of its models."
        )
    for site in sites(study):
        group, where = site.group, f"{site.model} on {site.hardware}"
        if group is None:
            continue
        if differences := unlike(group.cells):
            lines.append(
                f"{where}: unlike machines, versions or settings stand together "
                f"here, and ratios across them mean nothing: {differences}."
            )
        if group.window_arm == "windowed":
            lines.append(f"{where}: no ring was measured, `windowed` stands in for it.")
        valid = [cell for cell in group.cells if cell.verdict.valid]
        busy = sum(bool(busy_text(cell.record)) for cell in valid)
        if busy:
            lines.append(
                f"{where}: {busy} of {len(valid)} valid records were measured on a "
                "busy machine, where steps take longer: `python -m analysis check --all` names them."
            )
        if penalty := penalty_text(group):
            lines.append(f"{where}: {penalty}")
        depth = main_depth(site)
        if site.paper is not None and (other := _not_the_papers(site, depth)):
            lines.append(
                f"{where}: not the paper's setting ({other}), which its values stand beside all the same."
            )
        if stand_for == "nothing":
            continue
        if setting := setting_text(group, depth):
            lines.append(f"{where}: where no column says otherwise, rows stand for {setting}.")
        if stand_for == "place":
            lines += _places_of_their_own(site, depth)
    lines += [line for line in (study.copies, study.left_out) if line]
    return [printable(line) for line in (*lines, *more)]


def _not_the_papers(site: Site, depth: int) -> str:
    """In what the operating conditions are not those of the paper: B200, TP1, d = 7, W = 4032."""
    conditions = site.conditions(site.window_arm)
    parts = [] if "b200" in site.hardware.lower() else [site.hardware]
    parts += [f"d = {depth}"] if depth != 7 else []
    window = conditions.get("window_tokens")
    parts += [f"W = {window}"] if window not in (None, 4032) else []
    tp = conditions.get("tp", 1)
    return ", ".join(parts + ([f"TP = {tp}"] if tp != 1 else []))


def _places_of_their_own(site: Site, depth: int) -> list[str]:
    """A line on contexts and inputs whose rows stand for something else, as nothing like the others ran."""
    base = site.setup()
    places: dict[str, dict[int, list[str]]] = {}
    for context in site.values("context_tokens", batch=1, probe=None):
        for task in site.values("task", context_tokens=context, batch=1, probe=None):
            place = {"context_tokens": context, "task": task}
            mine, here = main_depth(site, **place), site.setup(**place)
            told = {name: value for name, value in here.items() if value != base[name]}
            if mine != depth:
                told["depth"] = mine
            if told:
                places.setdefault(changes(told), {}).setdefault(context, []).append(task)
    return [
        f"{site.model} on {site.hardware}: at "
        + "; ".join(f"S = {context:,} ({', '.join(tasks)})" for context, tasks in found.items())
        + f" they stand for {told}."
        for told, found in places.items()
    ]
