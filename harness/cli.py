"""`python -m harness model=tiny arm=ring depth=7 context=8192`: measure what the configuration asks for.

    python -m harness experiment=table_6                            all its boots, here
    python -m harness -m experiment=table_6 hydra/launcher=slurm    one Hydra job a boot
    python -m harness -m arm=native,ring depth=3,5,7                a sweep: one job a boot too

Run it again to go on where it stopped. The exit status is 1 when a point has no result, or when the single
point that was asked for is no valid measurement; 130 when it was interrupted, 143 when SIGTERM stopped it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness import config
from harness.commandline import Terminated, guarded, os_error_text
from harness.compose import one_line
from harness.errors import ConfigError, HarnessError
from harness.sweep import jobs, multirun
from harness.sweep.cluster import job_reasons
from harness.sweep.execute import record_missing
from harness.sweep.runid import new_run_id

config.register()
# The function itself stays importable by name: launchers send it to other machines.
_job = hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(jobs.run_job)


def _multirun(arguments: list[str]) -> None:
    """Plan, hand Hydra one job for each boot, then account for every point."""
    plan = jobs.prepare(multirun.overrides_in(arguments))
    if plan.active:
        path = multirun.write_plan(plan)
        sys.argv = [sys.argv[0], *multirun.job_arguments(arguments, plan, path)]
        stopped: BaseException | None = None
        try:
            _job()
        except (KeyboardInterrupt, SystemExit) as error:
            stopped = error
        except Exception as error:  # noqa: BLE001  (a launcher reports a dead job by raising)
            jobs.console.print(
                f"the launcher reported: {error}", markup=False, highlight=False, soft_wrap=True
            )
        if isinstance(stopped, KeyboardInterrupt) or _was_stopped(stopped):
            raise stopped or KeyboardInterrupt
        reasons = job_reasons(Path(plan.results) / "logs" / os.environ["WMTP_RUN_ID"])
        for number, boot in enumerate(plan.active):
            reason = reasons.get(number, "its job ended without a record: see the launcher's logs")
            record_missing(plan, boot.to_run, reason)
    jobs.finish(plan)


def _was_stopped(error: BaseException | None) -> bool:
    """Whether a SystemExit came from a signal; Hydra uses it for errors of its own as well."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


# What Hydra lists as choices and nobody chooses: the schemas, and a group that only the generators have.
_NO_CHOICE = re.compile(r", \w+_schema\b|\b\w+_schema, |^tokenizer: .*\n", re.MULTILINE)


def _printed() -> int:
    """What Hydra prints about the configuration, in one piece: its own writing ends in tracebacks."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            _job()
    finally:
        sys.stdout.write(_NO_CHOICE.sub("", text.getvalue()))
    return 0


def _measure(arguments: list[str]) -> None:
    """One job in this process, once the command line and its folder are found to be good."""
    sys.argv[1:], run = multirun.checked(arguments)
    if run is not None:
        folder = Path(run.results)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"results={folder} cannot be made: {error.strerror}; name another") from error
    _job()


def main() -> int:
    """The command line; returns the exit status."""
    try:
        arguments = multirun.normalised(sys.argv[1:])
        sys.argv[1:] = arguments
        # Two runs started in one second must not share Hydra's directory.
        os.environ["WMTP_RUN_ID"] = new_run_id({"arguments": arguments})
        if multirun.is_plain(arguments):
            return guarded(_printed)
        # Errors come out of Hydra as they are, not as its own traceback: a full disk is a sentence here.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        if multirun.is_multirun(arguments):
            _multirun(arguments)
        else:
            _measure(arguments)
    except HarnessError as error:
        jobs.say_error(error)
    except (HydraException, OmegaConfBaseException) as error:
        jobs.say_error(ConfigError(one_line(error)))
    except OSError as error:
        jobs.say_error(HarnessError(os_error_text(error)))
    except KeyboardInterrupt:
        jobs.console.print("interrupted: run the same command again to go on")
        return 130
    except Terminated as stop:
        name = signal.Signals(stop.number).name
        jobs.console.print(f"stopped by {name}: run the same command again to go on")
        return 128 + stop.number
    return int(any(jobs.failed))
