"""Stage rows: make them durable before a commit refers to them, and delete their blobs if the commit is refused."""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec
import pyarrow as pa

from timespine.client.commit.accept_older_schema import convert_to_newest
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import PreparedRows
from timespine.columnar.parts.inline_part import InlineRule
from timespine.columnar.parts.part_list_tree import delete_batch, is_written_by
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.inline_to_blob import flush_to_blob
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.core.batch import HollowBatch, Order, Run, rows_in
from timespine.errors import Conflict, Determinate, Fenced, LeaseExpired, SchemaChanged, TimespineError, UsageError
from timespine.ids import parse_blob_key
from timespine.model.description import Description
from timespine.model.frontier import Frontier

SHARE_MAX = 16
"""Most small appends whose inline limits add up when they are one batch."""

Runs = tuple[Run, ...]


class StagedRuns(NamedTuple):
    """Durable rows that no commit refers to yet."""

    prepared: PreparedRows | None
    runs: Runs
    put: HollowBatch | None
    """The blobs to delete if the rows are not committed."""

    def discard(self) -> None:
        """Delete the blobs of a refused commit."""
        if self.prepared is not None and self.put is not None:
            delete_unused(self.prepared.handle, self.put)

    def count_rows(self) -> None:
        """Count the committed rows."""
        if self.prepared is not None:
            count_appended(self.prepared.handle, self.runs, sum(part.rows for run in self.runs for part in run.parts))


NOTHING_STAGED = StagedRuns(None, (), None)


def stage(prepared: PreparedRows | None, *, inline: bool) -> StagedRuns:
    """Make prepared rows durable; inline in the commit if they are few, and the state may have room for them."""
    if prepared is None:
        return NOTHING_STAGED
    schema, table, share = prepared.schema, prepared.table, prepared.share
    runs, put = make_runs(prepared.handle, prepared.id, schema, table, share, prepared.is_sorted, inline=inline)
    return StagedRuns(prepared, runs, put)


class StagedTogether:
    """The staged rows of one try to commit: a block that deletes their blobs if an error says that it did not commit.

    Transactions of steps and groups of small appends stage their rows in such a block, and in no other way.
    """

    __slots__ = ("_count", "_staged")

    def __init__(self, count: int) -> None:
        self._count = count
        """How many times the block stages rows. As long as it has not, nothing was offered."""
        self._staged: list[StagedRuns] = []

    def add(self, prepared: PreparedRows | None, *, inline: bool) -> None:
        """Stage prepared rows."""
        self._staged.append(stage(prepared, inline=inline))

    @property
    def runs(self) -> list[Runs]:
        """The runs of each, in order."""
        return [each.runs for each in self._staged]

    def count_rows(self) -> None:
        """Count the committed rows."""
        for each in self._staged:
            each.count_rows()

    def discard(self) -> None:
        """Delete the blobs of a refused commit."""
        for each in self._staged:
            each.discard()

    def __enter__(self) -> StagedTogether:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # SUBTLE: an interrupt deletes nothing, nor does the end of a generator that its leader dropped: the commit may
        # have happened (tests/client/commit/test_interrupts.py).
        if isinstance(error, Exception):
            is_offered = len(self._staged) == self._count
            if not is_offered or (isinstance(error, TimespineError) and did_not_commit(error)):
                self.discard()


def prepare_again(prepared: PreparedRows, changed: SchemaChanged) -> PreparedRows:
    """Convert rows to the newest schema of their collection; raise SchemaChanged if that loses values."""
    handle = prepared.handle
    id, schema = handle.schema(handle.known())
    table, lost = convert_to_newest(prepared.table, prepared.schema, schema)
    if lost:
        raise SchemaChanged(handle.id, prepared.id, id, lost, handle.name) from changed
    return msgspec.structs.replace(prepared, id=id, schema=schema, table=table)


def did_not_commit(error: TimespineError) -> bool:
    """Return whether a commit that raised this error did not happen, and never will.

    SUBTLE: blobs of a commit that may have happened must stay (test_spark_writes.py).
    """
    if isinstance(error, Fenced):
        return not error.in_doubt
    # The lease of a reader expires before a commit that depends on its read, or is the reason of the refusal.
    return isinstance(error, UsageError | Conflict | Determinate | LeaseExpired)


def delete_unused(handle: CollectionHandle, batch: HollowBatch) -> None:
    """Delete the orphaned blobs of a refused batch, also those under earlier ids of its writer."""
    context = handle.context
    for writer in {parse_blob_key(part.key).writer for part in batch.parts if part.key}:
        delete_batch(batch, context.blob, owned=is_written_by(handle.id, writer), counters=context.counters)


def flush_inline(handle: CollectionHandle, batch: HollowBatch, writer: str) -> HollowBatch:
    """Put the inline parts of a batch as blobs: for a state that has no room for them."""
    return flush_to_blob(
        batch,
        handle.id,
        writer,
        handle.parts(handle.known()).schema_of,
        handle.context.blob,
        handle.config,
        fresh=fresh_id,
        counters=handle.context.counters,
        sleep=handle.context.sleep,
    )


def delete_flushed(
    handle: CollectionHandle, batches: tuple[HollowBatch, ...], flushed: tuple[HollowBatch, ...]
) -> None:
    """Delete the blobs that only flushed batches refer to."""
    kept = {part.key for batch in batches for part in batch.parts}
    context = handle.context
    for batch in flushed:
        delete_batch(
            batch,
            context.blob,
            owned=lambda part: part.key not in kept and not part.hollow,
            counters=context.counters,
            pool=context.pool,
        )


def count_appended(handle: CollectionHandle, runs: Runs, rows: int) -> None:
    """Count the committed rows and bytes."""
    if rows:
        counters = handle.context.counters_of(handle.id)
        counters["append bytes"] += sum(part.size + part.inside_bytes for run in runs for part in run.parts)
        counters["append rows"] += rows


def make_runs(
    handle: CollectionHandle,
    id: int,
    schema: Schema,
    table: pa.Table,
    share: int = 1,
    is_sorted: bool = True,
    *,
    inline: bool = True,
) -> tuple[Runs, HollowBatch | None]:
    """Make rows durable as runs, inline if they are few; return the runs, and the batch to delete after a refusal.

    Without `is_sorted`, rows come in any order, and each part is sorted alone.
    """
    if table.num_rows == 0:
        return (), None
    config, context = handle.config, handle.context
    if inline and is_sorted:
        # If the known state is full, the commit would only be refused.
        room = config.inline_total_bytes - handle.known().inline_bytes
        rule = InlineRule(config.inline_part_bytes * min(share, SHARE_MAX), room)
        if (part := rule.part_of(table)) is not None:
            return (Run((part,), Order.SORTED, id),), None
    writer = handle.committer.writer(handle.id)
    target = UploadTarget(handle.id, writer, schema, id, context.blob, config, sleep=context.sleep)
    pool = context.pool if table.nbytes > config.part_bytes else None
    with RunWriter(target, fresh_id, context.counters, pool, is_sorted=is_sorted) as run_writer:
        run_writer.add(table)
        runs = run_writer.finish()
    if not runs:
        return (), None
    return runs, HollowBatch(unplaced_description(schema.arity), rows_in(runs), runs)


@functools.cache
def unplaced_description(arity: int) -> Description:
    """Describe a batch whose interval is decided when it is committed."""
    minimum = Frontier.minimum(arity)
    return Description(minimum, Frontier(), minimum)
