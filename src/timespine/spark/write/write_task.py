"""Write the rows of a partition in a task as parts of a batch, and answer with their descriptions.

Only the successful attempt of a task reports back. No commit refers to blobs of failed, retried or speculative
attempts: the end of the job's writer deletes them (`spark.write.write_job`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from timespine.client.api_for_engines import (
    REFUSE,
    RowDelta,
    apply_late_policy,
    at_time,
    delta_of,
    fresh_id,
    parse_keys,
    with_times,
)
from timespine.columnar.ingest.update_table import conform_columns, to_update_table
from timespine.columnar.predicate.changed_keys_bloom_filter import filter_of
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.worker_slice import Slice, read_slice_rows
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.columnar.write.batch_builder import BatchBuilder
from timespine.columnar.write.transmit_batch import encode_batch
from timespine.core.batch import Order
from timespine.errors import UsageError
from timespine.libraries import pc
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.blob_location import BlobLocation
from timespine.spark.type_mapping import Batches, from_spark_batch
from timespine.spark.write.seal_rule import SealRule

ANSWER = pa.schema(
    [
        pa.field("batch", pa.binary()),
        pa.field("rows", pa.int64()),
        pa.field("error", pa.string()),
        pa.field("late", pa.int64()),
        pa.field("latest", pa.int64()),
        pa.field("keys", pa.binary()),
    ]
)
"""The Arrow schema of the answer of a task: see `write_job.TaskAnswer`."""

ANSWER_DDL = "batch binary, rows bigint, error string, late bigint, latest bigint, keys binary"
"""The same schema in SQL."""


CHUNK = 4
"""Of the memory of a task, the share of rows that are changed at once."""


class TaskResult(NamedTuple):
    """The result of a task for the rows of its partition."""

    batch: bytes | None
    """The batch of the rows; None if it has no updates."""
    rows: int
    """The number of rows."""
    late: int = 0
    """The number of late rows."""
    latest: int | None = None
    """The largest time of the rows."""
    keys: bytes | None = None
    """The Bloom filter of their keys, if the task looked these up (`columnar.predicate.changed_keys_bloom_filter`)."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of building batches of a collection."""

    place: BlobLocation
    """The location of the blobs."""
    collection: str
    """The collection of the blobs."""
    writer: str
    """The registered writer under which tasks put the blobs."""
    schema_id: int
    """The id of the schema that tasks write rows with."""
    schema: Schema
    at: Time | None
    """The time of rows without one of their own."""
    null_keys: bool = False
    """Whether a key may be null: a view has a group of nulls, where others have a join without a match."""

    def builder(self, order: Order) -> BatchBuilder:
        """Make a builder of a batch at any times; the commit decides its place."""
        return BatchBuilder(
            self.collection,
            self.writer,
            self.schema,
            self.schema_id,
            Frontier.minimum(self.schema.arity),
            Frontier.minimum(self.schema.arity),
            self.place.blob(read_only=False),
            self.place.config,
            fresh=fresh_id,
            order=order,
        )


@dataclass(frozen=True, slots=True)
class DeltaTask:
    """The options of a task that computes the delta of its partition."""

    building: BuildOptions
    present: bytes | None
    """The slice of the snapshot to look up keys in; None if it is empty."""
    deletes: bool
    """Whether the write deletes rows instead of replacing them."""
    cut: tuple[str, ...] = ()
    """The columns by which Spark has sorted the rows; without any, a task changes all of its rows at once."""

    @property
    def chunk_bytes(self) -> int:
        """The bytes of rows that are changed at once, about: their keys, the rows that are there and the delta come on
        top, and all of it is as much as a merge may take."""
        return self.building.place.config.merge_bytes // CHUNK


@dataclass(frozen=True, slots=True)
class UnsealedOptions:
    """The options of rows ahead of the seal."""

    times: str
    """The column with their times."""
    late: str
    """The late policy."""
    rule: SealRule
    """The seal rule."""


def append_task(building: BuildOptions) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that writes rows as a batch."""

    def build(batches: Batches) -> Batches:
        return _send(lambda: append_task_rows(building, batches))

    return build


def unsealed_task(building: BuildOptions, options: UnsealedOptions, first: int) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that writes rows at their own times as a batch; `first` is not complete."""

    def build(batches: Batches) -> Batches:
        return _send(lambda: write_unsealed_rows(building, options, first, batches))

    return build


def delta_task(changing: DeltaTask) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that writes the delta of rows; all rows of a key are in one partition.

    It answers chunk by chunk, so that its memory does not grow with the partition.
    """

    def build(batches: Batches) -> Batches:
        schema = changing.building.schema
        tables = (from_spark_batch(batch, schema) for batch in batches)
        for table in key_chunks(tables, changing.cut, changing.chunk_bytes):
            yield from _send(partial(delta_task_rows, changing, table))

    return build


def with_column_names(names: list[str], task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that gives columns their names before a task sees them."""

    def run(batches: Batches) -> Batches:
        return task(pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)

    return run


def decode_answer(build: Callable[[], TaskResult]) -> dict[str, Any]:
    """Build a batch, and make the answer of the task. An error in the rows is an answer: the driver raises it."""
    try:
        result = build()
    except UsageError as error:
        return {"batch": None, "rows": 0, "error": str(error), "late": 0, "latest": None, "keys": None}
    return {**result._asdict(), "error": None}


def _send(build: Callable[[], TaskResult]) -> Batches:
    answer = decode_answer(build)
    if answer["rows"] or answer["error"]:
        yield pa.RecordBatch.from_pylist([answer], schema=ANSWER)


def append_task_rows(building: BuildOptions, batches: Batches) -> TaskResult:
    """Write the rows of a partition as a batch."""
    rows = 0
    with building.builder(Order.UNORDERED) as builder:
        for batch in batches:
            table = from_spark_batch(batch, building.schema)
            if not building.null_keys:
                refuse_null_keys(table, building.schema)
            builder.add(to_update_table(table, building.schema, building.at))
            rows += table.num_rows
        return TaskResult(_finish(building, builder), rows)


def write_unsealed_rows(building: BuildOptions, options: UnsealedOptions, first: int, batches: Batches) -> TaskResult:
    """Write the rows of a partition as a batch, at their own times; the late policy applies to those before `first`.

    The driver refuses late rows under the policy "refuse", since it knows the upper at the commit.
    """
    rows, late, latest = 0, 0, None
    with building.builder(Order.UNORDERED) as builder:
        for batch in batches:
            table = from_spark_batch(batch, building.schema)
            refuse_null_keys(table, building.schema)
            table = with_times(table, building.schema, options.times)
            latest = latest_time(table, latest)
            rows += table.num_rows
            if options.late != REFUSE:
                table, moved = apply_late_policy(table, TIME, first, options.late)
                late += moved
            builder.add(to_update_table(table, building.schema, None))
        return TaskResult(_finish(building, builder), rows, late, latest)


def latest_time(table: pa.Table, known: int | None = None) -> int | None:
    """Find the largest time of rows, or the known one if that is larger; None if there is none."""
    found = pc.max(table.column(TIME)).as_py()
    return max((each for each in (found, known) if each is not None), default=None)


def _finish(building: BuildOptions, builder: BatchBuilder) -> bytes | None:
    batch = builder.finish(Frontier())
    return encode_batch(batch, building.collection, building.schema.arity) if batch.runs else None


def key_chunks(tables: Iterator[pa.Table], cut: Sequence[str], chunk_bytes: int) -> Iterator[pa.Table]:
    """Put rows that are sorted by some columns into chunks of about this size; rows that are equal there stay together.

    SUBTLE: a chunk ends before the last key that was seen, since the next rows may repeat it
    (test_delta_chunks.py). And by a mask: Spark and Timespine may order equal numbers such as 0.0 and -0.0 differently.
    """
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= chunk_bytes and cut:
            whole = pa.concat_tables(held)
            last = KeySet(whole.slice(whole.num_rows - 1).select(list(cut))).mask(whole)
            before = whole.filter(pc.invert(last))
            if before.num_rows:
                yield before
            held = [whole.filter(last)]
            size = held[0].nbytes
    if held:
        yield pa.concat_tables(held)


def delta_task_rows(changing: DeltaTask, table: pa.Table) -> TaskResult:
    """Write the delta of some rows of a partition as a batch."""
    building = changing.building
    schema = building.schema
    difference, keys = _difference(changing, table)
    delta = delta_of(difference, schema)
    if delta.num_rows == 0:
        return TaskResult(None, table.num_rows, keys=keys)
    assert building.at is not None
    with building.builder(Order.SORTED) as builder:
        ordered = at_time(delta, schema, building.at[0])
        builder.add(ordered)
        return TaskResult(_finish(building, builder), table.num_rows, keys=keys)


def _difference(changing: DeltaTask, table: pa.Table) -> tuple[RowDelta, bytes]:
    """Compute the delta of rows, and the Bloom filter of their keys."""
    schema = changing.building.schema
    if changing.deletes:
        refuse_null_keys(table, schema)
        found = parse_keys(table, schema)
        return RowDelta(_present(changing, KeySet(found)), schema.arrow.empty_table()), filter_of(found)
    new = conform_columns(table, schema)
    refuse_null_keys(new, schema)
    found = new.select(list(schema.key_names))
    keys = KeySet(found)
    if len(keys) != new.num_rows:
        raise UsageError(f"{new.num_rows - len(keys)} rows repeat the key of another one: give each key once")
    return RowDelta(_present(changing, keys), new), filter_of(found)


def _present(changing: DeltaTask, keys: KeySet) -> pa.Table:
    """Read the rows of the collection with these keys, with their counts."""
    building = changing.building
    names = [*building.schema.names, DIFF]
    empty = building.schema.update_arrow.empty_table().select(names)
    if changing.present is None:
        return empty
    place = building.place
    found = read_slice_rows(
        Slice.decode(changing.present), place.blob(), place.config, place.cache(), place.config.merge_bytes, keys
    )
    return pa.concat_tables([empty, *(table.select(names) for table in found)])


def refuse_null_keys(table: pa.Table, schema: Schema) -> None:
    """Refuse nulls in a key column: in a pipeline they come from a join without a match."""
    for name in schema.key_names if schema.key else ():
        if name in table.column_names and table.column(name).null_count:
            raise UsageError(f"column {name} of the key has nulls: leave these rows out, or fill them")
