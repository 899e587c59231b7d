"""Convert rows of a caller to an update table, and stored rows to another schema.

An update table has exactly the columns of `schema.update_arrow`, with times and
diffs as int64 without nulls, times not below zero, and canonical floats. A caller
need not check a table from here again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import check_names, to_arrow
from timespine.columnar.schema.schema import DIFF, Field, Schema, shown_names
from timespine.columnar.schema.types import can_widen
from timespine.errors import InvalidRows, UsageError, short_repr
from timespine.hints import Hint
from timespine.libraries import pc
from timespine.model.time import INT64_MAX, INT64_MIN, check_time

DEFAULT_BLOCK_BYTES = 1 << 20
"""The bytes of the shared block of a repeated default."""

__all__ = ["conform_columns", "project_rows", "to_arrow", "to_update_table", "update_table"]


def conform_columns(table: pa.Table, schema: Schema) -> pa.Table:
    """Convert the user's columns to the schema: cast exactly, fill missing ones, refuse unknown ones."""
    if not isinstance(table, pa.Table):
        raise InvalidRows(f"{type(table).__name__} is not an Arrow table: use `to_arrow` first")
    check_names(table.column_names, schema, ())
    return pa.Table.from_arrays(_user_columns(table, schema), schema=schema.arrow)


def to_update_table(rows: object, schema: Schema, at: tuple[int, ...] | None, diff: int | None = 1) -> pa.Table:
    """Convert rows of any kind to an update table, at a time that is checked first: see `update_table`."""
    if at is not None:
        check_time(at, schema.arity)
    return update_table(to_arrow(rows, schema), schema, at, diff)


def update_table(table: pa.Table, schema: Schema, at: tuple[int, ...] | None, diff: int | None = 1) -> pa.Table:
    """Give a table the columns of an update table.

    Rows may have times and diffs of their own; the others get `at`, which is a time of the schema, and `diff`.
    Diffs of zero are allowed: consolidation drops them.
    """
    check_names(table.column_names, schema, schema.system_names)
    columns = _user_columns(table, schema)
    columns += _times(table, schema, at)
    columns.append(_diffs(table, diff))
    return pa.Table.from_arrays(columns, schema=schema.update_arrow)


def project_rows(table: pa.Table, written: Schema, wanted: Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Convert rows that were written under one schema to another one.

    Match columns by their ids: a renamed one is the same, one that was dropped and added again is
    not. Times and diffs of an update table stay as they are. `columns` selects columns by their names in the
    wanted schema; the table then needs only the columns that have the ids of these.
    """
    if written.arity != wanted.arity:
        raise UsageError(f"rows with times of {written.arity} coordinates cannot be seen with {wanted.arity}")
    if columns is None and written == wanted and table.schema.equals(wanted.update_arrow, check_metadata=True):
        return table
    fields = [wanted.field(name) for name in (wanted.names if columns is None else columns)]
    there = set(table.column_names)
    system = [name for name in wanted.system_names if name in there]
    arrays = [_project_column(table, there, written, field) for field in fields]
    arrays += [table.column(name) for name in system]
    if not arrays:
        return table.select([])  # a table of no columns still has rows
    shape = pa.schema([wanted.update_arrow.field(name) for name in (*(field.name for field in fields), *system)])
    return pa.Table.from_arrays(arrays, schema=shape)


def _user_columns(table: pa.Table, schema: Schema) -> list[pa.ChunkedArray]:
    """Convert the columns of the schema, in its order, exact and canonical."""
    there = set(table.column_names)
    return [
        cast_column(field.name, table.column(field.name), schema.types[field.name])
        if field.name in there
        else _repeat_default(field, table.num_rows)
        for field in schema.fields
    ]


def _repeat_default(field: Field, rows: int) -> pa.ChunkedArray:
    """Repeat the default of a column for a number of rows. All chunks share one block."""
    if field.default is None:
        return pa.chunked_array([pa.nulls(rows, field.arrow_type)])
    size = len(field.default) if isinstance(field.default, str) else 16
    block = pa.repeat(field.default_scalar(), min(rows, max(1, DEFAULT_BLOCK_BYTES // (size + 1))))
    if len(block) == rows:
        return pa.chunked_array([block])
    whole, rest = divmod(rows, len(block))
    return pa.chunked_array([block] * whole + [block.slice(0, rest)] * (rest > 0))


def _times(table: pa.Table, schema: Schema, at: tuple[int, ...] | None) -> list[pa.ChunkedArray]:
    names = schema.time_names
    there = [name for name in names if name in table.column_names]
    if not there and at is not None:
        return [_repeat(coordinate, table.num_rows) for coordinate in at]
    if at is not None:
        raise InvalidRows(f"the rows have times of their own in {shown_names(there)}", hint=Hint("leave-out-at"))
    if len(there) < len(names):
        missing = [name for name in names if name not in there]
        if there:
            raise InvalidRows(f"the rows do not say at which times they are: give the columns {shown_names(missing)}")
        hint = Hint("give-at", {"columns": shown_names(missing)})
        raise InvalidRows("the rows do not say at which times they are", hint=hint)
    columns = [_integers(table, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        lowest = pc.min(column).as_py()
        if lowest is not None and lowest < 0:
            raise InvalidRows(f"column {short_repr(name)} has times below zero: times begin at 0")
    return columns


def _diffs(table: pa.Table, diff: int | None) -> pa.ChunkedArray:
    if DIFF in table.column_names:
        if diff not in (None, 1):
            raise InvalidRows(f"the rows have diffs of their own in {short_repr(DIFF)}: leave out `diff`, or drop them")
        return _integers(table, DIFF)
    if type(diff) is not int or not INT64_MIN <= diff <= INT64_MAX:
        what = "the rows have no diffs" if diff is None else f"{short_repr(diff)} is not a diff"
        raise InvalidRows(f"{what}: give an integer that fits 64 bits, or the column {short_repr(DIFF)}")
    return _repeat(diff, table.num_rows)


def _integers(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Check a column of times or diffs of the rows."""
    column = table.column(name)
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise InvalidRows(f"column {short_repr(name)} holds {short_repr(str(column.type))} where integers are needed")
    if column.null_count:
        raise InvalidRows(f"column {short_repr(name)} has {column.null_count} nulls: every update needs a value there")
    return cast_column(name, column, pa.int64())


def _repeat(value: int, rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(np.full(rows, value, np.int64))])


def _project_column(table: pa.Table, there: set[str], written: Schema, field: Field) -> pa.ChunkedArray:
    """Return one wanted column: the one written under its id, or its default if there is none."""
    if not written.has_id(field.id):
        return _repeat_default(field, table.num_rows)
    source = written.by_id(field.id)
    if source.name not in there:
        raise UsageError(f"the table has no column {short_repr(source.name)}, which the schema it was written with has")
    column = table.column(source.name)
    if column.type != source.arrow_type:
        raise UsageError(f"column {short_repr(source.name)} was written as {source.type}, the table has {column.type}")
    if source.type == field.type:
        return column
    if not can_widen(source.arrow_type, field.arrow_type):
        raise UsageError(
            f"column {short_repr(field.name)} was written as {source.type} and cannot be seen as {field.type}: "
            "use the newest schema"
        )
    return column.cast(field.arrow_type)
