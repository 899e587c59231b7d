"""`foreachBatch`, exactly once, for less than the sink costs: the driver has the store open already."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.collection import Collection
from timespine.client.context import Access
from timespine.client.read.change_set import CHANGE_TYPE
from timespine.client.results import Committed, Written
from timespine.columnar.schema.schema import Schema
from timespine.errors import BatchAlreadyCommitted, UsageError, shown
from timespine.spark.blob_location import place_of
from timespine.spark.options import APPEND, DELETE, UPSERT, Target
from timespine.spark.store_cache import collection_of
from timespine.spark.stream.sink_progress import Sink
from timespine.spark.type_mapping import check_frame
from timespine.spark.write import append, upsert_delete
from timespine.spark.write.apply_changes import apply
from timespine.spark.write.unsealed import ahead, write_frame
from timespine.spark.write.write_job import Together
from timespine.spark.write.write_task import Ahead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Done = Callable[[int, Committed | Written | None], Any]
"""Told of a batch, by its number, and what came of it."""


def foreach_batch(
    collection: Collection,
    mode: str = APPEND,
    *,
    sink: str | None = None,
    sequence_by: str | None = None,
    first_batch: int = 0,
    times: str | None = None,
    seal: str | None = None,
    late: str | None = None,
    done: Done | None = None,
) -> Callable[[DataFrame, int], None]:
    """What to give to `df.writeStream.foreachBatch`: writes every batch to a collection, exactly once.

    Modes are those of the sink. `sink` names it; without a name it is known by the id of the query. `done` is told
    of every batch and what came of it, None if it was in already, or was empty and is not noted.

    `times` names a column that has the times of the rows: whole numbers, or timestamps as milliseconds of the wall
    clock. They are written ahead of the seal, in any order. `seal` is the rule for that: "none", "max" (up to the
    largest time that came) or a delay behind it, "delay 10 minutes". `late` is what becomes of rows whose time is
    sealed: "refuse", "drop" or "move". Such batches are noted also if they are empty.

    Call it with every batch, also with one of no rows, and once: two helpers that write to one collection in the same
    `foreachBatch` need a name each. The first batch that a collection gets is 0, or the one that `first_batch` says.

    With Spark Connect batches are written beside the server, by a process that opens the store in the same folder;
    `done` runs there as well, and the sink needs a name.
    """
    if mode not in (APPEND, UPSERT, DELETE):
        raise UsageError(f"mode is append, upsert or delete, not {shown(mode)}")
    if sequence_by is not None and mode != UPSERT:
        raise UsageError("sequence_by says which of several changes of a key is the last: it is for upserts")
    how = ahead(collection._access, times, seal, late)
    if how is not None and mode != APPEND:
        raise UsageError(f"rows at times of their own are appended: leave out the mode {mode}, or times")
    return EachBatch(collection, mode, sink, sequence_by, how, done, first_batch)


@dataclass(frozen=True, slots=True)
class EachBatch:
    """Writes batches to a collection. It may be pickled: then it travels without the open store."""

    collection: Collection
    mode: str
    sink: str | None
    sequence_by: str | None
    how: Ahead | None
    """How rows are written ahead of the seal; None: they get the next free time."""
    done: Done | None
    first_batch: int = 0
    run: str | None = None
    """The run of the query, if that is known without asking Spark: a process beside the server of Connect has one."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        access = self.collection._access
        query = query_of(frame)
        known = Sink(self.sink, query, self.first_batch)
        run = _property(frame, "spark.jobGroup.id") if query is not None else self.run
        _refuse_twice(self.collection, known, batch, run)
        committed = None
        try:
            if not known.is_in(access.state(), batch):
                committed = self._written(frame, (known.commit(batch),))
                if committed is None:
                    known.begin(access, batch)
        except BatchAlreadyCommitted:
            pass
        _written_last[self.collection.id, known.record] = (batch, run)
        if self.done is not None:
            self.done(batch, committed)

    def __reduce__(self) -> tuple[Any, ...]:
        target = Target(place_of(self.collection._access).location, self.collection.name)
        return _unpickled, (
            target,
            self.collection.id,
            self.mode,
            self.sink,
            self.sequence_by,
            self.how,
            self.done,
            self.first_batch,
        )

    def _written(self, frame: DataFrame, together: Together) -> Committed | Written | None:
        access = self.collection._access
        if self.how is not None:
            return write_frame(access, frame, self.how, together)
        return _written(access, frame, self.mode, self.sequence_by, together)


def _unpickled(target: Target, id: str, mode: str, sink: str | None, *rest: Any) -> EachBatch:
    """Beside the server of Spark Connect: the same, with the store open here. What is wrong is said at the start."""
    refuse_nameless(sink, "foreach_batch(collection, sink='...')")
    collection = collection_of(target)
    if collection.id != id:
        raise UsageError(f"{target.collection} is another collection by now: open it again")
    return replace(EachBatch(collection, mode, sink, *rest), run=f"process {os.getpid()}")


_written_last: dict[tuple[str, str], tuple[int, str | None]] = {}
"""Of every sink of a collection, the batch that came last to this process, and in which run of its query."""


def _refuse_twice(collection: Collection, sink: Sink, batch: int, run: str | None) -> None:
    """A UsageError if a batch comes a second time in one run: Spark does not do that, so it is another helper's.

    SUBTLE: by the record alone it looks like a batch that is in already, and its rows would be passed over. In another
    run of the query it is one (test_spark_streams.py).
    """
    if run is not None and _written_last.get((collection.id, sink.record)) == (batch, run):
        raise UsageError(
            f"batch {batch} was written to {collection.name} already, by another helper or another call: "
            "give each of them a name of its own, foreach_batch(collection, ..., sink='...')"
        )


def refuse_nameless(sink: str | None, call: str) -> None:
    """A UsageError if a batch could not be known by anything beside the server of Spark Connect."""
    if sink is None:
        raise UsageError(f"with Spark Connect a batch does not say which query it belongs to: name the sink, {call}")


def _written(access: Access, frame: DataFrame, mode: str, sequence: str | None, together: Together) -> Committed | None:
    _, schema = access.schema(access.known())
    if mode == APPEND:
        check_frame(frame.schema, schema, schema.system_names)
        few = append.taken(frame, schema)
        if few is None:
            return append.append_many(access, frame, append.when(access, frame.columns), "append", together)
        return append.append_few(access, few, together=together) if few.num_rows else None
    if mode == DELETE:
        return upsert_delete.delete(access, frame, together)
    if CHANGE_TYPE not in frame.columns and sequence is None:
        return upsert_delete.upsert(access, frame, together)
    few = few_changes(frame, schema, sequence)
    return apply(access, few, sequence, together) if few.num_rows else None


def few_changes(frame: DataFrame, schema: Schema, sequence: str | None) -> pa.Table:
    """A batch of changes by key, which must be few, on the driver."""
    extra = tuple(name for name in (CHANGE_TYPE, sequence) if name is not None)
    check_frame(frame.schema, schema, extra)
    few = append.taken(frame, schema)
    if few is None:
        raise UsageError(
            f"a batch of changes has more than {append.SMALL_ROWS} rows: set maxRowsPerTrigger, "
            "or split it by frame.filter(...) for two helpers, foreach_batch(collection, 'upsert', sink='upserts') "
            "and foreach_batch(collection, 'delete', sink='deletes')"
        )
    return few


def query_of(frame: DataFrame) -> str | None:
    """The id of the streaming query that a batch belongs to; None with Spark Connect, which does not tell."""
    return _property(frame, "sql.streaming.queryId")


def _property(frame: DataFrame, name: str) -> str | None:
    """What Spark says of the batch that is being written; None with Spark Connect, which does not tell."""
    try:
        context = frame.sparkSession.sparkContext
    except Exception:
        return None
    found = context.getLocalProperty(name)
    return str(found) if found else None
