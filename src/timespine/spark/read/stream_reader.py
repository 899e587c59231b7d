"""`spark.readStream.format("timespine")`: a snapshot, then net changes, from one frontier to the next.

An offset is the id of the collection, the last time that the query has read, and the critical
hold that keeps the history after it readable. All are in the checkpoint: a restarted query
finds its hold again, and detects another collection of the same name. An abandoned query
leaves its hold; `drop_stream_hold` ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from timespine.client.api_for_engines import (
    Changes,
    CollectionHandle,
    CriticalHold,
    fresh_id,
    handle_of,
    take_critical,
)
from timespine.client.collection import Collection
from timespine.core.state import State
from timespine.core.transitions import ReleaseHold
from timespine.errors import UsageError, short_repr
from timespine.model.frontier import Frontier
from timespine.spark.hide_tracebacks import raises_plain_errors
from timespine.spark.options import Options
from timespine.spark.read.read_plan import columns_to_read, plan_slices
from timespine.spark.read.read_task import read_partition
from timespine.spark.store_cache import collection_of

FeedOffset = dict[str, Any]

NOTHING = -1
"""The time before all others: the first batch after it is a whole snapshot."""


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes of a collection, micro-batch by micro-batch."""

    def __init__(self, options: Options, promised: StructType | None = None) -> None:
        self._options = options
        self._promised = promised
        """The columns of the stream, which stay the same if the schema evolves."""
        self._under_way: dict[int, Changes] = {}
        """The reads of batches in progress by their last time. Each leases its blobs until the batch is done."""
        self._taken: set[str] = set()
        """The holds that this reader has seen or registered."""
        self._target: int | None = None
        """The last time of a query with the trigger `availableNow`."""

    @property
    def _collection(self) -> Collection:
        return collection_of(self._options.target)

    def _open_followed(self, offset: FeedOffset) -> Collection:
        """Open the collection, and check that it has the id in an offset. (Old offsets have none.)"""
        collection = self._collection
        before = offset.get("collection", collection.id)
        if before != collection.id:
            raise UsageError(
                f"{collection.name} is another collection than the one that this query has read: it has the id "
                f"{collection.id}, and that one had {short_repr(before)}. Start the query with a new checkpoint, "
                "and decide whether to keep the rows that it has written before"
            )
        return collection

    @raises_plain_errors
    def initialOffset(self) -> FeedOffset:
        """Give the start of a new query and the name of its hold. Spark calls it repeatedly, so it registers none."""
        collection = self._collection
        handle = handle_of(collection)
        if handle.state().arity != 1:
            raise UsageError("a stream needs totally ordered times: this collection has several coordinates")
        after = self._first(handle)
        name = self._options.text("hold") or f"spark-{fresh_id('')[:12]}"
        return {"after": after, "hold": name, "token": fresh_id("t"), "collection": collection.id}

    def _first(self, handle: CollectionHandle) -> int:
        """Return the last time before those that the query reads."""
        if self._options.is_latest:
            return _newest(handle.state())
        starting = self._options.starting
        if starting is None:
            return NOTHING
        (time,) = handle.time_of(starting)
        return time - 1

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options.number("maxRowsPerTrigger"), self._options.number("maxBytesPerTrigger")
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadMaxBytes(size) if size is not None else ReadAllAvailable()

    @raises_plain_errors
    def latestOffset(self, start: FeedOffset, limit: ReadLimit) -> FeedOffset:
        """Give the end of the next batch. Spark calls this many times a second; it reads the head of one log."""
        collection = self._open_followed(start)
        state = handle_of(collection).state()
        after = _after(start)
        newest = _newest(state)
        if self._target is not None:
            newest = min(newest, self._target)
        if newest <= after:
            self._rest(after)
            return start
        return {**start, "after": _batch_end(state, after, newest, limit), "collection": collection.id}

    def _rest(self, after: int) -> None:
        """End all leases but the critical hold, since the query has read everything.

        SUBTLE: Spark reports the end of the last batch when it has the next one, and kills this process when the
        query ends. Leases kept until then would stay for the rest of their term (test_spark_streams.py).
        """
        self._let_go(after)
        idle = handle_of(self._collection).context.leases.idle(self._collection.id)
        if idle:
            handle_of(self._collection).committer.commit(*((self._collection.id, command) for command in idle))

    def _let_go(self, until: int) -> None:
        """End the leases of the batches up to a time."""
        for time in [time for time in self._under_way if time <= until]:
            self._under_way.pop(time).close()

    @raises_plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _newest(handle_of(self._collection).state())

    @raises_plain_errors
    def partitions(self, start: FeedOffset, end: FeedOffset) -> Sequence[InputPartition]:
        after, until = _after(start), _after(end)
        if until <= after:
            return []
        collection = self._open_followed(end)
        self._take_hold(end, after if after > NOTHING else until)
        columns = columns_to_read(collection.schema, self._options, self._promised)
        where = self._options.text("where")
        changes = collection.changes(after if after > NOTHING else None, until, columns=columns, where=where)
        self._under_way[until] = changes
        made = plan_slices(changes, self._options.number("partitions"), self._promised, is_feed=self._options.is_feed)
        return [InputPartition((made.reading, data)) for data in made.slices]

    def _take_hold(self, end: FeedOffset, since: int) -> None:
        """Register the hold in the first batch, and find it again in all others.

        SUBTLE: use the hold that the end names, which is in the checkpoint. Spark asks for the initial offset more than
        once, and the start of the first batch may name another hold than its end (test_spark_streams.py).
        """
        name = str(end.get("hold"))
        if name not in self._taken:
            take_critical(handle_of(self._collection), name, (since,), str(end.get("token")))
            self._taken.add(name)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    @raises_plain_errors
    def commit(self, end: FeedOffset) -> None:
        """End the lease of a finished batch, and release the history before its end."""
        until = _after(end)
        collection = self._open_followed(end)
        self._let_go(until)
        if until > NOTHING:
            # An empty batch did not register the hold.
            self._take_hold(end, until)
            _hold(handle_of(collection), end).release_before(until)

    def stop(self) -> None:
        """End the leases of the query. Its hold stays for a query that continues from its checkpoint."""
        for changes in self._under_way.values():
            changes.close()
        self._under_way.clear()


def drop_stream_hold(handle: CollectionHandle, name: str) -> bool:
    """End the critical hold of a stream that will not continue; return whether there was one."""
    hold = handle.state().holds.get(name)
    if hold is None:
        return False
    handle.committer.commit((handle.id, ReleaseHold(name, hold.token)))
    return True


def _after(offset: FeedOffset) -> int:
    after = offset.get("after")
    if type(after) is not int or after < NOTHING:
        raise UsageError(
            f"{short_repr(offset)} is not an offset of a collection: the checkpoint belongs to another source"
        )
    return after


def _hold(handle: CollectionHandle, offset: FeedOffset) -> CriticalHold:
    return CriticalHold(handle, str(offset.get("hold")), str(offset.get("token")), Frontier.minimum(1))


def _newest(state: State) -> int:
    """Return the newest complete time; NOTHING if there is none."""
    if state.upper.is_closed:
        return max((entry.upper.time - 1 for entry in state.history if entry.upper.elements), default=NOTHING)
    return state.upper.time - 1


def _batch_end(state: State, after: int, newest: int, limit: ReadLimit) -> int:
    """Return the end of a batch with as many commits as the limit allows, and at least one.

    The first batch contains all commits whose history the collection has forgotten.
    """
    if not isinstance(limit, ReadMaxRows | ReadMaxBytes):
        return newest
    most = limit.max_rows if isinstance(limit, ReadMaxRows) else limit.max_bytes
    reached, taken = after, 0
    for entry in state.history:
        if not entry.upper.elements:
            continue
        end = min(entry.upper.time - 1, newest)
        if end <= after:
            continue
        taken += entry.rows if isinstance(limit, ReadMaxRows) else entry.size
        if reached > after and taken > most:
            return reached
        reached = max(reached, end)
    return newest if reached == after or taken <= most else reached
