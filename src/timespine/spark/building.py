"""What a task writes: the rows of its partition become parts of a batch, and what points at them travels back.

Only the task that Spark counts as done is heard of. What others put, because they
failed, were retried or were run twice, nothing refers to, and it goes with the writer
that the job was registered as (`spark.job`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from timespine.client.changing import Difference, delta_of, keys_of, timed
from timespine.client.driver import fresh_id
from timespine.columnar.builder import BatchBuilder
from timespine.columnar.keyset import KeySet
from timespine.columnar.rows import conform, updates
from timespine.columnar.schema import DIFF, Schema
from timespine.columnar.slice import Slice, read
from timespine.columnar.transmit import encode_batch
from timespine.core.hollow import Order
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.place import Place
from timespine.spark.tasks import Batches
from timespine.spark.types import brought_back

SENT = pa.schema([pa.field("batch", pa.binary()), pa.field("rows", pa.int64()), pa.field("error", pa.string())])
"""What a task sends: a batch, how many rows it was made of, or what is wrong with them."""

DDL = "batch binary, rows bigint, error string"
"""The same, as Spark says it."""


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


def appended(building: Building) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over rows: the batches that they become."""

    def build(batches: Batches) -> Batches:
        return _sent(lambda: append_rows(building, batches))

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


def sent(build: Callable[[], tuple[bytes | None, int]]) -> tuple[bytes | None, int, str | None]:
    """What became of building a batch. What is wrong with the rows is an answer: the driver says it in one sentence."""
    try:
        data, rows = build()
    except UsageError as error:
        return None, 0, str(error)
    return data, rows, None


def _sent(build: Callable[[], tuple[bytes | None, int]]) -> Batches:
    data, rows, error = sent(build)
    if rows or error:
        yield pa.RecordBatch.from_pydict({"batch": [data], "rows": [rows], "error": [error]}, schema=SENT)


def append_rows(building: Building, batches: Batches) -> tuple[bytes | None, int]:
    """The rows of a partition as a batch."""
    rows = 0
    with building.builder(Order.UNORDERED) as builder:
        for batch in batches:
            table = brought_back(batch, building.schema)
            refuse_null_keys(table, building.schema)
            builder.add(updates(table, building.schema, building.at))
            rows += table.num_rows
        return _finished(building, builder), rows


def _finished(building: Building, builder: BatchBuilder) -> bytes | None:
    batch = builder.finish(Frontier())
    return encode_batch(batch, building.collection, building.schema.arity) if batch.runs else None


def change_rows(changing: Changing, batches: Batches) -> tuple[bytes | None, int]:
    """What changes the rows that are there to those of a partition, as a batch."""
    building = changing.building
    schema = building.schema
    tables = [brought_back(batch, schema) for batch in batches]
    if not tables:
        return None, 0
    table = pa.concat_tables(tables)
    difference = _difference(changing, table)
    delta = delta_of(difference, schema)
    if delta.num_rows == 0:
        return None, table.num_rows
    assert building.at is not None
    with building.builder(Order.SORTED) as builder:
        ordered = timed(delta, schema, building.at[0])
        builder.add(ordered)
        return _finished(building, builder), table.num_rows


def _difference(changing: Changing, table: pa.Table) -> Difference:
    schema = changing.building.schema
    if changing.deletes:
        refuse_null_keys(table, schema)
        keys = KeySet(keys_of(table, schema))
        return Difference(_present(changing, keys), schema.arrow.empty_table())
    new = conform(table, schema)
    refuse_null_keys(new, schema)
    keys = KeySet(new.select(list(schema.key_names)))
    if len(keys) != new.num_rows:
        raise UsageError(f"{new.num_rows - len(keys)} rows repeat the key of another one: give each key once")
    return Difference(_present(changing, keys), new)


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
