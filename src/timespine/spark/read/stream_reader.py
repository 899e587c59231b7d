"""`spark.readStream.format("timespine")`: a snapshot, then net changes, from one frontier to the next.

An offset is the collection, the last time that was read, and the critical hold that
keeps what comes after it readable: all are in the checkpoint, so that whoever restarts
the query finds its hold again, and another collection of the same name is not taken for
the one that was read. A query that is given up leaves its hold behind; `drop_hold` ends it.
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

from timespine.client.collection import Collection
from timespine.client.engines import Access, Changes, CriticalHold, access_of, fresh_id, take_critical
from timespine.core.state import State
from timespine.core.transitions import ReleaseHold
from timespine.errors import UsageError, shown
from timespine.model.frontier import Frontier
from timespine.spark.hide_tracebacks import plain
from timespine.spark.options import Options
from timespine.spark.read.read_plan import columns_of, planned
from timespine.spark.read.read_task import read_partition
from timespine.spark.store_cache import collection_of

Offset = dict[str, Any]

NOTHING = -1
"""The time before all others: the first batch is a whole snapshot."""


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes of a collection, micro-batch by micro-batch."""

    def __init__(self, options: Options, promised: StructType | None = None) -> None:
        self._options = options
        self._promised = promised
        """The columns that the stream gives, whatever becomes of the schema meanwhile."""
        self._under_way: dict[int, Changes] = {}
        """What is being read, by its end: it holds its blobs until the batch is done."""
        self._taken: set[str] = set()
        """Holds that are known to be there."""
        self._target: int | None = None
        """Where a query that reads what is available now ends."""

    @property
    def _collection(self) -> Collection:
        return collection_of(self._options.target)

    def _followed(self, offset: Offset) -> Collection:
        """The collection, if it is the one that an offset speaks of. (Offsets of old do not say.)"""
        collection = self._collection
        before = offset.get("collection", collection.id)
        if before != collection.id:
            raise UsageError(
                f"{collection.name} is another collection than the one that this query has followed, which was "
                f"{shown(before)} and is gone; now it is {collection.id}. Start the query with a new checkpoint, "
                "and decide what becomes of the rows that it has written before"
            )
        return collection

    @plain
    def initialOffset(self) -> Offset:
        """Where a new query begins, and what its hold will be called. Asked more than once: nothing is taken yet."""
        collection = self._collection
        access = access_of(collection)
        if access.state().arity != 1:
            raise UsageError("a stream needs totally ordered times: this collection has several coordinates")
        after = self._first(access)
        name = self._options.text("hold") or f"spark-{fresh_id('')[:12]}"
        return {"after": after, "hold": name, "token": fresh_id("t"), "collection": collection.id}

    def _first(self, access: Access) -> int:
        """The last time that the query does not read."""
        if self._options.is_latest:
            return _newest(access.state())
        starting = self._options.starting
        if starting is None:
            return NOTHING
        (time,) = access.time_of(starting)
        return time - 1

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options.number("maxRowsPerTrigger"), self._options.number("maxBytesPerTrigger")
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadMaxBytes(size) if size is not None else ReadAllAvailable()

    @plain
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """As far as the next batch goes. Asked many times a second: it looks at the head of one log."""
        collection = self._followed(start)
        state = access_of(collection).state()
        after = _after(start)
        newest = _newest(state)
        if self._target is not None:
            newest = min(newest, self._target)
        if newest <= after:
            self._rest(after)
            return start
        return {**start, "after": _limited(state, after, newest, limit), "collection": collection.id}

    def _rest(self, after: int) -> None:
        """There is nothing to read, and all before is read: hold nothing but the critical hold.

        SUBTLE: Spark tells that the last batch is done when it has the next one, and kills this process when the
        query ends: leases that were kept until then would stay for the rest of their term (test_spark_streams.py).
        """
        self._let_go(after)
        idle = access_of(self._collection).shared.leases.idle(self._collection.id)
        if idle:
            access_of(self._collection).committer.commit(*((self._collection.id, command) for command in idle))

    def _let_go(self, until: int) -> None:
        """Batches up to a time are done."""
        for time in [time for time in self._under_way if time <= until]:
            self._under_way.pop(time).close()

    @plain
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _newest(access_of(self._collection).state())

    @plain
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        after, until = _after(start), _after(end)
        if until <= after:
            return []
        collection = self._followed(end)
        self._take_hold(end, after if after > NOTHING else until)
        columns = columns_of(collection.schema, self._options, self._promised)
        where = self._options.text("where")
        changes = collection.changes(after if after > NOTHING else None, until, columns=columns, where=where)
        self._under_way[until] = changes
        made = planned(changes, self._options.number("partitions"), self._promised, is_feed=self._options.is_feed)
        return [InputPartition((made.reading, data)) for data in made.slices]

    def _take_hold(self, end: Offset, since: int) -> None:
        """See to it that the hold is there: taken by the first batch, found again by all others.

        SUBTLE: the one that the end names, which is in the checkpoint. Spark asks for the initial offset more than
        once, and the start of the first batch may be another answer than its end was made from (test_spark_streams.py).
        """
        name = str(end.get("hold"))
        if name not in self._taken:
            take_critical(access_of(self._collection), name, (since,), str(end.get("token")))
            self._taken.add(name)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    @plain
    def commit(self, end: Offset) -> None:
        """A batch is done: what it read is let go, and history before its end."""
        until = _after(end)
        collection = self._followed(end)
        self._let_go(until)
        if until > NOTHING:
            # A batch that had nothing to read did not take the hold.
            self._take_hold(end, until)
            _hold(access_of(collection), end).advance(until)

    def stop(self) -> None:
        """The query ends; its hold stays, for the next one that goes on from its checkpoint."""
        for changes in self._under_way.values():
            changes.close()
        self._under_way.clear()


def drop_hold(access: Access, name: str) -> bool:
    """End the critical hold of a stream that will not go on; whether there was one."""
    hold = access.state().holds.get(name)
    if hold is None:
        return False
    access.committer.commit((access.id, ReleaseHold(name, hold.token)))
    return True


def _after(offset: Offset) -> int:
    after = offset.get("after")
    if type(after) is not int or after < NOTHING:
        raise UsageError(f"{shown(offset)} is not an offset of a collection: the checkpoint belongs to another source")
    return after


def _hold(access: Access, offset: Offset) -> CriticalHold:
    return CriticalHold(access, str(offset.get("hold")), str(offset.get("token")), Frontier.minimum(1))


def _newest(state: State) -> int:
    """The newest complete time; NOTHING if there is none."""
    if state.upper.is_closed:
        return max((entry.upper.time - 1 for entry in state.history if entry.upper.elements), default=NOTHING)
    return state.upper.time - 1


def _limited(state: State, after: int, newest: int, limit: ReadLimit) -> int:
    """How far a batch may go: as many commits as stay within the limit, and one at least.

    Commits that the history of the collection has forgotten are all in the first batch.
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
