"""Run one boot: a server, its points one after the other, and one record a point whatever happens."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import HarnessError, RecordError, ServerError
from harness.host.addresses import is_here
from harness.host.environment import capture_environment
from harness.host.gpu import GpuSampler
from harness.measure import probes
from harness.measure.besides import Audits, ask_besides
from harness.measure.inputs import InputStore
from harness.measure.ladder import budgets, runs
from harness.measure.outcomes import failure, now, rung, spoil, success
from harness.measure.profile import profile
from harness.measure.protocol import TimedRun, timed_run, warm_up
from harness.models.architecture import described
from harness.points import Point
from harness.records import InputInfo, Outcome, Record, ServerInfo, write_record
from harness.schedlog import Event
from harness.server import capacity
from harness.server.attach import AnyServer, RunningServer
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

    `url` names a server that runs already, `url_log` its log; else each boot starts its own. `objection` says
    why a key's record is not this process's to write any more; empty where it is.
    """

    results: Path
    inputs: InputStore
    view: View
    startup_timeout_s: float = 3600.0
    stall_limit_s: float = 900.0
    stop_timeout_s: float = 60.0
    port: int | None = None
    url: str | None = None
    url_log: Path | None = None
    objection: Callable[[str], str] = lambda key: ""

    @property
    def elsewhere(self) -> bool:
        """Whether the server runs on another machine, of which nothing can be read here."""
        return self.url is not None and not is_here(self.url)


def run_boot(boot: Boot, context: BootContext) -> list[Record]:
    """Measure every point of a boot. Never raises for a failed server or point: each ends in a record.

    Inputs are built first: no server is started for points that have none.

    KeyboardInterrupt and SystemExit pass through after the server has been stopped; points that were not
    reached leave no record, so that the next run measures them.
    """
    records = _without_input(boot, context)
    lacking = {record.key for record in records}
    remaining = [point for point in boot.points if point.key not in lacking]
    while remaining:
        records += _run_server(Boot(boot.spec, tuple(remaining)), context)
        recorded = {record.key for record in records}
        remaining = [point for point in remaining if point.key not in recorded]
    return records


def _without_input(boot: Boot, context: BootContext) -> list[Record]:
    """Records of the points whose input cannot be built: too few tokens for it, a missing file."""
    records: list[Record] = []
    environment: dict[str, Any] = {}
    for point in boot.points:
        began = now()
        try:
            context.view.phase("input", point)
            context.inputs.prompt_ids(point)
        except HarnessError as error:
            environment = environment or capture_environment(context.elsewhere)
            refused = ServerError(f"no input can be built: {error}", Outcome.INVALID)
            records.append(failure(point, refused, began, environment, ServerInfo()))
            _store(records[-1], b"", context)
        except Exception:  # noqa: BLE001  (a bug: where the point is measured it becomes its record)
            continue
    return records


def _run_server(boot: Boot, context: BootContext) -> list[Record]:
    """One server start; returns records up to and including the point that broke the server, if one did."""
    log_path = context.results / "logs" / "servers" / f"{boot.spec.key}-{time.time_ns()}.log"
    context.view.boot_starts(boot.spec, boot.points)
    server = _server(boot.spec, log_path, context)
    began = now()
    environment = capture_environment(context.elsewhere)
    records: list[Record] = []
    audits: Audits = {}
    try:
        with server:
            server.info.architecture, server.client.vocabulary = described(boot.spec.model_path)
            if server.info.versions:  # of what was measured, not of what measured it
                environment.setdefault("harness_versions", environment.get("versions"))
                environment["versions"] = server.info.versions
            context.view.boot_ready(server.info)
            broken = False
            while not broken and len(records) < len(boot.points):
                recorded = {record.key for record in records}
                run = runs([point for point in boot.points if point.key not in recorded])[0]
                made, raw_log, broken = _measure(run, server, context, environment, audits)
                for record in made:
                    _store(record, raw_log, context)
                records += made
    except ServerError as error:
        # The start failed: the same would happen to every point of this boot.
        raw_log = log_path.read_bytes() if log_path.exists() else b""
        recorded = {record.key for record in records}
        for point in (p for p in boot.points if p.key not in recorded):
            record = failure(point, error, began, environment, server.info)
            _store(record, raw_log, context)
            records.append(record)
    return records


def _server(spec: ServerSpec, log_path: Path, context: BootContext) -> AnyServer:
    if context.url is not None:
        return RunningServer(spec, context.url, context.url_log, listener=context.view.log_event)
    return Server(
        spec,
        log_path,
        listener=context.view.log_event,
        startup_timeout_s=context.startup_timeout_s,
        stop_timeout_s=context.stop_timeout_s,
        port=context.port,
        probe_directory=_probe_directory(spec, context.results),
    )


def _probe_directory(spec: ServerSpec, results: Path) -> Path | None:
    """A directory of its own for each server start, absolute as the server may run elsewhere."""
    if spec.probe is None:
        return None
    return (results / "logs" / "probes" / f"{spec.key}-{time.time_ns()}").absolute()


def _measure(
    points: Sequence[Point],
    server: AnyServer,
    context: BootContext,
    environment: dict[str, Any],
    audits: Audits,
) -> tuple[list[Record], bytes, bool]:
    """One timed run: of one point, or of several that share its prefill, the largest batch first.

    Returns its records, its raw log, and whether the server must be replaced. A failure is the first
    point's; the others are left for another run.
    """
    point = points[0]
    began, clock = now(), time.monotonic()
    mark = server.log_size()
    info: InputInfo | None = None
    server_info = server.info
    try:
        context.view.phase("input", point)
        prompt = context.inputs.prompt_ids(point)
        info = context.inputs.info(point)
        server_info = _with_origins(server.info, context.inputs.origins(point))
        refusal = capacity.why_not(
            prompt_tokens=len(prompt),
            max_new_tokens=point.max_new_tokens,
            draft_tokens=0 if point.arm == "dense" else point.depth,
            batch=point.batch,
            context_length=server.info.context_length,
            pool_tokens=server.info.max_total_tokens,
            max_running_requests=server.info.max_running_requests,
            pool_setting=_pool_setting(point, server.spec, context),
        )
        if refusal:
            error = ServerError(refusal, Outcome.DOES_NOT_FIT)
            return [failure(point, error, began, environment, server_info, info)], b"", False
        context.view.phase("warm-up", point)
        warm_up(server, prompt, point.batch)
        context.view.phase("prefill", point)
        new_tokens = budgets(points) if len(points) > 1 else None
        sampler = GpuSampler()
        with nullcontext() if context.elsewhere else sampler:
            run = timed_run(server, point, prompt, context.inputs.decode, context.stall_limit_s, new_tokens)
    except ServerError as failed_by:
        error = server.first_cause(failed_by)  # of a broken connection, the cause is in the log
        raw = server.log_since(mark)
        sound = error.kind in (Outcome.REQUEST_ERROR, Outcome.INVALID)
        broken = not sound or server.has_ended()
        return [failure(point, error, began, environment, server_info, info)], raw, broken
    except HarnessError as error:
        failed = ServerError(str(error), Outcome.INVALID)
        return [failure(point, failed, began, environment, server_info, info)], b"", False
    except Exception as error:  # noqa: BLE001  (a bug must not hide the point nor stop the others)
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"the harness failed: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        failed = ServerError(text, Outcome.INVALID)
        raw = server.log_since(mark)
        return [failure(point, failed, began, environment, server_info, info)], raw, True
    duration_s = time.monotonic() - clock
    made = [success(point, run, info, began, duration_s, environment, server_info, new_tokens)]
    made[0].samples = sampler.columns()
    if isinstance(server, Server) and server.probe_directory is not None:
        _add_probe(made[0], run, server.probe_directory)
    try:
        if isinstance(server, Server) and server.spec.profiler is not None:
            context.view.phase("profile", point)
            made[0].extras |= profile(server, point, prompt, run, context.stall_limit_s)
        context.view.phase("untimed checks after the run", point)
        made[0].extras |= ask_besides(server, point, prompt, run, context.stall_limit_s, audits)
    except ServerError as error:
        spoil(made[0], str(server.first_cause(error)))
    if new_tokens is not None:
        made = [rung(each, made[0], points, new_tokens) for each in points]
    for record in made:
        for request in record.requests:
            request.scores = context.inputs.scores(point, request.output_text)
    return made, run.raw_log, server.has_ended()


def _with_origins(server: ServerInfo, origins: dict[str, str]) -> ServerInfo:
    """A server's description for one record: what the prompt was made from is in no key either."""
    return server.model_copy(update={"settings": {**server.settings, **origins}})


def _pool_setting(point: Point, spec: ServerSpec, context: BootContext) -> str:
    """Which setting decides how many tokens the server's KV pool holds."""
    if context.url is not None:
        return "the running server's --max-total-tokens or --mem-fraction-static"
    if point.kv_budget_mib is not None:
        return "kv_budget_mib"
    return "server.mem_fraction_static" if spec.max_total_tokens is None else "server.max_total_tokens"


def _add_probe(record: Record, run: TimedRun, directory: Path) -> None:
    """What the server's probe wrote during the run; nothing to read makes the record no measurement."""
    try:
        record.extras |= probes.collect(
            str(record.point.probe), directory, run.began_ns, run.ended_ns, record.point
        )
    except RecordError as error:
        spoil(record, str(error))


def _store(record: Record, raw_log: bytes, context: BootContext) -> None:
    if not context.objection(record.key):
        where = write_record(context.results, record, raw_log)
        if where.name != record.key:
            text = f"{record.reason}; its earlier record stands, this one is {where}"
            record = record.model_copy(update={"reason": text})
        context.view.point_done(record)
