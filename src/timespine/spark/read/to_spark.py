"""Give rows of a collection as a DataFrame: the driver plans them under a lease, and the executors read them.

Partitions are key ranges, cut by the statistics of parts, and each task merges its
own slice of all runs, so there is no shuffle. If one run holds exactly the rows
of the read, in few or in large files, Spark reads its files directly: those of a folder, or objects of a bucket if
the user names the scheme of a Hadoop filesystem that the session has.
"""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.api_for_engines import (
    Changes,
    LeasedState,
    Rows,
    Snapshot,
    extent_of,
    part_access_of,
    read_handle_of,
    read_lease_of,
    scan_plan_of,
    scan_request_of,
    slices_of,
    untouched_parts_of,
)
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Part
from timespine.errors import UsageError, short_repr
from timespine.spark.blob_location import BlobLocation, blob_location_of
from timespine.spark.enrich_from_arrangement import release_pins
from timespine.spark.read.read_task import COUNTS, IMAGES, ROWS, ReadTask, over_slices
from timespine.spark.setup.worker_python import check_workers
from timespine.spark.type_mapping import struct_type, to_spark_schema, to_spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_ROWS = 1 << 20
"""The approximate number of updates that one task reads."""

PARTITION_BYTES = 64 << 20
"""The approximate bytes of parts that one task reads."""

WORTH_ROWS = 1 << 17
"""The number of updates from which several tasks are faster than one, for any number of cores."""

FILES_FEW = 256
"""The number of files that Spark may read directly, whatever their size."""

FILE_BYTES_MIN = 4 << 20
"""The mean size from which Spark reads any number of files directly. To compare the hash of a footer takes the driver
0.1 ms of CPU time, and Spark takes 0.6 ms at least to list the file. Slices of smaller files are planned by what the
state knows, and their tasks check the footers."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}")

_NO_FILESYSTEM = ("No FileSystem for scheme", "ClassNotFoundException")
"""What Spark says of a scheme that it has no filesystem for."""

PARTITIONS_MIN = 4
PARTITIONS_MAX = 10_000

_leased: weakref.WeakKeyDictionary[Any, list[LeasedState]] = weakref.WeakKeyDictionary()
"""The leased rows of the DataFrames of a session, until Python collects the session."""


def to_spark(rows: Rows, spark: SparkSession, *, partitions: int | None = None, native: bool | str = True) -> DataFrame:
    """Give the rows as a DataFrame of a session, classic or of Spark Connect."""
    scheme = native if isinstance(native, str) else None
    if scheme is not None and not _SCHEME.fullmatch(scheme):
        raise UsageError(f"native is True, False or the scheme of a Hadoop filesystem, not {short_repr(native)}")
    place = blob_location_of(read_handle_of(rows))
    number = partitions_of(rows, partitions)
    if native and isinstance(rows, Snapshot) and partitions is None:
        frame = _native(rows, spark, place, scheme)
        if frame is not None:
            _keep(rows, spark)
            return frame
    slices = slices_of(rows, number)
    reading = ReadTask(place, row_shape(rows), to_spark_schema(rows.schema))
    schema = struct_type(rows.schema)
    if not slices:
        return spark.createDataFrame([], schema)
    _keep(rows, spark)
    check_workers(spark)
    task = over_slices(reading, [slice.encode() for slice in slices])
    return spark.range(0, len(slices), 1, len(slices)).mapInArrow(task, schema)


def release(spark: SparkSession) -> int:
    """End the leases of the DataFrames of this session, which nothing can read afterwards; return their number."""
    leased = _leased.pop(spark, [])
    for each in leased:
        each.close()
    return len(leased) + release_pins(spark)


def row_shape(rows: Rows) -> str:
    """Choose the shape of the rows."""
    if isinstance(rows, Changes) and rows.has_images:
        return IMAGES
    return ROWS if rows.multiplicity == "rows" else COUNTS


def partitions_of(rows: Rows, asked: int | None) -> int:
    """Return the number of partitions: the requested one, or one that suits the size of the rows."""
    if asked is not None:
        if type(asked) is not int or not 1 <= asked <= PARTITIONS_MAX:
            raise UsageError(f"partitions is a number from 1 to {PARTITIONS_MAX}, not {short_repr(asked)}")
        return asked
    count, size = extent_of(rows)
    if count < WORTH_ROWS:
        return 1
    return min(max(-(-count // PARTITION_ROWS), -(-size // PARTITION_BYTES), PARTITIONS_MIN), PARTITIONS_MAX)


def _keep(rows: Rows, spark: SparkSession) -> None:
    """Keep the lease of the rows for the life of the session, since Spark may read a DataFrame at any time."""
    _leased.setdefault(spark, []).append(read_lease_of(rows).share())


def _native(rows: Snapshot, spark: SparkSession, place: BlobLocation, scheme: str | None) -> DataFrame | None:
    """Let Spark read the files, if all their updates are rows of the snapshot; None otherwise."""
    request = scan_request_of(rows)
    schema = request.schema
    if any(is_nested(kind) or to_spark_type(kind) != kind for kind in schema.types.values()):
        return None
    found = untouched_parts_of(rows)
    files = [place.file_of(part.key, scheme) for part in found or ()]
    paths = [path for path in files if path is not None]
    if not found or len(paths) < len(files):  # executors read blobs of a bucket through Timespine
        return None
    if len(found) > FILES_FEW and sum(part.size for part in found) < len(found) * FILE_BYTES_MIN:
        return None
    _check_footers(rows, found)
    reader = spark.read.schema(struct_type(pa.schema([schema.arrow.field(name) for name in request.columns])))
    # SUBTLE: a flipped bit in a page must be an error, not another value; the footers are checked above.
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    reader = reader.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
    # SUBTLE: Spark checks no checksum of what it skips rows by, except for the statistics in the footer. A flipped bit
    # there would leave rows out (test_a_damaged_page_index_leaves_out_no_rows_of_a_filtered_query).
    for skipping in ("columnindex", "dictionary", "bloom"):
        reader = reader.option(f"parquet.filter.{skipping}.enabled", "false")
    try:
        return reader.parquet(*paths)
    except Exception as error:
        if scheme is None or not any(text in str(error) for text in _NO_FILESYSTEM):
            raise
        raise UsageError(
            f"the session has no Hadoop filesystem for {scheme}://: add its jars, or leave out native={scheme!r}"
        ) from error


def _check_footers(rows: Snapshot, found: list[Part]) -> None:
    """Check the footers of all files, because Spark does not: no checksum of a page covers them.

    SUBTLE: a sample is not enough. A flipped bit in the name of a column gives nulls instead of its values, and one in
    statistics skips row groups (test_a_foreign_file_among_many_is_refused_however_they_are_read).
    """
    parts = part_access_of(rows)
    plan = scan_plan_of(rows)
    (run,) = plan.summed().runs if plan is not None else ()
    id, schema = parts.schema(run)
    parts.check_footers(found, id, schema)
