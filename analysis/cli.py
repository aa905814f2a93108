"""The command line of `python -m analysis`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.progress import shown
from harness.commandline import guarded, place
from harness.errors import ConfigError
from harness.printable import printable

FORMATS = ("terminal", "markdown", "csv", "latex")
ENDINGS = {"terminal": "txt", "markdown": "md", "csv": "csv", "latex": "tex"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (2: usage or data error, 130: Ctrl-C)."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    return guarded(lambda: command(options))


# Spelled out: importing the tables would make `--help` wait; a test holds them against the code.
_TABLES = (
    "memory", "batches", "kv_dtype", "lossless", "lossless_inputs", "divergence", "sampling", "penalty",
    "spread", "bandwidth", "pareto",
)  # fmt: skip
_FIGURES = ("fit", "dose", "decomposition", "batches", "memory", "step", "context", "distance", "decision")

_SKIPPED = 2


def _not_negative(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError("0 is too small")
    return value


def _bandwidth(text: str) -> float:
    value = _positive(text)
    if not 1e-3 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} GB/s is no memory's: a B200's is 8000")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


class _Once(argparse.Action):
    """An option that names one thing: the last of several would stand for all without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(
                f"{self.option_strings[0]} is given twice, and it names one folder: `compare A B` sets two "
                "side by side; to pool their records, copy what is in points/ of both into one folder"
            )
        setattr(namespace, self.dest, values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Tables, figures and exports of stored records, beside the paper's values.",
        epilog="`python -m analysis COMMAND --help` has the options of each command.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        return sub

    def with_results(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument(
            "--results",
            type=place,
            action=_Once,
            help="folder of records (default: results/, else results/reference)",
        )
        return sub

    table = with_results(add("table", _table, "print one table beside the paper's values"))
    table.add_argument("name", help=f"1 to 13, {', '.join(_TABLES[:-1])} or {_TABLES[-1]}")
    table.add_argument("--format", choices=FORMATS, default="terminal")
    table.add_argument("--bandwidth", type=_bandwidth, help="GB/s of memory, for the bandwidth table")

    tables = with_results(add("tables", _tables, "write every table in every format"))
    tables.add_argument("--out", type=place, help="folder (default: <results>/tables)")

    figure = with_results(
        add("figure", _figure, "draw one figure as PNG, SVG and PDF; status 1 without data")
    )
    figure.add_argument("name", help=f"2 to 5, {', '.join(_FIGURES[:-1])} or {_FIGURES[-1]}")
    figure.add_argument("--out", type=place, help="folder (default: <results>/figures)")

    figures = with_results(add("figures", _figures, "draw every figure"))
    figures.add_argument("--out", type=place, help="folder (default: <results>/figures)")

    report = with_results(add("report", _report, "write one self-contained HTML file"))
    report.add_argument("--out", type=place, help="file (default: <results>/report.html)")

    compare = add("compare", _compare, "compare two result sets, or two arms of one, paired by point")
    compare.add_argument("a", help="a results folder, or an arm of --results")
    compare.add_argument("b", help="another results folder, or an arm of --results")
    with_results(compare)
    compare.add_argument("--metric", choices=("step_ms", "tpot_ms", "accept_length"), default="tpot_ms")
    compare.add_argument(
        "--threshold",
        type=_not_negative,
        default=5.0,
        help="percent worse that fails (exit status 1), default 5",
    )

    export = with_results(add("export", _export, "write points and decode steps as Parquet and CSV"))
    export.add_argument("--out", type=place, help="folder (default: <results>/export)")

    foreign = add("import-log", _import_log, "make records of a scheduler log this program did not write")
    foreign.add_argument("log", type=place)
    foreign.add_argument(
        "--results", type=place, action=_Once, required=True, help="folder the records go to"
    )
    foreign.add_argument("--model", required=True)
    foreign.add_argument("--hardware", required=True)
    foreign.add_argument("--arm", choices=("dense", "native", "windowed", "ring"), required=True)
    foreign.add_argument("--depth", type=int, help="d, default: the log's own, else 7; not for dense")
    foreign.add_argument("--window", type=int, help="default: the log's own, else 4032")
    foreign.add_argument("--sink", type=int, help="default: the log's own, else 64")
    foreign.add_argument("--context", type=int, required=True, help="prompt tokens")
    foreign.add_argument("--task", default="imported")
    foreign.add_argument("--batch", type=int, default=1, help="where the log's marks do not say it")
    foreign.add_argument("--tp", type=int, default=1)
    foreign.add_argument("--from", dest="begin", help="first time stamp, 2026-11-30 02:28:54")
    foreign.add_argument("--to", dest="end", help="last time stamp")

    trace = add("trace", _trace, "phases and kernels of an nsys SQLite export or a torch trace")
    trace.add_argument("file", type=place, help="x.sqlite (nsys export --type sqlite), x.json or x.json.gz")
    trace.add_argument(
        "--skip",
        type=_count,
        default=_SKIPPED,
        help=f"marked iterations to leave out first, default {_SKIPPED} as in tables 7 and 8",
    )
    trace.add_argument("--most", type=_count, default=20, help="ranges and kernels to print")
    trace.add_argument("--json", action="store_true", help="everything, as JSON")

    check = with_results(add("check", _check, "the verdict on every record; exit status 1 if one is invalid"))
    check.add_argument("--all", action="store_true", help="list records that are ok too, with their notes")
    return parser


# Each command imports what it needs: `--help` and `compare` must not wait for matplotlib.


def _table(options: argparse.Namespace) -> int:
    from analysis import load  # noqa: PLC0415
    from analysis.tables import build, render  # noqa: PLC0415
    from analysis.tables.probes import bandwidth  # noqa: PLC0415

    if options.bandwidth is not None and options.name != "bandwidth":
        raise ConfigError(f"--bandwidth is for the table `bandwidth`: leave it out for {options.name!r}")
    study = load.load_study(load.results_dir(options.results))
    table = bandwidth(study, options.bandwidth) if options.bandwidth else build(options.name, study)
    if options.format == "terminal":
        from rich.console import Console  # noqa: PLC0415

        console = Console()
        if console.is_terminal and not console.is_dumb_terminal:
            console.print(render.terminal(table, console.width))
        else:
            sys.stdout.write(render.plain(table))
    else:
        sys.stdout.write(render.render(table, options.format))
    return 0


def _trace(options: argparse.Namespace) -> int:
    from analysis.traces import read_trace, report  # noqa: PLC0415

    trace = read_trace(options.file)
    if options.json:
        import orjson  # noqa: PLC0415

        text = orjson.dumps(report.as_dict(trace, options.skip), option=orjson.OPT_INDENT_2).decode()
    else:
        text = "\n".join(map(printable, report.lines(trace, options.skip, options.most)))
    sys.stdout.write(text + "\n")
    return 0


def _tables(options: argparse.Namespace) -> int:
    from analysis import load  # noqa: PLC0415
    from analysis.files import write_text  # noqa: PLC0415
    from analysis.tables import TABLES, build, render  # noqa: PLC0415

    folder = load.results_dir(options.results)
    out: Path = options.out or folder / "tables"
    study = load.load_study(folder)
    for name in shown(list(TABLES), "making tables"):
        table = build(name, study)
        for kind in FORMATS:
            write_text(out / f"{table.name}.{ENDINGS[kind]}", render.render(table, kind))
    count = len(study.cells)
    sys.stdout.write(f"{len(TABLES)} tables of {count} records in {len(FORMATS)} formats: {out}\n")
    return 0


def _figure(options: argparse.Namespace) -> int:
    return _draw(options, [options.name], missing=1)


def _figures(options: argparse.Namespace) -> int:
    from analysis.figures import FIGURES  # noqa: PLC0415

    return _draw(options, list(FIGURES))


def _draw(options: argparse.Namespace, names: list[str], missing: int = 0) -> int:
    from analysis import figures, load  # noqa: PLC0415

    folder = load.results_dir(options.results)
    out: Path = options.out or folder / "figures"
    study = load.load_study(folder)
    drawn = [figures.draw(name, study, out) for name in shown(names, "drawing figures")]
    sys.stdout.writelines(f"{figure.text}\n" for figure in drawn)
    if len(names) > 1:
        done = sum(not figure.note for figure in drawn)
        sys.stdout.write(f"{done} of {len(names)} figures of {len(study.cells)} records: {out}\n")
    return missing if any(figure.note for figure in drawn) else 0


def _report(options: argparse.Namespace) -> int:
    from analysis import load  # noqa: PLC0415
    from analysis.files import is_stdout  # noqa: PLC0415
    from analysis.report import write_report  # noqa: PLC0415

    folder = load.results_dir(options.results)
    path: Path = options.out or folder / "report.html"
    study = load.load_study(folder)
    write_report(study, path, folder)
    (sys.stderr if is_stdout(path) else sys.stdout).write(f"{path}: {len(study.cells)} records\n")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from analysis import compare, load  # noqa: PLC0415
    from harness.points import ARMS  # noqa: PLC0415

    strangers = [
        name
        for name in (options.a, options.b)
        if name not in ARMS and not (name.strip() and Path(name).is_dir())
    ]
    if strangers:
        name = strangers[0].strip() or "an empty name"
        raise ConfigError(f"{name} is neither an arm ({', '.join(ARMS)}) nor a folder of results")
    arms = [name for name in (options.a, options.b) if name in ARMS]
    if len(arms) == 1:
        raise ConfigError(
            f"{arms[0]} is an arm and the other one a folder: name two arms (of --results FOLDER), or two "
            f"folders (./{arms[0]} where one is called so)"
        )
    if arms:
        records = load.load(load.results_dir(options.results))
        found = compare.compare_arms(records, options.a, options.b, options.metric)
    else:
        if options.results is not None:
            raise ConfigError("--results is for two arms: leave it out where two folders are compared")
        sets = [load.load(load.results_dir(Path(name))) for name in (options.a, options.b)]
        found = compare.compare_sets(sets[0], sets[1], options.metric)
    sys.stdout.write(compare.render(found, options.a, options.b, options.threshold))
    return compare.exit_status(found, options.threshold)


def _export(options: argparse.Namespace) -> int:
    from analysis import export, load  # noqa: PLC0415

    folder = load.results_dir(options.results)
    records = load.load(folder)
    rows = {"points": len(records), "decode_steps": sum(len(record.decode_steps) for record in records)}
    for path in export.write(records, options.out or folder / "export"):
        sys.stdout.write(f"{path}: {rows[path.stem]:,} rows\n")
    return 0


def _import_log(options: argparse.Namespace) -> int:
    from analysis import foreign  # noqa: PLC0415
    from analysis.summary import summary_line  # noqa: PLC0415
    from harness.records import read_record  # noqa: PLC0415

    for path in foreign.import_log(options):
        sys.stdout.write(f"{path}\n  {summary_line(read_record(path))}\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    from analysis import load  # noqa: PLC0415

    study = load.load_study(load.results_dir(options.results))
    bad = 0
    for cell in study.cells:
        verdict = cell.verdict
        bad += not verdict.valid
        if options.all or verdict.label != "ok":
            sys.stdout.write(
                f"{cell.point.key} {verdict.label}: {printable(cell.point.label)}: {verdict.text or 'ok'}\n"
            )
    unread = f", {study.unreadable} more could not be read (named above)" if study.unreadable else ""
    sys.stdout.write(f"{len(study.cells) - bad} of {len(study.cells)} records are valid{unread}\n")
    return 1 if bad or study.unreadable else 0
