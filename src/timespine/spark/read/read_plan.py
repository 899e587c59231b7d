"""What the options of a read ask for: a snapshot, or the changes between two times."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.collection import Collection
from timespine.client.engines import (
    Access,
    Asked,
    Changes,
    Hold,
    Rows,
    Updates,
    access_of,
    read_changes,
    read_snapshot,
    read_updates,
)
from timespine.columnar.schema.schema import Schema, is_reserved, shown_names
from timespine.core.state import State
from timespine.errors import UsageError, shown
from timespine.spark.blob_location import blob_location_of
from timespine.spark.names import free_name
from timespine.spark.options import Options
from timespine.spark.read.read_leases import for_term
from timespine.spark.read.read_task import FEED, INSERTS, SINCE, UPDATES, UPPER, Reading, feed_schema
from timespine.spark.read.to_spark import partitions_of, shape_of
from timespine.spark.type_mapping import struct_type, to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Planned:
    """A read, ready for the executors."""

    reading: Reading
    slices: list[bytes]


def schema_of(collection: Collection, options: Options) -> pa.Schema:
    """The columns that a read with these options gives, in types that Spark takes."""
    if options.is_feed:
        schema, columns = collection.schema, options.names("columns")
        missing = [name for name in columns or () if name not in schema.names]
        if missing:
            raise UsageError(f"there is no column {shown(missing[0])}; there are: {shown_names(schema.names)}")
        return feed_schema(schema, columns or schema.names)
    access = access_of(collection)
    columns = options.names("columns")
    return _schema(rows_of(access, options, columns, lambda state, _: access.shared.leases.unleased(state)))


def columns_of(schema: Schema, options: Options, promised: StructType | None) -> list[str] | None:
    """The columns to read for a DataFrame that has promised some; None for all of them.

    The schema may have changed since it was made: what was added is left out, and what is not as it was is an error.
    """
    asked = options.names("columns")
    if asked is not None and options.is_feed and schema.key:
        asked = list(dict.fromkeys((*schema.key_names, *asked)))  # a feed pairs images by key, and gives it
    if promised is None:
        return asked
    given = promised.fields[:-2] if options.flag("readUpdates") else promised.fields
    mine = {field.name: field.dataType for field in given if not is_reserved(field.name)}
    for name, kind in mine.items():
        if name not in schema.names:
            raise UsageError(
                f"column {shown(name)} was dropped or renamed since this DataFrame was made: load it again"
            )
        now = struct_type(pa.schema([schema.arrow.field(name)]))[0].dataType
        if now.simpleString() != kind.simpleString():
            raise UsageError(
                f"column {shown(name)} is {now.simpleString()}, and was {kind.simpleString()} when this DataFrame was "
                "made: load it again"
            )
    if asked is not None or not schema.key or len(mine) == len(schema.names):
        return asked  # without a key rows are told apart by all columns, and what was not promised is left out later
    return [name for name in schema.names if name in mine]


def plan(collection: Collection, options: Options, promised: StructType | None = None) -> Planned:
    """Plan a read, under a lease of a fixed term that nobody has to look after."""
    access = access_of(collection)
    state = access.state()
    columns = columns_of(access.schema(state)[1], options, promised)
    hold = for_term(access, options.text("lease"), all_history=options.flag("readUpdates"))
    rows = rows_of(access, options, columns, hold, state)
    return planned(rows, options.number("partitions"), promised)


def planned(
    rows: Rows, partitions: int | None = None, promised: StructType | None = None, *, is_feed: bool = True
) -> Planned:
    """Rows, cut for the executors. Changes are given as a feed, or as rows that only ever come."""
    slices = rows.slices(partitions_of(rows, partitions))
    shape, schema = shape_of(rows), _schema(rows)
    if isinstance(rows, Changes):
        shape = FEED if is_feed else INSERTS
        schema = schema if is_feed else to_spark_schema(pa.schema([rows.schema.field(each) for each in rows.names]))
    if isinstance(rows, Updates):
        shape = UPDATES
    if promised is not None:
        if isinstance(rows, Updates) and promised.names[-2:] != schema.names[-2:]:
            raise UsageError(f"updates end with the columns {' and '.join(schema.names[-2:])}: load them again")
        schema = pa.schema([schema.field(name) for name in promised.names])
    reading = Reading(blob_location_of(rows.access), shape, schema, *_version(rows), _ends(rows))
    return Planned(reading, [slice.encode() for slice in slices])


def rows_of(
    access: Access, options: Options, columns: list[str] | None, hold: Hold, state: State | None = None
) -> Rows:
    """Plan the rows that are asked for, on the newest state, which is leased in some way."""
    asked = Asked(columns, options.text("where"), hold=hold, state=state)
    if options.flag("readUpdates"):
        return read_updates(access, None, asked)
    if options.is_feed:
        return read_changes(access, _before(options.starting), options.ending, asked)
    return read_snapshot(access, options.as_of, asked, options.text("multiplicity") or "rows")


def _schema(rows: Rows) -> pa.Schema:
    if isinstance(rows, Changes):
        return feed_schema(rows.columns_of, rows.request.columns)
    schema = to_spark_schema(rows.schema)
    if isinstance(rows, Updates):
        for name in (SINCE, UPPER):
            schema = schema.append(pa.field(free_name(name, schema.names), pa.int64()))
    return schema


def _version(rows: Rows) -> tuple[int | None, bool]:
    """The time that changes lead to, and whether it is one of the wall clock."""
    if not isinstance(rows, Changes) or rows.plan is None:
        return None, False
    return rows.plan.until[0], rows.access.entry.timeline == "clock"


def _ends(rows: Rows) -> tuple[int | None, int | None]:
    """Since and upper, of times of one coordinate."""
    return tuple(  # type: ignore[return-value]
        each.time if each is not None and each.elements and len(each.elements[0]) == 1 else None
        for each in (rows.since, rows.upper)
    )


def _before(starting: int | datetime.datetime | None) -> int | datetime.datetime | None:
    """Changes from a version on are those after the one before it."""
    if isinstance(starting, datetime.datetime):
        return starting - datetime.timedelta(milliseconds=1)
    return None if starting is None or starting <= 0 else starting - 1
