"""Where rows come from: the cells of a model on a machine that a table may compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.paper import MODELS, PAPER_CONTEXT_TOKENS, Claim, claim, paper_model
from analysis.setting import closest, difference, usual, usual_at, usual_of_arm, usual_params
from analysis.study import Group, Selection, Study, task_params
from harness.points import WINDOWED_ARMS

_PLACE = ("context_tokens", "task", "depth")


@dataclass(frozen=True)
class Site:
    """A model on a machine: measured (`group`), or one of the paper's that was not."""

    model: str
    hardware: str
    paper: str | None
    group: Group | None

    def cells(self, arm: str, **wanted: Any) -> Selection:
        """Cells of an arm at the operating conditions, unless `wanted` says otherwise.

        These are: B = 1, no probe, the group's usual precision, sampling, memory and draft backend, for
        window arms the operating window, and the task's usual parameters.
        """
        if self.group is None:
            return Selection()
        conditions = self.conditions(arm, **wanted) | wanted
        found = self.group.select(arm=arm, **{k: v for k, v in conditions.items() if v is not ANY})
        params = {task: usual_params(self.group, task) for task in {c.point.task for c in found}}
        kept = [c for c in found if task_params(c) == params[c.point.task]]
        return Selection(kept, "" if kept else self._elsewhere(arm, conditions))

    def _elsewhere(self, arm: str, conditions: Mapping[str, Any]) -> str:
        """Where alone an arm was measured, if not at these conditions; empty where nowhere."""
        assert self.group is not None
        place = {name: conditions[name] for name in _PLACE if name in conditions}
        anywhere = {name: value for name, value in place.items() if name != "depth"}
        cells = (
            self.group.select(arm=arm, probe=None, batch=1, **place)
            or self.group.select(arm=arm, probe=None, **place)
            or self.group.select(arm=arm, probe=None, batch=1, **anywhere)
        )
        if not cells:
            return ""
        if (here := cells[0].point.depth) != place.get("depth", here):
            depths = sorted({cell.point.depth for cell in cells})
            return f"measured only at d = {', '.join(map(str, depths))}"
        task = cells[0].point.task
        asked = {k: v for k, v in conditions.items() if v is not ANY}
        asked["task_params"] = usual_params(self.group, task)
        found = difference(closest(cells, asked)[0], asked)
        return f"measured only at {found}" if found else ""

    def conditions(self, arm: str, **wanted: Any) -> dict[str, Any]:
        """Fields of a point at the operating conditions of an arm, for a context, task and depth if given."""
        if self.group is None:
            return {}
        group = self.group
        window = (
            (group.operating_window(batch=1) or group.operating_window()) if arm in WINDOWED_ARMS else None
        )
        alone = {"batch": 1, "probe": None, "window_tokens": window}
        return self.setup(**wanted) | usual_of_arm(self.group, arm) | alone

    def setting(self, arm: str, task: str) -> dict[str, Any]:
        """The operating conditions, the parameters of the input among them: what `closest` compares with."""
        params = usual_params(self.group, task) if self.group else {}
        return self.conditions(arm) | {"task_params": params}

    def setup(self, **wanted: Any) -> dict[str, Any]:
        """The setup that all arms share: the group's usual one, with the outputs' length at a place."""
        if self.group is None:
            return {}
        base = usual(self.group)
        if isinstance(wanted.get("context_tokens"), int):
            place = {name: wanted[name] for name in ("context_tokens", "task") if name in wanted}
            # One for all depths of a place, or a fit over them would join unlike runs.
            depth = main_depth(self, **place)
            given = {name: value for name, value in wanted.items() if name in base}
            base = usual_at(self.group, base | given, depth=(1, depth), **place)
        return base

    @property
    def window_arm(self) -> str:
        """The arm that stands for the paper's Windowed-MTP."""
        return self.group.window_arm if self.group else "ring"

    def values(self, name: str, **wanted: Any) -> list[Any]:
        """Distinct values of a point field among this site's cells."""
        return self.group.values(name, **wanted) if self.group else []

    def claim(
        self, artifact: str, task: str, arm: str, quantity: str, context_tokens: int | None = None
    ) -> Claim | None:
        """The paper's value, where the context is the paper's (0.98 M to 1.1 M tokens)."""
        if context_tokens is not None and not 0.98e6 <= context_tokens <= 1.1e6:
            return None
        return claim(artifact, self.paper, task, arm, quantity)


class _Any:
    """Marks a condition as lifted."""


ANY = _Any()


def sites(study: Study) -> list[Site]:
    """Measured groups, then the paper's models that none of them is.

    A model that was measured with several checkpoints has the beginning of each one's hash behind its name.
    """
    twins = Counter((g.model, g.hardware) for g in study.groups)
    found = [
        Site(
            f"{g.model} ({g.checkpoint[:8]})" if twins[g.model, g.hardware] > 1 else g.model,
            g.hardware, paper_model(g.model), g,
        )
        for g in study.groups
    ]  # fmt: skip
    measured = {site.paper for site in found}
    ghosts = [
        Site(title, "B200 (paper)", name, None) for name, title in MODELS.items() if name not in measured
    ]
    return found + ghosts


def contexts(site: Site, **wanted: Any) -> list[int]:
    """Contexts measured at a site, or the paper's for one that was not."""
    return site.values("context_tokens", **wanted) if site.group else [PAPER_CONTEXT_TOKENS]


def main_task(site: Site) -> str:
    """The retrieval input the paper leads with, or the task most cells here have."""
    hero, group = "niah_multiquery_enum", site.group
    tasks: list[str] = site.values("task")
    if group is None or not tasks or hero in tasks:
        return hero
    return max(tasks, key=lambda task: len(group.select(task=task)))


def main_depth(site: Site, **wanted: Any) -> int:
    """d = 7, or the depth most cells here have; of depths that native and the window arm both ran, if any."""
    group = site.group
    if group is None:
        return 7
    cells = group.select(**wanted, batch=1, probe=None) or group.select(**wanted)
    arms: dict[int, list[str]] = {}
    for cell in cells:
        if cell.point.depth > 1:
            arms.setdefault(cell.point.depth, []).append(cell.point.arm)
    both = [depth for depth, ran in arms.items() if {"native", site.window_arm} <= set(ran)]
    depths = both or list(arms)
    if not depths or 7 in depths:
        return 7
    return max(depths, key=lambda depth: (len(arms[depth]), depth))
