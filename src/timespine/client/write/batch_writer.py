"""A writer: batches are built by hand and committed as their owner wants.

    with writer.builder(lower=(7,)) as builder:
        builder.add(updates)
        batch = builder.finish((8,))
    writer.compare_and_append([batch], expected=(7,), upper=(8,))

A batch that was built and not committed belongs to the writer: `delete` removes it.
"""

from __future__ import annotations

import datetime
import warnings
import weakref
from collections.abc import Sequence
from functools import partial

from timespine.client.commit.driver import fresh_id
from timespine.client.context import Access
from timespine.client.process_guard import OneProcess
from timespine.client.time_args import Progress, to_ms
from timespine.client.write.prebuilt_steps import PrebuiltBatchStep
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep
from timespine.columnar.parts.hollow_run import delete_batch, written_by
from timespine.columnar.parts.inline import is_inline_of
from timespine.columnar.write.batch_builder import BatchBuilder
from timespine.columnar.write.batch_envelope import decode_batch, encode_batch, rewrite
from timespine.core.batch import HollowBatch, Order
from timespine.core.transitions import AdvanceUpper, Append, Appended, CompareAndAppend
from timespine.errors import UsageError
from timespine.ids import parse_blob_key
from timespine.model.frontier import Frontier

TRANSMIT_TTL = "1 hour"
"""How long a transmitted batch can be committed, unless its builder says otherwise."""


class Writer(OneProcess):
    """A writer of batches that the caller builds."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.id = access.committer.writer(access.id)
        """The registered writer that its blobs belong to."""
        self._loose: set[str] = set()
        """Blobs of batches that were built, and neither committed nor deleted nor handed on."""
        weakref.finalize(self, _warn_of, self._loose, access.name)

    def builder(
        self, lower: Progress, since: Progress | None = None, *, order: Order = Order.UNORDERED
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
            finished=partial(_note, self._loose),
            sleep=shared.sleep,
        )

    def compare_and_append(self, batches: Sequence[HollowBatch], expected: Progress, upper: Progress) -> Frontier:
        """Append batches for [expected, upper), all or none; UpperMismatch if the upper is another one."""
        self._check_own(batches)
        first, last = self._frontier(expected), self._frontier(upper)
        limit = self._access.config.inline_total_bytes

        def command(offered: tuple[HollowBatch, ...]) -> CompareAndAppend:
            return CompareAndAppend(offered, first, last, "append", limit)

        (reached,) = commit_steps(PrebuiltBatchStep(self._access, tuple(batches), command))
        for batch in batches:
            self.hand_over(batch)
        return Frontier(reached.elements)

    def append(self, batch: HollowBatch) -> Appended:
        """Append what of a batch is not there yet: for several writers that all write the same.

        A batch of which nothing was taken still belongs to the caller.
        """
        self._check_own((batch,))

        def command(offered: tuple[HollowBatch, ...]) -> Append:
            return Append(offered[0])

        (reply,) = commit_steps(PrebuiltBatchStep(self._access, (batch,), command, flushes_first=True))
        assert isinstance(reply, Appended)
        if reply.taken:
            self.hand_over(batch)
        else:
            self._loose.difference_update(self._access.known().keys())  # it may be there since an earlier try
        return reply

    def hand_over(self, batch: HollowBatch) -> None:
        """Forget the blobs of a batch that was committed: they belong to the collection."""
        self._loose.difference_update(batch.keys)

    def advance_upper(self, upper: Progress) -> Frontier:
        """Say that nothing more comes before a time."""
        (reached,) = commit_steps(CommandStep.of(self._access, AdvanceUpper(self._frontier(upper))))
        return Frontier(reached.elements)

    def transmit(self, batch: HollowBatch, *, ttl: str | float | datetime.timedelta = TRANSMIT_TTL) -> bytes:
        """Give a batch as bytes, for another process to commit within `ttl`, also after this one has closed the store.

        Afterwards it is Fenced: maintenance ends the lease of the writer that put its blobs, and deletes those that
        were not committed. A process that has received the batch, and needs longer, transmits it again.
        """
        term_ms = to_ms(ttl)
        data = encode_batch(batch, self._access.id, self._access.known().arity)
        for writer in sorted({parse_blob_key(key).writer for key in batch.keys}):
            self._access.committer.keep_writer(self._access.id, writer, term_ms)
        self._loose.difference_update(batch.keys)
        return data

    def receive(self, data: bytes) -> HollowBatch:
        """The batch in such bytes; one of another collection or version is refused."""
        batch = decode_batch(data, self._access.id)
        self._check_own((batch,))
        return batch

    def rewrite(self, batch: HollowBatch, to: Progress, upper: Progress) -> HollowBatch:
        """The same batch with all its times moved to `to`, up to `upper`: metadata only, nothing is read or written."""
        return rewrite(batch, self._frontier(to), self._frontier(upper))

    def delete(self, batch: HollowBatch) -> None:
        """Delete a batch of this writer that was not, and will not be, committed."""
        shared = self._access.shared
        owned = written_by(self._access.id, self.id)
        if any(part.key and not owned(part) for part in batch.parts):
            raise UsageError("the batch was built by another writer, which has to delete it: it may be committing it")
        committed = set(self._access.state().keys())
        if any(part.key in committed for part in batch.parts):
            raise UsageError(f"the batch is part of collection {self._access.name}: retract its rows instead")
        delete_batch(batch, shared.blob, owned=owned, counters=shared.counters, pool=shared.pool)
        self._loose.difference_update(batch.keys)

    def _check_own(self, batches: Sequence[HollowBatch]) -> None:
        """A UsageError if a batch is not one of this collection, under a schema that it has."""
        access = self._access
        if not isinstance(batches, list | tuple) or not all(isinstance(batch, HollowBatch) for batch in batches):
            raise UsageError("what is appended by a writer is a batch, or a list of them")
        runs = [run for batch in batches for run in batch.runs]
        known = access.known()
        if any(run.schema is not None and run.schema >= len(known.schemas) for run in runs):
            known = access.state()
        for run in runs:
            if run.schema is None or run.schema >= len(known.schemas):
                raise UsageError(f"a batch was written with schema {run.schema}, which {access.name} does not have")
            for part in run.parts:
                if part.inline is not None and not is_inline_of(part, access.id):
                    raise UsageError(f"a batch was not built for collection {access.name}")

    def _frontier(self, given: Progress) -> Frontier:
        return self._access.frontier_of(given)


def _note(loose: set[str], batch: HollowBatch) -> None:
    """A batch was built. Not a method: a builder that is dropped must not keep its writer alive."""
    loose.update(batch.keys)


def _warn_of(loose: set[str], collection: str) -> None:
    """Say that blobs were left behind: the sweep takes them once their writer is gone."""
    if loose:
        warnings.warn(
            f"a batch of {collection} ({len(loose)} blobs) was built and never committed: delete it, or transmit it",
            ResourceWarning,
            stacklevel=2,
        )
