"""Consolidation: each row once, in order, with the sum of its diffs.

    for every row:   sum(diff of the row in the result) == sum(diff of the row in the input)

The result is ascending, has no row twice and no diff of zero. Rows become
numbers (`row_words`); these are sorted with the place of the row in their low bits;
rows of equal numbers are told apart (`sort_equal_words`); diffs are summed; and the rows that
remain are picked from the input, once (`take_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.row_words import START, WORD_BITS, Index, Packed, Position, pack, single
from timespine.columnar.kernels.sort_equal_words import Flags, break_ties, group_blocks
from timespine.columnar.kernels.take_rows import narrow, read_back, take
from timespine.columnar.kernels.text_words import Words, blocks
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import CorruptionError, DiffOverflow, UsageError
from timespine.hints import Hint
from timespine.model.time import INT64_MAX

_HALF_BITS = 32

_FEW = 4
"""The reciprocal of the share of rows equal to the one before, below which they are added one by one."""


class RowOverflow(DiffOverflow):
    """The diffs of some rows of a table add up to more than 64 bits can count."""

    def __init__(self, places: Index) -> None:
        super().__init__("the diffs of a row add up to more than 64 bits can count")
        self.places = [int(places[0]), int(places[-1])]
        """The places of the first and the last of these rows in the table."""
        self.rows: pa.Table | None = None
        """Those two rows, once a caller that knows the table has set them."""

    def explain(self, collection: str, key: Sequence[str]) -> DiffOverflow:
        """Say what to do about the rows. Messages carry no rows: `key_range` has the keys, if Python has values."""
        named = DiffOverflow(
            f"a row of {collection} counts more than 64 bits can as of this time", hint=Hint("append-opposite")
        )
        if self.rows is not None:
            keys = self.rows.select([name for name in key if name in self.rows.column_names])
            with suppress(OverflowError, ValueError):
                first, last = keys.to_pylist()
                named.key_range = (first, last)
        return named


def consolidate(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """Return the table sorted by `order`, equal rows summed, zeros dropped; the table itself if there is nothing to do.

    `order` names all columns but `_diff`. A sum that does not fit an int64 is a DiffOverflow.
    """
    return consolidate_runs(table, order, (), 0)


def consolidate_inputs(inputs: Sequence[Sequence[pa.Table]], order: Sequence[str], cut: int) -> pa.Table:
    """Return the same for sorted runs, each of several tables."""
    tables = [table for each in inputs for table in each]
    rows = [sum(table.num_rows for table in each) for each in inputs]
    starts = [0, *accumulate(rows[:-1])]
    return consolidate_runs(tables[0] if len(tables) == 1 else pa.concat_tables(tables), order, starts, cut)


def consolidate_runs(table: pa.Table, order: Sequence[str], starts: Sequence[int], cut: int) -> pa.Table:
    """Return the same for a table of sorted runs, one after the other, that begin at `starts`.

    If one is seen not to be ascending in the first `cut` columns of the order, that is a CorruptionError.
    """
    if table.num_columns != len(order) + 1:
        raise UsageError(f"{len(order)} columns and a diff are not the {table.num_columns} columns of the table")
    rows = table.num_rows
    if rows == 0 or (rows == 1 and table.column(DIFF)[0].as_py()):
        return table
    columns = [single(table.column(name)) for name in order]
    packed = pack(columns, rows, until_apart=True)
    if starts:
        _check_ascending(packed, starts, cut)
    arranged = _arrange(columns, packed)
    diffs = single(table.column(DIFF)).to_numpy()
    if arranged.keys is None and arranged.index is None and arranged.first is None and diffs.all():
        return table
    slots = [slot for slot in packed.slots if packed.used - slot.end >= arranged.dropped]
    try:
        index, words, sums = _net(arranged, diffs, bool(slots))
    except RowOverflow as error:
        error.rows = table.select(list(order)).take(error.places)
        raise
    chosen: dict[str, pa.Array | pa.ChunkedArray] = {DIFF: pa.array(sums)}
    for slot in slots:
        column = columns[slot.column]
        shift = packed.used - slot.end - arranged.dropped
        chosen[order[slot.column]] = read_back(words, slot, shift, column.type, column.null_count > 0)
    left = {}
    for name, column in zip(order, columns, strict=True):
        kind = table.schema.field(name).type
        if column.type != kind:
            chosen[name] = narrow(column, index, kind)
        elif name not in chosen:
            left[name] = column
    chosen.update(zip(left, take(list(left.values()), index), strict=True))
    return pa.Table.from_arrays([chosen[name] for name in table.column_names], schema=table.schema)


def consolidate_words(
    words: Words, exact: bool, columns: Sequence[pa.Array], diffs: NDArray[np.int64]
) -> tuple[Index, NDArray[np.int64]]:
    """Consolidate rows by words that are known: which rows remain, in order, and the sums of their diffs.

    The words are of the first of all `columns` (`probe.absolute_words`), and tell different values of it apart if
    they are exact. One stable sort of them merges sorted runs that lie one after the other. Rows whose word no other
    row has pass; only the others are compared by their columns.
    """
    rows = len(words)
    if rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    arranged = _Arranged(words, False)
    ordered = words
    if not (words[1:] >= words[:-1]).all():
        arranged.index = np.argsort(words, kind="stable")
        ordered = words.take(arranged.index)
    first = np.empty(rows, np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    if not first.all():
        if arranged.index is None:
            arranged.index = np.arange(rows)
        rest = Position(1) if exact else START
        if rest.column < len(columns):
            break_ties(columns, Packed(words, rest=rest), 0, arranged.index, first)
        arranged.first = first
    index, _, sums = _net(arranged, diffs, False)
    return index, sums


@dataclass(slots=True)
class _Arranged:
    """The order of the rows of a table."""

    words: Words
    """The words of the rows as they are."""
    is_owned: bool
    """Whether the words may be overwritten."""
    keys: Words | None = None
    """Sorted: the upper bits of a word, then the number of its row. None if the words ascend as they are."""
    row_bits: int = 0
    """Bits of the number of a row."""
    dropped: int = 0
    """Low bits of the words for which the keys have no room."""
    index: Index | None = None
    """The rows in order, if keys alone do not tell."""
    first: Flags | None = None
    """Of the rows in order, which begin a group of equal ones; None if all do."""

    def index_of(self, block: slice) -> Index:
        """Return the rows at some places of the order."""
        if self.index is not None:
            return self.index[block]
        if self.keys is None:
            return np.arange(block.start, block.stop)
        return (self.keys[block] & np.uint64((1 << self.row_bits) - 1)).view(np.int64)

    def words_of(self, block: slice) -> Words:
        """Return their words, without the bits that were dropped. Rows that were told apart later have equal ones."""
        return self.words[block] if self.keys is None else self.keys[block] >> np.uint64(self.row_bits)


def _arrange(columns: Sequence[pa.Array], packed: Packed) -> _Arranged:
    """Sort the rows, and find those that are equal."""
    words, rows = packed.words, len(packed.words)
    arranged = _Arranged(words, packed.is_owned)
    if (words[1:] > words[:-1]).all():
        return arranged
    exact = packed.rest is None
    if not (words[1:] >= words[:-1]).all():
        arranged.row_bits = bits = (rows - 1).bit_length()
        arranged.dropped = dropped = max(packed.used + bits - WORD_BITS, 0)
        exact &= not dropped
        arranged.keys = keys = np.empty(rows, np.uint64)
        for block in blocks(rows):
            part = keys[block]
            np.right_shift(words[block], np.uint64(dropped), out=part)
            part <<= np.uint64(bits)
            part |= np.arange(block.start, block.stop, dtype=np.uint64)
        keys.sort()
    first = np.empty(rows, np.bool_)
    first[0] = True
    ordered = words if arranged.keys is None else arranged.keys
    for block in blocks(rows - 1):
        after = slice(block.start + 1, block.stop + 1)
        np.not_equal((ordered[after] ^ ordered[block]) >> np.uint64(arranged.row_bits), 0, out=first[after])
    if first.all():
        return arranged
    if not exact:
        index = np.concatenate([arranged.index_of(block) for block in blocks(rows)])
        break_ties(columns, packed, arranged.dropped, index, first)
        arranged.index = None if arranged.keys is None and (index[1:] > index[:-1]).all() else index
    arranged.first = None if first.all() else first
    return arranged


def _check_ascending(packed: Packed, starts: Sequence[int], cut: int) -> None:
    """Check that the first `cut` columns, as far as they are seen, do not fall, except where a run begins."""
    seen = packed.used if cut > len(packed.ends) else packed.ends[cut - 1] if cut else 0
    if seen == 0:
        return
    words = packed.words if seen == packed.used else packed.words >> np.uint64(packed.used - seen)
    falls = words[1:] < words[:-1]
    falls[[start - 1 for start in starts if 0 < start < len(words)]] = False
    if falls.any():
        raise CorruptionError("a run is not in order: it cannot be merged")


def _net(arranged: _Arranged, diffs: NDArray[np.int64], is_read_back: bool) -> tuple[Index, Words, NDArray[np.int64]]:
    """Return the rows that remain, in order, one of each group; their words, if asked for; and the sums of the
    diffs."""
    rows, count = len(diffs), 0
    largest = max(abs(int(diffs.min())), abs(int(diffs.max())))
    is_safe = largest <= INT64_MAX // rows
    # Small ones are picked from a smaller array: more of it is in the cache.
    source: NDArray[Any] = diffs.astype(np.int8) if largest < 128 else diffs
    sums = np.empty(rows, np.int64)
    # SUBTLE: large arrays are dear, so what remains is written over the keys and words that it is made of. That is
    # never ahead of what is still to be read, and whatever a block needs of them is copied before it is overwritten.
    index = np.empty(rows, np.int64) if arranged.keys is None else arranged.keys.view(np.int64)
    words = arranged.words if arranged.is_owned and arranged.keys is not None else np.empty(rows, np.uint64)
    for block in group_blocks(rows, arranged.first):
        picked = arranged.index_of(block)
        summed = source.take(picked).astype(np.int64, copy=False)
        places: Index | None = None
        if arranged.first is not None:
            places = np.flatnonzero(arranged.first[block])
            if not is_safe and len(over := _overflowing(summed, places)):
                raise RowOverflow(picked[places[over]])
            summed = _sums(summed, places, arranged.first[block])
        kept = summed != 0
        if not kept.all():
            remain = np.flatnonzero(kept)
            summed = summed[remain]
            places = remain if places is None else places[remain]
        into = slice(count, count + len(summed))
        if is_read_back:
            seen = arranged.words_of(block)
            words[into] = seen if places is None else seen[places]
        index[into] = picked if places is None else picked[places]
        sums[into] = summed
        count = into.stop
    return index[:count], words[:count], sums[:count]


def _sums(diffs: NDArray[np.int64], starts: Index, first: Flags) -> NDArray[np.int64]:
    """Return the sum of each group, modulo 2^64."""
    others = len(diffs) - len(starts)
    if others * _FEW > len(diffs):
        return np.add.reduceat(diffs, starts)
    # Of nearly all groups the first row is the only one. The others are added to theirs.
    sums = diffs[starts]
    places = np.flatnonzero(~first)
    np.add.at(sums, places - np.arange(1, others + 1), diffs[places])
    return sums


def _overflowing(diffs: NDArray[np.int64], starts: Index) -> Index:
    """Return the groups whose sum does not fit: upper and lower halves of the diffs are summed by themselves."""
    half = np.int64(_HALF_BITS)
    lower = np.add.reduceat(diffs & np.int64((1 << _HALF_BITS) - 1), starts)
    upper = np.add.reduceat(diffs >> half, starts) + (lower >> half)
    limit = 1 << (_HALF_BITS - 1)
    return np.flatnonzero((upper < -limit) | (upper >= limit))


def check_weights(table: pa.Table, schema: Schema) -> None:
    """Raise a DiffOverflow if the diffs of one row, whatever their signs and times, add up to more than 64 bits hold.

    Then no sum of some of them, as of any time, can overflow.
    """
    diffs = table.column(DIFF).to_numpy()
    if len(diffs) == 0 or max(-int(diffs.min()), int(diffs.max())) <= INT64_MAX // len(diffs):
        return
    weights = pa.array(np.where(diffs == np.iinfo(np.int64).min, INT64_MAX, np.abs(diffs)))
    rows = table.select(list(schema.order_names)).append_column(DIFF, weights)
    try:
        consolidate(rows, schema.order_names)
    except DiffOverflow:
        raise DiffOverflow(
            "the diffs of a row of this batch add up to more than 64 bits can count, whatever their signs: nothing was "
            "written; append fewer at once"
        ) from None
