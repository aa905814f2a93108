"""The command line: build a corpus from Hydra's configuration groups, or verify one."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from generators.corpus import Request, build_corpus
from generators.tasks import REQUIRED, TASKS
from generators.verify import verify
from harness.complaints import one_sentence
from harness.errors import ConfigError, HarnessError

USAGE = """\
python -m generators task=NAME context=TOKENS tokenizer=PATH [count=8] [seed=0] [out=DIR] [KNOB=VALUE ...]
python -m generators verify FILE [tokenizer=PATH]
python -m generators tasks

task       a configuration of conf/input (`python -m generators tasks` lists the tasks and their knobs)
tokenizer  folder or tokenizer.json of a Hugging Face fast tokenizer, or `tiny` for the shipped model's
workers    processes; 0 takes one for each processor
check      false: trust the sum of the pieces instead of tokenising each finished prompt once
"""


@dataclass
class InputConfig:
    """A task and its knobs (`conf/input/`)."""

    task: str = MISSING
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class TokenizerConfig:
    """Whose tokens count (`conf/tokenizer/`); `template_options` are variables for its chat template."""

    path: str = MISSING
    template_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class GenerateConfig:
    """One corpus."""

    input: InputConfig = field(default_factory=InputConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    context: int = 4096
    count: int = 1
    seed: int = 0
    out: str = "outputs/inputs"
    workers: int = 0
    check: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 where a corpus is not right, 2 for a request that fails."""
    for stream in (sys.stdout, sys.stderr):
        # A path must not end a command whose terminal has no letters for it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    out, err = Console(soft_wrap=True, highlight=False), Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments, out, err)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 0  # the reader (head, less) has gone
    except HarnessError as error:
        err.print(str(error), markup=False, style="red")
        return 2
    except OSError as error:
        # A folder that cannot be written to, a full disk.
        place = f" ({error.filename})" if error.filename else ""
        err.print(f"{error.strerror or error}{place}. Finished records are kept.", markup=False, style="red")
        return 2
    except KeyboardInterrupt:
        err.print("Interrupted. Finished records are kept; the same command goes on with the rest.")
        return 130


def _run(arguments: Sequence[str], out: Console, err: Console) -> int:
    if not arguments or arguments[0] == "help" or {"-h", "--help"} & set(arguments):
        out.print(USAGE, markup=False)
        return 0
    if arguments[0] == "tasks":
        return _list_tasks(out)
    if arguments[0] == "verify":
        return _verify(arguments[1:], out, err)
    return _build(arguments, out, err)


_WRONG_KIND = re.compile(
    r"Value '(.*)' of type '\w+' could not be converted to (\w+)\s+full_key: (\S+)", re.S
)


def read_config(arguments: Sequence[str]) -> GenerateConfig:
    """The configuration that command-line arguments ask for.

    Raises:
        ConfigError: an unknown name or a wrong value.
    """
    store = ConfigStore.instance()
    store.store(name="generate_schema", node=GenerateConfig)
    store.store(group="input", name="input_schema", node=InputConfig)
    store.store(group="tokenizer", name="tokenizer_schema", node=TokenizerConfig)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            config = compose("generate", overrides=[_override(argument) for argument in arguments])
        loaded = OmegaConf.to_object(config)
    except (HydraException, OmegaConfBaseException) as error:
        if wrong := _WRONG_KIND.search(str(error.__cause__ or error)):
            value, kind, name = wrong.groups()
            raise ConfigError(f"{name}={value} is no {kind.lower()}.") from error
        raise ConfigError(one_sentence(error)) from error
    assert isinstance(loaded, GenerateConfig)
    for name, text in (("out", loaded.out), ("tokenizer", loaded.tokenizer.path)):
        if not text.strip():
            raise ConfigError(f"{name}= is empty: name a folder.")
    return loaded


def _override(argument: str) -> str:
    """A command-line word as Hydra's override: short names for knobs and tokenizers are spelled out."""
    name, equals, value = argument.partition("=")
    if not equals:
        raise ConfigError(f"{argument!r} is not of the form name=value. Try `python -m generators --help`.")
    if name == "task":
        name = "input"
    if name == "tokenizer" and not _is_choice("tokenizer", value):
        return f"tokenizer.path={_quoted(value)}"
    if name == "input" and not _is_choice("input", value):
        raise ConfigError(f"There is no task {value!r}: choose {', '.join(_choices('input'))}.")
    text = name == "out" or (name in _text_knobs() and value != "null")
    if text and not value.startswith(("'", '"')):
        value = _quoted(value)
    top = name.split(".")[0].lstrip("+~")
    if top not in GenerateConfig.__dataclass_fields__:
        name = f"++input.params.{name}"
    if name.startswith("tokenizer.template_options"):
        name = f"++{name}"  # variables of the template's own making
    return f"{name}={value}"


@cache
def _text_knobs() -> set[str]:
    """Knobs that are one text, such as a path, which need no quotes on the command line."""
    hints = [(task, get_type_hints(task.builder)) for task in TASKS.values()]
    return {name for task, kinds in hints for name in task.defaults if kinds[name] in {str, str | None}}


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _choices(group: str) -> list[str]:
    folder = files("conf").joinpath(group)
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def _is_choice(group: str, value: str) -> bool:
    return value in _choices(group)


def _list_tasks(out: Console) -> int:
    for name, task in TASKS.items():
        defaults = task.defaults.items()
        knobs = (f"{knob}={'...' if value is REQUIRED else repr(value)}" for knob, value in defaults)
        out.print(f"{name}  ({task.family})  {' '.join(knobs)}", markup=False)
    return 0


@contextmanager
def _progress(err: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar from the first report on; a request that fails leaves its sentence alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=err)
    task = bar.add_task(what, total=None)

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        # Where nothing is animated, a bar is one line at the end.
        if err.is_terminal or done == total:
            bar.start()

    try:
        yield report
    except HarnessError:
        bar.update(task, visible=False)
        bar.live.transient = True
        raise
    finally:
        if bar.live.is_started:
            bar.stop()


def _build(arguments: Sequence[str], out: Console, err: Console) -> int:
    config = read_config(arguments)
    request = Request(
        task=config.input.task,
        context_tokens=config.context,
        tokenizer=config.tokenizer.path,
        seed=config.seed,
        params=config.input.params,
        template_options=config.tokenizer.template_options,
        check=config.check,
    )
    with _progress(err, f"{request.task} x {config.count}") as report:
        corpus = build_corpus(
            request,
            count=config.count,
            folder=Path(config.out).expanduser(),
            workers=config.workers,
            progress=report,
        )
    out.print(f"{corpus.records}\n{corpus.manifest}", markup=False)
    return 0


def _verify(arguments: Sequence[str], out: Console, err: Console) -> int:
    paths = [word for word in arguments if not word.startswith("tokenizer=")]
    tokenizers = [word.removeprefix("tokenizer=") for word in arguments if word.startswith("tokenizer=")]
    if len(paths) != 1 or len(tokenizers) > 1:
        raise ConfigError("Verify takes one file: python -m generators verify FILE [tokenizer=PATH].")
    count = 0
    with _progress(err, "verify") as report:

        def looked_at(done: int, total: int) -> None:
            nonlocal count
            count = done
            report(done, total)

        problems = verify(
            Path(paths[0]),
            tokenizer_path=tokenizers[0] if tokenizers else None,
            progress=looked_at,
        )
    for problem in problems:
        out.print(problem, markup=False, style="red")
    found = f"{len(problems)} problem{'s' * (len(problems) != 1)}" if problems else "all right"
    out.print(f"{paths[0]}: {count} record{'s' * (count != 1)} looked at, {found}", markup=False)
    return 1 if problems else 0
