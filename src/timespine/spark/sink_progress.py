"""Exactly once: a sink commits the number of a micro-batch with its rows, in one compare-and-set.

The user names a sink, or the id of the streaming query identifies it, which Spark keeps in
the checkpoint. Spark repeats a batch if it died before it recorded the end of the batch;
the sink finds the number of that batch in the state, and skips it.

The sink refuses a name with another checkpoint: Spark numbers its batches from 0
again, and the sink would skip them all as committed. So the record of a named
sink contains its query: `name-q` and a hash of the id.

The sink also refuses a batch after the first one if the collection has no record of the
sink: the batches before went to another collection, which this one has replaced.
So the sink records the first batch even if it has no rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from timespine.client.api_for_engines import CollectionHandle
from timespine.core.state import State
from timespine.core.transitions import CommitSink, DropSink
from timespine.errors import BatchAlreadyCommitted, CorruptionError, UsageError
from timespine.ids import check_segment
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location

T = TypeVar("T")

NAME_MAX = 40
"""The most characters in the name of a sink: the hash of its query must fit beside it."""

METADATA_BYTES_MAX = 1 << 16
"""Bytes of the file of a checkpoint that has the id of its query, at most."""


class _CheckpointMetadata(msgspec.Struct):
    """The file `metadata` of a checkpoint, as Spark writes it."""

    id: str
    """The id of the query."""


_OF_QUERY = re.compile(r"-q[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The identity of a streaming sink."""

    name: str | None
    """The name that the user chose."""
    query: str | None
    """The id of its query."""
    first: int = 0
    """The number of the first batch of the collection."""

    @property
    def record(self) -> str:
        """Return the id of the sink in the state of a collection."""
        self.check()
        if self.name is None:
            return str(self.query)
        if self.query is None:
            return self.name
        return f"{self.name}-q{hashlib.sha256(self.query.encode()).hexdigest()[:16]}"

    def check(self) -> None:
        """Raise a UsageError if the sink has neither a name nor a query, or too long a name."""
        if self.name is None and self.query is None:
            raise UsageError(
                "a sink needs a name to write each batch exactly once: set checkpointLocation, or the option sinkId"
            )
        if self.name is not None and len(check_segment(self.name, "sink id")) > NAME_MAX:
            raise UsageError(f"sink id {self.name} is longer than {NAME_MAX} characters")

    def commit(self, batch: int) -> CommitSink:
        """Make the command that records a batch."""
        return CommitSink(self.record, batch)

    def is_in(self, state: State, batch: int) -> bool:
        """Return whether a batch is committed, so that the sink skips it.

        Raise a UsageError if the committed batches are not those of this query. Spark repeats only the last batch whose
        end it has not recorded.
        """
        if self.first < 0:
            raise UsageError(f"the first batch of a sink is a number from 0 on, not {self.first}")
        last = state.sinks.get(self.record, -1)
        others = [each for each in state.sinks if self.name == _name_of(each) and each != self.record]
        if (self.name is not None and self.query is not None and others) or batch < last:
            name = self.name or self.record
            raise UsageError(
                f"sink {name} belongs to another checkpoint, whose batches are in the collection: restart from that "
                f"one, give this query another sinkId, or remove the old one with drop_sink(collection, {name!r})"
            )
        if last < 0 and batch not in (0, self.first):
            raise UsageError(
                f"batch {batch} is the first one of sink {self.name or self.record} that comes to this collection: "
                "the batches before it went to another collection, which this one has replaced, or to none. Start with "
                f"a new checkpoint, or accept it by the option firstBatch={batch} (foreach_batch: first_batch={batch})"
            )
        return batch == last

    def commit_once(self, handles: Sequence[CollectionHandle], batch: int, commit: Callable[[], T | None]) -> T | None:
        """Commit a batch to some collections unless it is committed; None if it is, or if there are no rows.

        Check all collections: one with the sink of another checkpoint is an error, even if others have the batch.
        Record the first batch even if it has no rows.
        """
        is_in = [self.is_in(handle.state(), batch) for handle in handles]
        done = None
        with contextlib.suppress(BatchAlreadyCommitted):
            if not any(is_in):
                done = commit()
                if done is None:
                    for handle in handles:
                        if self.record not in handle.known().sinks:
                            handle.committer.commit((handle.id, self.commit(batch)))
        return done


def drop_sink_records(handle: CollectionHandle, name: str) -> int:
    """Remove the records of a sink, by its name or by the id of its query; return their number."""
    records = [each for each in handle.state().sinks if name in (each, _name_of(each))]
    if records:
        handle.committer.commit(*((handle.id, DropSink(each)) for each in records))
    return len(records)


def _name_of(record: str) -> str:
    """Parse the name out of the record of a sink with a name and a query."""
    return record[:-18] if _OF_QUERY.fullmatch(record[-18:]) else record


def find_query(checkpoint: str | None, storage: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Read the id of the query from a checkpoint; None if it has none, or is in storage that only Hadoop reads.

    A checkpoint may be in a folder, or in a bucket that is reached like that of the store.

    SUBTLE: a failed read is an error, and never None. A batch that is recorded without its query makes the sink refuse
    every later one, which has the query (test_find_query.py).
    """
    if checkpoint is None:
        return None
    try:
        is_folder = parse_location(checkpoint).is_folder
        location = parse_location(checkpoint, None if is_folder else dict(storage))
    except UsageError:
        return None
    data = place_of(location).read_file("metadata", METADATA_BYTES_MAX)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=_CheckpointMetadata).id
    except msgspec.DecodeError:
        raise CorruptionError(f"metadata in {location.url} is not that of a checkpoint of Spark") from None
