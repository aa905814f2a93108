"""Traces: tables 7 and 8, and the bandwidth floor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from analysis.bandwidth import floor_of
from analysis.estimators import Estimate
from analysis.extras import AttentionMass, DecisionProbe, Kernel, Phases, read_extra, read_kernels
from analysis.paper import Claim
from analysis.study import Cell, Study
from analysis.tables.base import ANY, Column, Site, Table, Value, header, sites
from analysis.tables.depth import fits

_SITE = (Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"))
_KERNELS_SHOWN = 8
T = TypeVar("T", Phases, DecisionProbe, AttentionMass)


def probed(site: Site, arm: str, key: str, kind: type[T]) -> Iterator[tuple[Cell, T]]:
    """Cells of an arm that carry an extra, the last repeat of each context and depth."""
    found: dict[tuple[int, int, str], tuple[Cell, T]] = {}
    for cell in site.traced(arm):
        extra = read_extra(cell.record, key, kind)
        if extra is not None:
            found[cell.point.context_tokens, cell.point.depth, cell.point.task] = (cell, extra)
    yield from found.values()


def table_7(study: Study) -> Table:
    """Wall time of the phases of one iteration, and the price of speculation over the bare verify."""
    table = Table(
        "table_7",
        "Table 7: phases of one decode iteration",
        [*_SITE, Column("arm", "arm"), Column("depth", "d"), Column("iterations", "iterations"),
         Column("verify_base_ms", "verify ms"), Column("verify_overhead_ms", "overhead ms"),
         Column("draft_ms", "draft ms"), Column("iteration_ms", "iteration ms"),
         Column("overhead_percent", "speculation adds, % of verify", 1)],
        header(study, "Means over traced steady iterations; a trace has no interval over runs."),
    )  # fmt: skip
    for site in sites(study):
        for arm in ("native", site.window_arm):
            paper_arm = "native" if arm == "native" else "windowed"
            rows = list(probed(site, arm, "phases", Phases))
            for cell, phases in rows:
                n, p = phases.iterations, cell.point
                said = site.claim("table_7", p.task, paper_arm, "speculation_overhead", p.context_tokens)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=p.context_tokens, arm=arm,
                    depth=p.depth, iterations=n,
                    verify_base_ms=Value(Estimate(phases.verify_base_ms, n=n)),
                    verify_overhead_ms=Value(Estimate(phases.verify_overhead_ms, n=n)),
                    draft_ms=Value(Estimate(phases.draft_ms, n=n)),
                    iteration_ms=Value(Estimate(phases.iteration_ms, n=n)),
                    overhead_percent=Value(Estimate(phases.overhead_percent, n=n), said),
                )  # fmt: skip
            if not rows:
                said = site.claim("table_7", "niah_multiquery_enum", paper_arm, "speculation_overhead")
                table.add(model=site.model, hardware=site.hardware, arm=arm,
                          overhead_percent=_untraced(site, said))  # fmt: skip
    return table


def _untraced(site: Site, said: Claim | None) -> Value:
    return Value(None, said, "not traced" if site.group else "")


def table_8(study: Study) -> Table:
    """The largest kernels of the draft phase, native beside the window arm."""
    table = Table(
        "table_8",
        "Table 8: largest kernels of the draft phase",
        [*_SITE, Column("kernel", "kernel"), Column("phase", "phase"),
         Column("native_us", "native us/iter", 1), Column("ring_us", "ring us/iter", 1)],
        header(study, "Busy time a decode iteration; `-` means the arm does not run the kernel."),
    )  # fmt: skip
    for site in sites(study):
        by_arm = {arm: _kernels(site, arm) for arm in ("native", site.window_arm)}
        native, ring = by_arm["native"], by_arm[site.window_arm]
        names = sorted(
            set(native[1]) | set(ring[1]),
            key=lambda k: (
                -max(native[1].get(k, _NO).us_per_iteration, ring[1].get(k, _NO).us_per_iteration),
                k,
            ),
        )
        for name in names[:_KERNELS_SHOWN]:
            shown = [
                Value(Estimate(k.us_per_iteration) if k else None, note="-" if found else "not traced")
                for k, found in ((native[1].get(name), native[1]), (ring[1].get(name), ring[1]))
            ]
            phase = (native[1].get(name) or ring[1][name]).phase
            table.add(model=site.model, hardware=site.hardware, context_tokens=native[0] or ring[0],
                      kernel=name, phase=phase, native_us=shown[0], ring_us=shown[1])  # fmt: skip
        if not names:
            quantity = "generate_draft_decode_kv_indices"
            said = site.claim("table_8", "niah_multiquery_enum", "native", quantity)
            note = f" (paper {said.text} ms/iter)" if said else ""
            table.add(model=site.model, hardware=site.hardware, kernel=quantity if said else "",
                      native_us=("not traced" if site.group else "not measured here") + note,
                      ring_us="not traced" if site.group else "not measured here")  # fmt: skip
    return table


_NO = Kernel(name="", phase="", calls_per_iteration=0, us_per_iteration=0)


def _kernels(site: Site, arm: str) -> tuple[int | None, dict[str, Kernel]]:
    """(context, draft kernels by name) of the traced cell of longest context."""
    best: tuple[int | None, dict[str, Kernel]] = (None, {})
    for cell in site.traced(arm):
        kernels = {k.name: k for k in read_kernels(cell.record) if k.phase.startswith("draft")}
        if kernels and cell.point.context_tokens >= (best[0] or 0):
            best = cell.point.context_tokens, kernels
    return best


def bandwidth(study: Study, bandwidth_gb_per_s: float | None = None) -> Table:
    """The least time the draft's KV reads can take, beside the measured draft."""
    table = Table(
        "bandwidth",
        "Bandwidth floor of the draft's KV reads",
        [*_SITE, Column("arm", "arm"), Column("depth", "d"), Column("bytes_per_token", "KV bytes/token", 0),
         Column("floor_ms", "floor ms/step", 4), Column("measured_ms", "measured draft ms", 3),
         Column("times_floor", "measured / floor", 1)],
        header(study, "floor = bytes/token x keys read x gamma / peak bandwidth. Measured: the traced draft, "
                      "else gamma x t_fwd of the latency fit."),
    )  # fmt: skip
    for site in sites(study):
        slopes = {
            (context, arm.arm): arm.fit.slope_ms.value
            for _, context, *arms in fits(site)
            for arm in arms
            if arm.fit
        }
        for arm in ("native", site.window_arm):
            seen: set[tuple[int, int]] = set()
            for cell in site.cells(arm, probe=ANY):
                p = cell.point
                if (p.context_tokens, p.depth) in seen:
                    continue
                seen.add((p.context_tokens, p.depth))
                floor = floor_of(cell.record, bandwidth_gb_per_s)
                phases = read_extra(cell.record, "phases", Phases)
                slope = slopes.get((p.context_tokens, arm))
                measured = phases.draft_ms if phases else slope * p.gamma if slope is not None else None
                why = "bytes or bandwidth unknown: --bandwidth" if floor is None else "not traced, no fit"
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=p.context_tokens, arm=arm,
                    depth=p.depth,
                    bytes_per_token=Value(Estimate(floor.bytes_per_token) if floor else None, note=why),
                    floor_ms=Value(Estimate(floor.step_ms) if floor else None, note=why),
                    measured_ms=Value(
                        Estimate(measured) if measured is not None else None, note="not traced, no fit"
                    ),
                    times_floor=Value(
                        Estimate(measured / floor.step_ms) if measured is not None and floor else None,
                        note=why,
                    ),
                )  # fmt: skip
    return table
