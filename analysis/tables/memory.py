"""KV memory of target and draft, from the server's own log."""

from __future__ import annotations

from analysis.estimators import Estimate
from analysis.paper import FULL_ATTENTION_LAYERS, claim
from analysis.study import Cell, Study
from analysis.tables.base import Column, Table, Value, header, sites

# The log rounds each of K and V to 0.01 GiB, so a pool's size is known to that much.
_ROUNDING_BYTES = 10 << 20
_WORTH_A_SHARE = 20 * _ROUNDING_BYTES


def memory(study: Study) -> Table:
    """Both pools and the draft's share, native and ring; one row a distinct server setting."""
    table = Table(
        "memory",
        "KV memory: the draft's share",
        [Column("model", "model"), Column("hardware", "hardware"), Column("arm", "arm"), Column("batch", "B"),
         Column("target_tokens", "target tokens"), Column("target_mib", "target MiB", 1),
         Column("draft_tokens", "draft tokens"), Column("draft_mib", "draft MiB", 3),
         Column("draft_percent", "draft share %", 2), Column("architecture_percent", "1/(F+1) %", 2)],
        header(study, "Bytes as the server logs them (rounded to 10 MiB; the ring's draft pool exactly). "
                      "A share is given where rounding cannot change it."),
    )  # fmt: skip
    for site in sites(study):
        seen: set[tuple[object, ...]] = set()
        layers = FULL_ATTENTION_LAYERS.get(site.paper or "")
        architecture = Value(Estimate(100 / (layers + 1)) if layers else None, note="F unknown")
        for cell in site.group.cells if site.group else ():
            pools = {pool.role: pool for pool in cell.record.server.pools}
            target, draft = pools.get("target"), pools.get("draft")
            if target is None:
                continue
            key = (cell.point.arm, target.tokens, target.bytes, draft and (draft.tokens, draft.bytes))
            if key in seen:
                continue
            seen.add(key)
            said = claim("memory", site.paper, "all", "native", "draft_share_of_kv")
            table.add(
                model=site.model, hardware=site.hardware, arm=cell.point.arm, batch=cell.point.batch,
                target_tokens=target.tokens, target_mib=_mib(target.bytes),
                draft_tokens=draft.tokens if draft else None,
                draft_mib=_mib(draft.bytes) if draft else Value(None, note="no draft"),
                draft_percent=_with_claim(draft_share(cell), said if cell.point.arm == "native" else None),
                architecture_percent=architecture,
            )  # fmt: skip
        if site.group is None:
            table.add(
                model=site.model, hardware=site.hardware, arm="native",
                draft_percent=Value(None, claim("memory", site.paper, "all", "native", "draft_share_of_kv")),
                architecture_percent=architecture,
            )  # fmt: skip
    return table


def draft_share(cell: Cell) -> Value:
    """Draft pool / (draft + target pool) in percent, the interval from the log's rounding."""
    pools = {pool.role: pool.bytes for pool in cell.record.server.pools}
    target, draft = pools.get("target"), pools.get("draft")
    if "draft" not in pools:
        return Value(None, note="no draft")
    if target is None or draft is None or target < _WORTH_A_SHARE:
        return Value(None, note="pool smaller than the log's rounding")
    low, high = (
        100 * d / (d + t)
        for d, t in (
            (max(0, draft - _ROUNDING_BYTES), target + _ROUNDING_BYTES),
            (draft + _ROUNDING_BYTES, target - _ROUNDING_BYTES),
        )
    )
    return Value(Estimate(100 * draft / (draft + target), low, high))


def _with_claim(value: Value, said: object) -> Value:
    from analysis.paper import Claim  # noqa: PLC0415

    return Value(value.estimate, said if isinstance(said, Claim) else None, value.note)


def _mib(size: int | None) -> Value:
    return Value(Estimate(size / (1 << 20)) if size is not None else None, note="unknown")
