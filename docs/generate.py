"""Writes docs/reference/ from the code: `python docs/generate.py` (`--check` says what is out of date)."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import conf
from analysis import extras
from harness import config, points, records

HERE = Path(__file__).parent / "reference"
CONFIGS = (
    ("", config.RunConfig),
    ("model", config.ModelConfig),
    ("hardware", config.HardwareConfig),
    ("server", config.ServerConfig),
    ("input", config.InputConfig),
)
PARTS = (
    records.Record,
    points.Point,
    records.InputInfo,
    records.RequestResult,
    records.DecodeSteps,
    records.PrefillSteps,
    records.ServerInfo,
    records.Pool,
)
OUTCOMES = {
    "ok": "a measurement; its finer verdict is the analysis' (docs/metrics.md)",
    "invalid": "finished, and not what was asked for: wrong length, cached prompt, no probe data",
    "does_not_fit": "known before any prefill: the pool or the context length is too small",
    "out_of_memory_at_start": "a result: the server has no room for weights and pools",
    "out_of_memory_at_run": "a result: no room for activations while serving",
    "no_draft_weights": "the checkpoint's index has no MTP weights; acceptance would be pinned at 1",
    "port_in_use": "somebody else listens on the port",
    "startup_timeout": "not ready within `server.startup_timeout_s`",
    "stalled": "no sign of life within `server.stall_limit_s`, or stopped",
    "server_died": "the server ended while it served",
    "request_error": "the server answered with an error, and lives",
    "timeout": "the job's time ran out",
    "interrupted": "the harness's own process ended",
}


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {name: text for name, text in pages().items() if not _is_current(HERE / name, text)}
    for name, text in stale.items():
        if check:
            print(f"docs/reference/{name} is out of date: run `python docs/generate.py`")
        else:
            HERE.mkdir(exist_ok=True)
            (HERE / name).write_text(text, encoding="utf-8")
    return int(check and bool(stale))


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def pages() -> dict[str, str]:
    """Every generated page by file name."""
    return {
        "configuration.md": "\n".join(_configuration()) + "\n",
        "records.md": "\n".join(_records()) + "\n",
        "experiments.md": "\n".join(_experiments()) + "\n",
    }


# -- configuration ----------------------------------------------------------------------------------------


def _configuration() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield "Generated from `harness/config.py`. Set values on the command line (`depth=5 server.port=30000`) or in"
    yield "files under `conf/`. A group's file is chosen by its name (`model=tiny`, `hardware=b200`)."
    for prefix, kind in CONFIGS:
        yield ""
        yield f"## {prefix or 'Run'}"
        if prefix:
            choices = sorted(path.stem for path in (Path(conf.__file__).parent / prefix).glob("*.yaml"))
            yield f"`{prefix}=` " + ", ".join(f"`{name}`" for name in choices)
        yield ""
        yield "| key | type | default | meaning |"
        yield "| --- | --- | --- | --- |"
        notes = _comments(kind)
        for item in fields(kind):
            if not prefix and item.name in dict(CONFIGS):
                continue
            key = f"{prefix}.{item.name}" if prefix else item.name
            yield _row(f"`{key}`", item.type, _default(item), notes.get(item.name, ""))


def _default(item: Field[Any]) -> str:
    if item.default is not MISSING:
        return "" if item.default == "???" else f"`{_plain(item.default)}`"
    if item.default_factory is not MISSING:
        return f"`{_plain(item.default_factory())}`"
    return ""


def _plain(value: Any) -> Any:
    return (
        {None: "null", True: "true", False: "false"}.get(value, value)
        if isinstance(value, bool | None)
        else value
    )


def _comments(kind: type) -> dict[str, str]:
    """The comment lines above each field, by field name."""
    found: dict[str, str] = {}
    pending: list[str] = []
    for line in map(str.strip, inspect.getsource(kind).splitlines()):
        if line.startswith("#"):
            pending.append(line.lstrip("# "))
            continue
        name, colon, _ = line.partition(":")
        if colon and name.isidentifier():
            found[name] = " ".join(pending)
        pending = []
    return found


# -- records ----------------------------------------------------------------------------------------------


def _records() -> Iterator[str]:
    yield "# Records"
    yield ""
    yield f"Generated from `harness/records.py`; schema version {records.SCHEMA_VERSION}. A record is the directory"
    yield f"`<results>/points/<key>/` with `{records.RECORD_FILE}` (UTF-8 JSON, below) and `{records.LOG_FILE}` (the raw"
    yield "server log of the timed run). It appears by one rename, whole or not at all. The key is a hash of `point`."
    yield f"A field `{records.DIGEST}` beside those below is the digest of all of them (canonical JSON): a damaged or edited"
    yield "number is noticed. Records from before there was one are read without."
    yield ""
    yield "## Outcomes"
    yield "| outcome | meaning |"
    yield "| --- | --- |"
    for outcome in records.Outcome:
        yield f"| `{outcome}` | {OUTCOMES[outcome]} |"
    for part in PARTS:
        yield ""
        yield from _part(part, part.__name__)
    yield ""
    yield "## Extras"
    yield "Keys of `extras`, checked when read (`analysis/extras.py`)."
    for kind in _extras():
        yield ""
        yield from _part(kind, kind.__name__, "###")


def _extras() -> list[type[BaseModel]]:
    found = [kind for kind in vars(extras).values() if inspect.isclass(kind) and issubclass(kind, BaseModel)]
    return [
        kind for kind in found if kind.__module__ == extras.__name__ and not kind.__name__.startswith("_")
    ]


def _part(kind: Any, title: str, level: str = "##") -> Iterator[str]:
    yield f"{level} {title}"
    yield _first_line(kind)
    yield ""
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            default = "" if info.is_required() else _shown(info.get_default(call_default_factory=True))
            yield _row(f"`{name}`", info.annotation, default, info.description or "")
    else:
        notes = _comments(kind)
        for item in fields(kind):
            yield _row(f"`{item.name}`", item.type, _default(item), notes.get(item.name, ""))


def _shown(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return f"`{_plain(value)}`"


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")


def _row(name: str, kind: Any, default: str, meaning: str) -> str:
    cells = (name, f"`{_type_name(kind)}`", default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if get_origin(kind) is not None:
        inner = [_type_name(argument) for argument in get_args(kind)]
        origin = getattr(get_origin(kind), "__name__", "")
        return " | ".join(inner) if origin in ("Union", "UnionType") else f"{origin}[{', '.join(inner)}]"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


# -- experiments ------------------------------------------------------------------------------------------


def _experiments() -> Iterator[str]:
    yield "# Experiments"
    yield ""
    yield "Generated from `conf/experiment/`. `python -m harness.plan experiment=NAME` lists the points and prices of one."
    yield ""
    yield "| experiment | what | blocks on a GPU | blocks on a CPU |"
    yield "| --- | --- | --- | --- |"
    for path in sorted((Path(conf.__file__).parent / "experiment").glob("*.yaml"), key=_natural):
        read = yaml.safe_load(path.read_text(encoding="utf-8"))["experiment"]
        cells = (
            f"`{path.stem}`",
            str(read.get("title", "")),
            _blocks(read.get("gpu")),
            _blocks(read.get("cpu")),
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _natural(path: Path) -> tuple[str, int]:
    name, _, number = path.stem.rpartition("_")
    return (name, int(number)) if number.isdigit() else (path.stem, 0)


def _blocks(blocks: Iterable[dict[str, Any]] | None) -> str:
    shown = []
    for block in blocks or ():
        axes = {axis: [*values] for axis, values in block.get("product", {}).items()}
        for row in block.get("zip", []):
            for axis, value in row.items():
                axes.setdefault(axis, []).append(value)
        distinct = {axis: list(dict.fromkeys(map(str, values))) for axis, values in axes.items()}
        shown.append(", ".join(f"{axis}={'/'.join(values)}" for axis, values in distinct.items()))
    return "; ".join(filter(None, shown)) or "as set"


if __name__ == "__main__":
    sys.exit(main())
