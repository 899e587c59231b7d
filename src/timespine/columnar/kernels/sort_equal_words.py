"""Rows that their words cannot tell apart, put in order.

A word holds 64 bits of a row. Rows with equal words form a group; most groups are
the updates of one row, some are rows that differ further on. Only these rows are
looked at again, word by word: the next word of a row counts from the smallest of
its group if it must, so that whatever a group has in common takes no bits, and
(group, word, place in the group) is sorted as one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.row_words import WORD_BITS, Index, Packed, Position, is_fixed, is_text, pack
from timespine.columnar.kernels.text_words import Text, Words, block_rows
from timespine.libraries import pl

Flags = NDArray[np.bool_]

_DENSE = 2
"""The reciprocal of the share of tied rows from which the next words are made of all rows: that reads in order."""

_BEGUN_MAX = 4
"""Words that may begin in one column. What is still tied then is long, and compared whole."""

_SAMPLED = 1 << 10
_FEW = 16
"""Text is compared whole if, of `_SAMPLED` tied rows, less than one of `_FEW` differs from the one before."""


class Groups:
    """Rows that lie side by side in groups."""

    def __init__(self, first: Flags) -> None:
        self.starts: Index = np.flatnonzero(first)
        """Where each group begins."""
        self.sizes: Index = np.diff(self.starts, append=len(first))
        """Rows of each group."""
        self.bits = int(self.starts[-1]).bit_length()
        """Bits of the place where a group begins."""
        self.place_bits = (int(self.sizes.max()) - 1).bit_length()
        """Bits of a place inside of a group."""

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value per group, repeated for each of its rows."""
        return np.repeat(values, self.sizes)


def break_ties(columns: Sequence[pa.Array], packed: Packed, dropped: int, index: Index, first: Flags) -> None:
    """Order the rows of equal words by the rest of the columns. Changes `index` and `first`.

    `index` lists the rows in the order of their words without some of their low bits, `first` marks
    those that begin a group. Afterwards a group is rows that are equal in all columns.
    """
    if dropped:
        _refine(packed.words, dropped, index, first)
    rest, begun = packed.rest, 0
    while rest is not None and not first.all():
        if begun >= _BEGUN_MAX or _is_compared_whole(columns[rest.column], rest.byte, index, first):
            _break_by_column(columns[rest.column], index, first)
            after = Position(rest.column + 1) if rest.column + 1 < len(columns) else None
        else:
            after = _break_by_word(columns, rest, index, first)
        begun = begun + 1 if after is not None and after.column == rest.column else 0
        rest = after


def _break_by_word(columns: Sequence[pa.Array], rest: Position, index: Index, first: Flags) -> Position | None:
    """Go on by one word. Where to go on after it."""
    tied = ~_singletons(first)
    if np.count_nonzero(tied) * _DENSE > len(index):
        packed = pack(columns, len(index), rest)
        words = packed.words
    else:
        rows = index[tied]
        packed = pack(columns, len(index), rest, only=rows)
        words = np.empty(len(index), np.uint64)
        words[rows] = packed.words
    _refine(words, packed.used, index, first)
    return packed.rest


def _is_compared_whole(column: pa.Array, byte: int, index: Index, first: Flags) -> bool:
    """Tell whether to compare the values of a column before putting them in order by their bytes.

    That is so if there is no other way, or if they are long and seem to be equal inside of groups.
    """
    if not is_text(column.type):
        return not is_fixed(column.type)
    if Text(column).longest <= byte + 8:
        return False
    begin = int(first.argmin()) - 1
    some = slice(begin, begin + _SAMPLED)
    differs = _differs(pl.Series(column.take(pa.array(index[some]))), first[some])
    return bool(np.count_nonzero(differs) * _FEW < np.count_nonzero(~first[some]))


def _break_by_column(column: pa.Array, index: Index, first: Flags) -> None:
    """Continue to the end of a column. Only groups with different values in it need an order."""
    where = np.flatnonzero(~_singletons(first))
    rows, groups = index[where], Groups(first[where])
    values = pl.Series(column.take(pa.array(rows)))
    mixed = np.logical_or.reduceat(_differs(values, first[where]), groups.starts)
    if not mixed.any():
        return
    inside = np.flatnonzero(groups.spread(mixed))
    number = groups.spread(np.arange(len(groups.starts), dtype=np.uint32))[inside]
    words = np.zeros(len(index), np.uint64)
    words[rows[inside]] = _ranks(values.gather(inside), number)
    _refine(words, WORD_BITS, index, first)


def _differs(values: pl.Series, first: Flags) -> Flags:
    """Return which values are not that of the row before, in the same group."""
    differs = np.zeros(len(values), np.bool_)
    differs[1:] = values[1:].ne_missing(values[:-1]).to_numpy()
    differs[first] = False
    return differs


def _ranks(values: pl.Series, groups: NDArray[np.uint32]) -> Words:
    """Return the rank of every value, whatever its type, comparable inside of its group."""
    frame = pl.DataFrame({"group": groups, "value": values})
    order = frame.select(pl.arg_sort_by("group", "value")).to_series()
    ordered = values.gather(order)
    rises = np.zeros(len(values), np.uint64)
    rises[1:] = ordered[1:].ne_missing(ordered[:-1]).to_numpy()
    ranks = np.empty(len(values), np.uint64)
    ranks[order.to_numpy()] = np.cumsum(rises)
    return ranks


def group_blocks(rows: int, first: Flags | None) -> Iterator[slice]:
    """Yield all rows, in blocks that hold whole groups; None: every row is a group."""
    start, step = 0, block_rows()
    while start < rows:
        stop = min(start + step, rows)
        if first is not None and stop < rows:
            ahead = first[stop:]
            skipped = int(ahead.argmax())
            stop = stop + skipped if ahead[skipped] else rows
        yield slice(start, stop)
        start = stop


def _refine(words: Words, used: int, index: Index, first: Flags) -> None:
    """Order groups by the `used` lower bits of the words of their rows, and split them."""
    mask = np.uint64((1 << used) - 1)
    for block in group_blocks(len(index), first):
        rows, is_first = index[block], first[block]
        if is_first.all():
            continue
        tied = ~_singletons(is_first)
        if np.count_nonzero(tied) * 2 > len(rows):
            _refine_block(words, mask, rows, is_first)
            continue
        where = np.flatnonzero(tied)
        some, some_first = rows[where], is_first[where]
        _refine_block(words, mask, some, some_first)
        rows[where], is_first[where] = some, some_first


def _refine_block(words: Words, mask: np.uint64, rows: Index, first: Flags) -> None:
    digits = words.take(rows)
    digits &= mask
    if ((digits[1:] == digits[:-1]) | first[1:]).all():
        return
    groups = Groups(first)
    room = WORD_BITS - groups.bits - groups.place_bits
    width = int(mask).bit_length()
    excess: NDArray[Any] | None = None
    if width > room:
        digits -= groups.spread(np.minimum.reduceat(digits, groups.starts))
        width = int(digits.max()).bit_length()
    if width > room:
        # A few groups need more bits than there are. They get their upper ones now, and come back.
        excess = np.frexp(np.maximum.reduceat(digits, groups.starts).astype(np.float64))[1] - room
        digits >>= groups.spread(np.maximum(excess, 0).astype(np.uint64))
        width = room
    _sort(rows, first, groups, digits, width)
    if excess is not None:
        where = np.flatnonzero(groups.spread(excess > 0) & ~_singletons(first))
        some, some_first = rows[where], first[where]
        if some.size:
            _refine_block(words, mask, some, some_first)
            rows[where], first[where] = some, some_first


def _sort(rows: Index, first: Flags, groups: Groups, digits: Words, width: int) -> None:
    """Put the rows of each group in the order of their digits, and split it where they differ."""
    starts = groups.spread(groups.starts.view(np.uint64))
    places = np.arange(len(rows), dtype=np.uint64)
    places -= starts
    starts <<= np.uint64(width)
    digits |= starts
    digits <<= np.uint64(groups.place_bits)
    digits |= places
    digits.sort()
    source = digits >> np.uint64(width + groups.place_bits)
    np.bitwise_and(digits, np.uint64((1 << groups.place_bits) - 1), out=places)
    source += places
    rows[:] = rows.take(source.view(np.int64))
    digits >>= np.uint64(groups.place_bits)
    np.not_equal(digits[1:], digits[:-1], out=first[1:])


def _singletons(first: Flags) -> Flags:
    """Return which rows are the only one of their group."""
    alone = first.copy()
    alone[:-1] &= first[1:]
    return alone
