"""Rows as dictionaries of Python values."""

from __future__ import annotations

import pyarrow as pa

from timespine.client.argument_types import Row
from timespine.errors import UsageError


def to_dicts(table: pa.Table) -> list[Row]:
    """Return the rows of a table. A UsageError names the column whose dates or timestamps Python cannot hold."""
    try:
        rows: list[Row] = table.to_pylist()
    except (OverflowError, ValueError) as error:
        beyond = next((name for name in table.column_names if not _is_held(table.column(name))), None)
        if beyond is None:
            raise
        raise UsageError(
            f"column {beyond} has a date or timestamp that Python has no value for, which knows the years "
            "1 to 9999: read it with to_arrow() or to_polars()"
        ) from error
    return rows


def _is_held(column: pa.ChunkedArray) -> bool:
    """Return whether Python has a value for every value of a column."""
    try:
        column.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True
