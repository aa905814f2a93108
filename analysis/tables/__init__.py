"""The paper's tables from records, each beside the paper's values; see `TABLES` for the names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from analysis.study import Study
from analysis.tables.acceptance import table_9, table_10
from analysis.tables.base import Column, Table, Value
from analysis.tables.depth import table_3, table_5, table_6
from analysis.tables.lossless import divergence, lossless, lossless_inputs, penalty, sampling
from analysis.tables.memory import batches, memory
from analysis.tables.pareto import pareto_table
from analysis.tables.probes import bandwidth
from analysis.tables.reads import table_11, table_12
from analysis.tables.speed import kv_dtype, spread, table_1, table_2, table_4, table_13
from analysis.tables.traces import table_7, table_8
from harness.errors import ConfigError
from harness.records import Record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Column", "Table", "Value", "build", "frame"]

TABLES: dict[str, Callable[[Study], Table]] = {
    "1": table_1, "2": table_2, "3": table_3, "4": table_4, "5": table_5, "6": table_6, "7": table_7,
    "8": table_8, "9": table_9, "10": table_10, "11": table_11, "12": table_12, "13": table_13,
    "memory": memory, "batches": batches, "kv_dtype": kv_dtype, "lossless": lossless,
    "lossless_inputs": lossless_inputs, "divergence": divergence, "sampling": sampling, "penalty": penalty,
    "spread": spread,
    "bandwidth": bandwidth, "pareto": pareto_table,
}  # fmt: skip


def build(name: str, study: Study) -> Table:
    """A table by its name: `2`, `table_2`, `memory` ...

    Raises:
        ConfigError: no such table.
    """
    short = name.removeprefix("table_").removeprefix("table-")
    if short not in TABLES:
        raise ConfigError(f"there is no table {name!r}: choose one of {', '.join(TABLES)}")
    return TABLES[short](study)


def frame(name: str, records: Iterable[Record]) -> pd.DataFrame:
    """A table of records as a DataFrame."""
    return build(name, Study(records)).frame()
