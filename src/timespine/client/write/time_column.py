"""Times in a column of the rows: integers, dates, or timestamps with a zone."""

from __future__ import annotations

import pyarrow as pa

from timespine.client.arguments.row_args import column_names_of
from timespine.columnar.schema.schema import TIME, Schema
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.libraries import pc

NO_TIMES = pa.chunked_array([], pa.int64())


def schema_to_read(rows: object, schema: Schema, name: str) -> Schema | None:
    """Return the schema to convert rows with: None, if they have a column that it lacks."""
    known = {*schema.names, *schema.system_names}
    return schema if name in known and column_names_of(rows) <= known else None


def are_integers(table: pa.Table, name: str) -> bool:
    """Return whether a table has exactly one column of a name, with integers."""
    return table.column_names.count(name) == 1 and bool(pa.types.is_integer(table.column(name).type))


def with_times(table: pa.Table, schema: Schema, name: str) -> pa.Table:
    """Set the times of rows from one of their columns: integers, or points of the wall clock as milliseconds."""
    if schema.arity != 1:
        raise UsageError("times of several coordinates cannot come from one column: give them in the columns of time")
    if table.column_names.count(name) != 1:
        many = "are two columns" if name in table.column_names else "is no column"
        raise UsageError(f"there {many} {short_repr(name)} to take times from")
    if name != TIME and TIME in table.column_names:
        raise UsageError(f"the rows have times of their own in {TIME}", hint=Hint("leave-out-times", {"name": name}))
    times = milliseconds(table.column(name), name) if table.num_rows else NO_TIMES
    if name not in schema.names:
        table = table.drop_columns([name])
    return table.append_column(TIME, times)


def milliseconds(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Convert a column of times to integers."""
    if column.null_count:
        raise UsageError(f"column {short_repr(name)} has {column.null_count} nulls: every row needs a time")
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise UsageError(f"column {short_repr(name)} has times that are too large: they are below 2**63") from error
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise UsageError(f"column {short_repr(name)} has no zone, so its times could be anywhere: give it one")
        # Round down to whole milliseconds.
        try:
            floored = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz))
        except pa.ArrowInvalid as error:
            raise UsageError(f"column {short_repr(name)} has times that are no milliseconds of 64 bits") from error
        return floored.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.timestamp("ms")).cast(pa.int64())
    raise UsageError(
        f"column {short_repr(name)} holds {column.type}: times are integers, dates, or timestamps with a zone"
    )
