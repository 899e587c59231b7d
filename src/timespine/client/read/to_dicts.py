"""Rows as Python values: dictionaries, and frames of pandas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.arguments.argument_types import Row
from timespine.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def to_dicts(table: pa.Table) -> list[Row]:
    """Return the rows of a table. A UsageError names the column whose dates or timestamps Python cannot hold."""
    with _name_column_without_value(table):
        rows: list[Row] = table.to_pylist()
        return rows


def to_pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Return the rows of a table as a frame of pandas, which has dates as Python values."""
    with _name_column_without_value(table):
        frame: pd.DataFrame = table.to_pandas()
        return frame


@contextmanager
def _name_column_without_value(table: pa.Table) -> Iterator[None]:
    """Turn the error of a date or timestamp that Python cannot hold into a UsageError that names its column."""
    try:
        yield
    except (OverflowError, ValueError) as error:
        beyond = next((name for name in table.column_names if not _is_held(table.column(name))), None)
        if beyond is None:
            raise
        raise UsageError(
            f"column {beyond} has a date or timestamp that Python has no value for, which knows the years "
            "1 to 9999: read it with to_arrow() or to_polars()"
        ) from error


def _is_held(column: pa.ChunkedArray) -> bool:
    """Return whether Python has a value for every value of a column."""
    try:
        column.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True
