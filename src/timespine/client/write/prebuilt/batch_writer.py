"""A writer: callers build batches and commit them when they want.

    with writer.builder(lower=(7,)) as builder:
        builder.add(updates)
        batch = builder.finish((8,))
    writer.compare_and_append([batch], expected=(7,), upper=(8,))

A batch that is built and not committed belongs to the writer: `delete` removes it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from functools import partial

from timespine.client.arguments.argument_types import IfBehind
from timespine.client.arguments.time_args import DurationLike, FrontierLike, parse_duration_ms
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.inner_handles import CollectionHandle
from timespine.client.refuse_pickle import OneProcess
from timespine.client.write.prebuilt.prebuilt_steps import PrebuiltBatchStep
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep
from timespine.client.write_results import SealResult
from timespine.columnar.parts.inline_part import is_inline_of
from timespine.columnar.parts.part_list_tree import delete_batch, is_written_by
from timespine.columnar.write.batch_builder import BatchBuilder
from timespine.columnar.write.transmit_batch import decode_batch, encode_batch, rewrite
from timespine.core.batch import HollowBatch, Order
from timespine.core.transitions import Append, AppendResult, CompareAndAppend
from timespine.errors import UsageError
from timespine.ids import parse_blob_key
from timespine.model.frontier import Frontier

TRANSMIT_TTL = "1 hour"
"""The time within which a transmitted batch can be committed, unless the caller gives another."""


class Writer(OneProcess):
    """A writer of batches that the caller builds."""

    def __init__(self, handle: CollectionHandle) -> None:
        self._handle = handle
        self.id = handle.committer.writer(handle.id)
        """The id of the registered writer that its blobs belong to."""
        self._loose: set[str] = set()
        """Blobs of batches that are built, and neither committed nor deleted nor handed over."""
        weakref.finalize(self, _warn_of, self._loose, handle.name)

    def builder(
        self, lower: FrontierLike, since: FrontierLike | None = None, *, order: Order = Order.UNORDERED
    ) -> BatchBuilder:
        """Begin a batch of updates at times from `lower` on."""
        handle = self._handle
        state = handle.known()
        id, schema = handle.schema(state)
        context = handle.context
        exact_from = Frontier.minimum(state.arity) if since is None else self._frontier(since)
        return BatchBuilder(
            handle.id,
            self.id,
            schema,
            id,
            self._frontier(lower),
            exact_from,
            context.blob,
            handle.config,
            fresh=fresh_id,
            order=order,
            counters=context.counters,
            pool=context.pool,
            finished=partial(_note, self._loose),
            sleep=context.sleep,
        )

    def compare_and_append(
        self, batches: Sequence[HollowBatch], expected: FrontierLike, upper: FrontierLike
    ) -> Frontier:
        """Append batches for [expected, upper), all or none; raise UpperMismatch if the upper is another one."""
        self._check_own(batches)
        first, last = self._frontier(expected), self._frontier(upper)
        limit = self._handle.config.inline_total_bytes

        def command(offered: tuple[HollowBatch, ...]) -> CompareAndAppend:
            return CompareAndAppend(offered, first, last, "append", limit)

        (reached,) = commit_steps(PrebuiltBatchStep(self._handle, tuple(batches), command))
        for batch in batches:
            self.hand_over(batch)
        return Frontier(reached.elements)

    def append(self, batch: HollowBatch) -> AppendResult:
        """Append the part of a batch at or after the upper: for several writers that all write the same updates.

        A batch of which nothing was appended still belongs to the caller.
        """
        self._check_own((batch,))

        def command(offered: tuple[HollowBatch, ...]) -> Append:
            return Append(offered[0])

        (reply,) = commit_steps(PrebuiltBatchStep(self._handle, (batch,), command, flushes_first=True))
        assert isinstance(reply, AppendResult)
        if reply.taken:
            self.hand_over(batch)
        else:
            self._loose.difference_update(self._handle.known().keys())  # an earlier try may have committed it
        return reply

    def hand_over(self, batch: HollowBatch) -> None:
        """Forget the blobs of a committed batch: they belong to the collection."""
        self._loose.difference_update(batch.keys)

    def seal(self, upper: FrontierLike, *, if_behind: IfBehind = "error") -> SealResult:
        """Seal all times before `upper`, as `collection.seal` does."""
        (done,) = commit_steps(CommandStep.seal(self._handle, self._frontier(upper), if_behind))
        assert isinstance(done, SealResult)
        return done

    def transmit(self, batch: HollowBatch, *, ttl: DurationLike = TRANSMIT_TTL) -> bytes:
        """Encode a batch for another process to commit within `ttl`, also after this one has closed the store.

        A later commit raises Fenced: maintenance ends the lease of the writer of its blobs, and deletes those that
        were not committed. A receiver that needs longer transmits the batch again.
        """
        term_ms = parse_duration_ms(ttl)
        data = encode_batch(batch, self._handle.id, self._handle.known().arity)
        for writer in sorted({parse_blob_key(key).writer for key in batch.keys}):
            self._handle.committer.keep_writer(self._handle.id, writer, term_ms)
        self._loose.difference_update(batch.keys)
        return data

    def receive(self, data: bytes) -> HollowBatch:
        """Decode a transmitted batch; raise an error for one of another collection or version."""
        batch = decode_batch(data, self._handle.id)
        self._check_own((batch,))
        return batch

    def rewrite(self, batch: HollowBatch, to: FrontierLike, upper: FrontierLike) -> HollowBatch:
        """Move all times of a batch to `to`, up to `upper`: changes metadata only, reads and writes no blob."""
        return rewrite(batch, self._frontier(to), self._frontier(upper))

    def delete(self, batch: HollowBatch) -> None:
        """Delete a batch of this writer that was not, and will not be, committed."""
        context = self._handle.context
        owned = is_written_by(self._handle.id, self.id)
        if any(part.key and not owned(part) for part in batch.parts):
            raise UsageError("the batch was built by another writer, which has to delete it: it may be committing it")
        committed = set(self._handle.state().keys())
        if any(part.key in committed for part in batch.parts):
            raise UsageError(f"the batch is part of collection {self._handle.name}: retract its rows instead")
        delete_batch(batch, context.blob, owned=owned, counters=context.counters, pool=context.pool)
        self._loose.difference_update(batch.keys)

    def _check_own(self, batches: Sequence[HollowBatch]) -> None:
        """Raise a UsageError if a batch is not one of this collection, under a schema that it has."""
        handle = self._handle
        if not isinstance(batches, list | tuple) or not all(isinstance(batch, HollowBatch) for batch in batches):
            raise UsageError("a writer appends a batch, or a list of batches")
        runs = [run for batch in batches for run in batch.runs]
        known = handle.known()
        if any(run.schema is not None and run.schema >= len(known.schemas) for run in runs):
            known = handle.state()
        for run in runs:
            if run.schema is None or run.schema >= len(known.schemas):
                raise UsageError(f"a batch was written with schema {run.schema}, which {handle.name} does not have")
            for part in run.parts:
                if part.inline is not None and not is_inline_of(part, handle.id):
                    raise UsageError(f"a batch was not built for collection {handle.name}")

    def _frontier(self, given: FrontierLike) -> Frontier:
        return self._handle.frontier_of(given)


def _note(loose: set[str], batch: HollowBatch) -> None:
    """Record a built batch. Not a method: a builder that is dropped must not keep its writer alive."""
    loose.update(batch.keys)


def _warn_of(loose: set[str], collection: str) -> None:
    """Warn of orphaned blobs: the sweep removes them once their writer has expired."""
    if loose:
        warnings.warn(
            f"a batch of {collection} ({len(loose)} blobs) was built and never committed: delete it, or transmit it",
            ResourceWarning,
            stacklevel=2,
        )
