"""`foreachBatch`, exactly once: one transaction commits the rows of a micro-batch with the batch number.

The transaction has all rows and seals, and the number of the batch, which every collection of the batch records in the
same compare-and-set. If Spark repeats a batch, a collection that has its number proves that all of it is committed.
Collections may join at any batch. Collections that got rows only from earlier batches of the query record the
number too: they recognize a repeated batch that is split in another way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from timespine.client.api_for_engines import (
    CollectionHandle,
    CommandStep,
    CommitResult,
    Step,
    WriteResult,
    commit_steps,
    handle_of,
)
from timespine.client.collection import Collection
from timespine.core.transitions import Command
from timespine.errors import UsageError, short_repr
from timespine.spark.blob_location import blob_location_of
from timespine.spark.hide_tracebacks import puts_message_first
from timespine.spark.options import APPEND, DELETE, UPSERT, CollectionAddress
from timespine.spark.sink_progress import SinkProgress
from timespine.spark.store_cache import address_of, collection_of
from timespine.spark.write.write_frame import WRITE, FrameWrite, frame_steps
from timespine.spark.write.write_unsealed import unsealed_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchResults = dict[str, CommitResult | WriteResult]
"""The results of a batch by the names of collections."""


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
    done: Callable[[int, CommitResult | WriteResult | None], Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Make the function for `df.writeStream.foreachBatch` that writes every batch to a collection, exactly once.

    Modes are those of the sink. `sink` is its name; the default is the id of the query. The writer calls `done`
    with every batch and its result: None if the batch was committed before, or was empty and is not recorded.

    `times` names a column with the times of the rows: integers, or timestamps as milliseconds of the wall
    clock. The rows are written ahead of the seal, in any order. `seal` is the seal rule: "none", "max" (up to the
    largest time of the batch) or a delay behind it, "delay 10 minutes". `late` is the policy for late rows:
    "refuse", "drop" or "move". Such batches are recorded also if they are empty.

    Call it once with every batch, also with an empty one. Two helpers that write to one collection in the same
    `foreachBatch` need a name each. The first batch of a collection is 0, or `first_batch`.

    With Spark Connect, a process beside the server opens the store in the same folder and writes the batches.
    `done` runs there as well, and the sink needs a name.
    """
    if mode not in (APPEND, UPSERT, DELETE):
        raise UsageError(f"mode is append, upsert or delete, not {short_repr(mode)}")
    if sequence_by is not None and mode != UPSERT:
        raise UsageError("sequence_by orders several changes of a key: it is for upserts")
    unsealed = unsealed_options(handle_of(collection), times, seal, late)
    if unsealed is not None and mode != APPEND:
        raise UsageError(f"rows at times of their own are appended: leave out the mode {mode}, or times")
    how = FrameWrite(mode if unsealed is None else WRITE, sequence_by, unsealed, skips_empty=True)
    return ForeachBatchWriter(OneCollection(collection, how), sink, done, first_batch)


@dataclass(frozen=True, slots=True)
class CollectionBatch:
    """The rows of a batch that go to one collection."""

    collection: Collection
    frame: DataFrame
    how: FrameWrite


class Route(Protocol):
    """The assignment of rows of a batch to collections. Pickled, it does not contain the open store."""

    call: ClassVar[str]
    """The call that names a sink, for an error message."""

    def pieces(self, frame: DataFrame, batch: int, stack: ExitStack) -> list[CollectionBatch]:
        """Split a batch. The stack keeps cached rows and jobs of the pieces until they are committed."""

    def find(self, name: str) -> Collection | None:
        """Open a collection that got rows of an earlier batch; None if it was dropped."""

    def outcome(self, results: BatchResults | None) -> Any:
        """Make the result of a batch for `done`; None if it was committed before, or was empty."""


@dataclass(frozen=True, slots=True)
class OneCollection:
    """The route of all rows to one collection."""

    collection: Collection
    how: FrameWrite
    call: ClassVar[str] = "foreach_batch(collection, sink='...')"

    def pieces(self, frame: DataFrame, batch: int, stack: ExitStack) -> list[CollectionBatch]:
        return [CollectionBatch(self.collection, frame, self.how)]

    def find(self, name: str) -> Collection | None:
        return self.collection

    def outcome(self, results: BatchResults | None) -> CommitResult | WriteResult | None:
        return None if results is None else results.get(self.collection.name)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = handle_of(self.collection)
        blob_location_of(handle)  # refuse a store that other processes cannot open
        target = address_of(handle.context, self.collection.name)
        return _open_one_collection, (target, self.collection.id, self.how)


def _open_one_collection(target: CollectionAddress, id: str, how: FrameWrite) -> OneCollection:
    collection = collection_of(target)
    if collection.id != id:
        raise UsageError(f"{target.collection} is another collection than the one that was opened: open it again")
    return OneCollection(collection, how)


@dataclass(slots=True)
class ForeachBatchWriter:
    """A writer of each batch of a query to one or several collections, exactly once and to all or none."""

    route: Route
    sink: str | None
    done: Callable[[int, Any], Any] | None
    first_batch: int | None
    """The number of the first batch of a collection; None if a collection may join at any batch."""
    run: str | None = None
    """The run of the query in a process beside the server of Connect; otherwise Spark says it."""
    known: dict[str, str] = field(default_factory=dict)
    """The collections that got rows so far, by name, and their ids."""

    @puts_message_first
    def __call__(self, frame: DataFrame, batch: int) -> None:
        query = _query_of(frame)
        sink = SinkProgress(self.sink, query, batch if self.first_batch is None else self.first_batch)
        sink.check()
        run = _property(frame, "spark.jobGroup.id") if query is not None else self.run
        with ExitStack() as stack:
            pieces = self.route.pieces(frame, batch, stack)
            results = self._write(pieces, sink, batch, run) if pieces else None
        if self.done is not None:
            self.done(batch, self.route.outcome(results))

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_beside_server, (self.route, self.sink, self.done, self.first_batch, self.route.call)

    def _write(
        self, pieces: list[CollectionBatch], sink: SinkProgress, batch: int, run: str | None
    ) -> BatchResults | None:
        """Commit all pieces, unless the batch was committed before; give their results, None if there are none."""
        written = [piece.collection for piece in pieces]
        for collection in written:
            _refuse_twice(collection, sink, batch, run)
        noting = [*written, *self._earlier(written)]
        handles = [handle_of(each) for each in noting]
        results = sink.commit_once(handles, batch, lambda: _commit(pieces, handles, sink.commit(batch)))
        for collection in written:
            _last_batches[collection.id, sink.record] = (batch, run)
        return results

    def _earlier(self, written: list[Collection]) -> list[Collection]:
        """Find the existing collections that got rows only from earlier batches."""
        names = {each.name for each in written}
        found = {name: self.route.find(name) for name in self.known if name not in names}
        earlier = [each for name, each in found.items() if each is not None and each.id == self.known[name]]
        self.known = {each.name: each.id for each in (*earlier, *written)}
        return earlier


def _open_beside_server(route: Route, sink: str | None, done: Any, first: int | None, call: str) -> ForeachBatchWriter:
    """Make the same writer in a process beside the server of Spark Connect, which opens the store."""
    if sink is None:
        raise UsageError(f"with Spark Connect a batch does not name its query: name the sink, {call}")
    return ForeachBatchWriter(route, sink, done, first, run=f"process {os.getpid()}")


def _commit(pieces: list[CollectionBatch], noting: list[CollectionHandle], note: Command) -> BatchResults | None:
    """Commit all pieces and the number of the batch as one transaction; give the results, None if there are no rows."""
    steps: list[Step] = []
    places: dict[str, int] = {}
    # SUBTLE: the jobs end in here. A batch that another process committed first is no error for the caller, but the
    # jobs must get the error, to end their writers and delete their blobs (test_foreach_batch_together.py).
    with ExitStack() as jobs:
        for piece in pieces:
            made = frame_steps(handle_of(piece.collection), piece.frame, piece.how, jobs)
            if made:
                places[piece.collection.name] = len(steps)
                steps += made
        if not steps:
            return None
        results = commit_steps(*steps, *(CommandStep.of(handle, note) for handle in noting))
    return {name: results[place] for name, place in places.items()}


_last_batches: dict[tuple[str, str], tuple[int, str | None]] = {}
"""The last batch of each sink of a collection in this process, with the run of its query."""


def _refuse_twice(collection: Collection, sink: SinkProgress, batch: int, run: str | None) -> None:
    """Refuse a batch that is repeated in one run: Spark does not repeat it, so another helper has written it.

    SUBTLE: by the record alone it looks like a batch that was committed before, and its rows would be ignored. In
    another run of the query it is one (test_spark_streams.py).
    """
    if run is not None and _last_batches.get((collection.id, sink.record)) == (batch, run):
        raise UsageError(
            f"batch {batch} was written to {collection.name} already, by another helper or another call: "
            "give each of them a name of its own, foreach_batch(collection, ..., sink='...')"
        )


def _query_of(frame: DataFrame) -> str | None:
    """Find the id of the streaming query of a batch; None with Spark Connect, which does not pass it on."""
    return _property(frame, "sql.streaming.queryId")


def _property(frame: DataFrame, name: str) -> str | None:
    """Read a property of the batch; None with Spark Connect, which has none."""
    try:
        context = frame.sparkSession.sparkContext
    except Exception:
        return None
    found = context.getLocalProperty(name)
    return str(found) if found else None
