"""Rows as a caller gave them: which columns they bring, and which of them they must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.columnar.intake import to_arrow
from timespine.columnar.schema import DIFF, Schema
from timespine.errors import UsageError


def names_of(rows: Any) -> set[str]:
    """The columns that rows of any kind bring; of dictionaries, those that at least one of them has."""
    if isinstance(rows, list | tuple):
        return set(map(str, set(chain.from_iterable(rows)))) if _are_dicts(rows) else set()
    if isinstance(rows, Mapping):
        return set(map(str, rows))
    if isinstance(rows, pl.LazyFrame):
        return set(rows.collect_schema().names())
    columns = getattr(rows, "column_names", None) or getattr(rows, "columns", None)
    if columns is None and hasattr(rows, "schema"):
        columns = rows.schema.names
    levels = getattr(getattr(rows, "index", None), "names", ())  # those of pandas that have a name are columns
    return set(map(str, (*(columns if columns is not None else ()), *levels)))


def with_keys(rows: Any, schema: Schema) -> pa.Table:
    """Rows as a table, in which every one brings all columns of the key, or a UsageError.

    What rows lack is null, or the default of the column. Of a key that is never what was meant: it would be
    the key of another row.
    """
    table = to_arrow(rows, schema)
    check_keys(rows, table, schema)
    return table


def check_keys(rows: Any, table: pa.Table, schema: Schema) -> None:
    """A UsageError if some rows, which are this table, do not bring all columns of the key."""
    if schema.key and table.num_rows:
        lists = rows if isinstance(rows, list | tuple) else ()
        refuse_missing(schema.key_names, set(schema.key_names).intersection(table.column_names, *lists))


def refuse_missing(names: Sequence[str], there: set[str]) -> None:
    """A UsageError if one of the columns that tell rows apart is not there."""
    missing = [name for name in names if name not in there]
    if missing:
        raise UsageError(f"keys need the columns {', '.join(names)}: {', '.join(missing)} is not there")


def with_diffs(rows: Any, schema: Schema) -> Any:
    """Rows of which some have a diff and others do not: those get +1. Times are there in all of them, or in none."""
    if not isinstance(rows, list | tuple) or not _are_dicts(rows):
        return rows
    there = names_of(rows)
    for name in there.intersection(schema.time_names):
        lacking = sum(name not in row for row in rows)
        if lacking:
            raise UsageError(f"{lacking} of {len(rows)} rows have no {name}: give it in all of them, or in none")
    return [row if DIFF in row else {**row, DIFF: 1} for row in rows] if DIFF in there else rows


def _are_dicts(rows: Sequence[Any]) -> bool:
    return all(issubclass(kind, Mapping) for kind in set(map(type, rows)))
