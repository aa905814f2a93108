"""Find and read a result set."""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.extras import check_extras
from analysis.progress import shown
from analysis.study import Study
from analysis.validity import judge
from harness.errors import ConfigError, RecordError
from harness.printable import printable
from harness.records import Record, iter_record_dirs, read_record

DEFAULT = Path("results")
_LARGEST = 2**63
REFERENCE = Path(__file__).resolve().parent.parent / "results" / "reference"


def results_dir(given: Path | None) -> Path:
    """The folder to read: the one given, `results/` if it holds points, else the committed reference set.

    Raises:
        ConfigError: none of them holds a point.
    """
    for folder in [given] if given is not None else [DEFAULT, REFERENCE]:
        if next(iter_record_dirs(folder), None) is not None:
            if folder == REFERENCE and given is None:
                sys.stderr.write(
                    f"no records in {DEFAULT.resolve()}: these are the reference records of the repository\n"
                )
            return folder
    if given is not None:
        raise ConfigError(f"{given} holds no points: measure some, or name another folder with --results")
    raise ConfigError(
        f"neither {DEFAULT} nor {REFERENCE} holds points: measure some (python -m harness.demo), or name a "
        "folder with --results; the reference set is in the repository (results/reference) and in no package"
    )


def load_study(folder: Path) -> Study:
    """The study of a folder, which knows how many records could not be read.

    Raises:
        ConfigError: not one could be read.
    """
    records, unreadable = read_set(folder)
    return Study(records, unreadable)


def load(folder: Path, quiet: bool = False) -> list[Record]:
    """All readable records of a folder; unreadable ones are named on stderr.

    Raises:
        ConfigError: not one could be read.
    """
    return read_set(folder, quiet)[0]


def read_set(folder: Path, quiet: bool = False) -> tuple[list[Record], int]:
    """The same, and how many could not be read."""
    records: list[Record] = []
    errors: list[RecordError] = []
    for directory in shown(list(iter_record_dirs(folder)), "reading records"):
        try:
            record = read_record(directory)
            check_extras(record)
            _check_fields(record)
            records.append(record)
        except RecordError as damage:
            errors.append(damage)
    for error in errors:
        if not quiet:
            sys.stderr.write(f"left out: {printable(str(error))}\n")
    if not records:
        raise ConfigError(f"not one of the {len(errors)} records in {folder} can be read")
    return records, len(errors)


def _check_fields(record: Record) -> None:
    """Whether the estimators can work on a record; its schema leaves some fields open.

    Raises:
        RecordError: a field holds something else than is ever written.
    """
    steps = record.decode_steps
    for name, values in steps:
        if any(isinstance(value, int) and abs(value) >= _LARGEST for value in values):
            raise RecordError(
                f"{record.key} ({record.point.label}) holds values that cannot be: a count of {name} beyond "
                "64 bits; measure it again"
            )
    try:
        judge(record)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(
            f"{record.key} ({record.point.label}) holds values that cannot be: {error}; measure it again"
        ) from error
