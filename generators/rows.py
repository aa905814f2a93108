"""Rows of released data sets: JSON, JSONL or Parquet files, or a Hugging Face data set id."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from generators.words import LFS_MARKER
from harness.errors import InputError
from harness.regular import read_regular

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SUFFIXES = (".json", ".jsonl", ".parquet")
Row = dict[str, Any]


def read_rows(
    source: str, fields: Iterable[str], *, config: str | None = None, split: str = "train"
) -> list[Row]:
    """All rows of a data set, each checked to have the text fields named.

    Args:
        source: a file, a folder of files, or a Hub id.
        config, split: of a data set on the Hub.

    Raises:
        InputError: it cannot be read, is empty, or lacks a field.
    """
    path = Path(source).expanduser()
    if path.is_dir() or path.is_file():
        rows = [row for file in row_files(source) for row in _read_file(file)]
    elif _HUB_ID.fullmatch(source):
        rows = _from_hub(source, config, split)
    else:
        raise InputError(f"There is no data set at {source}.")
    if not rows:
        raise InputError(f"The data set {source} holds no rows.")
    for number, row in enumerate(rows):
        lacking = (
            [name for name in fields if not isinstance(row.get(name), str)]
            if isinstance(row, dict)
            else ["all"]
        )
        if lacking:
            raise InputError(f"Row {number} of {source} lacks the text field {', '.join(lacking)}.")
    return rows


def row_files(source: str) -> list[Path]:
    """The files of a data set that lies here, in the order in which they are read; none for a Hub id."""
    path = Path(source).expanduser()
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
    return [path] if path.is_file() else []


def _read_file(path: Path) -> list[Row]:
    try:
        data = read_regular(path).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    if data.startswith(LFS_MARKER.encode()):
        raise InputError(f"{path} is a Git LFS pointer, not the data: fetch it with `git lfs pull`.")
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet  # noqa: PLC0415 (slow to import, and rarely needed)

            rows: list[Row] = parquet.read_table(path).to_pylist()
            return rows
        if path.suffix == ".jsonl":
            return [orjson.loads(line) for line in data.splitlines() if line.strip()]
        loaded = orjson.loads(data)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("data", [])
    if not isinstance(loaded, list):
        raise InputError(f"{path} holds no list of rows.")
    return loaded


def _from_hub(name: str, config: str | None, split: str) -> list[Row]:
    try:
        load_dataset = import_module("datasets").load_dataset  # an optional package
        return [dict(row) for row in load_dataset(name, config, split=split)]
    except Exception as error:
        raise InputError(
            f"{name} is no local file, and it could not be had from the Hub ({type(error).__name__})."
            " Download the data set elsewhere and give its file."
        ) from error
