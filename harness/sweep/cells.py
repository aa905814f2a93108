"""The cells of a configuration: itself, or every combination of its experiment's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import generators
from generators.tasks import resolve
from harness import compose, labels
from harness.checkpoints import located, opened
from harness.compose import Cell
from harness.config import InputConfig, RunConfig
from harness.errors import ConfigError
from harness.host.detect import without_gpus
from harness.host.gpu import gpu_names
from harness.models.checkpoint import Checkpoint
from harness.server.arguments import log_problem
from harness.server.runtimes import runtime_problem
from harness.sweep.experiment import AXES, Block, Combination, Experiment, check_axes, matches, parse
from harness.sweep.models import Models


def expand(config: RunConfig, overrides: Sequence[str] = ()) -> list[Cell]:
    """Every cell of a configuration, in the experiment's order; cells may repeat each other's points.

    Args:
        overrides: the command line: an axis that the experiment sets itself is refused, `model.*` is of the
            experiment's model.

    Raises:
        ConfigError: a combination that makes no sense, named with its experiment; a filter without match.
    """
    if config.experiment is None:
        compose.check_values(config)
        return [_cell(config, (), config.hardware.name, ())]
    _refuse_axes(config, overrides)
    check_axes(config.only, "only")
    check_axes(config.force, "force")
    for task, params in config.input_params.items():
        _refuse_unknown(task, params or {})
    name = str(config.experiment.get("name") or "experiment")
    every = [
        (experiment, block, {**combination, **config.force})
        for experiment in _with_included(parse(config.experiment, name), ())
        for block in experiment.blocks(config.hardware.device)
        for combination in block.combinations()
    ]
    wanted = [each for each in every if matches(_comparable(each[2], config), config.only)]
    if not wanted:
        reason = _nothing_left(config, [_comparable(combined, config) for _, _, combined in every])
        raise ConfigError(f"experiment={name} has no points on hardware={config.hardware.name}: {reason}")
    _refuse_input(overrides, [combined for _, _, combined in wanted])
    models = Models(config, overrides)
    models.check(list(dict.fromkeys(str(c["model"]) for _, _, c in wanted if "model" in c)))
    return [_named_cell(config, models, *each) for each in wanted]


def _nothing_left(config: RunConfig, every: Sequence[Mapping[str, Any]]) -> str:
    """Why `only` keeps nothing of an experiment's combinations, with the values that there are."""
    if not every:
        return "it has no blocks for this hardware"
    for axis, wanted in config.only.items():
        if not any(matches(combination, {axis: wanted}) for combination in every):
            there = dict.fromkeys(str(combination.get(axis)) for combination in every)
            return f"only.{axis}={wanted} leaves nothing of it, choose from {', '.join(there)}"
    return "only=... leaves nothing of it: no point has all of these values"


def _refuse_input(overrides: Sequence[str], combinations: Sequence[Combination]) -> None:
    """Refuse `input.params.keys=4` where every combination brings an input of its own."""
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith("input.") and all("input" in combination for combination in combinations):
            task, name = compose.input_config(str(combinations[0]["input"])).task, key.rpartition(".")[2]
            raise ConfigError(
                f"{key}={value}: this experiment names its inputs itself; give a task's parameters by "
                f"'input_params={{{task}: {{{name}: {value}}}}}'"
            )


def _refuse_axes(config: RunConfig, overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~").split(".")[0]
        if key in AXES and "." not in override.partition("=")[0]:
            value = override.partition("=")[2]
            raise ConfigError(
                f"{override}: an experiment sets {key} itself; keep part of it by only.{key}={value}, "
                f"or change it for every point by force.{key}={value}"
            )


def _with_included(experiment: Experiment, above: tuple[str, ...]) -> list[Experiment]:
    if experiment.name in above:
        raise ConfigError(f"conf/experiment: {' -> '.join([*above, experiment.name])} includes itself")
    found = [experiment]
    for name in experiment.include:
        included = parse(compose.experiment_values(name), name)
        found += _with_included(included, (*above, experiment.name))
    return found


def _named_cell(
    config: RunConfig, models: Models, experiment: Experiment, block: Block, combination: Combination
) -> Cell:
    try:
        cell_config = _apply(config, models, combination)
        compose.check_values(cell_config)
        cell = _cell(cell_config, (experiment.name,), config.hardware.name, block.only_on)
        cell.points()  # a combination that makes no sense is refused here, not in the middle of a sweep
    except ConfigError as error:
        named = ", ".join(f"{name}={value}" for name, value in combination.items())
        raise ConfigError(f"experiment={experiment.name} with {named}: {error}") from error
    return cell


def _comparable(combination: Combination, config: RunConfig) -> dict[str, Any]:
    """A combination with the values that it leaves to the configuration, for filters."""
    known = {name: getattr(config, name) for name in AXES if hasattr(config, name)}
    known |= {"model": config.model.name, "input": config.input.task, "dtype": config.model.dtype}
    return {**known, **combination}


def _apply(config: RunConfig, models: Models, combination: Combination) -> RunConfig:
    values = dict(combination)
    name = values.pop("model", None)
    model = models.of(None if name is None else str(name))
    dtype = values.pop("dtype", None)
    if dtype is not None:
        model = replace(model, dtype=str(dtype))
    task, params = values.pop("input", None), values.pop("params", None) or {}
    made = _input(config, task)
    extra = config.input_params.get(made.task) or {}
    prompt = InputConfig(made.task, {**made.params, **params, **extra})
    return replace(config, model=model, input=prompt, experiment=None, only={}, force={}, **values)


def _input(config: RunConfig, task: str | None) -> InputConfig:
    return config.input if task is None else compose.input_config(str(task))


def _cell(config: RunConfig, experiments: tuple[str, ...], hardware: str, only_on: tuple[str, ...]) -> Cell:
    checkpoint: Checkpoint | None = None
    config = located(config)
    obstacle = _obstacle(config, hardware, only_on)
    try:
        checkpoint = opened(config, download=False)
        obstacle = obstacle or _too_many_ranks(config, checkpoint)
    except ConfigError as error:
        obstacle = obstacle or str(error)
    cell = Cell(config, checkpoint, experiments, obstacle)
    labels.check(cell)
    return cell


def open_single(config: RunConfig) -> Cell:
    """The cell of one configuration, its checkpoint fetched where it is not here yet and can be used here.

    Raises:
        ConfigError: a setting that makes no sense, or a checkpoint that cannot be found.
    """
    compose.check_values(config)
    cell = on_this_machine(_cell(config, (), config.hardware.name, ()))
    if cell.checkpoint is not None:
        return cell
    # Gigabytes are fetched only for a point that makes sense and that this machine can run.
    cell.points()
    unfetched = on_this_machine(Cell(cell.config, None, obstacle=_obstacle(config, config.hardware.name, ())))
    if unfetched.obstacle:
        return unfetched
    opened(cell.config, download=True)
    return on_this_machine(_cell(config, (), config.hardware.name, ()))


def on_this_machine(cell: Cell) -> Cell:
    """A cell whose obstacle names what it needs and this machine lacks: GPUs, a container runtime, a log."""
    config, server = cell.config, cell.config.server
    obstacle = cell.obstacle or _runtime_problem(server.kind)
    if server.kind == "url":
        obstacle = obstacle or log_problem(config.arm, server.log_path)
    if server.kind in ("local", "docker") and config.hardware.device != "cpu":
        obstacle = obstacle or without_gpus(gpu_names(), config.hardware.gpu_name_contains, config.tp)
    return replace(cell, obstacle=obstacle)


@cache
def _runtime_problem(kind: str) -> str:
    """Asked once a command, not once a cell: a runtime answers slowly."""
    return runtime_problem(kind)


def _too_many_ranks(config: RunConfig, checkpoint: Checkpoint) -> str:
    """Why a checkpoint's heads cannot be shared by so many ranks.

    Each rank needs heads of its own: on GPUs as many as any other, on a CPU some may be empty.
    """
    heads, tp = checkpoint.architecture.heads, config.tp
    if tp > heads:
        return f"tp={tp}: {config.model.name} has {heads} attention heads, and each rank needs one; lower tp"
    if config.hardware.device != "cpu" and heads % tp:
        return f"tp={tp} does not divide the {heads} attention heads of {config.model.name}: choose another"
    return ""


def _obstacle(config: RunConfig, hardware: str, only_on: tuple[str, ...]) -> str:
    """Why a configuration cannot run on the chosen hardware, whatever the machine does.

    Raises:
        ConfigError: its task's parameters make no sense anywhere.
    """
    lacking = _missing_params(config.input)
    if only_on and hardware not in only_on:
        return f"it is for hardware={' or '.join(only_on)}"
    on_cpu = config.hardware.device == "cpu"
    if not on_cpu and config.tp > config.hardware.gpus:
        return f"tp={config.tp} needs {config.tp} GPUs: set hardware.gpus={config.tp} where there are as many"
    if on_cpu and config.kv_dtype != config.model.dtype:
        return f"the CPU engine keeps its KV in the model's dtype {config.model.dtype}, not {config.kv_dtype}"
    return lacking


def _missing_params(prompt: InputConfig) -> str:
    """Which parameters of a task are still to be given, such as a data set's path; empty for none.

    Raises:
        ConfigError: an unknown task or parameter, or a value that makes no sense: they are slips, and no
            machine could run them.
    """
    task = generators.TASKS.get(prompt.task)
    defaults = {} if task is None else task.defaults
    missing = [n for n, default in defaults.items() if not _given(prompt.params.get(n, default))]
    _refuse_unknown(prompt.task, prompt.params)
    if not missing:
        resolve(prompt.task, prompt.params)
        return ""
    return (
        f"the task {prompt.task} needs {', '.join(missing)}: give "
        f"'input_params={{{prompt.task}: {{{missing[0]}: ...}}}}'"
    )


def _refuse_unknown(task: str, params: Mapping[str, Any]) -> None:
    """Refuse a task or a parameter that there is none of.

    Raises:
        ConfigError: names it and those that there are.
    """
    if task not in generators.TASKS or not set(params) <= set(generators.TASKS[task].defaults):
        resolve(task, params)


def _given(value: Any) -> bool:
    return not isinstance(value, type)  # the generators mark a parameter without default by a class
