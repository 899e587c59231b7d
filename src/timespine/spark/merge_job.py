"""Large merges as jobs of Spark: one task per range of keys, the same kernel, parts written by the executors.

What is worth a job is handed over by the engine of the process (`Engine.elsewhere`),
stretch by stretch; the result is offered to the collection like any other. A job that
is cancelled or killed leaves blobs of the merge's writer, which go with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from timespine.client.engines import fresh_id
from timespine.client.store import Store
from timespine.columnar.merge_engine import Engine, Work
from timespine.columnar.parts.cache import PartCache
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.part_set import Parts
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.splits import split_keys
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Part, Run
from timespine.errors import CorruptionError
from timespine.spark.blob_location import BlobLocation
from timespine.spark.read.read_task import Batches
from timespine.spark.setup.workers import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_ROWS = 4_000_000
"""Updates from which on merges are handed over. With two cores on one machine a warm job takes about as long as the
process (`python -m bench.spark compact`), and a cold one twice that at 6 million. More cores need less."""

TASK_ROWS = 1 << 20
"""Updates that one task merges, about."""

TASKS_MAX = 10_000

DDL = "place int, parts binary"
_SCHEMA = pa.schema([pa.field("place", pa.int32()), pa.field("parts", pa.binary())])


@dataclass(frozen=True, slots=True)
class Merging:
    """What a task needs to know to merge a range."""

    place: BlobLocation
    """Where the blobs are."""
    schemas: tuple[bytes, ...]
    """The schemas of the collection."""
    works: tuple[Work, ...]
    """The ranges, in the order of their keys."""


@contextlib.contextmanager
def merging_on(store: Store, spark: SparkSession, *, least_rows: int = LEAST_ROWS) -> Iterator[None]:
    """While this is open, merges of so many updates or more are done by the executors of a session."""
    place = BlobLocation(store.location, store._shared.config)

    def elsewhere(work: Work, schemas: Sequence[Schema], parts: Parts) -> list[Part] | None:
        if sum(part.rows for run in work.runs for part in run.parts) < least_rows:
            return None
        return _merged(spark, place, work, schemas, parts)

    store.engine.elsewhere, before = elsewhere, store.engine.elsewhere
    try:
        yield
    finally:
        store.engine.elsewhere = before


def _merged(
    spark: SparkSession, place: BlobLocation, work: Work, schemas: Sequence[Schema], parts: Parts
) -> list[Part] | None:
    """Merge by tasks; the parts of all ranges, one after the other. None if keys cannot be cut into ranges."""
    works = ranges(work, schemas[-1], parts)
    if len(works) < 2:
        return None
    task = over_ranges(Merging(place, tuple(schema.encode() for schema in schemas), tuple(works)))
    check_workers(spark)
    sent = spark.range(0, len(works), 1, len(works)).mapInArrow(task, DDL).toArrow()
    answers = dict(zip(sent.column("place").to_pylist(), sent.column("parts").to_pylist(), strict=True))
    if sorted(answers) != list(range(len(works))):
        raise CorruptionError(f"a merge by {len(works)} tasks was answered by {sorted(answers)}")
    if any(data is None for data in answers.values()):
        raise MissingBlob("(an input of a merge)")
    return [part for place in sorted(answers) for part in _decoder.decode(answers[place])]


def ranges(work: Work, schema: Schema, parts: Parts) -> list[Work]:
    """A merge, cut into ranges of keys of about equal size, each with the parts that it needs."""
    wanted = Wanted(schema, schema.names, Window(), timed=True)
    rows = sum(part.rows for run in work.runs for part in run.parts)
    cuts = split_keys(parts, work.runs, wanted, min(-(-rows // TASK_ROWS), TASKS_MAX))
    found = []
    for lower, upper in pairwise([None, *cuts, None]):
        inside = replace(wanted, lower=lower, upper=upper)
        runs = (Run(tuple(parts.matching(run.parts, run, inside)), run.order, run.schema) for run in work.runs)
        found.append(replace(work, runs=tuple(run for run in runs if run.parts), lower=lower, upper=upper))
    return found


def over_ranges(merging: Merging) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over the numbers of ranges: the parts that each became."""

    def merged(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield merge_range(merging, number)

    return merged


def merge_range(merging: Merging, number: int) -> pa.RecordBatch:
    """In a task: merge one range within the bound of memory, and put its parts."""
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
_decoder: msgspec.msgpack.Decoder[list[Part]] = msgspec.msgpack.Decoder(list[Part])
