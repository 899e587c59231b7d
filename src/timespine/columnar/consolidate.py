"""Consolidation: each row once, in order, with the sum of its diffs.

    for every row:   sum(diff of the row in the result) == sum(diff of the row in the input)

The result is ascending, has no row twice and no diff of zero. Rows become
numbers (`order`); these are sorted with the place of the row in their low bits;
rows of equal numbers are told apart (`ties`); what is left is taken from the
input, once (`gather`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.gather import narrow, read_back, take
from timespine.columnar.order import WORD_BITS, Index, Packed, pack, single
from timespine.columnar.schema import DIFF, TIME, time_names
from timespine.columnar.text import Words
from timespine.columnar.ties import Flags, beginnings, settle
from timespine.errors import CorruptionError, DiffOverflow, UsageError
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import INT64_MAX

_HALF_BITS = 32


def consolidate(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """The table sorted by `order`, equal rows summed, zeros dropped; the table itself if there is nothing to do.

    `order` names all columns but `_diff`. A sum that does not fit an int64 is a DiffOverflow.
    """
    return consolidate_runs(table, order, (), 0)


def consolidate_runs(table: pa.Table, order: Sequence[str], starts: Sequence[int], cut: int) -> pa.Table:
    """The same for a table of sorted runs, one after the other, that begin at `starts`.

    If one is seen not to be ascending in the first `cut` columns of the order, that is a CorruptionError.
    """
    if table.num_columns != len(order) + 1:
        raise UsageError(f"{len(order)} columns and a diff are not the {table.num_columns} columns of the table")
    rows = table.num_rows
    if rows == 0:
        return table
    columns = [single(table.column(name)) for name in order]
    packed = pack(columns, rows)
    if starts:
        _check_ascending(packed, starts, cut)
    arranged = _arranged(columns, packed)
    diffs = single(table.column(DIFF)).to_numpy()
    if arranged.index is None and arranged.first is None and diffs.all():
        return table
    places, sums = _netted(arranged, diffs)
    kinds = [table.schema.field(name).type for name in order]
    chosen = _chosen(columns, kinds, packed, arranged, places)
    by_name = dict(zip(order, chosen, strict=True))
    by_name[DIFF] = pa.array(sums)
    return pa.Table.from_arrays([by_name[name] for name in table.column_names], schema=table.schema)


class _Arranged(NamedTuple):
    """The order of the rows of a table."""

    index: Index | None
    """The rows in order; None if they are in order as they are."""
    first: Flags | None
    """Of the rows in order, which begin a group of equal ones; None if all do."""
    words: Words
    """The words of the rows in order, without their lowest bits."""
    dropped: int
    """How many bits they are without."""


def _arranged(columns: Sequence[pa.Array], packed: Packed) -> _Arranged:
    words, rows = packed.words, len(packed.words)
    exact, dropped = packed.rest is None, 0
    index: Index | None = None
    if (words[1:] > words[:-1]).all():
        return _Arranged(None, None, words, 0)
    if not (words[1:] >= words[:-1]).all():
        row_bits = (rows - 1).bit_length()
        dropped = max(packed.used + row_bits - WORD_BITS, 0)
        keys = (words >> np.uint64(dropped) if dropped else words) << np.uint64(row_bits)
        keys |= np.arange(rows, dtype=np.uint64)
        keys.sort()
        index = (keys & np.uint64((1 << row_bits) - 1)).view(np.int64)
        keys >>= np.uint64(row_bits)
        words = keys
    first = beginnings(words)
    if (dropped or not exact) and not first.all():
        settled = np.arange(rows) if index is None else index
        settle(columns, packed, settled, first)
        index = None if index is None and (settled[1:] > settled[:-1]).all() else settled
    return _Arranged(index, None if first.all() else first, words, dropped)


def _netted(arranged: _Arranged, diffs: NDArray[np.int64]) -> tuple[Index | None, NDArray[np.int64]]:
    """The places, in order, of the rows that remain, None if all do; and their sums."""
    sums = diffs if arranged.index is None else diffs[arranged.index]
    places: Index | None = None
    if arranged.first is not None:
        places = np.flatnonzero(arranged.first)
        sums = _sums(sums, places)
    if not sums.all():
        kept = np.flatnonzero(sums)
        sums = sums[kept]
        places = kept if places is None else places[kept]
    return places, sums


def _chosen(
    columns: Sequence[pa.Array], kinds: Sequence[pa.DataType], packed: Packed, arranged: _Arranged, places: Index | None
) -> list[pa.Array | pa.ChunkedArray]:
    """The rows at some places of the order, column by column."""
    index, words = arranged.index, arranged.words
    if places is not None:
        index, words = (places if index is None else index[places]), words[places]
    assert index is not None
    chosen: dict[int, pa.Array | pa.ChunkedArray] = {}
    for slot in packed.slots:
        shift = packed.used - slot.end - arranged.dropped
        if shift >= 0:
            column = columns[slot.column]
            chosen[slot.column] = read_back(words, slot, shift, column.type, column.null_count > 0)
    for number, kind in enumerate(kinds):
        if columns[number].type != kind:
            chosen[number] = narrow(columns[number], index, kind)
    left = [number for number in range(len(columns)) if number not in chosen]
    chosen.update(zip(left, take([columns[number] for number in left], index), strict=True))
    return [chosen[number] for number in range(len(columns))]


def _check_ascending(packed: Packed, starts: Sequence[int], cut: int) -> None:
    """What is seen of the first `cut` columns must not fall, except where a run begins."""
    seen = packed.used if cut > len(packed.ends) else packed.ends[cut - 1] if cut else 0
    if seen == 0:
        return
    words = packed.words if seen == packed.used else packed.words >> np.uint64(packed.used - seen)
    falls = words[1:] < words[:-1]
    falls[[start - 1 for start in starts if 0 < start < len(words)]] = False
    if falls.any():
        raise CorruptionError("a run is not in order: it cannot be merged")


def _sums(diffs: NDArray[np.int64], starts: Index) -> NDArray[np.int64]:
    """The sum of each group; a DiffOverflow if one does not fit."""
    largest = max(abs(int(diffs.min())), abs(int(diffs.max())))
    if largest * len(diffs) > INT64_MAX and largest * int(np.diff(starts, append=len(diffs)).max()) > INT64_MAX:
        _check_sums(diffs, starts)
    return np.add.reduceat(diffs, starts)


def _check_sums(diffs: NDArray[np.int64], starts: Index) -> None:
    """A DiffOverflow unless every sum fits: upper and lower halves of the diffs are summed by themselves."""
    half = np.int64(_HALF_BITS)
    lower = np.add.reduceat(diffs & np.int64((1 << _HALF_BITS) - 1), starts)
    upper = np.add.reduceat(diffs >> half, starts) + (lower >> half)
    limit = 1 << (_HALF_BITS - 1)
    bad = int(np.count_nonzero((upper < -limit) | (upper >= limit)))
    if bad:
        raise DiffOverflow(f"the diffs of {bad} rows add up to more than 64 bits can count")


def advance(table: pa.Table, since: Frontier) -> pa.Table:
    """The same collection for whoever reads at or after `since`: times are advanced to it.

    Coordinate by coordinate: meet over s in since of join(t, s) is the larger of t and of the least
    s. Rows stay where they are: with several coordinates their order may have to be restored.
    """
    arity = sum(name == TIME or name.startswith(f"{TIME}_") for name in table.column_names)
    if arity == 0:
        raise UsageError("there are no times in the table to advance")
    if check_arity_of(since, arity, "since").is_closed:
        raise UsageError("nobody reads from a closed since on, so times cannot be advanced to it")
    for name, *least in zip(time_names(arity), *since, strict=True):
        before = table.column(name).chunks
        chunks = [_at_least(chunk, min(least)) for chunk in before]
        if any(new is not old for new, old in zip(chunks, before, strict=True)):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(place), pa.chunked_array(chunks, pa.int64()))
    return table


def _at_least(times: pa.Array, least: int) -> pa.Array:
    """The times, the earlier ones replaced by `least`; the array itself if there are none."""
    values = times.to_numpy()
    return times if len(values) == 0 or values.min() >= least else pa.array(np.maximum(values, least))
