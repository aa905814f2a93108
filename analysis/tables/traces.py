"""Tables 7 and 8: phases of a decode iteration, and the kernels of its draft phase."""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.estimators import Estimate
from analysis.extras import Kernel, KernelTrace, Phases, read_extra, read_kernels
from analysis.paper import Claim
from analysis.study import Study
from analysis.tables.base import SITE_COLUMNS, Column, Table, Value
from analysis.tables.heading import header
from analysis.tables.probes import Chosen, chosen, probed
from analysis.tables.sites import Site, main_depth, main_task, sites
from harness.records import Record

_KERNELS_SHOWN = 10
_CLASS = "all of the class"


def table_7(study: Study) -> Table:
    """Wall time of the phases of one iteration, and the price of speculation over the bare verify."""
    table = Table(
        "table_7",
        "Table 7: phases of one decode iteration",
        [*SITE_COLUMNS, Column("task", "input"), Column("arm", "arm"), Column("depth", "d"),
         Column("source", "measured by"),
         Column("iterations", "iterations"),
         Column("verify_base_ms", "verify ms"), Column("verify_overhead_ms", "overhead ms"),
         Column("draft_ms", "draft ms"), Column("draft_index_ms", "of it index ms"),
         Column("unattributed_ms", "unattributed ms"), Column("iteration_ms", "iteration ms"),
         Column("overhead_percent", "speculation adds, % of verify", 1)],
        header(
            study,
            "Means over steady iterations of one run, the last of several. Verify, overhead, draft and "
            "unattributed add up to the iteration; the index builds are part of the draft.",
            "Measured by `engine`: marks inside the server during the timed run; by `nsys` or `torch`: a "
            "profiler over the same request once more, which slows it down.",
            stand_for="group",
        ),
    )  # fmt: skip
    for site in sites(study):
        for arm in ("native", site.window_arm):
            paper_arm = "native" if arm == "native" else "windowed"
            rows = [*probed(site, arm, "phases", Phases), *probed(site, arm, "profiled_phases", Phases)]
            for one, phases in rows:
                _add_phases(table, site, one, phases)
            if not rows:
                said = site.claim("table_7", "niah_multiquery_enum", paper_arm, "speculation_overhead")
                table.add(model=site.model, hardware=site.hardware, arm=arm,
                          overhead_percent=_untraced(site, said))  # fmt: skip
    return table


def _add_phases(table: Table, site: Site, one: Chosen, phases: Phases) -> None:
    p = one.cell.point
    paper_arm = "native" if p.arm == "native" else "windowed"
    said = site.claim("table_7", p.task, paper_arm, "speculation_overhead", p.context_tokens)

    def value(number: float | None, claimed: Claim | None = None) -> Value:
        return one.value(None if number is None else Estimate(number, n=phases.iterations), claimed)

    table.add(
        model=site.model, hardware=site.hardware, context_tokens=p.context_tokens, task=p.task,
        arm=one.titled(p.arm), depth=p.depth, source=phases.source, iterations=phases.iterations,
        verify_base_ms=value(phases.verify_base_ms), verify_overhead_ms=value(phases.verify_overhead_ms),
        draft_ms=value(phases.draft_ms), draft_index_ms=value(phases.draft_index_ms),
        unattributed_ms=value(phases.unattributed_ms), iteration_ms=value(phases.iteration_ms),
        overhead_percent=value(phases.overhead_percent, said),
    )  # fmt: skip


def _untraced(site: Site, said: Claim | None) -> Value:
    return Value(None, said, "not traced" if site.group else "")


@dataclass
class _Traced:
    """The traced cell of one arm: its draft kernels by (name, phase), and the capture they come from."""

    cell: Chosen | None = None
    kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    trace: KernelTrace | None = None

    def us(self, key: tuple[str, str]) -> float | None:
        """Busy microseconds an iteration; None where the arm does not run it."""
        return self.kernels[key].us_per_iteration if key in self.kernels else None

    def value(self, us: float | None) -> Value:
        """A cell of the table, in ms."""
        if us is not None:
            return self.cell.value(Estimate(us / 1000)) if self.cell else Value(Estimate(us / 1000))
        problem = self.trace.problem if self.trace else ""
        return Value(None, note="-" if self.kernels else problem or "not traced")


def table_8(study: Study) -> Table:
    """The draft phase by class of kernel and by kernel, native beside the window arm."""
    table = Table(
        "table_8",
        "Table 8: kernels of the draft phase",
        [*SITE_COLUMNS, Column("kind", "class"), Column("kernel", "kernel"), Column("phase", "phase"),
         Column("native_ms", "native ms/iteration", 4), Column("ring_ms", "ring ms/iteration", 4)],
        header(study, "Busy time a decode iteration; `-` means the arm does not run the kernel.",
               stand_for="group"),
    )  # fmt: skip
    for site in sites(study):
        native, ring = _traced(site)
        for arm, found in (("native", native), (site.window_arm, ring)):
            table.header += _about(site, arm, found)
        context = next((found.cell.place[0] for found in (native, ring) if found.cell), None)
        _add_classes(table, site, context, native, ring)
        _add_kernels(table, site, context, native, ring)
        if not native.kernels and not ring.kernels:
            quantity = "generate_draft_decode_kv_indices"
            said = site.claim("table_8", "niah_multiquery_enum", "native", quantity)
            note = f" (paper {said.text} ms/iteration)" if said else ""
            missing = native.value(None).note if site.group else "not measured here"
            table.add(model=site.model, hardware=site.hardware, kernel=quantity if said else "",
                      native_ms=missing + note,
                      ring_ms=ring.value(None).note if site.group else "not measured here")  # fmt: skip
    return table


def _about(site: Site, arm: str, found: _Traced) -> list[str]:
    """What a reader must know of a capture: where it comes from, and what of it is not told apart."""
    trace = found.trace
    if trace is None or trace.problem or found.cell is None:
        return []
    context, depth, task = found.cell.place
    setting = found.cell.titled(f"{task}, S = {context:,}, d = {depth}")
    share = 100 * trace.unattributed_us / trace.busy_us_all if trace.busy_us_all else 0.0
    by = "nsys" if trace.source == "nsys" else "the torch profiler"
    lines = [
        f"{site.model} on {site.hardware}, {arm}: {setting}; {trace.iterations} iterations by {by}, "
        f"{share:.1f} % of the busy time in no part of an iteration; attribution {trace.attribution}."
    ]
    lines += [f"{site.model} on {site.hardware}, {arm}: {text}." for text in trace.warnings]
    if trace.missing:
        lines.append(f"{site.model} on {site.hardware}, {arm}: capture: {'; '.join(trace.missing)}.")
    return lines


def _add_classes(table: Table, site: Site, context: int | None, native: _Traced, ring: _Traced) -> None:
    by_arm = [found.trace.classes_us if found.trace else {} for found in (native, ring)]
    names = set(by_arm[0]) | set(by_arm[1])
    for kind in sorted(names, key=lambda k: (-max(arm.get(k, 0.0) for arm in by_arm), k)):
        table.add(model=site.model, hardware=site.hardware,
                  context_tokens=context, kind=kind, kernel=_CLASS,
                  phase="draft, all", native_ms=native.value(by_arm[0].get(kind)),
                  ring_ms=ring.value(by_arm[1].get(kind)))  # fmt: skip


def _add_kernels(table: Table, site: Site, context: int | None, native: _Traced, ring: _Traced) -> None:
    keys = sorted(
        set(native.kernels) | set(ring.kernels),
        key=lambda key: (-max(native.us(key) or 0.0, ring.us(key) or 0.0), key),
    )
    for key in keys[:_KERNELS_SHOWN]:
        kernel = native.kernels.get(key) or ring.kernels[key]
        table.add(model=site.model, hardware=site.hardware,
                  context_tokens=context, kind=kernel.kind,
                  kernel=kernel.name, phase=kernel.phase, native_ms=native.value(native.us(key)),
                  ring_ms=ring.value(ring.us(key)))  # fmt: skip


def _traced(site: Site) -> tuple[_Traced, _Traced]:
    """The traced cells of native and the window arm, at one context, depth and input.

    It is one that both have, if any; then of longest context, then the depth and input of other tables.
    """
    by_arm = [
        {one.place: one for one in chosen(site, arm, _has_kernels)} for arm in ("native", site.window_arm)
    ]
    places = by_arm[0].keys() & by_arm[1].keys() or by_arm[0].keys() | by_arm[1].keys()
    if not places:
        return _Traced(), _Traced()
    task, depth = main_task(site), main_depth(site)
    place = max(places, key=lambda p: (p[0], p[1] == depth, p[2] == task, p))
    native, ring = (_read(cells.get(place)) for cells in by_arm)
    return native, ring


def _has_kernels(record: Record) -> bool:
    return bool(read_extra(record, "kernel_trace", KernelTrace) or read_kernels(record))


def _read(cell: Chosen | None) -> _Traced:
    if cell is None:
        return _Traced()
    record = cell.cell.record
    kernels = {(k.name, k.phase): k for k in read_kernels(record) if k.phase.startswith("draft")}
    return _Traced(cell, kernels, read_extra(record, "kernel_trace", KernelTrace))
