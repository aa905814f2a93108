"""`python -m harness model=tiny arm=ring depth=7 context=8192`: measure what the configuration asks for.

    python -m harness experiment=table_6                            all its boots, here
    python -m harness -m experiment=table_6 hydra/launcher=slurm    one Hydra job a boot
    python -m harness -m arm=native,ring depth=3,5,7                a sweep: one job a boot too

Run it again to go on where it stopped. The exit status is 1 when a point has no result, 130 when it was
interrupted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from harness import compose, config
from harness.config import RunConfig
from harness.errors import ConfigError, HarnessError
from harness.study import measure, outcome_of, recover
from harness.sweep import multirun
from harness.sweep.execute import record_missing
from harness.sweep.plan import Plan, from_json
from harness.sweep.rundir import new_run_id
from harness.sweep.runner import run_boots

config.register()
_console = Console(stderr=True)
_failed: list[bool] = []


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")  # type: ignore[untyped-decorator]
def _job(composed: DictConfig) -> None:
    """One Hydra job. Returns normally whatever failed: Hydra drops or stops other jobs otherwise."""
    try:
        run = compose.to_run_config(composed)
        if run.plan is not None:
            _run_planned_boot(run)
        elif run.experiment is not None:
            _run_experiment(list(HydraConfig.get().overrides.task))
        else:
            outcome = measure([compose.open_cell(run)], Path(run.results), run.retry, _console)
            _failed.append(not outcome.complete)
            outcome.print_summary(Console())
    except HarnessError as error:
        _say_error(error)


def _run_planned_boot(run: RunConfig) -> None:
    path = Path(run.plan or "")
    try:
        plan = from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from error
    run_boots(plan, path, [plan.boot(run.boot or "")])


def _run_experiment(overrides: list[str]) -> None:
    plan = _prepare(overrides)
    if plan.active:
        run_boots(plan, multirun.write_plan(plan), plan.active)
    _finish(plan)


def _prepare(overrides: list[str]) -> Plan:
    plan = multirun.plan_of(overrides)
    recover(Path(plan.results), _console)
    todo, starts = sum(len(boot.to_run) for boot in plan.boots), plan.remaining().starts
    text = f"{len(plan.points)} points, {todo} to run on {starts} servers"
    _console.print(text, highlight=False, soft_wrap=True)
    return plan


def _finish(plan: Plan) -> None:
    outcome = outcome_of(plan)
    _failed.append(not outcome.complete)
    outcome.print_summary(Console())


def _multirun(arguments: list[str]) -> None:
    """Plan, hand Hydra one job for each boot, then account for every point."""
    plan = _prepare(multirun.overrides_in(arguments))
    if plan.active:
        path = multirun.write_plan(plan)
        sys.argv = [sys.argv[0], *multirun.job_arguments(arguments, plan, path)]
        stopped: BaseException | None = None
        try:
            _job()
        except (KeyboardInterrupt, SystemExit) as error:
            stopped = error
        except Exception as error:  # noqa: BLE001  (a launcher reports a dead job by raising)
            _console.print(f"the launcher reported: {error}", markup=False, highlight=False, soft_wrap=True)
        if isinstance(stopped, KeyboardInterrupt) or _was_stopped(stopped):
            raise stopped or KeyboardInterrupt
        points = [planned.point for boot in plan.active for planned in boot.to_run]
        record_missing(plan, points, "its job ended without a record: see the launcher's logs")
    _finish(plan)


def _was_stopped(error: BaseException | None) -> bool:
    """Whether a SystemExit came from a signal; Hydra uses it for errors of its own as well."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


def _say_error(error: HarnessError) -> None:
    _failed.append(True)
    _console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    """The command line; returns the exit status."""
    arguments = multirun.normalised(sys.argv[1:])
    sys.argv[1:] = arguments
    # Two runs started in one second must not share Hydra's directory.
    os.environ["WMTP_RUN_ID"] = new_run_id({"arguments": arguments})
    try:
        if multirun.is_multirun(arguments) and not multirun.is_plain(arguments):
            _multirun(arguments)
        else:
            _job()
    except HarnessError as error:
        _say_error(error)
    except KeyboardInterrupt:
        _console.print("interrupted: run the same command again to go on")
        return 130
    return int(any(_failed))


if __name__ == "__main__":
    sys.exit(main())
