"""Bulk load: a stream of rows becomes one commit, in the memory of a few parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import pyarrow as pa

from timespine.client.inner_handles import CollectionHandle
from timespine.client.load.bounded_batches import split_to_bound
from timespine.client.write.prebuilt.batch_writer import Writer
from timespine.client.write.prebuilt.prebuilt_steps import PrebuiltAppendStep
from timespine.client.write.prepare import next_free_time, upper_after
from timespine.client.write.stage_rows import did_not_commit
from timespine.client.write.step_commit import commit_steps
from timespine.client.write_results import CommitResult
from timespine.columnar.ingest.require_key_columns import require_key_columns
from timespine.columnar.ingest.update_table import update_table
from timespine.core.transitions import HeartbeatWriter
from timespine.errors import TimespineError, UsageError

RowsProgress = Callable[[int], None]
"""A function to call with the number of rows loaded so far."""


def bulk_load(
    handle: CollectionHandle,
    batches: Iterable[pa.RecordBatch],
    progress: RowsProgress | None = None,
    operation: str = "load",
) -> CommitResult:
    """Append all rows at the next free time, as one commit, in the memory of a few parts.

    For any size of a decoded file, memory beside that of the process is at most about

        part_bytes * (2 + 1/16) + outstanding_parts * part_bytes * 3 + (3 + outstanding_parts) * BATCH_BYTES

    for the gathered rows, the part that waits for an upload to end, and the parts that are being put
    (`columnar.write.run_writer`); and for a batch before and after conversion, and the batches at the ends of parts,
    which stay in memory as a whole: 596 MiB by default, 209 MiB with `Config(part_bytes=16 << 20)`. The allocator may
    keep a third more (tests/client/load/test_bounded_batches.py).
    """
    state = handle.state()
    _, schema = handle.schema(state)
    if schema.arity != 1:
        raise UsageError("a bulk load needs totally ordered times")
    at = next_free_time(handle, state.upper)
    writer = Writer(handle)
    rows = 0
    beaten_ms = handle.now_ms()
    with writer.builder((at,)) as builder:
        for batch in chain.from_iterable(map(split_to_bound, batches)):
            builder.add(update_table(require_key_columns(batch, schema), schema, (at,)))
            rows += batch.num_rows
            if handle.now_ms() - beaten_ms >= handle.config.writer_lease_ms // 4:
                beaten_ms = handle.now_ms()
                handle.committer.commit((handle.id, HeartbeatWriter(writer.id)))
            if progress is not None:
                progress(rows)
        built = builder.finish(upper_after(at))
    step = PrebuiltAppendStep(handle, [], operation, floats=True, written=at, rows=built.len, runs=built.runs)
    try:
        (committed,) = commit_steps(step)
    except TimespineError as error:
        if did_not_commit(error):
            writer.delete(built)
        raise
    assert isinstance(committed, CommitResult)
    writer.hand_over(built)
    return committed
