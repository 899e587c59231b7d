"""Exactly once: the number of a micro-batch is committed with its rows, in one compare-and-set.

A sink is known by a name that the user gives it, or by the id of the streaming query,
which Spark keeps in the checkpoint. A batch that comes again, because Spark died
before it noted that it was done, is found to be in, and is passed over.

A name together with another checkpoint is refused: Spark numbers its batches from 0
again, and they would all be taken for batches that are in. So the record of a named
sink carries the query that it belongs to: `name-q` and a hash of its id.

A batch after the first one that comes to a collection which knows nothing of its sink is
refused too: those before it went to another collection, which was replaced by this one.
So the first batch is noted even if it has no rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from timespine.client.engines import Access
from timespine.core.state import State
from timespine.core.transitions import CommitSink, DropSink
from timespine.errors import BatchAlreadyCommitted, UsageError
from timespine.ids import check_segment
from timespine.spark.names import local_path

T = TypeVar("T")

NAME_MAX = 40
"""Characters in the name of a sink: the hash of its query must fit beside it."""

_OF_QUERY = re.compile(r"-q[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Sink:
    """A streaming sink."""

    name: str | None
    """What the user calls it."""
    query: str | None
    """The id of the query that writes to it."""
    first: int = 0
    """The first batch that this collection is meant to get."""

    @property
    def record(self) -> str:
        """How the state of a collection knows it."""
        self.check()
        if self.name is None:
            return str(self.query)
        if self.query is None:
            return self.name
        return f"{self.name}-q{hashlib.sha256(self.query.encode()).hexdigest()[:16]}"

    def check(self) -> None:
        """A UsageError if there is nothing to know it by."""
        if self.name is None and self.query is None:
            raise UsageError(
                "a sink needs a name to write each batch exactly once: set checkpointLocation, or the option sinkId"
            )
        if self.name is not None and len(check_segment(self.name, "sink id")) > NAME_MAX:
            raise UsageError(f"sink id {self.name} is longer than {NAME_MAX} characters")

    def commit(self, batch: int) -> CommitSink:
        """The command that notes a batch."""
        return CommitSink(self.record, batch)

    def is_in(self, state: State, batch: int) -> bool:
        """Whether a batch is in already: what was done must not be done again.

        A UsageError if the batches that are in are not those of this query. Spark repeats the last batch that it
        does not know to be done, and never one before.
        """
        if self.first < 0:
            raise UsageError(f"the first batch of a sink is a number from 0 on, not {self.first}")
        last = state.sinks.get(self.record, -1)
        others = [each for each in state.sinks if self.name == _name_of(each) and each != self.record]
        if (self.name is not None and self.query is not None and others) or batch < last:
            name = self.name or self.record
            raise UsageError(
                f"sink {name} belongs to another checkpoint, whose batches are in the collection: restart from that "
                f"one, give this query another sinkId, or let the old one go with drop_sink(collection, {name!r})"
            )
        if last < 0 and batch not in (0, self.first):
            raise UsageError(
                f"batch {batch} is the first one of sink {self.name or self.record} that comes to this collection: "
                "those before it went to another one, which this one has replaced, or nowhere. Start with a new "
                f"checkpoint, or accept it with the option firstBatch={batch} (foreach_batch: first_batch={batch})"
            )
        return batch == last

    def commit_once(self, accesses: Sequence[Access], batch: int, commit: Callable[[], T | None]) -> T | None:
        """Commit a batch to some collections unless it is in already; None if it is, or if there are no rows.

        All collections are asked: one that belongs to another checkpoint is a mistake, whatever the others say. The
        first batch is noted though it has no rows.
        """
        is_in = [self.is_in(access.state(), batch) for access in accesses]
        done = None
        with contextlib.suppress(BatchAlreadyCommitted):
            if not any(is_in):
                done = commit()
                if done is None:
                    for access in accesses:
                        if self.record not in access.known().sinks:
                            access.committer.commit((access.id, self.commit(batch)))
        return done


def drop_sink(access: Access, name: str) -> int:
    """Forget a sink, by its name or by the id of its query; how many records there were of it."""
    records = [each for each in access.state().sinks if name in (each, _name_of(each))]
    if records:
        access.committer.commit(*((access.id, DropSink(each)) for each in records))
    return len(records)


def _name_of(record: str) -> str:
    """The name in the record of a sink that has one and belongs to a query."""
    return record[:-18] if _OF_QUERY.fullmatch(record[-18:]) else record


def query_in(checkpoint: str | None) -> str | None:
    """The id of the query that a checkpoint belongs to; None if that cannot be seen from here."""
    if checkpoint is None:
        return None
    path = os.path.join(local_path(checkpoint), "metadata")
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file).get("id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
