"""`foreachBatch`, exactly once: what a micro-batch becomes is committed by one transaction, with the batch number.

All of it is in, or nothing: rows, seals, and the number of the batch, which every collection of the batch notes in the
same compare-and-set. If a batch comes again, any collection that has its number says that all of it is in. Collections
may join at any batch. A batch is noted too in those that only earlier ones of the same query were written to: if it
comes again and is split in another way, they still know it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from timespine.client.collection import Collection
from timespine.client.engines import Access, CommandStep, CommitResult, Step, WriteResult, access_of, commit_steps
from timespine.core.transitions import Command
from timespine.errors import UsageError, shown
from timespine.spark.blob_location import blob_location_of
from timespine.spark.options import APPEND, DELETE, UPSERT, Target
from timespine.spark.store_cache import collection_of
from timespine.spark.stream.sink_progress import Sink
from timespine.spark.write.frames import WRITE, FrameWrite, frame_steps
from timespine.spark.write.unsealed import unsealed_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Outcome = dict[str, CommitResult | WriteResult]
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

    Modes are those of the sink. `sink` names it; without a name it is known by the id of the query. `done` is called
    with every batch and its result, None if it was in already, or was empty and is not noted.

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
    unsealed = unsealed_options(access_of(collection), times, seal, late)
    if unsealed is not None and mode != APPEND:
        raise UsageError(f"rows at times of their own are appended: leave out the mode {mode}, or times")
    how = FrameWrite(mode if unsealed is None else WRITE, sequence_by, unsealed, skips_empty=True)
    return ForeachBatchWriter(OneCollection(collection, how), sink, done, first_batch)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a batch that go to one collection."""

    collection: Collection
    frame: DataFrame
    how: FrameWrite


class Route(Protocol):
    """Says which rows of a batch go to which collections. It may be pickled: then it travels without the open store."""

    call: ClassVar[str]
    """How the caller names a sink, for an error."""

    def pieces(self, frame: DataFrame, batch: int, stack: ExitStack) -> list[Piece]:
        """Split a batch. The stack keeps what the pieces need until they are committed."""

    def find(self, name: str) -> Collection | None:
        """Open a collection that got rows of an earlier batch; None if it was dropped."""

    def outcome(self, results: Outcome | None) -> Any:
        """Make what the caller is told of a batch; None if it was in already, or was empty."""


@dataclass(frozen=True, slots=True)
class OneCollection:
    """All rows go to one collection."""

    collection: Collection
    how: FrameWrite
    call: ClassVar[str] = "foreach_batch(collection, sink='...')"

    def pieces(self, frame: DataFrame, batch: int, stack: ExitStack) -> list[Piece]:
        return [Piece(self.collection, frame, self.how)]

    def find(self, name: str) -> Collection | None:
        return self.collection

    def outcome(self, results: Outcome | None) -> CommitResult | WriteResult | None:
        return None if results is None else results.get(self.collection.name)

    def __reduce__(self) -> tuple[Any, ...]:
        target = Target(blob_location_of(access_of(self.collection)).location, self.collection.name)
        return _open_one_collection, (target, self.collection.id, self.how)


def _open_one_collection(target: Target, id: str, how: FrameWrite) -> OneCollection:
    collection = collection_of(target)
    if collection.id != id:
        raise UsageError(f"{target.collection} is another collection by now: open it again")
    return OneCollection(collection, how)


@dataclass(slots=True)
class ForeachBatchWriter:
    """Writes each batch of a query to one or several collections, all or none, once."""

    route: Route
    sink: str | None
    done: Callable[[int, Any], Any] | None
    first_batch: int | None
    """The first batch that a collection gets; None if a collection may join at any batch."""
    run: str | None = None
    """The run of the query, if it is known without asking Spark: that of a process beside the server of Connect."""
    known: dict[str, str] = field(default_factory=dict)
    """The collections that got rows so far, by name, and their ids."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        query = _query_of(frame)
        sink = Sink(self.sink, query, batch if self.first_batch is None else self.first_batch)
        sink.check()
        run = _property(frame, "spark.jobGroup.id") if query is not None else self.run
        with ExitStack() as stack:
            pieces = self.route.pieces(frame, batch, stack)
            results = self._write(pieces, sink, batch, run, stack) if pieces else None
        if self.done is not None:
            self.done(batch, self.route.outcome(results))

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_beside_server, (self.route, self.sink, self.done, self.first_batch, self.route.call)

    def _write(self, pieces: list[Piece], sink: Sink, batch: int, run: str | None, stack: ExitStack) -> Outcome | None:
        """Commit all pieces, unless they are in already; give their results, None if there are none."""
        written = [piece.collection for piece in pieces]
        for collection in written:
            _refuse_twice(collection, sink, batch, run)
        noting = [*written, *self._earlier(written)]
        accesses = [access_of(each) for each in noting]
        results = sink.commit_once(accesses, batch, lambda: _commit(pieces, accesses, sink.commit(batch), stack))
        for collection in written:
            _last_batches[collection.id, sink.record] = (batch, run)
        return results

    def _earlier(self, written: list[Collection]) -> list[Collection]:
        """Find the collections that only earlier batches were written to, and that still exist."""
        names = {each.name for each in written}
        found = {name: self.route.find(name) for name in self.known if name not in names}
        earlier = [each for name, each in found.items() if each is not None and each.id == self.known[name]]
        self.known = {each.name: each.id for each in (*earlier, *written)}
        return earlier


def _open_beside_server(route: Route, sink: str | None, done: Any, first: int | None, call: str) -> ForeachBatchWriter:
    """Make the same writer beside the server of Spark Connect, which has opened the store by itself."""
    if sink is None:
        raise UsageError(f"with Spark Connect a batch does not say which query it belongs to: name the sink, {call}")
    return ForeachBatchWriter(route, sink, done, first, run=f"process {os.getpid()}")


def _commit(pieces: list[Piece], noting: list[Access], note: Command, stack: ExitStack) -> Outcome | None:
    """Commit all pieces and the number of the batch as one transaction; give the results, None if there are no rows."""
    steps: list[Step] = []
    places: dict[str, int] = {}
    for piece in pieces:
        made = frame_steps(access_of(piece.collection), piece.frame, piece.how, stack)
        if made:
            places[piece.collection.name] = len(steps)
            steps += made
    if not steps:
        return None
    results = commit_steps(*steps, *(CommandStep.of(access, note) for access in noting))
    return {name: results[place] for name, place in places.items()}


_last_batches: dict[tuple[str, str], tuple[int, str | None]] = {}
"""Of every sink of a collection, the batch that came last to this process, and in which run of its query."""


def _refuse_twice(collection: Collection, sink: Sink, batch: int, run: str | None) -> None:
    """Refuse a batch that comes a second time in one run: Spark does not do that, so it is the batch of another helper.

    SUBTLE: by the record alone it looks like a batch that is in already, and its rows would be ignored. In another
    run of the query it is one (test_spark_streams.py).
    """
    if run is not None and _last_batches.get((collection.id, sink.record)) == (batch, run):
        raise UsageError(
            f"batch {batch} was written to {collection.name} already, by another helper or another call: "
            "give each of them a name of its own, foreach_batch(collection, ..., sink='...')"
        )


def _query_of(frame: DataFrame) -> str | None:
    """Find the id of the streaming query that a batch belongs to; None with Spark Connect, which does not tell."""
    return _property(frame, "sql.streaming.queryId")


def _property(frame: DataFrame, name: str) -> str | None:
    """Read a property of the batch that is being written; None with Spark Connect, which has none."""
    try:
        context = frame.sparkSession.sparkContext
    except Exception:
        return None
    found = context.getLocalProperty(name)
    return str(found) if found else None
