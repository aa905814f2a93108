"""Multirun: one Hydra job a boot.

`python -m harness -m ...` plans first: every configuration of the sweep is expanded to points, the points
are grouped into boots, the plan is written to a file, and Hydra is given one job for each boot. So a sweep
over depths and arms starts as few servers as an experiment does, and a launcher sees jobs of equal kind.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness import compose
from harness.compose import Cell
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.server.arguments import check_server
from harness.sweep.cells import expand, on_this_machine
from harness.sweep.overrides import check_overrides, emit
from harness.sweep.plan import Plan, make_plan
from harness.sweep.planfile import to_json

MOST_CONFIGURATIONS = 1000
_MULTIRUN_FLAGS = ("-m", "--multirun")
_FREE_FORM = ("only", "force", "input_params", "input.params", "hardware.draft_backend")
_SEARCH_FLAGS = ("--config-", "-cd", "-cn", "-cp", "--package", "-p", "--experimental-rerun")
_PRINTING_FLAGS = (
    "--help",
    "-h",
    "--hydra-help",
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--version",
    "--shell-completion",
)
_HERE = ("basic", "local_jobs", "joblib")
_HYDRA_GROUPS = ("hydra", "hydra/")


def plan_of(overrides: Sequence[str]) -> Plan:
    """The plan of a command line: one configuration, or a sweep (`depth=3,5`) of several.

    Raises:
        ConfigError: a bad override, or settings that make no sense.
    """
    cells: list[Cell] = []
    results: set[tuple[str, str]] = set()
    place = (lambda cell: cell) if launches_elsewhere(overrides) else on_this_machine
    for job in split(overrides):
        config = compose.load(job)
        results.add((config.results, config.retry))
        cells += map(place, expand(config, job))
    if len(results) != 1:
        raise ConfigError("a sweep has one results directory and one retry: give each a single value")
    directory, retry = results.pop()
    return make_plan(cells, Path(directory), retry)


def launches_elsewhere(overrides: Sequence[str]) -> bool:
    """Whether a launcher sends the jobs to other machines, whose GPUs cannot be seen from here."""
    return launcher_of(overrides) not in ("", *_HERE)


def launcher_of(overrides: Sequence[str]) -> str:
    """The launcher that a command line names; empty for none."""
    words = (word.lstrip("+").partition("=") for word in overrides)
    return next((value for key, _, value in words if key == "hydra/launcher"), "")


def split(overrides: Sequence[str]) -> list[list[str]]:
    """The sweep's configurations, each as overrides without sweeps.

    Raises:
        ConfigError: an override that Hydra cannot read, or a key given twice (Hydra would keep one of
            both lists and drop the rest without a word).
    """
    try:
        check_overrides(overrides)
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        _check_size(parsed)
        (jobs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(compose.one_line(error)) from error
    return [list(job) for job in jobs]


def _check_size(parsed: Sequence[Override]) -> None:
    """Refuse a sweep that would be composed for hours; a range may stand for any number of values."""
    size = 1
    for override in parsed:
        if override.is_sweep_override():
            size *= sum(1 for _ in islice(override.sweep_iterator(), MOST_CONFIGURATIONS + 1))
        if size > MOST_CONFIGURATIONS:
            raise ConfigError(
                f"this sweep has more than {MOST_CONFIGURATIONS} configurations: shorten its lists, or sweep "
                "part of it at a time"
            )


def normalised(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra wants it: keys of free-form mappings are additions (`++only.arm=ring`).

    Raises:
        ConfigError: bytes that are no text, which neither configuration nor record could hold.
    """
    for word in arguments:
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise ConfigError(f"{word!a} is not UTF-8 text: rename the file or folder")
    return ["++" + word if _is_free_form(word) else word for word in arguments]


def _is_free_form(word: str) -> bool:
    """`only.arm=ring`, or the whole mapping: `only={arm: ring}`."""
    return word.startswith(tuple(name + mark for name in _FREE_FORM for mark in (".", "={")))


def is_multirun(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a multirun."""
    return any(word in _MULTIRUN_FLAGS for word in arguments)


def is_plain(arguments: Sequence[str]) -> bool:
    """Whether Hydra only has to print something (`--help`, `--cfg`, `--info`)."""
    return any(word.partition("=")[0] in _PRINTING_FLAGS for word in arguments)


def checked(arguments: Sequence[str]) -> tuple[list[str], RunConfig | None]:
    """The command line of a single run, looked at before Hydra stores it beside the run's logs.

    Returns:
        The words, and what they compose to; None where only Hydra itself can tell.

    Raises:
        ConfigError: a secret in it, or settings that make no sense.
    """
    if any(word.startswith(_SEARCH_FLAGS) for word in arguments):
        # Only Hydra itself can compose what lies elsewhere: it is checked later and not stored.
        places = [at for at, word in enumerate(arguments) if "=" in word and not word.startswith("-")]
        last = places[-1] if places else len(arguments)  # overrides have to stand together
        return [*arguments[: last + 1], "hydra.output_subdir=null", *arguments[last + 1 :]], None
    overrides = overrides_in(arguments)
    check_overrides(overrides)
    if (launcher := launcher_of(overrides)) not in ("", "basic"):
        raise ConfigError(f"hydra/launcher={launcher} launches the jobs of a multirun only: add -m")
    run = compose.load(overrides)
    check_server(run)
    return list(arguments), run


def overrides_in(arguments: Sequence[str]) -> list[str]:
    """The overrides of a command line, its flags left out."""
    return [word for word in arguments if not word.startswith("-")]


def write_plan(plan: Plan) -> Path:
    """Store a plan under a name of its own, for the jobs to read and for people to look up."""
    body = to_json(plan)
    digest = hashlib.sha256(body).hexdigest()[:8]
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.gmtime())
    directory = Path(plan.results).absolute() / "plans"
    path = directory / f"{stamp}-{digest}-{secrets.token_hex(2)}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
    except OSError as error:
        raise ConfigError(f"cannot write the plan to {path}: {error.strerror}") from error
    return path


def launcher_words(arguments: Sequence[str], plan: Plan) -> list[str]:
    """Hydra's own overrides of a command line, with what the plan says of its jobs."""
    kept = [word for word in arguments if word.lstrip("+~").startswith(_HYDRA_GROUPS)]
    if launcher_of(kept).startswith("slurm") and not any("gpus_per_node" in word for word in kept):
        gpus = max((boot.gpus for boot in plan.active), default=0)
        if gpus:
            kept.append(f"hydra.launcher.gpus_per_node={gpus}")
    return kept


def job_arguments(arguments: Sequence[str], plan: Plan, path: Path) -> list[str]:
    """The command line of the multirun: Hydra's own words, the plan, and one job for each boot."""
    flags = [word for word in arguments if word.startswith("-")]
    boots = ",".join(boot.boot_id for boot in plan.active)
    return [
        *flags,
        *launcher_words(arguments, plan),
        "hardware=cpu",  # says nothing: the plan holds the real one; only spares the detection
        emit("results", str(Path(plan.results).absolute())),
        emit("plan", str(path)),
        f"boot={boots}",
    ]
