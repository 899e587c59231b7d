"""Rows and keys as users give them: dictionaries, columns, Arrow, Polars or pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.columnar.ingest.to_arrow import check_names, to_arrow
from timespine.columnar.ingest.update_table import conform
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested
from timespine.errors import InvalidRows, UsageError
from timespine.hints import Hint


def names_of(rows: Any) -> set[str]:
    """Name the columns that rows of any kind bring; of dictionaries, those that at least one of them has."""
    if isinstance(rows, list | tuple):
        return set(map(str, set(chain.from_iterable(rows)))) if are_dicts(rows) else set()
    if isinstance(rows, Mapping):
        return set(map(str, rows))
    if isinstance(rows, pl.LazyFrame):
        return set(rows.collect_schema().names())
    columns = getattr(rows, "column_names", None) or getattr(rows, "columns", None)
    if columns is None and hasattr(rows, "schema"):
        columns = rows.schema.names
    levels = getattr(getattr(rows, "index", None), "names", ())  # those of pandas that have a name are columns
    return set(map(str, (*(columns if columns is not None else ()), *levels)))


def are_dicts(rows: Sequence[Any]) -> bool:
    return all(issubclass(kind, Mapping) for kind in set(map(type, rows)))


def refuse_missing(names: Sequence[str], there: set[str]) -> None:
    """Refuse rows that lack one of the columns that identify them."""
    missing = [name for name in names if name not in there]
    if missing:
        raise InvalidRows(f"keys need the columns {', '.join(names)}: {', '.join(missing)} is not there")


@lru_cache(maxsize=256)
def restricted(schema: Schema, names: tuple[str, ...]) -> Schema:
    """A schema with some of the columns, for rows that have no others."""
    fields = tuple(schema.field(name) for name in names)
    return Schema(fields, (), (), schema.arity, schema.next_id)


def keys_of(rows: Any, schema: Schema, names: tuple[str, ...] | None = None) -> pa.Table:
    """The key columns of what a user gave as keys: rows, or one dictionary. Values that come along are passed over.

    Without key columns, rows are known by all of their columns. With `names`, only those of the key columns.
    """
    nested = next((field.name for field in schema.fields if not schema.key and is_nested(field.arrow_type)), None)
    if nested is not None:
        raise UsageError(
            f"this collection has no key columns, and rows cannot be found by {nested}, which is nested",
            hint=Hint("find-by-where"),
        )
    if isinstance(rows, Mapping) and not any(_is_column(value) for value in rows.values()):
        rows = [dict(rows)]
    wanted = restricted(schema, names if names is not None else schema.key_names)
    check_names(sorted(names_of(rows)), schema, ())
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        # Rows that miss a column would be filled with its default: of a key that is never what was meant.
        refuse_missing(wanted.names, set(wanted.names).intersection(*rows))
        rows = [{name: row[name] for name in wanted.names} for row in rows]
        return conform(to_arrow(rows, wanted), wanted)
    table = to_arrow(rows, wanted if isinstance(rows, Mapping) else None)
    refuse_missing(wanted.names, set(table.column_names))
    return conform(table.select(list(wanted.names)), wanted)


def _is_column(value: object) -> bool:
    """Whether a value is many values: no column of a key is nested."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | bytearray | memoryview | Mapping)
