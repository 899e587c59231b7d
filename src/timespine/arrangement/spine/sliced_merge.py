"""A merge of some batches into one, slice by slice: a slice is a range of keys of all of them.

For every row and every t >= since, without a filter:

    sum(diff of the row in the result at times <= t)  ==  sum(diff of the row in the inputs at times <= t)

Between two slices a merge keeps a place per input and what it has put out. Its inputs stay as they are, so readers go
on with them, and a merge may be given up at any time. A large chunk that no other input reaches into is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from timespine.arrangement.batch import chunk as chunks
from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.chunk import Chunk, cut_chunks
from timespine.arrangement.batch.combine_chunks import SortedUpdates, advance, fold_times, piece_between
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.batch.walk_batches import Walk
from timespine.arrangement.spine.retention_filters import RetentionFilters
from timespine.columnar.scan.visibility import Coordinates
from timespine.core.batch import wrap_int64
from timespine.errors import CorruptionError
from timespine.model.frontier import Frontier, advance_by
from timespine.model.time import Time

PASSED = 4
"""The reciprocal of the part of a full chunk from which a chunk that stands alone passes without a copy."""

KEEP_ALL = RetentionFilters()


class SlicedMerge:
    """One merge under way."""

    def __init__(
        self,
        inputs: Sequence[Batch],
        layout: Layout,
        since: Frontier,
        retention: RetentionFilters = KEEP_ALL,
        others: Callable[[], Sequence[Batch]] = lambda: (),
    ) -> None:
        """Merge batches. `others` gives those that are not merged, for filters that ask for them."""
        self._inputs = tuple(inputs)
        self._layout = layout
        self._since = since
        self._retention = retention
        self._others = others
        # Filters look at every row.
        self._walk = Walk(inputs, alone_rows=None if retention.is_set else -(-chunks.CHUNK_ROWS // PASSED))
        self._put_out: list[Chunk] = []
        self._pending: list[SortedUpdates] = []
        self._pending_rows = 0
        self.slices = 0
        """Slices that were merged."""
        self.passed = 0
        """Chunks that passed without a copy."""

    @property
    def left(self) -> int:
        """Return how many updates of the inputs are still to come."""
        return self._walk.left

    @property
    def is_done(self) -> bool:
        """Return whether all updates of the inputs were taken."""
        return not self._walk.left

    def step(self, rows: int) -> int:
        """Merge the next slice, of about `rows` updates; return how many it had."""
        before = self._walk.left
        if not before:
            return 0
        self.slices += 1
        alone = self._walk.step_alone()
        if alone is not None:
            self._pass(alone)
        else:
            merged = fold_times(self._walk.step(rows), self._layout, self._since)
            if merged is not None and self._retention.is_set:
                others = self._others() if self._retention.needs_others else ()
                merged = self._retention.retain(merged, self._layout, others)
            if merged is not None:
                self._add(merged)
        return before - self._walk.left

    def finish(self) -> Batch | None:
        """Make the merged batch, once all slices are done; None if nothing is left."""
        self._flush()
        merged = Batch(self._put_out) if self._put_out else None
        if not self._retention.is_set:
            before = wrap_int64(sum(batch.diff_sum for batch in self._inputs))
            after = 0 if merged is None else merged.diff_sum
            if before != after:
                raise CorruptionError(f"a merge of diffs that add up to {before} gave {after}: it is refused")
        return merged

    def _pass(self, chunk: Chunk) -> None:
        """Put out a chunk without a copy of its rows; only if its times must be folded one by one, with one."""
        if chunk.times is not None and advance(chunk.times, self._since) is not chunk.times:
            merged = fold_times([piece_between(chunk, 0, chunk.rows)], self._layout, self._since)
            if merged is not None:
                self._add(merged)
            return
        self._flush()
        self.passed += 1
        if chunk.time is not None:
            moved = advance_by(chunk.time, self._since)
            if moved != chunk.time:
                chunk = Chunk(chunk.columns, chunk.index, moved, None, chunk.diffs)
        self._put_out.append(chunk)

    def _add(self, merged: SortedUpdates) -> None:
        """Keep updates until they fill a chunk."""
        if self._pending_rows + merged.rows > chunks.CHUNK_ROWS:
            self._flush()
        self._pending.append(merged)
        self._pending_rows += merged.rows

    def _flush(self) -> None:
        if not self._pending:
            return
        pending, names = self._pending, self._layout.schema.names
        rows = {name: pa.chunked_array([each.columns[name] for each in pending]) for name in names}
        diffs = np.concatenate([each.diff_array() for each in pending])
        self._put_out.extend(cut_chunks(pa.table(rows), _times(pending), diffs, self._layout))
        self._pending, self._pending_rows = [], 0


def merge_batches(
    inputs: Sequence[Batch],
    layout: Layout,
    since: Frontier,
    retention: RetentionFilters = KEEP_ALL,
    others: Callable[[], Sequence[Batch]] = lambda: (),
) -> Batch | None:
    """Merge batches in one go; None if nothing is left. `others` gives those that are not merged."""
    merge = SlicedMerge(inputs, layout, since, retention, others)
    while not merge.is_done:
        merge.step(chunks.CHUNK_ROWS)
    return merge.finish()


def _times(updates: Sequence[SortedUpdates]) -> Coordinates | Time:
    """Return the times of all updates by coordinate, or the time of all: that one takes no memory."""
    first = updates[0].times
    if all(isinstance(each.times[0], int) and each.times == first for each in updates):
        return first
    return tuple(
        np.concatenate([np.broadcast_to(np.asarray(each.times[place], np.int64), each.rows) for each in updates])
        for place in range(len(first))
    )
