"""`foreachBatch` for several collections: what a batch is split into is committed by one transaction, exactly once.

All of it, or nothing: rows, seals, and the number of the batch, which every collection
of the batch notes in the same compare-and-set. So if a batch comes again, any one of
them that has its number says that all of it is in. Collections may join at any batch.
A batch is noted too in those that only earlier ones of the same query were written to:
if it comes again and is split otherwise by then, they still know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from timespine.client.collection import Collection
from timespine.client.context import Access
from timespine.client.read.change_set import CHANGE_TYPE
from timespine.client.results import Committed, Written
from timespine.client.spark_bridge import is_spark_frame
from timespine.client.store import Store
from timespine.client.write.delta import delete_keys_delta, upsert_delta
from timespine.client.write.prebuilt_steps import PrebuiltAppendStep
from timespine.client.write.prepare import next_free_time
from timespine.client.write.transaction import Transaction
from timespine.client.write.transaction_steps import CommandStep, DeltaStep, UnsealedWriteStep
from timespine.columnar.schema.schema import TIME, Schema
from timespine.errors import BatchAlreadyCommitted, UsageError, shown
from timespine.spark.blob_location import place_of
from timespine.spark.options import APPEND, DELETE, UPSERT
from timespine.spark.store_cache import store_of
from timespine.spark.stream.foreach_batch import few_changes, query_of, refuse_nameless
from timespine.spark.stream.sink_progress import Sink
from timespine.spark.type_mapping import check_frame
from timespine.spark.write import append
from timespine.spark.write.apply_changes import applying
from timespine.spark.write.unsealed import WriteByTasksStep, ahead, check_times, timed
from timespine.spark.write.upsert_delete import DeltaByTasksStep, keys_of, looked_at, refuse_keyless
from timespine.spark.write.write_job import Job
from timespine.spark.write.write_task import Ahead, appended, latest_of, refuse_null_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITE = "write"
"""The mode of rows that are written ahead of the seal."""

OPTIONS = {APPEND: (), UPSERT: ("sequence_by",), DELETE: (), WRITE: ("times", "seal", "late")}
"""The modes, and what may be said about each."""

Split = Callable[["DataFrame", int], Mapping[Any, Any]]
"""What goes where: by name of the collection a DataFrame, or a mode and a DataFrame, or those and options."""

Outcome = dict[str, Committed | Written]
"""By name, what came of the rows."""


def foreach_batch_together(
    store: Store,
    split: Split,
    *,
    sink: str | None = None,
    done: Callable[[int, Outcome | None], Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """What to give to `df.writeStream.foreachBatch`: writes every batch to several collections, all or none, once.

    `split(frame, batch)` says what goes where, by the names of collections: a DataFrame is appended; otherwise it
    comes with a mode, `("upsert", df)` or `("delete", df)`, and perhaps options: `("upsert", df, {"sequence_by":
    "n"})`, or `("write", df, {"times": "paid_at", "seal": "max", "late": "move"})` for rows ahead of the seal.

    All rows without times of their own stand at one time, and all collections that got such are complete up to it,
    so that `store.snapshot([...])` shows all of a batch or nothing. `sink` and `done` are those of `foreach_batch`;
    `done` is told of what came of the rows by name, None if the batch was in already or went nowhere. A batch may be
    split once more after it was committed, for nothing.
    """
    return EachBatchTogether(store, split, sink, done)


@dataclass(slots=True)
class EachBatchTogether:
    """Writes batches to several collections. It may be pickled: then it travels without the open store."""

    store: Store
    split: Split
    sink: str | None
    done: Callable[[int, Outcome | None], Any] | None
    named: dict[str, str] = field(default_factory=dict)
    """The collections that were written to so far, by name, and their ids."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        # A collection may join at any batch: none of them is too late to be the first that it gets.
        sink = Sink(self.sink, query_of(frame), batch)
        sink.check()
        with _kept(frame):
            pieces = [_piece(self.store, *each) for each in _items(self.split(frame, batch))]
            outcome = self._written(pieces, sink, batch) if pieces else None
        if self.done is not None:
            self.done(batch, outcome)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.store.location, self.split, self.sink, self.done)

    def _written(self, pieces: list[Piece], sink: Sink, batch: int) -> Outcome | None:
        """Commit all pieces; what came of them, None if they are in already."""
        self.named.update({piece.collection.name: piece.collection.id for piece in pieces})
        noted = self._noted()
        # All of them are looked at: one that belongs to another checkpoint is a mistake, whatever the others say.
        found = [sink.is_in(each._access.state(), batch) for each in noted]
        if any(found):
            return None
        places: dict[str, int] = {}
        try:
            with ExitStack() as jobs, self.store.transaction() as tx:
                for piece in pieces:
                    places[piece.collection.name] = len(tx._steps)
                    piece.add(tx, jobs)
                for collection in noted:
                    tx.also(collection, sink.commit(batch))
        except BatchAlreadyCommitted:
            return None
        return {name: tx.replies[place] for name, place in places.items()}

    def _noted(self) -> list[Collection]:
        """The collections that note a batch: all that this query was written to, and that are still there."""
        names = set(self.store.names())
        there = {name: self.store.collection(name) for name in self.named if name in names}
        self.named = {name: id for name, id in self.named.items() if name in there and there[name].id == id}
        return [there[name] for name in self.named]


def _unpickled(location: str, split: Split, sink: str | None, done: Any) -> EachBatchTogether:
    """Beside the server of Spark Connect: the same, with the store open here. What is wrong is said at the start."""
    refuse_nameless(sink, "foreach_batch_together(store, split, sink='...')")
    return EachBatchTogether(store_of(location), split, sink, done)


@contextmanager
def _kept(frame: DataFrame) -> Iterator[None]:
    """Keep the rows of a batch while they are split: each piece would read them anew, and perhaps others."""
    if frame.is_cached:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


# What goes where.


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a batch that go to one collection."""

    collection: Collection
    mode: str
    frame: DataFrame
    sequence: str | None
    how: Ahead | None

    def add(self, tx: Transaction, jobs: ExitStack) -> None:
        """Add it to a transaction: its rows first, then whatever goes with them."""
        access = self.collection._access
        _, schema = access.schema(access.state())
        if self.how is not None:
            self._write(tx, access, schema, self.how)
        elif self.mode == APPEND:
            self._append(tx, access, schema, jobs)
        else:
            self._change(tx, access, schema)

    def _append(self, tx: Transaction, access: Access, schema: Schema, jobs: ExitStack) -> None:
        frame = self.frame
        if not set(schema.time_names).isdisjoint(frame.columns):
            raise UsageError(
                f"rows for {access.name} have times of their own, and what is appended stands at one time for all "
                f"collections: write them ahead of the seal, ('write', frame, {{'times': '{TIME}'}})"
            )
        check_frame(frame.schema, schema, schema.system_names)
        few = append.taken(frame, schema)
        if few is not None:
            refuse_null_keys(few, schema)
            tx.append(self.collection, few)
            return
        state = access.known()
        id, schema = access.schema(state)
        at = next_free_time(access, state.upper)
        job = jobs.enter_context(Job(access, id, schema, (at,)))
        runs, rows = job.runs(append.built(frame, schema, appended(job.building)))
        tx.add(PrebuiltAppendStep(access, written=at, rows=rows, runs=runs))
        tx.add(CommandStep(access, job.end))

    def _change(self, tx: Transaction, access: Access, schema: Schema) -> None:
        frame, deletes = self.frame, self.mode == DELETE
        if not deletes and (CHANGE_TYPE in frame.columns or self.sequence is not None):
            changes = few_changes(frame, schema, self.sequence)
            tx.add(DeltaStep(access, applying(access, changes, self.sequence), "apply", must_hold=True))
            return
        if deletes:
            frame = keys_of(frame, schema)
        schema, few = looked_at(access, frame)
        if few is not None:
            compute = delete_keys_delta(few) if deletes else upsert_delta(few)
            tx.add(DeltaStep(access, compute, self.mode, must_hold=True))
            return
        if deletes:
            frame = frame.distinct()
        else:
            refuse_keyless(schema)
        tx.add(DeltaByTasksStep(access, self.mode, frame, deletes, must_hold=True))

    def _write(self, tx: Transaction, access: Access, schema: Schema, how: Ahead) -> None:
        check_times(self.frame.schema, access, schema, how.times)
        few = append.taken(self.frame, schema)
        if few is None:
            tx.add(WriteByTasksStep(access, how, None, self.frame))
            return
        table = timed(access, few, how)
        tx.add(UnsealedWriteStep(access, table, None, None, how.late))
        latest = latest_of(table)
        if how.rule.upper(latest) is not None:
            tx.add(CommandStep(access, lambda: how.rule.commands(latest), sealed=how.rule.upper(latest)))


def _items(given: Any) -> list[tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        raise UsageError(f"split gives what goes where, by the names of collections, not {shown(given)}")
    return list(given.items())


def _piece(store: Store, name: Any, given: Any) -> Piece:
    """The rows that go to a collection, as somebody gave them."""
    collection = store.collection(name) if isinstance(name, str) else name
    if not isinstance(collection, Collection):
        raise UsageError(f"rows go to collections, by name or as they are, not to {shown(name)}")
    mode, frame, options = _told(given)
    if mode not in OPTIONS or not is_spark_frame(frame) or not isinstance(options, Mapping):
        raise UsageError(
            f"for {collection.name} give a DataFrame, or a mode ({', '.join(OPTIONS)}), a DataFrame, and perhaps "
            f"options, not {shown(given)}"
        )
    unknown = [each for each in options if each not in OPTIONS[mode]]
    if unknown:
        raise UsageError(f"{mode} has no option {shown(unknown[0])}; it has: {', '.join(OPTIONS[mode]) or 'none'}")
    access = collection._access
    how = ahead(access, options.get("times", TIME), options.get("seal"), options.get("late")) if mode == WRITE else None
    place_of(access)  # a store that tasks cannot open is refused, whether there is anything for them to do or not
    return Piece(collection, mode, frame, options.get("sequence_by"), how)


def _told(given: Any) -> tuple[Any, Any, Any]:
    if not isinstance(given, tuple):
        return APPEND, given, {}
    mode, frame, options = (*given, None, None, None)[:3] if len(given) <= 3 else (None, None, None)
    return mode, frame, {} if options is None else options
