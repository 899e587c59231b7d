"""A writer: batches are built by hand and committed as their owner wants.

    with writer.builder(lower=(7,)) as builder:
        builder.add(updates)
        batch = builder.finish((8,))
    writer.compare_and_append([batch], expected=(7,), upper=(8,))

A batch that was built and not committed belongs to the writer: `delete` removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.moments import Moment, to_time
from timespine.client.writing import count_appended, surely_not
from timespine.columnar.builder import BatchBuilder, flush_to_blob
from timespine.columnar.runs import delete_batch, written_by
from timespine.columnar.transmit import decode_batch, encode_batch, rewrite
from timespine.core.hollow import HollowBatch, Order
from timespine.core.transitions import AdvanceUpper, Append, Appended, CompareAndAppend
from timespine.errors import InlineBudgetExceeded, TimespineError, UsageError
from timespine.model.frontier import Frontier

R = TypeVar("R")


class Writer:
    """The handle for those who build batches themselves."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.id = access.committer.writer(access.id)
        """The registered writer that its blobs belong to."""

    def builder(
        self, lower: Moment | Frontier, since: Moment | Frontier | None = None, *, order: Order = Order.UNORDERED
    ) -> BatchBuilder:
        """Begin a batch of updates at times from `lower` on."""
        access = self._access
        state = access.known()
        id, schema = access.schema(state)
        shared = access.shared
        exact_from = Frontier.minimum(state.arity) if since is None else self._frontier(since)
        return BatchBuilder(
            access.id,
            self.id,
            schema,
            id,
            self._frontier(lower),
            exact_from,
            shared.blob,
            access.config,
            fresh=fresh_id,
            order=order,
            counters=shared.counters,
            pool=shared.pool,
        )

    def compare_and_append(
        self, batches: Sequence[HollowBatch], expected: Moment | Frontier, upper: Moment | Frontier
    ) -> Frontier:
        """Append batches for [expected, upper), all or none; UpperMismatch if the upper is another one."""
        first, last = self._frontier(expected), self._frontier(upper)

        def commit(offered: tuple[HollowBatch, ...]) -> Frontier:
            access = self._access
            command = CompareAndAppend(offered, first, last, "append", access.config.inline_total_bytes)
            (reached,) = access.committer.commit((access.id, command))
            for batch in offered:
                count_appended(access, batch.runs, batch.len)
            return Frontier(reached.elements)

        try:
            return commit(tuple(batches))
        except InlineBudgetExceeded:
            return self._with_flushed(tuple(batches), commit)

    def append(self, batch: HollowBatch) -> Appended:
        """Append what of a batch is not there yet: for several writers that all write the same.

        A batch of which nothing was taken still belongs to the caller.
        """

        def commit(offered: tuple[HollowBatch, ...]) -> Appended:
            (reply,) = self._access.committer.commit((self._access.id, Append(offered[0])))
            assert isinstance(reply, Appended)
            if reply.taken:
                count_appended(self._access, offered[0].runs, offered[0].len)
            else:
                self._delete_flushed((batch,), offered)
            return reply

        return self._with_flushed((batch,), commit)

    def advance_upper(self, upper: Moment | Frontier) -> Frontier:
        """Say that nothing more comes before a time."""
        (reached,) = self._access.committer.commit((self._access.id, AdvanceUpper(self._frontier(upper))))
        return Frontier(reached.elements)

    def transmit(self, batch: HollowBatch) -> bytes:
        """A batch as bytes, for another process to commit."""
        return encode_batch(batch, self._access.id, self._access.known().arity)

    def receive(self, data: bytes) -> HollowBatch:
        """The batch in such bytes; one of another collection or version is refused."""
        return decode_batch(data, self._access.id)

    def rewrite(self, batch: HollowBatch, to: Moment | Frontier, upper: Moment | Frontier) -> HollowBatch:
        """The same batch with all its times moved to `to`, up to `upper`: metadata only, nothing is read or written."""
        return rewrite(batch, self._frontier(to), self._frontier(upper))

    def delete(self, batch: HollowBatch) -> None:
        """Delete a batch that was not, and will not be, committed."""
        shared = self._access.shared
        committed = set(self._access.state().keys())
        if any(part.key in committed for part in batch.parts):
            raise UsageError(f"the batch is part of collection {self._access.name}: retract its rows instead")
        delete_batch(batch, shared.blob, owned=written_by(self._access.id, self.id), counters=shared.counters)

    def _with_flushed(self, batches: tuple[HollowBatch, ...], commit: Callable[[tuple[HollowBatch, ...]], R]) -> R:
        """Commit batches with their inline parts in blobs; those are deleted again if it is refused."""
        offered: list[HollowBatch] = []
        try:
            for batch in batches:
                offered.append(self.flushed(batch))
        except BaseException:
            self._delete_flushed(batches, offered)
            raise
        try:
            return commit(tuple(offered))
        except TimespineError as error:
            if surely_not(error):
                self._delete_flushed(batches, offered)
            raise

    def _delete_flushed(self, batches: Sequence[HollowBatch], flushed: Sequence[HollowBatch]) -> None:
        """Delete what only the flushed batches refer to."""
        kept = {part.key for batch in batches for part in batch.parts}
        shared = self._access.shared
        for batch in flushed:
            delete_batch(
                batch,
                shared.blob,
                owned=lambda part: part.key not in kept and not part.hollow,
                counters=shared.counters,
            )

    def flushed(self, batch: HollowBatch) -> HollowBatch:
        """The same batch with what is inline in blobs: for a state that has no room for it."""
        access = self._access
        return flush_to_blob(
            batch,
            access.id,
            self.id,
            access.parts(access.known()).schema_of,
            access.shared.blob,
            access.config,
            fresh=fresh_id,
            counters=access.shared.counters,
        )

    def _frontier(self, given: Moment | Frontier) -> Frontier:
        return given if isinstance(given, Frontier) else Frontier((to_time(given, self._access.known().arity),))
