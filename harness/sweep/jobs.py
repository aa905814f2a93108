"""What one Hydra job does. Importable by name, since launchers send the function to other machines."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from harness import compose
from harness.commandline import os_error_text
from harness.config import RunConfig
from harness.errors import ConfigError, HarnessError
from harness.printable import printable
from harness.study import measure, outcome_of, recover, require_servers
from harness.sweep import multirun
from harness.sweep.cells import open_single
from harness.sweep.listing import notes
from harness.sweep.plan import Plan
from harness.sweep.planfile import from_json
from harness.sweep.runner import run_boots

console = Console(stderr=True)
failed: list[bool] = []
"""One entry a job of this process: whether it left a point without result."""


def run_job(composed: DictConfig) -> None:
    """One Hydra job. Returns normally whatever failed: Hydra drops or stops other jobs otherwise."""
    try:
        run = compose.to_run_config(composed)
        if run.plan is not None:
            _run_planned_boot(run)
        elif run.experiment is not None:
            _run_experiment(list(HydraConfig.get().overrides.task))
        else:
            outcome = measure([open_single(run)], Path(run.results), run.retry, console)
            failed.append(not outcome.measured)
            outcome.print_summary(Console())
    except HarnessError as error:
        say_error(error)
    except OSError as error:  # a full or vanished disk; Hydra would print a traceback
        say_error(HarnessError(os_error_text(error)))


def _run_planned_boot(run: RunConfig) -> None:
    path = Path(run.plan or "")
    try:
        plan = from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from error
    run_boots(plan, path, [plan.boot(run.boot or "")])


def _run_experiment(overrides: list[str]) -> None:
    plan = prepare(overrides)
    if plan.active:
        run_boots(plan, multirun.write_plan(plan), plan.active)
    finish(plan)


def prepare(overrides: list[str]) -> Plan:
    """Plan a command line and put right what a killed run left."""
    plan = multirun.plan_of(overrides)
    if not multirun.launches_elsewhere(overrides):
        require_servers(plan)
    recover(Path(plan.results), console)
    todo, starts = sum(len(boot.to_run) for boot in plan.boots), plan.remaining().starts
    points = len(plan.points)
    text = f"{points:,} point{'s' * (points != 1)}, {todo:,} to run, "
    text += f"{starts:,} server start{'s' * (starts != 1)}"
    for line in (text, *notes(plan)):
        console.print(line, highlight=False, soft_wrap=True)
    return plan


def finish(plan: Plan) -> None:
    """Show what the results directory holds for a plan now."""
    outcome = outcome_of(plan)
    failed.append(not outcome.complete)
    outcome.print_summary(Console())


def say_error(error: HarnessError) -> None:
    """Show an expected failure and remember it for the exit status."""
    failed.append(True)
    console.print(printable(f"error: {error}"), style="red", markup=False, highlight=False, soft_wrap=True)
