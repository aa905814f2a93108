"""Tables as data: rows of measured values, each with its interval, the paper's value and a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from analysis.estimators import Estimate
from analysis.machine import busy_text
from analysis.paper import MODELS, PAPER_CONTEXT_TOKENS, Claim, claim, paper_model
from analysis.setting import penalty_text, setting_text, usual, usual_at, usual_of_arm, usual_params
from analysis.study import Cell, Group, Pooled, Study, task_params
from analysis.unlike import unlike
from harness.points import ARMS, WINDOWED_ARMS
from harness.printable import printable

if TYPE_CHECKING:
    import pandas as pd

INSIDE, OUTSIDE = "inside the paper's range", "outside the paper's range"
NO_PAPER, NOT_MEASURED = "no paper value", "not measured here"


@dataclass(frozen=True)
class Value:
    """One measured quantity. `note` says why there is none; `flag` marks a doubtful one."""

    estimate: Estimate | None
    claim: Claim | None = None
    note: str = ""
    flag: str = ""

    @property
    def verdict(self) -> str:
        """Against the paper: the interval (or the bare value) must touch the accepted range."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            return self.note or NOT_MEASURED
        if self.claim is None:
            return NO_PAPER
        value = self.estimate
        low = value.low if math.isfinite(value.low) else value.value
        high = value.high if math.isfinite(value.high) else value.value
        accepted = self.claim.accepted
        return INSIDE if low <= accepted[1] and high >= accepted[0] else OUTSIDE

    def text(self, digits: int = 2) -> str:
        """`4.51 [4.40, 4.62]` and what the paper says."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            text = self.note or NOT_MEASURED
        else:
            text = f"{self.estimate.value:.{digits}f}"
            if math.isfinite(self.estimate.low) and math.isfinite(self.estimate.high):
                text += f" [{self.estimate.low:.{digits}f}, {self.estimate.high:.{digits}f}]"
            if self.flag:
                text += f" ({self.flag})"
        if self.claim is not None:
            short = {INSIDE: ", inside", OUTSIDE: ", outside"}.get(self.verdict, "")
            text += f" (paper {self.claim.text}{short})"
        return text


Content = Value | str | int | None


@dataclass(frozen=True)
class Column:
    """A column; `digits` are decimals of its values."""

    name: str
    title: str
    digits: int = 2


SITE_COLUMNS = (Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"))
"""What tells the rows of most tables apart first."""


@dataclass
class Table:
    """A named table. `header` lines stand above it in every rendering."""

    name: str
    title: str
    columns: Sequence[Column]
    header: list[str] = field(default_factory=list)
    rows: list[dict[str, Content]] = field(default_factory=list)

    def add(self, **row: Content) -> None:
        """Append a row; a column it leaves out stays empty.

        Raises:
            KeyError: a name that is no column.
        """
        unknown = set(row) - {column.name for column in self.columns}
        if unknown:
            raise KeyError(f"{self.name} has no column {sorted(unknown)}")
        self.rows.append(row)

    def cells(self) -> Iterator[list[str]]:
        """The rows as text."""
        for row in self.rows:
            yield [_text(row.get(column.name), column.digits) for column in self.columns]

    def frame(self) -> pd.DataFrame:
        """One row a table row; a value column x spreads into x, x_low, x_high, x_n, x_paper_low,
        x_paper_high, x_verdict and x_flag."""
        import pandas as pd  # noqa: PLC0415

        valued = {c.name for c in self.columns for row in self.rows if isinstance(row.get(c.name), Value)}
        out: list[dict[str, Any]] = []
        for row in self.rows:
            flat: dict[str, Any] = {}
            for column in self.columns:
                content = row.get(column.name)
                if column.name in valued:
                    flat |= _flat(column.name, content if isinstance(content, Value) else None)
                else:
                    flat[column.name] = printable(content) if isinstance(content, str) else content
            out.append(flat)
        return pd.DataFrame(out, columns=list(out[0]) if out else [c.name for c in self.columns])


def _text(content: Content, digits: int) -> str:
    if isinstance(content, Value):
        return printable(content.text(digits))
    return "" if content is None else f"{content:,}" if isinstance(content, int) else printable(content)


def _flat(name: str, value: Value | None) -> dict[str, Any]:
    nan = float("nan")
    estimate = (value.estimate if value else None) or Estimate(nan)
    said = value.claim if value else None
    return {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_n": estimate.n,
        f"{name}_paper_low": said.low if said else nan,
        f"{name}_paper_high": said.high if said else nan,
        f"{name}_verdict": printable(value.verdict) if value else "",
        f"{name}_flag": printable(value.flag) if value else "",
    }


# -- where rows come from --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A model on a machine: measured (`group`), or one of the paper's that was not."""

    model: str
    hardware: str
    paper: str | None
    group: Group | None

    def cells(self, arm: str, **wanted: Any) -> list[Cell]:
        """Cells of an arm at the operating conditions, unless `wanted` says otherwise.

        These are: B = 1, no probe, the group's usual precision, sampling, memory and draft backend, for
        window arms the operating window, and the task's usual parameters.
        """
        if self.group is None:
            return []
        conditions = self.conditions(arm, **wanted) | wanted
        found = self.group.select(arm=arm, **{k: v for k, v in conditions.items() if v is not ANY})
        params = {task: usual_params(self.group, task) for task in {c.point.task for c in found}}
        return [c for c in found if task_params(c) == params[c.point.task]]

    def conditions(self, arm: str, **wanted: Any) -> dict[str, Any]:
        """Fields of a point at the operating conditions of an arm, for a context, task and depth if given."""
        if self.group is None:
            return {}
        window = self.group.operating_window(batch=1) if arm in WINDOWED_ARMS else None
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
            depth = wanted.get("depth", 1)
            depth = depth if depth != 1 else main_depth(self, **place)
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

    def usual_values(self, name: str, arms: Iterable[str] = ARMS, **wanted: Any) -> list[Any]:
        """Distinct values of a point field among the cells that `cells` finds for these arms."""
        return sorted({getattr(cell.point, name) for arm in arms for cell in self.cells(arm, **wanted)})

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


def usual_contexts(site: Site, arms: Iterable[str] = ARMS, **wanted: Any) -> list[int]:
    """Contexts of these arms at the operating conditions (`Site.cells`), or the paper's as in `contexts`."""
    return site.usual_values("context_tokens", arms, **wanted) if site.group else [PAPER_CONTEXT_TOKENS]


def main_task(site: Site) -> str:
    """The retrieval input the paper leads with, or the task most cells here have."""
    hero, group = "niah_multiquery_enum", site.group
    tasks: list[str] = site.values("task")
    if group is None or not tasks or hero in tasks:
        return hero
    return max(tasks, key=lambda task: len(group.select(task=task)))


def main_depth(site: Site, **wanted: Any) -> int:
    """d = 7, or the depth most speculative cells here have."""
    group = site.group
    alone = [d for d in site.values("depth", **wanted, batch=1, probe=None) if d > 1]
    depths: list[int] = alone or [d for d in site.values("depth", **wanted) if d > 1]
    if group is None or not depths or 7 in depths:
        return 7
    return max(depths, key=lambda depth: len(group.select(depth=depth)))


def valued(found: Pooled, said: Claim | None = None) -> Value:
    """A pooled average as a table value."""
    return Value(found.estimate, said, found.note, found.flag)


def as_ratio(said: Claim | None) -> Claim | None:
    """A claim in percent faster, as a ratio."""
    if said is None:
        return None
    return replace(said, low=1 + said.low / 100, high=1 + said.high / 100, unit="ratio")


def header(study: Study, *more: str) -> list[str]:
    """Lines that every table carries: what was measured where, and how to read it."""
    lines = [f"Measured: {study.where}. The paper: B200 unless the row says otherwise, S = 1,040,000."]
    others = [g.model for g in study.groups if paper_model(g.model) is None]
    if others:
        lines.append(
            f"{', '.join(sorted(set(others)))}: no model of the paper: the numbers say nothing of its models."
        )
    for group in study.groups:
        if differences := unlike(group.cells):
            lines.append(
                f"{group.model} on {group.hardware}: unlike machines, versions or settings stand together "
                f"here, and ratios across them mean nothing: {differences}."
            )
        if group.window_arm == "windowed":
            lines.append(
                f"{group.model} on {group.hardware}: no ring was measured, `windowed` stands in for it."
            )
        busy = sum(bool(busy_text(cell.record)) for cell in group.cells if cell.verdict.valid)
        if busy:
            lines.append(
                f"{group.model} on {group.hardware}: {busy} of {len(group.cells)} records were measured on a "
                "busy machine, where steps take longer: `python -m analysis check --all` names them."
            )
        if penalty := penalty_text(group):
            lines.append(f"{group.model} on {group.hardware}: {penalty}")
        depth = main_depth(Site(group.model, group.hardware, None, group))
        if setting := setting_text(group, depth):
            where = f"{group.model} on {group.hardware}"
            lines.append(f"{where}: where no column says otherwise, rows stand for {setting}.")
        lines += _places_of_their_own(Site(group.model, group.hardware, None, group), depth)
    lines += [line for line in (study.copies, study.left_out) if line]
    return [printable(line) for line in (*lines, *more)]


def _places_of_their_own(site: Site, depth: int) -> list[str]:
    """A line on contexts and inputs whose rows stand for something else, as nothing like the others ran."""
    base = site.setup()
    places: dict[str, dict[int, list[str]]] = {}
    for context in site.values("context_tokens", batch=1, probe=None):
        for task in site.values("task", context_tokens=context, batch=1, probe=None):
            place = {"context_tokens": context, "task": task}
            mine, here = main_depth(site, **place), site.setup(**place)
            names = {
                "max_new_tokens": "new tokens",
                "ignore_eos": "ignore EOS",
                "shared_prefill": "shared prefill",
            }
            told = [f"{names[name]} = {value}" for name, value in here.items() if value != base[name]]
            told += [f"d = {mine}"] if mine != depth else []
            if told:
                places.setdefault(", ".join(told), {}).setdefault(context, []).append(task)
    return [
        f"{site.model} on {site.hardware}: at "
        + "; ".join(f"S = {context:,} ({', '.join(tasks)})" for context, tasks in found.items())
        + f" they stand for {told}."
        for told, found in places.items()
    ]


RATIO_NOTE = "Ratios are times: native / arm above 1 means the arm is faster. Brackets: 95 % intervals."
