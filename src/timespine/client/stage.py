"""Stage rows: make them durable before a commit refers to them, and delete them again if the commit is refused."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pyarrow as pa

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.judging import made_again
from timespine.client.prepare import PreparedRows
from timespine.columnar.builder import flush_to_blob
from timespine.columnar.inline import encode_inline
from timespine.columnar.run_writer import RunWriter, inline_part
from timespine.columnar.runs import count, delete_batch, delete_keys, spill, written_by
from timespine.columnar.schema import Schema
from timespine.columnar.upload import Target, Uploads
from timespine.core.hollow import HollowBatch, Order, Run
from timespine.errors import AskElsewhere, Determinate, Fenced, SchemaChanged, TimespineError, UsageError
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
            count_appended(self.prepared.access, self.runs, self.prepared.table.num_rows)


NOTHING_STAGED = StagedRuns(None, (), None)


def stage(prepared: PreparedRows | None, *, inline: bool) -> StagedRuns:
    """Make prepared rows durable; inline in the commit if they are tiny, and the state may have room for them."""
    if prepared is None:
        return NOTHING_STAGED
    access, share = prepared.access, prepared.share
    runs, put = make_runs(access, prepared.id, prepared.schema, prepared.table, share, inline=inline)
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

    SUBTLE: what may have been committed must not be deleted (test_writing.py).
    """
    return isinstance(error, UsageError | AskElsewhere | Determinate) or (
        isinstance(error, Fenced) and not error.in_doubt
    )


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
    access: Access, id: int, schema: Schema, table: pa.Table, share: int = 1, *, inline: bool = True
) -> tuple[Runs, HollowBatch | None]:
    """Store rows in order as a run, inline if tiny, else as parts; also give the blobs to delete if it is refused."""
    if table.num_rows == 0:
        return (), None
    config = access.config
    most = config.inline_part_bytes * min(share, SHARE_MAX)
    if inline and table.nbytes <= 16 * most:
        data = encode_inline(table)
        # Full by what is known already: the commit would only say so.
        fits = access.known().inline_bytes + len(data) <= config.inline_total_bytes
        if fits and len(data) <= most:
            return (Run((inline_part(table, data),), Order.SORTED, id),), None
    writer = access.committer.writer(access.id)
    shared = access.shared
    target = Target(access.id, writer, schema, id, shared.blob, config, sleep=shared.sleep)
    uploads = Uploads(
        config.outstanding_parts,
        shared.pool if table.nbytes > config.part_bytes else None,
        shared.counters,
        target.clock,
    )
    run = RunWriter(target, uploads, fresh_id)
    lists: list[str] = []

    def put(key: str, data: bytes) -> None:
        lists.append(key)
        target.put(key, data)

    try:
        run.add([table])
        listed = spill(
            run.finish(),
            lambda: target.key(fresh_id("h")),
            put,
            limit=config.run_parts,
        )
    except BaseException:
        # Nothing refers to it yet. Also what failed: it may have happened.
        if left := delete_keys([*run.abort(), *lists], shared.blob, None):
            count(shared.counters, "left to the sweep", left)
        raise
    runs = (Run(listed, Order.SORTED, id),)
    return runs, HollowBatch(unplaced_description(schema.arity), table.num_rows, runs)


def unplaced_description(arity: int) -> Description:
    """Describe a batch whose interval is decided when it is committed."""
    minimum = Frontier.minimum(arity)
    return Description(minimum, Frontier(), minimum)
