"""Run large merges as Spark jobs: one task per range of keys, with the same kernel; executors write the parts.

The merge engine of the process hands large merges to a job (`Engine.delegate`). The
process commits the result like that of any other merge. A cancelled or killed job leaves
blobs of the merge's writer, which the sweep removes with that writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from timespine.client.api_for_engines import fresh_id, merge_engine_of
from timespine.client.store import Store
from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.merge.run_merge import MergedParts, MergeTask
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.split_keys import split_keys
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Run
from timespine.errors import CorruptionError
from timespine.spark.blob_location import BlobLocation, blob_location_of_store
from timespine.spark.setup.worker_python import check_workers
from timespine.spark.type_mapping import Batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_ROWS = 4_000_000
"""The least updates of a merge that becomes a job. With two cores on one machine a warm job takes about as long as the
process (`python -m bench.spark compact`), and a cold one twice that at 6 million. More cores need less."""

TASK_ROWS = 1 << 20
"""The approximate number of updates that one task merges."""

TASKS_MAX = 10_000

DDL = "place int, parts binary"
_SCHEMA = pa.schema([pa.field("place", pa.int32()), pa.field("parts", pa.binary())])


@dataclass(frozen=True, slots=True)
class MergeRangeTask:
    """The input of a task that merges a range."""

    place: BlobLocation
    """The location of the blobs."""
    schemas: tuple[bytes, ...]
    """The schemas of the collection."""
    works: tuple[MergeTask, ...]
    """The ranges, in the order of their keys."""


@contextlib.contextmanager
def merging_on(store: Store, spark: SparkSession, *, least_rows: int = LEAST_ROWS) -> Iterator[None]:
    """Let the executors of a session do merges of `least_rows` updates or more, while this context is open."""
    place = blob_location_of_store(store)

    def delegate(work: MergeTask, schemas: Sequence[Schema], parts: Parts) -> MergedParts | None:
        if sum(part.rows for run in work.runs for part in run.parts) < least_rows:
            return None
        return _merge_by_tasks(spark, place, work, schemas, parts)

    engine = merge_engine_of(store)
    engine.delegate, before = delegate, engine.delegate
    try:
        yield
    finally:
        engine.delegate = before


def _merge_by_tasks(
    spark: SparkSession, place: BlobLocation, work: MergeTask, schemas: Sequence[Schema], parts: Parts
) -> MergedParts | None:
    """Merge by tasks; return the parts of all ranges in order, None if the keys have no ranges to cut at."""
    works = ranges(work, schemas[-1], parts)
    if len(works) < 2:
        return None
    task = over_ranges(MergeRangeTask(place, tuple(schema.encode() for schema in schemas), tuple(works)))
    check_workers(spark)
    sent = spark.range(0, len(works), 1, len(works)).mapInArrow(task, DDL).toArrow()
    answers = dict(zip(sent.column("place").to_pylist(), sent.column("parts").to_pylist(), strict=True))
    if sorted(answers) != list(range(len(works))):
        raise CorruptionError(f"a merge has {len(works)} tasks, and {sorted(answers)} answered")
    if any(data is None for data in answers.values()):
        raise MissingBlob("(an input of a merge)")
    found = [_decoder.decode(answers[place]) for place in sorted(answers)]
    return MergedParts(
        tuple(part for each in found for part in each.live), tuple(part for each in found for part in each.past)
    )


def ranges(work: MergeTask, schema: Schema, parts: Parts) -> list[MergeTask]:
    """Cut a merge into ranges of keys of about equal size, each with the parts that it needs."""
    wanted = ScanRequest(schema, schema.names, Window(), keep_times=True)
    rows = sum(part.rows for run in work.runs for part in run.parts)
    cuts = split_keys(parts, work.runs, wanted, min(-(-rows // TASK_ROWS), TASKS_MAX))
    found = []
    for lower, upper in pairwise([None, *cuts, None]):
        inside = replace(wanted, lower=lower, upper=upper)
        runs = (Run(tuple(parts.matching(run.parts, run, inside)), run.order, run.schema) for run in work.runs)
        found.append(replace(work, runs=tuple(run for run in runs if run.parts), lower=lower, upper=upper))
    return found


def over_ranges(merging: MergeRangeTask) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` over the numbers of ranges that gives the merged parts of each."""

    def merge_ranges(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield merge_range(merging, number)

    return merge_ranges


def merge_range(merging: MergeRangeTask, number: int) -> pa.RecordBatch:
    """Merge one range in a task within the memory bound, and put its parts."""
    place = merging.place
    schemas = [Schema.decode(data) for data in merging.schemas]
    engine = Engine(
        place.blob(read_only=False),
        lambda collection: schemas,
        place.config,
        fresh=fresh_id,
        cache=PartCache(1),
    )
    parts = engine.merge_range(merging.works[number])
    data = None if parts is None else _encoder.encode(parts)
    return pa.RecordBatch.from_pydict({"place": [number], "parts": [data]}, schema=_SCHEMA)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MergedParts)
