"""Rows that an arrangement need not keep: dropped when they are merged, never retracted.

A filter is a hint that only ever rejects more: what it rejects once is never wanted again. A merge applies it to its
output, so rows go some time after the filter is set, and reads before that still give them. A filter that is set later
applies to earlier rows, when they are merged next.

A filter of values may keep, of each key, some rows that it rejects: the last before the first that it accepts, the
largest, or the smallest. Which ones these are depends on all batches, so the others are asked for the keys of a merge.
A row goes only if the merge holds all of it: readers see the whole count of a row, or nothing, never a remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.combine_chunks import Piece, SortedUpdates, piece_at
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.kernels.comparable_words import Probes, compare
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.row_words import single
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UsageError

Mask = NDArray[np.bool_]
RowFilter = Predicate | Callable[[pa.Table], object]
"""A condition on rows, or a function of a table to a flag per row."""

_OTHERS = 1 << 32
"""What a row of another batch counts, where a row of the merge counts one."""


class Keep(Enum):
    """Which of the rows that a filter rejects are kept, for each key."""

    LAST = "last"
    """Those before the first row that it accepts."""
    TOP = "top"
    """The largest."""
    BOTTOM = "bottom"
    """The smallest."""


@dataclass(frozen=True, slots=True)
class ValueFilter:
    """A condition on rows, and how many of the others to keep for each key."""

    where: RowFilter
    """Rows that it accepts are kept."""
    keep: Keep | None = None
    """Which of the others are kept."""
    count: int = 0
    """How many of them, for each key."""

    def __post_init__(self) -> None:
        if (self.keep is None) != (self.count == 0) or self.count < 0:
            raise UsageError(f"a filter keeps a positive number of rejected rows of each key, not {self.count}")


@dataclass(frozen=True, slots=True)
class RetentionFilters:
    """What an arrangement need not keep."""

    keys: RowFilter | None = None
    """Keys that are kept."""
    values: ValueFilter | None = None
    """Rows that are kept."""

    @property
    def is_set(self) -> bool:
        """Return whether there is a filter."""
        return self.keys is not None or self.values is not None

    @property
    def needs_others(self) -> bool:
        """Return whether the filter depends on all batches, and not only on those that are merged."""
        return self.values is not None and self.values.keep is not None

    def retain(self, updates: SortedUpdates, layout: Layout, others: Sequence[Batch]) -> SortedUpdates | None:
        """Return the updates of a merge that are kept; None if there is none.

        `others` are the batches that are not merged; they matter only if `needs_others`.
        """
        table = _table(updates, layout)
        kept = np.ones(updates.rows, np.bool_)
        if self.keys is not None:
            kept &= _mask(self.keys, table.select(layout.by))
        if self.values is not None:
            accepted = _mask(self.values.where, table)
            if self.values.keep is not None and not (accepted | ~kept).all():
                # Rows of a key are counted where updates have one time. Until they are folded to it, all are kept.
                is_folded = isinstance(updates.times[0], int)
                accepted = _kept_beside(self.values, updates, layout, others) if is_folded else kept
            kept &= accepted
        if kept.all():
            return updates
        places = np.flatnonzero(kept)
        return _taken(updates, places) if places.size else None


def _kept_beside(wanted: ValueFilter, updates: SortedUpdates, layout: Layout, others: Sequence[Batch]) -> Mask:
    """Return which rows of a merge are kept by a filter that keeps some rejected ones too.

    The rows of all batches, each once, are put in order. Two consolidations say of each where it is and whether it
    counts: the order of rows is the same in all tables, so flags are aligned by it.
    """
    names = list(layout.order)
    ours = _table(updates, layout).select(names)
    probes = Probes([single(column) for column in _each_once(ours.select(layout.by)).columns])
    pieces = [piece_at(chunk, rows) for batch in others for chunk, rows in batch.locate(probes)]
    theirs = [pa.table({name: piece.columns[name] for name in names}) for piece in pieces]
    found = [_with_diff(ours, 1), *(_with_diff(table, _OTHERS) for table in theirs)]
    every = consolidate(pa.concat_tables(found), names)
    codes = every.column(DIFF).to_numpy()
    rows = every.select(names)
    counted = [_with_diff(ours, updates.diff_array())]
    counted += [_with_diff(table, _diffs(piece)) for table, piece in zip(theirs, pieces, strict=True)]
    net = consolidate(pa.concat_tables(counted), names).select(names)
    both = consolidate(pa.concat_tables([_with_diff(rows, 1), _with_diff(net, 2)]), names)
    is_row = both.column(DIFF).to_numpy() > 1
    kept = _ranked(wanted, rows, layout, is_row)
    # SUBTLE: a row with a part elsewhere stays whole (test_a_row_with_a_part_in_another_batch_stays_whole).
    kept |= codes >= _OTHERS
    ours_kept: Mask = kept[codes % _OTHERS > 0]
    return ours_kept


def _ranked(wanted: ValueFilter, rows: pa.Table, layout: Layout, is_row: Mask) -> Mask:
    """Return which of the rows in order are kept; those that count nothing are not ranked, and not kept."""
    accepted = _mask(wanted.where, rows.select(layout.schema.names)) & is_row
    rejected = is_row & ~accepted
    starts = _key_starts(rows, layout)
    group = np.cumsum(starts) - 1
    firsts = np.flatnonzero(starts)
    if wanted.keep is Keep.LAST:
        # Only what comes before the first row that is accepted.
        seen = np.cumsum(accepted)
        rejected &= seen - accepted == (seen - accepted)[firsts][group]
    running = np.cumsum(rejected)
    before: NDArray[np.int64] = (running - rejected)[firsts]
    rank: NDArray[np.int64] = running - before[group]
    if wanted.keep is not Keep.BOTTOM:
        rank = np.add.reduceat(rejected.astype(np.int64), firsts)[group] - rank + 1
    return accepted | (rejected & (rank <= wanted.count))


def _key_starts(rows: pa.Table, layout: Layout) -> Mask:
    """Return which rows in order begin a key."""
    columns = [single(rows.column(name)) for name in layout.by]
    starts = np.ones(rows.num_rows, np.bool_)
    if rows.num_rows > 1:
        before = [each.slice(0, len(each) - 1) for each in columns]
        starts[1:] = compare([each.slice(1) for each in columns], before) != 0
    return starts


def _mask(where: RowFilter, table: pa.Table) -> Mask:
    """Return for which rows a condition is true."""
    given = where.mask(table) if isinstance(where, Predicate) else where(table)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        given = given.fill_null(False).to_numpy(zero_copy_only=False)
    mask = np.asarray(given)
    if mask.shape != (table.num_rows,) or mask.dtype != np.bool_:
        raise UsageError(f"a filter must give one flag for each of {table.num_rows} rows")
    return mask


def _table(updates: SortedUpdates, layout: Layout) -> pa.Table:
    return pa.Table.from_arrays([updates.columns[name] for name in layout.schema.names], schema=layout.schema.arrow)


def _with_diff(table: pa.Table, diff: int | NDArray[np.int64]) -> pa.Table:
    return table.append_column(DIFF, pa.array(np.broadcast_to(np.asarray(diff, np.int64), table.num_rows)))


def _each_once(keys: pa.Table) -> pa.Table:
    return consolidate(_with_diff(keys, 1), keys.column_names).select(keys.column_names)


def _diffs(piece: Piece) -> int | NDArray[np.int64]:
    return 1 if piece.diffs is None else piece.diffs.astype(np.int64)


def _taken(updates: SortedUpdates, places: NDArray[np.int64]) -> SortedUpdates:
    named = pa.array(places)
    columns = {name: column.take(named) for name, column in updates.columns.items()}
    times = tuple(each if isinstance(each, int) else each[places] for each in updates.times)
    diffs = None if updates.diffs is None else updates.diffs[places]
    return SortedUpdates(columns, times, diffs, len(places))  # type: ignore[arg-type]
