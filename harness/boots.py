"""Run one boot: a server, its points one after the other, and one record a point whatever happens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from harness.errors import HarnessError, ServerError
from harness.host.environment import capture_environment
from harness.measure.inputs import InputStore
from harness.measure.protocol import TimedRun, timed_run, warm_up
from harness.points import Point
from harness.records import InputInfo, Outcome, Record, ServerInfo, write_record
from harness.schedlog import Event
from harness.server import capacity
from harness.server.lifecycle import Server
from harness.server.spec import ServerSpec


class View(Protocol):
    """Receives what happens, for people to watch."""

    def boot_starts(self, spec: ServerSpec, points: Sequence[Point]) -> None: ...
    def boot_ready(self, info: ServerInfo) -> None: ...
    def phase(self, name: str, point: Point | None = None) -> None: ...
    def log_event(self, event: Event) -> None: ...
    def point_done(self, record: Record) -> None: ...


@dataclass(frozen=True)
class Boot:
    """One server lifetime and the points that share it."""

    spec: ServerSpec
    points: tuple[Point, ...]


@dataclass(frozen=True)
class BootContext:
    """What every boot of a study needs.

    `input_stores` maps a model name to the inputs made with its tokenizer.
    """

    results: Path
    inputs: InputStore
    view: View
    startup_timeout_s: float = 3600.0
    stall_limit_s: float = 900.0
    stop_timeout_s: float = 60.0
    port: int | None = None


def run_boot(boot: Boot, context: BootContext) -> list[Record]:
    """Measure every point of a boot. Never raises for a failed server or point: each ends in a record.

    KeyboardInterrupt and SystemExit pass through after the server has been stopped; points that were not
    reached leave no record, so that the next run measures them.
    """
    boot = _order(boot)
    records: list[Record] = []
    remaining = list(boot.points)
    while remaining:
        done = _run_server(Boot(boot.spec, tuple(remaining)), context)
        records += done
        remaining = remaining[len(done) :]
    return records


def _order(boot: Boot) -> Boot:
    """Short contexts first: cheap points are safe before an expensive one can kill the server."""
    return Boot(boot.spec, tuple(sorted(boot.points, key=lambda p: (p.batch * p.context_tokens, p.key))))


def _run_server(boot: Boot, context: BootContext) -> list[Record]:
    """One server start; returns records up to and including the point that broke the server, if one did."""
    log_path = context.results / "logs" / "servers" / f"{boot.spec.key}-{time.time_ns()}.log"
    context.view.boot_starts(boot.spec, boot.points)
    server = Server(
        boot.spec,
        log_path,
        listener=context.view.log_event,
        startup_timeout_s=context.startup_timeout_s,
        stop_timeout_s=context.stop_timeout_s,
        port=context.port,
    )
    began = _now()
    environment = capture_environment()
    records: list[Record] = []
    try:
        with server:
            context.view.boot_ready(server.info)
            for point in boot.points:
                record, raw_log, broken = _run_point(point, server, context, environment)
                _store(record, raw_log, context)
                records.append(record)
                if broken:
                    break
    except ServerError as error:
        # The start failed: the same would happen to every point of this boot.
        raw_log = log_path.read_bytes() if log_path.exists() else b""
        for point in boot.points[len(records) :]:
            record = _failure(point, error, began, environment, server.info)
            _store(record, raw_log, context)
            records.append(record)
    return records


def _run_point(
    point: Point, server: Server, context: BootContext, environment: dict[str, Any]
) -> tuple[Record, bytes, bool]:
    """Measure one point. Returns its record, its raw log, and whether the server must be replaced."""
    began, clock = _now(), time.monotonic()
    mark = server.log_size()
    info: InputInfo | None = None
    try:
        context.view.phase("input", point)
        prompt = context.inputs.prompt_ids(point)
        info = context.inputs.info(point)
        refusal = capacity.why_not(
            prompt_tokens=len(prompt),
            max_new_tokens=point.max_new_tokens,
            draft_tokens=0 if point.arm == "dense" else point.depth,
            batch=point.batch,
            context_length=server.info.context_length,
            pool_tokens=server.info.max_total_tokens,
            max_running_requests=server.info.max_running_requests,
        )
        if refusal:
            error = ServerError(refusal, Outcome.DOES_NOT_FIT)
            return _failure(point, error, began, environment, server.info, info), b"", False
        context.view.phase("warm-up", point)
        warm_up(server, prompt, point.batch)
        context.view.phase("prefill", point)
        run = timed_run(server, point, prompt, context.inputs.decode, context.stall_limit_s)
    except ServerError as error:
        raw = server.log_since(mark)
        broken = error.kind != Outcome.REQUEST_ERROR or server.exit_code() is not None
        return _failure(point, error, began, environment, server.info, info), raw, broken
    except HarnessError as error:
        failed = ServerError(str(error), Outcome.INVALID)
        return _failure(point, failed, began, environment, server.info, info), b"", False
    record = _success(point, run, info, began, time.monotonic() - clock, environment, server.info)
    for request in record.requests:
        request.scores = context.inputs.scores(point, request.output_text)
    return record, run.raw_log, False


def _success(
    point: Point,
    run: TimedRun,
    info: InputInfo,
    began: str,
    duration_s: float,
    environment: dict[str, Any],
    server: ServerInfo,
) -> Record:
    reasons = _invalid_reasons(point, run)
    return Record(
        key=point.key,
        point=point,
        outcome=Outcome.INVALID if reasons else Outcome.OK,
        reason="; ".join(reasons),
        started_at=began,
        duration_s=round(duration_s, 3),
        environment=environment,
        server=server,
        input=info,
        requests=run.requests,
        decode_steps=run.decode_steps,
        prefill_steps=run.prefill_steps,
        log_summary={**run.log_summary, "wall_s": round(run.wall_s, 4)},
    )


def _invalid_reasons(point: Point, run: TimedRun) -> list[str]:
    """What makes a finished run no measurement at all; finer verdicts are the analysis' business."""
    reasons = []
    for request in run.requests:
        if request.prompt_tokens != point.context_tokens:
            reasons.append(
                f"the server counted {request.prompt_tokens} prompt tokens, not {point.context_tokens}"
            )
        if point.ignore_eos and request.completion_tokens != point.max_new_tokens:
            reasons.append(
                f"{request.completion_tokens} tokens came back, {point.max_new_tokens} were asked for"
            )
    return sorted(set(reasons))


def _failure(
    point: Point,
    error: ServerError,
    began: str,
    environment: dict[str, Any],
    server: ServerInfo,
    info: InputInfo | None = None,
) -> Record:
    return Record(
        key=point.key,
        point=point,
        outcome=Outcome(error.kind),
        reason=str(error),
        started_at=began,
        environment=environment,
        server=server,
        input=info,
    )


def _store(record: Record, raw_log: bytes, context: BootContext) -> None:
    write_record(context.results, record, raw_log)
    context.view.point_done(record)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
