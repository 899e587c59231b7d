"""Plan a read from its options: a snapshot, or the changes between two times."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.api_for_engines import (
    Changes,
    CollectionHandle,
    HoldState,
    ReadOptions,
    Rows,
    Updates,
    handle_of,
    open_changes,
    open_snapshot,
    open_updates,
    read_handle_of,
    read_schema_of,
    scan_plan_of,
    scan_request_of,
    slices_of,
)
from timespine.client.collection import Collection
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.schema.schema import Schema, is_reserved, shown_names
from timespine.core.state import State
from timespine.errors import UsageError, short_repr
from timespine.spark.blob_location import blob_location_of
from timespine.spark.options import Options
from timespine.spark.quoted_names import free_name
from timespine.spark.read.fixed_term_leases import lease_for_term
from timespine.spark.read.read_task import FEED, INSERTS, SINCE, UPDATES, UPPER, ReadTask, feed_schema
from timespine.spark.read.to_spark import partitions_of, row_shape
from timespine.spark.type_mapping import struct_type, to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """The task and the slices of a read."""

    reading: ReadTask
    slices: list[bytes]


def read_schema(collection: Collection, options: Options) -> pa.Schema:
    """Give the columns of a read with these options, in types that Spark accepts."""
    if options.is_feed:
        schema, columns = collection.schema, options.names("columns")
        missing = [name for name in columns or () if name not in schema.names]
        if missing:
            raise UsageError(f"there is no column {short_repr(missing[0])}; there are: {shown_names(schema.names)}")
        return feed_schema(schema, columns or schema.names)
    handle = handle_of(collection)
    columns = options.names("columns")
    return _schema(rows_of(handle, options, columns, lambda state, _: handle.context.leases.unleased(state)))


def columns_to_read(schema: Schema, options: Options, promised: StructType | None) -> list[str] | None:
    """Give the columns to read for a DataFrame that has promised some; None for all of them.

    The schema may have changed since the DataFrame was made: new columns are left out, and changed ones are an error.
    """
    asked = options.names("columns")
    if asked is not None and options.is_feed and schema.key:
        asked = list(dict.fromkeys((*schema.key_names, *asked)))  # a feed pairs images by key, and contains it
    if promised is None:
        return asked
    given = promised.fields[:-2] if options.flag("readUpdates") else promised.fields
    mine = {field.name: field.dataType for field in given if not is_reserved(field.name)}
    for name, kind in mine.items():
        if name not in schema.names:
            raise UsageError(
                f"column {short_repr(name)} was dropped or renamed since this DataFrame was made: load it again"
            )
        now = struct_type(pa.schema([schema.arrow.field(name)]))[0].dataType
        if now.simpleString() != kind.simpleString():
            raise UsageError(
                f"column {short_repr(name)} is {now.simpleString()}, and was {kind.simpleString()} when this DataFrame "
                "was made: load it again"
            )
    if asked is not None or not schema.key or len(mine) == len(schema.names):
        return asked  # without a key all columns identify a row; columns that were not promised are left out later
    return [name for name in schema.names if name in mine]


def plan_read(
    collection: Collection, options: Options, promised: StructType | None = None, pushed: Predicate | None = None
) -> PlannedRead:
    """Plan a read under a lease with a fixed term, which no process renews; of rows that Spark's filters keep."""
    handle = handle_of(collection)
    state = handle.state()
    columns = columns_to_read(handle.schema(state)[1], options, promised)
    hold = lease_for_term(handle, options.text("lease"), all_history=options.flag("readUpdates"))
    rows = rows_of(handle, options, columns, hold, state, pushed)
    return plan_slices(rows, options.number("partitions"), promised)


def plan_slices(
    rows: Rows, partitions: int | None = None, promised: StructType | None = None, *, is_feed: bool = True
) -> PlannedRead:
    """Cut rows into slices for the executors. Changes have the shape of a feed, or of an append-only stream."""
    slices = slices_of(rows, partitions_of(rows, partitions))
    shape, schema = row_shape(rows), _schema(rows)
    if isinstance(rows, Changes):
        shape = FEED if is_feed else INSERTS
        schema = schema if is_feed else to_spark_schema(pa.schema([rows.schema.field(each) for each in rows.names]))
    if isinstance(rows, Updates):
        shape = UPDATES
    if promised is not None:
        if isinstance(rows, Updates) and promised.names[-2:] != schema.names[-2:]:
            raise UsageError(f"updates end with the columns {' and '.join(schema.names[-2:])}: load them again")
        schema = pa.schema([schema.field(name) for name in promised.names])
    reading = ReadTask(blob_location_of(read_handle_of(rows)), shape, schema, *_version(rows), _ends(rows))
    return PlannedRead(reading, [slice.encode() for slice in slices])


def rows_of(
    handle: CollectionHandle,
    options: Options,
    columns: list[str] | None,
    hold: HoldState,
    state: State | None = None,
    pushed: Predicate | None = None,
) -> Rows:
    """Plan the rows that the options and pushed filters ask for on the newest state, which `hold` leases."""
    text = options.text("where")
    where = pushed if text is None else as_predicate(text) if pushed is None else as_predicate(text) & pushed
    asked = ReadOptions(columns, where, hold=hold, state=state)
    if options.flag("readUpdates"):
        return open_updates(handle, None, asked)
    if options.is_feed:
        return open_changes(handle, _before(options.starting), options.ending, asked)
    return open_snapshot(handle, options.as_of, asked, options.text("multiplicity") or "rows")


def _schema(rows: Rows) -> pa.Schema:
    if isinstance(rows, Changes):
        return feed_schema(read_schema_of(rows), scan_request_of(rows).columns)
    schema = to_spark_schema(rows.schema)
    if isinstance(rows, Updates):
        for name in (SINCE, UPPER):
            schema = schema.append(pa.field(free_name(name, schema.names), pa.int64()))
    return schema


def _version(rows: Rows) -> tuple[int | None, bool]:
    """Return the last time of changes, and whether it is one of the wall clock."""
    plan = scan_plan_of(rows)
    if not isinstance(rows, Changes) or plan is None:
        return None, False
    return plan.until[0], read_handle_of(rows).entry.timeline == "clock"


def _ends(rows: Rows) -> tuple[int | None, int | None]:
    """Return since and upper, of times of one coordinate."""
    return tuple(  # type: ignore[return-value]
        each.time if each is not None and each.elements and len(each.elements[0]) == 1 else None
        for each in (rows.since, rows.upper)
    )


def _before(starting: int | datetime.datetime | None) -> int | datetime.datetime | None:
    """Return the version before the starting one: changes are those after it."""
    if isinstance(starting, datetime.datetime):
        return starting - datetime.timedelta(milliseconds=1)
    return None if starting is None or starting <= 0 else starting - 1
