"""Tables 7 and 8: phases of a decode iteration, and the kernels of its draft phase."""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.estimators import Estimate
from analysis.extras import Kernel, KernelTrace, Phases, read_extra, read_kernels
from analysis.paper import Claim
from analysis.study import Cell, Study
from analysis.tables.base import SITE_COLUMNS, Column, Site, Table, Value, header, sites
from analysis.tables.probes import probed

_KERNELS_SHOWN = 10
_CLASS = "all of the class"


def table_7(study: Study) -> Table:
    """Wall time of the phases of one iteration, and the price of speculation over the bare verify."""
    table = Table(
        "table_7",
        "Table 7: phases of one decode iteration",
        [*SITE_COLUMNS, Column("arm", "arm"), Column("depth", "d"), Column("source", "measured by"),
         Column("iterations", "iterations"),
         Column("verify_base_ms", "verify ms"), Column("verify_overhead_ms", "overhead ms"),
         Column("draft_ms", "draft ms"), Column("draft_index_ms", "of it index ms"),
         Column("unattributed_ms", "unattributed ms"), Column("iteration_ms", "iteration ms"),
         Column("overhead_percent", "speculation adds, % of verify", 1)],
        header(
            study,
            "Means over steady iterations of one run. Verify, overhead, draft and unattributed add up to the "
            "iteration; the index builds are part of the draft.",
            "Measured by `engine`: marks inside the server during the timed run; by `nsys` or `torch`: a "
            "profiler over the same request once more, which slows it down.",
        ),
    )  # fmt: skip
    for site in sites(study):
        for arm in ("native", site.window_arm):
            paper_arm = "native" if arm == "native" else "windowed"
            rows = [*probed(site, arm, "phases", Phases), *probed(site, arm, "profiled_phases", Phases)]
            for cell, phases in rows:
                _add_phases(table, site, arm, cell, phases)
            if not rows:
                said = site.claim("table_7", "niah_multiquery_enum", paper_arm, "speculation_overhead")
                table.add(model=site.model, hardware=site.hardware, arm=arm,
                          overhead_percent=_untraced(site, said))  # fmt: skip
    return table


def _add_phases(table: Table, site: Site, arm: str, cell: Cell, phases: Phases) -> None:
    n, p = phases.iterations, cell.point
    paper_arm = "native" if arm == "native" else "windowed"
    said = site.claim("table_7", p.task, paper_arm, "speculation_overhead", p.context_tokens)
    index = phases.draft_index_ms
    table.add(
        model=site.model, hardware=site.hardware, context_tokens=p.context_tokens, arm=arm, depth=p.depth,
        source=phases.source, iterations=n,
        verify_base_ms=Value(Estimate(phases.verify_base_ms, n=n)),
        verify_overhead_ms=Value(Estimate(phases.verify_overhead_ms, n=n)),
        draft_ms=Value(Estimate(phases.draft_ms, n=n)),
        draft_index_ms=Value(Estimate(index, n=n) if index is not None else None, note="-"),
        unattributed_ms=Value(Estimate(phases.unattributed_ms, n=n)),
        iteration_ms=Value(Estimate(phases.iteration_ms, n=n)),
        overhead_percent=Value(Estimate(phases.overhead_percent, n=n), said),
    )  # fmt: skip


def _untraced(site: Site, said: Claim | None) -> Value:
    return Value(None, said, "not traced" if site.group else "")


@dataclass
class _Traced:
    """The traced cell of one arm: its draft kernels by (name, phase), and the capture they come from."""

    context_tokens: int | None = None
    kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    trace: KernelTrace | None = None

    def us(self, key: tuple[str, str]) -> float | None:
        """Busy microseconds an iteration; None where the arm does not run it."""
        return self.kernels[key].us_per_iteration if key in self.kernels else None

    def value(self, us: float | None) -> Value:
        """A cell of the table, in ms."""
        if us is not None:
            return Value(Estimate(us / 1000))
        problem = self.trace.problem if self.trace else ""
        return Value(None, note="-" if self.kernels else problem or "not traced")


def table_8(study: Study) -> Table:
    """The draft phase by class of kernel and by kernel, native beside the window arm."""
    table = Table(
        "table_8",
        "Table 8: kernels of the draft phase",
        [*SITE_COLUMNS, Column("kind", "class"), Column("kernel", "kernel"), Column("phase", "phase"),
         Column("native_ms", "native ms/iteration", 4), Column("ring_ms", "ring ms/iteration", 4)],
        header(study, "Busy time a decode iteration; `-` means the arm does not run the kernel."),
    )  # fmt: skip
    for site in sites(study):
        native, ring = (_traced(site, arm) for arm in ("native", site.window_arm))
        for arm, found in (("native", native), (site.window_arm, ring)):
            table.header += _about(site, arm, found.trace)
        _add_classes(table, site, native, ring)
        _add_kernels(table, site, native, ring)
        if not native.kernels and not ring.kernels:
            quantity = "generate_draft_decode_kv_indices"
            said = site.claim("table_8", "niah_multiquery_enum", "native", quantity)
            note = f" (paper {said.text} ms/iteration)" if said else ""
            missing = native.value(None).note if site.group else "not measured here"
            table.add(model=site.model, hardware=site.hardware, kernel=quantity if said else "",
                      native_ms=missing + note,
                      ring_ms=ring.value(None).note if site.group else "not measured here")  # fmt: skip
    return table


def _about(site: Site, arm: str, trace: KernelTrace | None) -> list[str]:
    """What a reader must know of a capture: where it comes from, and what of it is not told apart."""
    if trace is None or trace.problem:
        return []
    share = 100 * trace.unattributed_us / trace.busy_us_all if trace.busy_us_all else 0.0
    by = "nsys" if trace.source == "nsys" else "the torch profiler"
    lines = [
        f"{site.model} on {site.hardware}, {arm}: {trace.iterations} iterations by {by}, "
        f"{share:.1f} % of the busy time in no part of an iteration; attribution {trace.attribution}."
    ]
    lines += [f"{site.model} on {site.hardware}, {arm}: {text}." for text in trace.warnings]
    if trace.missing:
        lines.append(f"{site.model} on {site.hardware}, {arm}: capture: {'; '.join(trace.missing)}.")
    return lines


def _add_classes(table: Table, site: Site, native: _Traced, ring: _Traced) -> None:
    by_arm = [found.trace.classes_us if found.trace else {} for found in (native, ring)]
    names = set(by_arm[0]) | set(by_arm[1])
    for kind in sorted(names, key=lambda k: (-max(arm.get(k, 0.0) for arm in by_arm), k)):
        table.add(model=site.model, hardware=site.hardware,
                  context_tokens=native.context_tokens or ring.context_tokens, kind=kind, kernel=_CLASS,
                  phase="draft, all", native_ms=native.value(by_arm[0].get(kind)),
                  ring_ms=ring.value(by_arm[1].get(kind)))  # fmt: skip


def _add_kernels(table: Table, site: Site, native: _Traced, ring: _Traced) -> None:
    keys = sorted(
        set(native.kernels) | set(ring.kernels),
        key=lambda key: (-max(native.us(key) or 0.0, ring.us(key) or 0.0), key),
    )
    for key in keys[:_KERNELS_SHOWN]:
        kernel = native.kernels.get(key) or ring.kernels[key]
        table.add(model=site.model, hardware=site.hardware,
                  context_tokens=native.context_tokens or ring.context_tokens, kind=kernel.kind,
                  kernel=kernel.name, phase=kernel.phase, native_ms=native.value(native.us(key)),
                  ring_ms=ring.value(ring.us(key)))  # fmt: skip


def _traced(site: Site, arm: str) -> _Traced:
    """The traced cell of longest context; of equal ones the last."""
    best = _Traced()
    for cell in site.traced(arm):
        trace = read_extra(cell.record, "kernel_trace", KernelTrace)
        kernels = {(k.name, k.phase): k for k in read_kernels(cell.record) if k.phase.startswith("draft")}
        if (trace or kernels) and cell.point.context_tokens >= (best.context_tokens or 0):
            best = _Traced(cell.point.context_tokens, kernels, trace)
    return best
