"""Rows and keys from callers: dictionaries, columns, Arrow, Polars or pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import pyarrow as pa

from timespine.columnar.ingest.require_key_columns import refuse_missing
from timespine.columnar.ingest.to_arrow import check_names, to_arrow
from timespine.columnar.ingest.update_table import conform_columns
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.libraries import is_lazy_frame


def column_names_of(rows: object) -> set[str]:
    """Return the names of the columns of rows of any kind; of dictionaries, those that at least one of them has."""
    if isinstance(rows, list | tuple):
        return set(map(str, set(chain.from_iterable(rows)))) if are_dicts(rows) else set()
    if isinstance(rows, Mapping):
        return set(map(str, rows))
    if is_lazy_frame(rows):
        return set(rows.collect_schema().names())
    columns = getattr(rows, "column_names", None) or getattr(rows, "columns", None)
    if columns is None and hasattr(rows, "schema"):
        columns = rows.schema.names
    levels = getattr(getattr(rows, "index", None), "names", ())  # named index levels of pandas are columns
    return set(map(str, (*(columns if columns is not None else ()), *levels)))


def are_dicts(rows: Sequence[object]) -> bool:
    return all(issubclass(kind, Mapping) for kind in set(map(type, rows)))


@lru_cache(maxsize=256)
def restrict_columns(schema: Schema, names: tuple[str, ...]) -> Schema:
    """Return a schema with some of the columns, for rows that have no others."""
    fields = tuple(schema.field(name) for name in names)
    return Schema(fields, (), (), schema.arity, schema.next_id)


def parse_keys(rows: object, schema: Schema, names: tuple[str, ...] | None = None) -> pa.Table:
    """Convert keys from a caller, rows or one dictionary, to a table of the key columns. Ignores other columns.

    Without key columns, all columns identify a row. With `names`, only those of the key columns.
    """
    nested = next((field.name for field in schema.fields if not schema.key and is_nested(field.arrow_type)), None)
    if nested is not None:
        raise UsageError(
            f"this collection has no key columns, and column {short_repr(nested)} is nested",
            hint=Hint("find-by-where"),
        )
    if isinstance(rows, Mapping) and not any(_is_column(value) for value in rows.values()):
        rows = [dict(rows)]
    wanted = restrict_columns(schema, names if names is not None else schema.key_names)
    check_names(sorted(column_names_of(rows)), schema, ())
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        # Conversion would fill a missing column with its default: for a key, the caller never meant that.
        refuse_missing(wanted.names, set(wanted.names).intersection(*rows), has_key=bool(schema.key))
        rows = [{name: row[name] for name in wanted.names} for row in rows]
        return conform_columns(to_arrow(rows, wanted), wanted)
    table = to_arrow(rows, wanted if isinstance(rows, Mapping) else None)
    refuse_missing(wanted.names, set(table.column_names), has_key=bool(schema.key))
    return conform_columns(table.select(list(wanted.names)), wanted)


def _is_column(value: object) -> bool:
    """Return whether a value is a column of values: no column of a key is nested."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | bytearray | memoryview | Mapping)
