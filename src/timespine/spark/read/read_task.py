"""Read a slice in a task, which opens only the blobs of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.client.api_for_engines import BATCH_ROWS, repeat_by_diff, with_images
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.worker_slice import Slice, read_slice_rows
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import LeaseExpired, UsageError
from timespine.libraries import pc
from timespine.spark.blob_location import BlobLocation
from timespine.spark.change_columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, DELETE, INSERT, PREIMAGE
from timespine.spark.hide_tracebacks import plain_errors
from timespine.spark.type_mapping import Batches, to_spark_schema, to_spark_table

ROWS = "rows"
"""Each row, repeated by its count."""

COUNTS = "counts"
"""Each row once, with its count in `_diff`; with times, each update."""

IMAGES = "images"
"""Changes as images by key, with `_change_type`."""

FEED = "feed"
"""Changes as a change feed: images by key if there is one, the version, and `_diff`."""

INSERTS = "inserts"
"""Changes of an append-only collection; a retraction is an error."""

UPDATES = "updates"
"""Every update with its time, and with since and upper, so that a query that sums them can check its time."""

SINCE, UPPER = "_since", "_upper"
"""The names of the last columns of updates, unless the user has columns of these names."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The parameters of a read that all of its slices share."""

    place: BlobLocation
    """The location of the blobs."""
    shape: str
    """The shape of the rows."""
    schema: pa.Schema
    """The columns of the result, in types that Spark accepts."""
    version: int | None = None
    """The last time of changes."""
    is_clock: bool = False
    """Whether `version` is in milliseconds of the wall clock."""
    ends: tuple[int | None, int | None] = (None, None)
    """Since and upper of the collection."""


def feed_schema(schema: Schema, columns: Sequence[str]) -> pa.Schema:
    """Give the columns of a change feed, in types that Spark accepts."""
    names = dict.fromkeys((*(schema.key_names if schema.key else ()), *columns))
    user = to_spark_schema(pa.schema([schema.arrow.field(name) for name in names]))
    more = [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
        pa.field(DIFF, pa.int64()),
    ]
    return pa.schema([*user, *more])


def read_slice(reading: ReadTask, data: bytes) -> Batches:
    """Read the rows of one slice in bounded memory, in types that Spark accepts."""
    slice = Slice.decode(data)
    place = reading.place
    with plain_errors():
        try:
            tables = read_slice_rows(slice, place.blob(), place.config, place.cache(), _memory(place))
            for table in _shape_tables(reading, slice, tables):
                yield from to_spark_table(table, reading.schema).to_batches(BATCH_ROWS)
        except MissingBlob as missing:
            raise LeaseExpired(
                f"blob {missing.key} is gone: the lease of this read ran out, or {place.location} is not the same "
                "place on driver and executors; read again"
            ) from missing


def read_partition(partition: Any) -> Batches:
    """Read a partition of the source: a read task and a slice. Without partitions, Spark makes one with neither."""
    if partition is None or partition.value is None:
        return iter(())
    reading, data = partition.value
    return read_slice(reading, data)


def _memory(place: BlobLocation) -> int:
    """Return the memory of one task, which is that of one merge in a process."""
    return place.config.merge_bytes


def _shape_tables(reading: ReadTask, slice: Slice, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    if reading.shape == ROWS:
        for table in tables:
            yield from repeat_by_diff(table, DIFF)
    elif reading.shape == INSERTS:
        for table in tables:
            if pc.min(table.column(DIFF)).as_py() < 0:
                raise UsageError(
                    "rows were changed or deleted, and this stream gives only added rows: "
                    "set the option readChangeFeed to true to get all changes"
                )
            yield from repeat_by_diff(table, DIFF)
    elif reading.shape == COUNTS:
        yield from tables
    elif reading.shape == UPDATES:
        for table in tables:
            for name, end in zip(reading.schema.names[-2:], reading.ends, strict=True):
                table = table.append_column(name, pa.repeat(pa.scalar(end, pa.int64()), table.num_rows))
            yield table
    elif found := list(tables):
        schema = slice.seen
        keys = list(schema.key_names) if schema.key else []
        table = pa.concat_tables(found)
        table = table.select([*dict.fromkeys((*keys, *slice.columns)), DIFF])
        yield with_images(table, keys) if reading.shape == IMAGES else _to_feed(reading, table, schema)


def _to_feed(reading: ReadTask, table: pa.Table, schema: Schema) -> pa.Table:
    """Convert changes to a feed. In a clustered collection the images of a row may be in other slices."""
    if schema.key and not schema.cluster:
        table = with_images(table, list(schema.key_names))
    else:
        table = add_change_types(table)
    gone = pc.is_in(table.column(CHANGE_TYPE), pa.array([DELETE, PREIMAGE]))
    stamp = pa.scalar(None if not reading.is_clock else 1000 * (reading.version or 0), pa.timestamp("us", "UTC"))
    rows = table.num_rows
    table = table.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(reading.version, pa.int64()), rows))
    table = table.append_column(COMMIT_TIMESTAMP, pa.repeat(stamp, rows))
    return table.append_column(DIFF, pc.if_else(gone, -1, 1).cast(pa.int64()))


def add_change_types(table: pa.Table) -> pa.Table:
    """Convert changes to insert and delete, each row repeated by its count."""
    diffs = table.column(DIFF).to_numpy()
    places = np.repeat(np.arange(len(diffs)), np.abs(diffs))
    kinds = pa.array(np.where(diffs > 0, INSERT, DELETE)).cast(pa.string())
    return table.drop_columns([DIFF]).append_column(CHANGE_TYPE, kinds).take(pa.array(places))


def over_slices(reading: ReadTask, slices: Sequence[bytes]) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` over the numbers of slices that reads their rows."""

    def rows(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_slice(reading, slices[number])

    return rows
