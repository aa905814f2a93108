"""KV memory of target and draft, from the server's own log; and how many requests fit beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.estimators import Estimate
from analysis.paper import FULL_ATTENTION_LAYERS, claim
from analysis.study import Cell, Group, Study
from analysis.tables.base import Column, Table, Value
from analysis.tables.heading import header
from analysis.tables.sites import sites
from harness.points import ARMS, Point
from harness.records import Outcome, Pool, ServerInfo

# The log rounds each of K and V to 0.01 GiB, so a pool's size is known to that much.
_ROUNDING_BYTES = 10 << 20
_WORTH_A_SHARE = 20 * _ROUNDING_BYTES
_NOTES = (
    "One row a server setting: S, d and W + sink are those of the points that it served.",
    "Bytes as the server logs them, rounded to 10 MiB (the draft pool of a windowed server: exactly). A "
    "share is given where rounding cannot change it.",
    "Tokens given back: what the target holds beyond what two full-length pools would hold in the same "
    "memory, by the server's plugin; compare a native row of the same budget.",
)
_BATCH_NOTE = (
    "Found by the sweep: the largest batch whose requests all ran together; at least that many where no "
    "larger one was tried."
)
_FULL = frozenset({Outcome.DOES_NOT_FIT, Outcome.OUT_OF_MEMORY_AT_START, Outcome.OUT_OF_MEMORY_AT_RUN})
# Of a run that went wrong as a full pool makes it go wrong.
_CROWDED = frozenset({"batch_not_reached", "retracted"})


def memory(study: Study) -> Table:
    """Both pools and the draft's share; one row a distinct server setting."""
    table = Table(
        "memory",
        "KV memory: the draft's share, and what a ring gives back",
        [Column("model", "model"), Column("hardware", "hardware"), Column("arm", "arm"),
         Column("context_tokens", "S"), Column("depth", "d"), Column("window", "W + sink"),
         Column("budget", "sized by"), Column("requests", "requests at most"),
         Column("target_tokens", "target tokens"), Column("target_mib", "target MiB", 1),
         Column("draft_tokens", "draft tokens"), Column("draft_mib", "draft MiB", 3),
         Column("draft_percent", "draft share %", 2), Column("architecture_percent", "1/(F+1) %", 2),
         Column("tokens_back", "tokens given back"), Column("tokens_back_percent", "more tokens %", 2)],
        header(study, *_NOTES, stand_for="nothing"),
    )  # fmt: skip
    for site in sites(study):
        said = claim("memory", site.paper, "all", "native", "draft_share_of_kv")
        # A record of another server than its point's tells of other pools.
        for cells in _by_setting(c for c in site.group.cells if c.verdict.of_point) if site.group else ():
            cell = cells[0]
            server, point = cell.record.server, cell.point
            pools = {pool.role: pool for pool in server.pools}
            target, draft = pools["target"], pools.get("draft")
            back, of = tokens_given_back(server) or (None, None)
            table.add(
                model=site.model, hardware=site.hardware, arm=point.arm,
                context_tokens=_span(c.point.context_tokens for c in cells),
                depth=_span(c.point.depth for c in cells),
                window=_windows(cells), budget=_sized_by(cell),
                requests=server.max_running_requests,
                target_tokens=target.tokens, target_mib=_mib(target.bytes),
                draft_tokens=draft.tokens if draft else None,
                draft_mib=_mib(draft.bytes) if draft else Value(None, note="no draft"),
                draft_percent=_with_claim(draft_share(cell), said if point.arm == "native" else None),
                architecture_percent=architecture_share(server, site.paper),
                tokens_back=back,
                tokens_back_percent=Value(
                    Estimate(100 * back / of) if back is not None and of else None, note="-"
                ),
            )  # fmt: skip
        if site.group is None:
            table.add(
                model=site.model, hardware=site.hardware, arm="native",
                draft_percent=Value(None, said),
                architecture_percent=architecture_share(ServerInfo(), site.paper),
            )  # fmt: skip
    return table


def _by_setting(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells whose servers had the same pools, in the order of the first of each."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        server = cell.record.server
        if any(pool.role == "target" for pool in server.pools):
            key = (cell.point.arm, _sized_by(cell), server.max_running_requests, repr(server.pools))
            found.setdefault(key, []).append(cell)
    return list(found.values())


def _span(values: Iterable[int]) -> str:
    """`2,048 to 32,768`, or the one value."""
    low, *_, high = sorted(values) * 2
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _windows(cells: Iterable[Cell]) -> str:
    """`252 + 4`, several by commas; empty where the draft reads everything."""
    pairs = {(p.window_tokens, p.sink_tokens or 0) for p in (c.point for c in cells) if p.window_tokens}
    return ", ".join(f"{window:,} + {sink}" for window, sink in sorted(pairs))


def _sized_by(cell: Cell) -> str:
    """What decided the pools' size."""
    budget, arguments = cell.point.kv_budget_mib, cell.record.server.arguments
    if budget is not None:
        return f"{budget} MiB"
    if arguments.get("max_total_tokens"):
        return "the requests" if cell.point.hardware == "cpu" else "a cap"
    fraction = arguments.get("mem_fraction_static")
    return f"fraction {fraction:g}" if isinstance(fraction, int | float) else "the engine"


def tokens_given_back(server: ServerInfo) -> tuple[int, int] | None:
    """Target tokens that a ring adds to those that native pools of the same memory hold, and these.

    None for other arms.
    """
    report = server.engine_report
    ours, native = report.get("target_tokens", ""), report.get("target_tokens_without_ring", "")
    if not (ours.isdecimal() and native.isdecimal() and len(ours) < 19 and len(native) < 19):
        return None
    return int(ours) - int(native), int(native)


def architecture_share(server: ServerInfo, paper: str | None) -> Value:
    """Draft layers over draft and full-attention target layers, 1 / (F + 1) for one, in percent."""
    known = {k: v for k, v in server.architecture.items() if isinstance(v, int) and v > 0}
    full = known.get("full_attention_layers") or FULL_ATTENTION_LAYERS.get(paper or "")
    draft = known.get("mtp_attention_layers") or 1
    return Value(Estimate(100 * draft / (full + draft)) if full else None, note="F unknown")


def draft_share(cell: Cell) -> Value:
    """Draft pool / (draft + target pool) in percent, the interval from the log's rounding."""
    pools = {pool.role: pool for pool in cell.record.server.pools}
    target, draft = _bytes(pools.get("target")), _bytes(pools.get("draft"))
    if "draft" not in pools:
        return Value(None, note="no draft")
    if target is None or draft is None or target < _WORTH_A_SHARE:
        return Value(None, note="pool smaller than the log's rounding")
    known = "draft_pool_bytes" in cell.record.server.engine_report
    slack = 0 if known else _ROUNDING_BYTES
    low, high = (
        100 * d / (d + t)
        for d, t in (
            (max(0, draft - slack), target + _ROUNDING_BYTES),
            (draft + slack, target - _ROUNDING_BYTES),
        )
    )
    return Value(Estimate(100 * draft / (draft + target), low, high))


def _bytes(pool: Pool | None) -> int | None:
    return pool.bytes if pool is not None else None


def _with_claim(value: Value, said: object) -> Value:
    from analysis.paper import Claim  # noqa: PLC0415

    return Value(value.estimate, said if isinstance(said, Claim) else None, value.note)


def _mib(size: int | None) -> Value:
    return Value(Estimate(size / (1 << 20)) if size is not None else None, note="unknown")


# -- the largest batch --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LargestBatch:
    """What a sweep over batch sizes found for one arm.

    `ran` is the largest batch that ran as asked (0 for none), `failed` the smallest above it that did not,
    `why` its reason in the record's words; `failed` None means that no larger one was tried.
    """

    point: Point
    ran: int
    failed: int | None
    why: str


def largest_batches(group: Group) -> list[LargestBatch]:
    """One for each setting but the batch that has two batch sizes or more; inputs stand together."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in group.cells:
        p = cell.point
        if p.probe is None and not p.temperature:
            window = (p.window_tokens or 0, p.sink_tokens or 0)
            key = (p.context_tokens, p.kv_budget_mib or 0, p.tp, ARMS.index(p.arm), p.depth, *window,
                   p.dtype, p.kv_dtype, p.max_new_tokens, p.ignore_eos, p.draft_backend,
                   p.prune_draft_prefill)  # fmt: skip
            found.setdefault(key, []).append(cell)
    out = []
    for _, cells in sorted(found.items()):
        if len({cell.point.batch for cell in cells}) < 2:
            continue
        ran = max((cell.point.batch for cell in cells if _ran(cell)), default=0)
        above = [cell for cell in cells if cell.point.batch > ran and _was_full(cell)]
        first = min(above, key=lambda cell: cell.point.batch, default=None)
        why = (first.record.reason or first.verdict.text) if first else ""
        if smaller := sorted({c.point.batch for c in cells if c.point.batch < ran and _was_full(c)}):
            why = f"{', '.join(map(str, smaller))} failed too{': ' if why else ''}{why}"
        out.append(LargestBatch(cells[0].point, ran, first.point.batch if first else None, why))
    return out


def _ran(cell: Cell) -> bool:
    """All requests ran together, however few their steps or odd their texts."""
    codes = {reason.code for reason in cell.verdict.reasons if reason.severity == "invalid"}
    together = max(cell.record.decode_steps.running_requests, default=0) >= cell.point.batch
    return cell.record.outcome is Outcome.OK and together and codes <= {"few_steps"}


def _was_full(cell: Cell) -> bool:
    return cell.record.outcome in _FULL or any(reason.code in _CROWDED for reason in cell.verdict.reasons)


def batches(study: Study) -> Table:
    """The largest batch of each arm in the same memory: figure 4's one more request."""
    table = Table(
        "batches",
        "Requests that fit beside each other",
        [Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"),
         Column("tp", "TP"), Column("budget", "KV budget"), Column("arm", "arm"), Column("depth", "d"),
         Column("ran", "largest batch"), Column("more", "more than native"),
         Column("failed", "first that failed"), Column("why", "why")],
        header(study, _BATCH_NOTE, stand_for="nothing"),
    )  # fmt: skip
    for site in sites(study):
        found = largest_batches(site.group) if site.group else []
        for f in found:
            p = f.point
            table.add(
                model=site.model, hardware=site.hardware, context_tokens=p.context_tokens, tp=p.tp,
                budget=f"{p.kv_budget_mib} MiB" if p.kv_budget_mib else "the server's",
                arm=p.arm, depth=p.depth, ran=_ran_text(f), more=_more_than_native(f, found),
                failed=f.failed, why=f.why.split(";")[0],
            )  # fmt: skip
    return table


def _ran_text(found: LargestBatch) -> str:
    if not found.ran:
        return "no valid run"
    return str(found.ran) if found.failed else f"at least {found.ran}"


def _more_than_native(arm: LargestBatch, found: list[LargestBatch]) -> str:
    """Against native at the same depth (dense: where most fit); empty where native's limit was not met."""
    point = arm.point
    natives = [
        f
        for f in found
        if f.point.arm == "native"
        and comparable(f.point) == comparable(point)
        and point.depth in (f.point.depth, 1)
    ]
    if point.arm == "native" or not arm.ran or not natives or not all(f.ran and f.failed for f in natives):
        return ""
    more = arm.ran - max(f.ran for f in natives)
    return f"{more:+d}" if arm.failed else f"at least {more:+d}"


def comparable(point: Point) -> tuple[object, ...]:
    """What two arms' largest batches must share to be compared."""
    return (point.context_tokens, point.kv_budget_mib, point.dtype, point.kv_dtype, point.tp,
            point.max_new_tokens)  # fmt: skip
