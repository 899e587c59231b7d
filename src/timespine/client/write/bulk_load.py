"""Bulk load: a stream of rows becomes one commit, within the memory of a few parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import pyarrow as pa

from timespine.client.context import Access
from timespine.client.load.bounded_batches import bounded
from timespine.client.results import CommitResult
from timespine.client.write.batch_writer import Writer
from timespine.client.write.prebuilt_steps import PrebuiltAppendStep
from timespine.client.write.prepare import next_free_time, require_key_columns, upper_after
from timespine.client.write.stage import did_not_commit
from timespine.client.write.step_commit import commit_steps
from timespine.columnar.ingest.update_table import update_table
from timespine.core.transitions import HeartbeatWriter
from timespine.errors import TimespineError, UsageError

Progress = Callable[[int], None]
"""Called with the number of rows taken over so far."""


def load(
    access: Access, batches: Iterable[pa.RecordBatch], progress: Progress | None = None, operation: str = "load"
) -> CommitResult:
    """Append all rows at the next free time, as one commit, within the memory of a few parts."""
    state = access.state()
    _, schema = access.schema(state)
    if schema.arity != 1:
        raise UsageError("a bulk load needs totally ordered times")
    at = next_free_time(access, state.upper)
    writer = Writer(access)
    rows = 0
    beaten_ms = access.now_ms()
    with writer.builder((at,)) as builder:
        for batch in chain.from_iterable(map(bounded, batches)):
            builder.add(update_table(require_key_columns(batch, schema), schema, (at,)))
            rows += batch.num_rows
            if access.now_ms() - beaten_ms >= access.config.writer_lease_ms // 4:
                beaten_ms = access.now_ms()
                access.committer.commit((access.id, HeartbeatWriter(writer.id)))
            if progress is not None:
                progress(rows)
        built = builder.finish(upper_after(at))
    step = PrebuiltAppendStep(access, [], operation, floats=True, written=at, rows=built.len, runs=built.runs)
    try:
        (committed,) = commit_steps(step)
    except TimespineError as error:
        if did_not_commit(error):
            writer.delete(built)
        raise
    assert isinstance(committed, CommitResult)
    writer.hand_over(built)
    return committed
