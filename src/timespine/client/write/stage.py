"""Stage rows: make them durable before a commit refers to them, and delete them again if the commit is refused."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pyarrow as pa

from timespine.client.commit.driver import fresh_id
from timespine.client.commit.schema_check import made_again
from timespine.client.context import Access
from timespine.client.write.prepare import PreparedRows
from timespine.columnar.parts.hollow_run import count, delete_batch, rows_in, written_by
from timespine.columnar.parts.inline import InlineRule
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.flush_inline import flush_to_blob
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.upload import Target
from timespine.core.batch import HollowBatch, Order, Run
from timespine.errors import Conflict, Determinate, Fenced, SchemaChanged, TimespineError, UsageError
from timespine.ids import parse_blob_key
from timespine.model.description import Description
from timespine.model.frontier import Frontier

SHARE_MAX = 16
"""The number of small appends whose inline limits add up, when they are one batch."""

Runs = tuple[Run, ...]


class StagedRuns(NamedTuple):
    """Rows that are durable, and that no commit refers to yet."""

    prepared: PreparedRows | None
    runs: Runs
    put: HollowBatch | None
    """The blobs to delete if the rows are not committed."""

    def discard(self) -> None:
        """Delete what was put: its commit was refused."""
        if self.prepared is not None and self.put is not None:
            delete_unused(self.prepared.access, self.put)

    def count_rows(self) -> None:
        """Count what was committed."""
        if self.prepared is not None:
            count_appended(self.prepared.access, self.runs, rows_in(self.runs))


NOTHING_STAGED = StagedRuns(None, (), None)


def stage(prepared: PreparedRows | None, *, inline: bool) -> StagedRuns:
    """Make prepared rows durable; inline in the commit if they are tiny, and the state may have room for them."""
    if prepared is None:
        return NOTHING_STAGED
    schema, table, share = prepared.schema, prepared.table, prepared.share
    runs, put = make_runs(prepared.access, prepared.id, schema, table, share, prepared.is_sorted, inline=inline)
    return StagedRuns(prepared, runs, put)


def prepare_again(prepared: PreparedRows, changed: SchemaChanged) -> PreparedRows:
    """Convert rows to the newest schema of their collection; SchemaChanged if that loses values of theirs."""
    access = prepared.access
    id, schema = access.schema(access.known())
    table, lost = made_again(prepared.table, prepared.schema, schema)
    if lost:
        raise SchemaChanged(access.id, prepared.id, id, lost, access.name) from changed
    return msgspec.structs.replace(prepared, id=id, schema=schema, table=table)


def did_not_commit(error: TimespineError) -> bool:
    """Say whether a commit that raised this did not happen, and never will.

    SUBTLE: what may have been committed must not be deleted (test_spark_writes.py).
    """
    return isinstance(error, UsageError | Conflict | Determinate) or (isinstance(error, Fenced) and not error.in_doubt)


def delete_unused(access: Access, batch: HollowBatch) -> None:
    """Delete what this process put for a batch that was refused, also under earlier ids of its writer."""
    shared = access.shared
    for writer in {parse_blob_key(part.key).writer for part in batch.parts if part.key}:
        delete_batch(batch, shared.blob, owned=written_by(access.id, writer), counters=shared.counters)


def flush_inline(access: Access, batch: HollowBatch, writer: str) -> HollowBatch:
    """Put the inline parts of a batch as blobs: for a state that has no room for them."""
    return flush_to_blob(
        batch,
        access.id,
        writer,
        access.parts(access.known()).schema_of,
        access.shared.blob,
        access.config,
        fresh=fresh_id,
        counters=access.shared.counters,
        sleep=access.shared.sleep,
    )


def delete_flushed(access: Access, batches: tuple[HollowBatch, ...], flushed: tuple[HollowBatch, ...]) -> None:
    """Delete the blobs that only flushed batches refer to."""
    kept = {part.key for batch in batches for part in batch.parts}
    shared = access.shared
    for batch in flushed:
        delete_batch(
            batch,
            shared.blob,
            owned=lambda part: part.key not in kept and not part.hollow,
            counters=shared.counters,
            pool=shared.pool,
        )


def count_appended(access: Access, runs: Runs, rows: int) -> None:
    """Count what was committed."""
    counters = access.shared.counters_of(access.id)
    count(counters, "append bytes", sum(part.total_bytes for run in runs for part in run.parts))
    count(counters, "append rows", rows)


def make_runs(
    access: Access,
    id: int,
    schema: Schema,
    table: pa.Table,
    share: int = 1,
    is_sorted: bool = True,
    *,
    inline: bool = True,
) -> tuple[Runs, HollowBatch | None]:
    """Make rows durable as runs, inline if they are few: the runs, and the batch to delete if they are not committed.

    Without `is_sorted` rows come in any order, and each part of them is sorted by itself.
    """
    if table.num_rows == 0:
        return (), None
    config, shared = access.config, access.shared
    if inline and is_sorted:
        # If the state is full by what is known already, the commit would only say so.
        rule = InlineRule(
            config.inline_part_bytes * min(share, SHARE_MAX),
            room=lambda: config.inline_total_bytes - access.known().inline_bytes,
        )
        if (part := rule.part_of(table)) is not None:
            return (Run((part,), Order.SORTED, id),), None
    writer = access.committer.writer(access.id)
    target = Target(access.id, writer, schema, id, shared.blob, config, sleep=shared.sleep)
    pool = shared.pool if table.nbytes > config.part_bytes else None
    with RunWriter(target, fresh_id, shared.counters, pool, is_sorted=is_sorted) as run_writer:
        run_writer.add(table)
        runs = run_writer.finish()
    if not runs:
        return (), None
    return runs, HollowBatch(unplaced_description(schema.arity), rows_in(runs), runs)


def unplaced_description(arity: int) -> Description:
    """Describe a batch whose interval is decided when it is committed."""
    minimum = Frontier.minimum(arity)
    return Description(minimum, Frontier(), minimum)
