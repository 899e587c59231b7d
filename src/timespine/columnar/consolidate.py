"""Consolidation: each row once, in order, with the sum of its diffs.

    for every row:   sum(diff of the row in the result) == sum(diff of the row in the input)

The result is ascending, has no row twice and no diff of zero. Rows become
numbers (`order`); these are sorted with the place of the row in their low bits;
rows of equal numbers are told apart (`ties`); what is left is taken from the
input, once (`gather`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.order import WORD_BITS, Packed, Words, pack, single
from timespine.columnar.schema import DIFF, TIME, time_names
from timespine.columnar.ties import Flags, Index, beginnings, settle
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
    diffs = single(table.column(DIFF)).to_numpy()
    packed = pack(columns, rows)
    if starts:
        _check_ascending(packed, starts, cut)
    index, first = _sorted(columns, packed)
    if index is None and first is None and diffs.all():
        return table
    places: Index | slice = slice(None) if first is None else np.flatnonzero(first)
    moved = diffs if index is None else diffs[index]
    sums = moved if first is None else _sums(moved, np.flatnonzero(first))
    if not sums.all():
        kept = sums != 0
        sums = sums[kept]
        places = np.flatnonzero(kept) if isinstance(places, slice) else places[kept]
    if index is not None:
        places = index[places]
    by_name = {name: column.take(pa.array(places)) for name, column in zip(order, columns, strict=True)}
    by_name[DIFF] = pa.array(sums)
    return pa.Table.from_arrays([by_name[name] for name in table.column_names], schema=table.schema)


def _sorted(columns: Sequence[pa.Array], packed: Packed) -> tuple[Index | None, Flags | None]:
    """The order of the rows, None if they are in order; and which of them begin a group, None if all do."""
    words, rows = packed.words, len(packed.words)
    exact = packed.rest is None
    if (words[1:] > words[:-1]).all():
        return None, None
    if (words[1:] >= words[:-1]).all():
        index, first = np.arange(rows), beginnings(words)
    else:
        row_bits = (rows - 1).bit_length()
        excess = packed.used + row_bits - WORD_BITS
        exact &= excess <= 0
        keys = (words >> np.uint64(excess) if excess > 0 else words) << np.uint64(row_bits)
        keys |= np.arange(rows, dtype=np.uint64)
        keys.sort()
        index = (keys & np.uint64((1 << row_bits) - 1)).view(np.int64)
        keys >>= np.uint64(row_bits)
        first = beginnings(keys)
    if not exact and not first.all():
        settle(columns, packed, index, first)
    return index, None if first.all() else first


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
        column = table.column(name)
        chunks = [_at_least(chunk, min(least)) for chunk in column.chunks]
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(place), pa.chunked_array(chunks, pa.int64()))
    return table


def _at_least(times: pa.Array, least: int) -> pa.Array:
    """The times, the earlier ones replaced by `least`; the array itself if there are none."""
    values = times.to_numpy()
    return times if len(values) == 0 or values.min() >= least else pa.array(np.maximum(values, least))
