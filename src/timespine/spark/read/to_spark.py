"""Rows of a collection as a DataFrame: planned here, under a lease, and read by the executors.

Partitions are key ranges cut from the statistics of parts, and each task merges its
own slice of all runs, so there is no shuffle. Where one run holds exactly the rows
that are asked for, Spark reads its files by itself.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.engines import Changes, LeasedState, Rows, Snapshot
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Part
from timespine.errors import UsageError, shown
from timespine.spark.blob_location import BlobLocation, blob_location_of
from timespine.spark.read.read_task import COUNTS, IMAGES, ROWS, Reading, over_slices
from timespine.spark.setup.workers import check_workers
from timespine.spark.type_mapping import struct_type, to_spark_schema, to_spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_ROWS = 1 << 20
"""Updates that one task reads, about."""

PARTITION_BYTES = 64 << 20
"""Bytes of parts that one task reads, about."""

WORTH_ROWS = 1 << 17
"""With so many updates several tasks pay, whatever the number of cores."""

PARTITIONS_MIN = 4
PARTITIONS_MAX = 10_000

_leased: weakref.WeakKeyDictionary[Any, list[LeasedState]] = weakref.WeakKeyDictionary()
"""What DataFrames of a session may still read. It is let go when the session is garbage collected."""


def to_spark(rows: Rows, spark: SparkSession, *, partitions: int | None = None, native: bool = True) -> DataFrame:
    """The rows as a DataFrame of a session, classic or of Spark Connect."""
    place = blob_location_of(rows.access)
    number = partitions_of(rows, partitions)
    if native and isinstance(rows, Snapshot) and partitions is None:
        frame = _native(rows, spark, place)
        if frame is not None:
            _keep(rows, spark)
            return frame
    slices = rows.slices(number)
    reading = Reading(place, shape_of(rows), to_spark_schema(rows.schema))
    schema = struct_type(rows.schema)
    if not slices:
        return spark.createDataFrame([], schema)
    _keep(rows, spark)
    check_workers(spark)
    task = over_slices(reading, [slice.encode() for slice in slices])
    return spark.range(0, len(slices), 1, len(slices)).mapInArrow(task, schema)


def release(spark: SparkSession) -> int:
    """Let go of the history that DataFrames of this session hold; how many did. They cannot be read afterwards."""
    leased = _leased.pop(spark, [])
    for each in leased:
        each.close()
    return len(leased)


def shape_of(rows: Rows) -> str:
    """How the rows are given."""
    if isinstance(rows, Changes) and rows.has_images:
        return IMAGES
    return ROWS if rows.multiplicity == "rows" else COUNTS


def partitions_of(rows: Rows, asked: int | None) -> int:
    """In how many pieces to read: as many as are asked for, or by how much there is."""
    if asked is not None:
        if type(asked) is not int or not 1 <= asked <= PARTITIONS_MAX:
            raise UsageError(f"partitions is a number from 1 to {PARTITIONS_MAX}, not {shown(asked)}")
        return asked
    count, size = rows.extent()
    if count < WORTH_ROWS:
        return 1
    return min(max(-(-count // PARTITION_ROWS), -(-size // PARTITION_BYTES), PARTITIONS_MIN), PARTITIONS_MAX)


def _keep(rows: Rows, spark: SparkSession) -> None:
    """Hold what is read for as long as the session lives: Spark may read a DataFrame at any time."""
    _leased.setdefault(spark, []).append(rows.leased.share())


def _native(rows: Snapshot, spark: SparkSession, place: BlobLocation) -> DataFrame | None:
    """The files as Spark reads them, if there is nothing to net in them; None otherwise."""
    schema = rows.request.schema
    if any(is_nested(kind) or to_spark_type(kind) != kind for kind in schema.types.values()):
        return None
    found = rows.untouched()
    if not found:
        return None
    _check_footers(rows, found)
    reader = spark.read.schema(struct_type(pa.schema([schema.arrow.field(name) for name in rows.request.columns])))
    # SUBTLE: a flipped bit in a page is an error, not another value; that of a footer was looked for above.
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    reader = reader.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
    return reader.parquet(*(place.path(part.key) for part in found))


def _check_footers(rows: Snapshot, found: list[Part]) -> None:
    """Spark trusts footers: whether they are what was written has to be seen here."""
    parts = rows.parts()
    (run,) = rows.plan.runs if rows.plan is not None else ()
    id, schema = parts.schema(run)
    for part in found:
        parts.open(part, id, schema)
