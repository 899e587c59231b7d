"""Rows in and out: what a caller gives becomes an update table; what was written is seen under another schema.

An update table has exactly the columns of `schema.update_arrow`, with times and
diffs as int64 without nulls, times not below zero, and canonical floats. Whoever
gets one from here need not check it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import check_names, to_arrow
from timespine.columnar.schema.schema import DIFF, Field, Schema, shown_names
from timespine.columnar.schema.types import can_widen
from timespine.errors import InvalidRows, UsageError, shown
from timespine.hints import Hint
from timespine.model.time import INT64_MAX, INT64_MIN, check_time

DEFAULT_BLOCK_BYTES = 1 << 20
"""Bytes of a repeated default that are made once and then shared."""

__all__ = ["conform", "project", "sources", "to_arrow", "update_table", "updates"]


def conform(table: pa.Table, schema: Schema) -> pa.Table:
    """The user's columns as the schema has them: cast exactly, missing ones filled, unknown ones refused."""
    if not isinstance(table, pa.Table):
        raise InvalidRows(f"{type(table).__name__} is not an Arrow table: use `to_arrow` first")
    check_names(table.column_names, schema, ())
    return pa.Table.from_arrays(_user_columns(table, schema), schema=schema.arrow)


def updates(rows: object, schema: Schema, at: tuple[int, ...] | None, diff: int | None = 1) -> pa.Table:
    """Convert rows of any kind to an update table: see `update_table`."""
    return update_table(to_arrow(rows, schema), schema, at, diff)


def update_table(table: pa.Table, schema: Schema, at: tuple[int, ...] | None, diff: int | None = 1) -> pa.Table:
    """Give a table the columns of an update table.

    Rows may have times and diffs of their own; those that have none are given `at` and `diff`.
    Diffs of zero may be there: consolidation drops them.
    """
    check_names(table.column_names, schema, schema.system_names)
    if at is not None:
        check_time(at, schema.arity)
    columns = _user_columns(table, schema)
    columns += _times(table, schema, at)
    columns.append(_diffs(table, diff))
    return pa.Table.from_arrays(columns, schema=schema.update_arrow)


def project(table: pa.Table, written: Schema, wanted: Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows that were written under one schema as another one sees them.

    Columns are matched by their ids: a renamed one is the same, one that was dropped and added again is
    not. Of an update table, times and diffs stay as they are. `columns`, names in the wanted schema, says
    which ones to give; the table then needs to hold no others than `sources` names.
    """
    if written.arity != wanted.arity:
        raise UsageError(f"rows with times of {written.arity} coordinates cannot be seen with {wanted.arity}")
    if columns is None and written == wanted and table.schema.equals(wanted.update_arrow, check_metadata=True):
        return table
    fields = [wanted.field(name) for name in (wanted.names if columns is None else columns)]
    there = set(table.column_names)
    system = [name for name in wanted.system_names if name in there]
    arrays = [_projected(table, there, written, field) for field in fields]
    arrays += [table.column(name) for name in system]
    if not arrays:
        return table.select([])  # a table of no columns still has rows
    shape = pa.schema([wanted.update_arrow.field(name) for name in (*(field.name for field in fields), *system)])
    return pa.Table.from_arrays(arrays, schema=shape)


def sources(written: Schema, wanted: Schema, columns: Sequence[str] | None = None) -> tuple[str, ...]:
    """The user's columns, by the names they were written under, that `project` needs to give the wanted ones."""
    ids = (wanted.field(name).id for name in (wanted.names if columns is None else columns))
    return tuple(written.by_id(each).name for each in ids if written.has_id(each))


def _user_columns(table: pa.Table, schema: Schema) -> list[pa.ChunkedArray]:
    """The columns of the schema, in its order, exact and canonical."""
    there = set(table.column_names)
    return [
        cast_column(field.name, table.column(field.name), schema.types[field.name])
        if field.name in there
        else _filled(field, table.num_rows)
        for field in schema.fields
    ]


def _filled(field: Field, rows: int) -> pa.ChunkedArray:
    """The default of a column, as often as there are rows. One block is shared, however many there are."""
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
        return [_repeated(coordinate, table.num_rows) for coordinate in at]
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
            raise InvalidRows(f"column {shown(name)} has times below zero: times begin at 0")
    return columns


def _diffs(table: pa.Table, diff: int | None) -> pa.ChunkedArray:
    if DIFF in table.column_names:
        if diff not in (None, 1):
            raise InvalidRows(f"the rows have diffs of their own in {shown(DIFF)}: leave out `diff`, or drop them")
        return _integers(table, DIFF)
    if type(diff) is not int or not INT64_MIN <= diff <= INT64_MAX:
        what = "the rows have no diffs" if diff is None else f"{shown(diff)} is not a diff"
        raise InvalidRows(f"{what}: give an integer that fits 64 bits, or the column {shown(DIFF)}")
    return _repeated(diff, table.num_rows)


def _integers(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of times or diffs that the rows brought along."""
    column = table.column(name)
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise InvalidRows(f"column {shown(name)} holds {shown(str(column.type))} where integers are needed")
    if column.null_count:
        raise InvalidRows(f"column {shown(name)} has {column.null_count} nulls: every update needs a value there")
    return cast_column(name, column, pa.int64())


def _repeated(value: int, rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(np.full(rows, value, np.int64))])


def _projected(table: pa.Table, there: set[str], written: Schema, field: Field) -> pa.ChunkedArray:
    """One wanted column: what was written under its id, or its default if nothing was."""
    if not written.has_id(field.id):
        return _filled(field, table.num_rows)
    source = written.by_id(field.id)
    if source.name not in there:
        raise UsageError(f"the table has no column {shown(source.name)}, which the schema it was written with has")
    column = table.column(source.name)
    if column.type != source.arrow_type:
        raise UsageError(f"column {shown(source.name)} was written as {source.type}, the table has {column.type}")
    if source.type == field.type:
        return column
    if not can_widen(source.arrow_type, field.arrow_type):
        raise UsageError(
            f"column {shown(field.name)} was written as {source.type} and cannot be seen as {field.type}: "
            "use the newest schema"
        )
    return column.cast(field.arrow_type)
