"""What a task writes: the rows of its partition become parts of a batch, and what points at them travels back.

Only the task that Spark counts as done is heard of. What others put, because they
failed, were retried or were run twice, nothing refers to, and it goes with the writer
that the job was registered as (`spark.job`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.commit.driver import fresh_id
from timespine.client.write.delta import keys_of
from timespine.client.write.read_current import RowDelta, at_time, delta_of
from timespine.client.write.time_column import with_times
from timespine.client.write.unsealed_write import REFUSE, apply_late_policy
from timespine.columnar.ingest.update_table import conform, updates
from timespine.columnar.predicate.key_filter import filter_of
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.scan.slice import Slice, read
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.columnar.write.batch_builder import BatchBuilder
from timespine.columnar.write.batch_envelope import encode_batch
from timespine.core.batch import Order
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.blob_location import Place
from timespine.spark.read.read_task import Batches
from timespine.spark.type_mapping import brought_back
from timespine.spark.write.seal_rule import Rule

SENT = pa.schema(
    [
        pa.field("batch", pa.binary()),
        pa.field("rows", pa.int64()),
        pa.field("error", pa.string()),
        pa.field("late", pa.int64()),
        pa.field("latest", pa.int64()),
        pa.field("keys", pa.binary()),
    ]
)
"""What a task sends: see `job.Sent`."""

DDL = "batch binary, rows bigint, error string, late bigint, latest bigint, keys binary"
"""The same, as Spark says it."""


class Taken(NamedTuple):
    """What came of the rows of a partition."""

    batch: bytes | None
    """The batch that they are; None if nothing came of them."""
    rows: int
    """How many there were."""
    late: int = 0
    """Those of them that came too late."""
    latest: int | None = None
    """The largest time that they brought."""
    keys: bytes | None = None
    """The filter of their keys, if rows of those were read (`columnar.predicate.key_filter`)."""


@dataclass(frozen=True, slots=True)
class Building:
    """How batches of a collection are built."""

    place: Place
    """Where the blobs go."""
    collection: str
    """The collection that they are for."""
    writer: str
    """The registered writer whose blobs they are."""
    schema_id: int
    """The schema that rows are written with, by its id."""
    schema: Schema
    at: Time | None
    """The time of rows that bring none."""

    def builder(self, order: Order) -> BatchBuilder:
        """A batch at any times: its place is decided when it is committed."""
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
class Changing:
    """How rows of a partition change those that are there."""

    building: Building
    present: bytes | None
    """The collection as it is read, as a slice; None if it is empty."""
    deletes: bool
    """Whether rows go instead of taking the place of others."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How rows are written ahead of the seal."""

    times: str
    """The column that has their times."""
    late: str
    """What becomes of those whose time is sealed already."""
    rule: Rule
    """What is sealed after them."""


def appended(building: Building) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over rows: the batches that they become."""

    def build(batches: Batches) -> Batches:
        return _sent(lambda: append_rows(building, batches))

    return build


def written(building: Building, ahead: Ahead, first: int) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over rows: the batches that they become, at times of their own, the first of which is open."""

    def build(batches: Batches) -> Batches:
        return _sent(lambda: write_rows(building, ahead, first, batches))

    return build


def changed(changing: Changing) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over rows, all of one key in one partition: the batches that change the collection to them."""

    def build(batches: Batches) -> Batches:
        return _sent(lambda: change_rows(changing, batches))

    return build


def named(names: list[str], task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """For `mapInArrow`: a task over rows whose columns have these names."""

    def run(batches: Batches) -> Batches:
        return task(pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)

    return run


def sent(build: Callable[[], Taken]) -> tuple[bytes | None, int, str | None, int, int | None, bytes | None]:
    """What became of building a batch. What is wrong with the rows is an answer: the driver says it in one sentence."""
    try:
        taken = build()
    except UsageError as error:
        return None, 0, str(error), 0, None, None
    return taken.batch, taken.rows, None, taken.late, taken.latest, taken.keys


def _sent(build: Callable[[], Taken]) -> Batches:
    answer = dict(zip(SENT.names, sent(build), strict=True))
    if answer["rows"] or answer["error"]:
        yield pa.RecordBatch.from_pylist([answer], schema=SENT)


def append_rows(building: Building, batches: Batches) -> Taken:
    """The rows of a partition as a batch."""
    rows = 0
    with building.builder(Order.UNORDERED) as builder:
        for batch in batches:
            table = brought_back(batch, building.schema)
            refuse_null_keys(table, building.schema)
            builder.add(updates(table, building.schema, building.at))
            rows += table.num_rows
        return Taken(_finished(building, builder), rows)


def write_rows(building: Building, ahead: Ahead, first: int, batches: Batches) -> Taken:
    """The rows of a partition as a batch, at times of their own. Those before the first that is open go by rule.

    What is refused is left to whoever commits, who knows what is sealed by then.
    """
    rows, late, latest = 0, 0, None
    with building.builder(Order.UNORDERED) as builder:
        for batch in batches:
            table = brought_back(batch, building.schema)
            refuse_null_keys(table, building.schema)
            table = with_times(table, building.schema, ahead.times)
            latest = latest_of(table, latest)
            rows += table.num_rows
            if ahead.late != REFUSE:
                table, moved = apply_late_policy(table, TIME, first, ahead.late)
                late += moved
            builder.add(updates(table, building.schema, None))
        return Taken(_finished(building, builder), rows, late, latest)


def latest_of(table: pa.Table, known: int | None = None) -> int | None:
    """The largest time of rows, or the one that is known if it is larger; None if there is none."""
    found = pc.max(table.column(TIME)).as_py()
    return max((each for each in (found, known) if each is not None), default=None)


def _finished(building: Building, builder: BatchBuilder) -> bytes | None:
    batch = builder.finish(Frontier())
    return encode_batch(batch, building.collection, building.schema.arity) if batch.runs else None


def change_rows(changing: Changing, batches: Batches) -> Taken:
    """What changes the rows that are there to those of a partition, as a batch."""
    building = changing.building
    schema = building.schema
    tables = [brought_back(batch, schema) for batch in batches]
    if not tables:
        return Taken(None, 0)
    table = pa.concat_tables(tables)
    difference, keys = _difference(changing, table)
    delta = delta_of(difference, schema)
    if delta.num_rows == 0:
        return Taken(None, table.num_rows, keys=keys)
    assert building.at is not None
    with building.builder(Order.SORTED) as builder:
        ordered = at_time(delta, schema, building.at[0])
        builder.add(ordered)
        return Taken(_finished(building, builder), table.num_rows, keys=keys)


def _difference(changing: Changing, table: pa.Table) -> tuple[RowDelta, bytes]:
    """What rows change, and the filter of the keys that were looked up for it."""
    schema = changing.building.schema
    if changing.deletes:
        refuse_null_keys(table, schema)
        found = keys_of(table, schema)
        return RowDelta(_present(changing, KeySet(found)), schema.arrow.empty_table()), filter_of(found)
    new = conform(table, schema)
    refuse_null_keys(new, schema)
    found = new.select(list(schema.key_names))
    keys = KeySet(found)
    if len(keys) != new.num_rows:
        raise UsageError(f"{new.num_rows - len(keys)} rows repeat the key of another one: give each key once")
    return RowDelta(_present(changing, keys), new), filter_of(found)


def _present(changing: Changing, keys: KeySet) -> pa.Table:
    """The rows that are there with these keys, with their counts."""
    building = changing.building
    names = [*building.schema.names, DIFF]
    empty = building.schema.update_arrow.empty_table().select(names)
    if changing.present is None:
        return empty
    place = building.place
    found = read(
        Slice.decode(changing.present), place.blob(), place.config, place.cache(), place.config.merge_bytes, keys
    )
    return pa.concat_tables([empty, *(table.select(names) for table in found)])


def refuse_null_keys(table: pa.Table, schema: Schema) -> None:
    """A UsageError if a column of the key has nulls: in a pipeline that is a join that found nothing, not a key."""
    for name in schema.key_names if schema.key else ():
        if name in table.column_names and table.column(name).null_count:
            raise UsageError(f"column {name} of the key has nulls: leave these rows out, or fill them")
