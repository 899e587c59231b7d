"""The order of rows as one number per row.

Rows are ordered column by column: nulls first, false before true, numbers by
value with NaN largest and -0.0 equal to 0.0, strings and binary by their bytes.
Comparing rows one by one is slow, sorting 64-bit integers is fast. So a row
becomes a *word*: the columns one after the other as unsigned *digits*, most
significant first, as far as 64 bits go. Then

    word(a) < word(b)    implies   row a < row b
    word(a) == word(b)   implies   row a == row b, if the words are exact

A digit takes only the bits that the table at hand needs: a number counts from
the smallest of its column; text loses the prefix that all values share and is
written in the alphabet that it uses, or is a rank if there are few values. A first
column of few values therefore leaves room for the columns after it. Words of
different tables do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.text_words import Text, Words, bits, blocks

Index = NDArray[np.int64]

WORD_BITS = 64
WRAP = (1 << WORD_BITS) - 1

OFFSET_MAX = (1 << 31) - 1
"""Bytes of text, or elements of lists, that one array can address with the offsets of the usual types."""

_SAMPLED_ROWS = 1 << 12
_SAMPLED_TOGETHER = 1 << 5
"""Rows that are looked at to see whether rows differ already, and how many neighbours are among them."""

INTEGERS: dict[int, Any] = {
    pa.int8().id: np.int8,
    pa.int16().id: np.int16,
    pa.int32().id: np.int32,
    pa.int64().id: np.int64,
    pa.uint8().id: np.uint8,
    pa.uint16().id: np.uint16,
    pa.uint32().id: np.uint32,
    pa.uint64().id: np.uint64,
    pa.date32().id: np.int32,
    pa.timestamp("us").id: np.int64,
}
"""Types whose values are integers in memory, by the id of the type."""

_FLOATS: dict[int, Any] = {pa.float32().id: np.float32, pa.float64().id: np.float64}
_TEXTS = {pa.string().id, pa.binary().id, pa.large_string().id, pa.large_binary().id}
_BOOL = pa.bool_().id
_DECIMAL = pa.decimal128(1, 0).id


PRESENCE, VALUE, LOWER = 0, 1, 2
"""The digits of a column: whether there is a value, if there are nulls; the value; its lower half, of a decimal."""


class Position(NamedTuple):
    """How far into the columns words reach: everything before this is in them."""

    column: int
    digit: int = 0
    """The first digit of the column that is not in them, one of PRESENCE, VALUE, LOWER."""
    byte: int = 0
    """Bytes of text that are in them."""


START = Position(0)


class Digit(NamedTuple):
    """One number per row, as part of its word."""

    values: NDArray[Any]
    """Integers of any width."""
    low: int
    """What they count from."""
    width: int
    """Bits that they take."""
    dropped: int
    """Low bits for which there was no room."""


class Slot(NamedTuple):
    """Where a column lies in the words, wholly, so that it can be read back from them."""

    column: int
    low: int
    """What its values count from."""
    width: int
    """Bits of the value. If the column has nulls, the bit before says whether there is a value."""
    end: int
    """Bits from the top of the word to the end of the value."""
    values: pa.Array | None = None
    """What it stands for, if it is the rank of something. Otherwise the column is one of integers."""


@dataclass(slots=True)
class Packed:
    """Words, and what they are made of."""

    words: Words
    """One per row."""
    used: int = 0
    """Bits of a word that are in use: the lower ones."""
    rest: Position | None = None
    """Where the columns go on that did not fit; None if the words are exact."""
    ends: list[int] = field(default_factory=list)
    """For each column that fitted, the bits from the top to its end."""
    slots: list[Slot] = field(default_factory=list)
    """The columns that can be read back."""
    digits: list[Digit] = field(default_factory=list)
    """What the words are put together from."""
    is_owned: bool = False
    """Whether the words may be overwritten: they are not the memory of a column."""

    def push(self, values: NDArray[Any], low: int, high: int) -> bool:
        """Append a digit, or as many of its high bits as there is room for: then False."""
        width = (high - low).bit_length()
        room = WORD_BITS - self.used
        fits = width <= room
        if width and room:
            taken = min(width, room)
            self.digits.append(Digit(values, low, taken, width - taken))
            self.used += taken
        return fits

    def tells_apart(self) -> bool:
        """Tell whether the digits so far are different for all rows, as far as a sample shows.

        Then further columns are looked at only for the rows that are found to be tied. The sample has
        neighbours in it: if rows are in order, these are the ones that may be equal.
        """
        rows = len(self.words)
        if 1 << self.used < rows:
            return False
        if rows <= _SAMPLED_ROWS:
            sample = self._assemble(slice(None), rows)
        else:
            begins = np.linspace(0, rows - _SAMPLED_TOGETHER, _SAMPLED_ROWS // _SAMPLED_TOGETHER).astype(np.int64)
            places = (begins[:, np.newaxis] + np.arange(_SAMPLED_TOGETHER)).ravel()
            sample = self._assemble(places, len(places))
        sample.sort()
        return bool((sample[1:] != sample[:-1]).all())

    def assemble(self) -> None:
        """Make the words."""
        if len(self.digits) == 1 and not self.digits[0].low and not self.digits[0].dropped:
            self.words = unsigned(self.digits[0].values)
            return
        self.is_owned = True
        for block in blocks(len(self.words)):
            self._assemble(block, block.stop - block.start, self.words[block])

    def _assemble(self, places: slice | Index, rows: int, out: Words | None = None) -> Words:
        """Return the words at some places."""
        words = np.empty(rows, np.uint64) if out is None else out
        base = 0
        for number, (values, low, width, dropped) in enumerate(self.digits):
            digit = unsigned(values[places])
            if dropped:
                digit, low = (digit - np.uint64(low & WRAP)) >> np.uint64(dropped), 0
            base = (base << width) + low
            if number == 0:
                words[:] = digit
            else:
                # SUBTLE: plus, not or. What the digits count from is taken off at the end, all at once, modulo 2^64.
                np.left_shift(words, np.uint64(width), out=words)
                np.add(words, digit, out=words)
        if base:
            np.subtract(words, np.uint64(base & WRAP), out=words)
        if not self.digits:
            words.fill(0)
        return words


def single(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece; in a type with wider offsets if it needs them."""
    if column.num_chunks == 1:
        return column.chunk(0)
    kind = column.type
    # An element of a list takes a bit at least.
    if column.nbytes > (OFFSET_MAX >> 3 if pa.types.is_nested(kind) else OFFSET_MAX) and wide(kind) != kind:
        column = pa.chunked_array([chunk.cast(wide(kind)) for chunk in column.chunks])
    return column.combine_chunks()


def wide(kind: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets that has the same values; the type itself if it has no offsets."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(wide(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct(
            [kind.field(place).with_type(wide(kind.field(place).type)) for place in range(kind.num_fields)]
        )
    return kind


def pack(
    columns: Sequence[pa.Array],
    rows: int,
    start: Position = START,
    *,
    only: Index | None = None,
    until_apart: bool = False,
) -> Packed:
    """Return the words of all rows, or only of some, from a position on, as far into the columns as 64 bits go.

    Or, `until_apart`, only as far as it takes to tell most rows apart.
    """
    picked = None if only is None else pa.array(only)
    rows = rows if only is None else len(only)
    packed = Packed(np.empty(rows, np.uint64))
    if rows == 0:
        return packed
    for number in range(start.column, len(columns)):
        column = columns[number] if picked is None else columns[number].take(picked)
        begin = start if number == start.column else Position(number)
        if column.null_count == rows:
            pass  # all rows are equal, and the column may have no buffers
        elif is_text(column.type):
            packed.rest = _push_text(packed, begin, Text(column))
        elif is_fixed(column.type):
            packed.rest = _push_fixed(packed, begin, column)
        else:
            packed.rest = Position(number)
        if packed.rest is not None:
            break
        packed.ends.append(packed.used)
        if until_apart and number + 1 < len(columns) and packed.tells_apart():
            packed.rest = Position(number + 1)
            break
    packed.assemble()
    return packed


def _push_fixed(packed: Packed, begin: Position, column: pa.Array) -> Position | None:
    """Append a column of fixed width. The position where it stopped, if it did not fit."""
    low = high = 0
    for digit, values in fixed_digits(column):
        if digit < begin.digit:
            continue
        low, high = int(values.min()), int(values.max())
        if not packed.push(values, low, high):
            return begin._replace(digit=digit)
    if column.type.id in INTEGERS:
        packed.slots.append(Slot(begin.column, low, (high - low).bit_length(), packed.used))
    return None


def _push_text(packed: Packed, begin: Position, text: Text) -> Position | None:
    """Append a column of strings or binary. The position where it stopped, if it did not fit."""
    if text.valid is not None and begin.digit == PRESENCE and not packed.push(text.valid, 0, 1):
        return begin
    ranked = None if begin.byte else text.ranked()
    if ranked is not None:
        ranks, values = ranked
        if not packed.push(ranks, 0, len(values) - 1):
            return Position(begin.column, VALUE)
        packed.slots.append(Slot(begin.column, 0, (len(values) - 1).bit_length(), packed.used, values))
        return None
    at = begin.byte or text.common_prefix()
    end = min(text.longest, at + 8 * Text.WORDS_MAX)
    # What went before is not known to be clear.
    unclear = begin.byte > 0
    while at < end:
        values, is_unclear = text.squeezed(at)
        unclear |= is_unclear
        if not packed.push(values, int(values.min()), int(values.max())):
            return Position(begin.column, VALUE, at)
        at += 8
    # SUBTLE: padded with zeros, "a" and "a\0" are the same bytes; only their lengths tell them apart.
    if at < text.longest or (unclear and not packed.push(text.lengths, 0, text.longest)):
        return Position(begin.column, VALUE, at)
    return None


def is_fixed(kind: pa.DataType) -> bool:
    """Tell whether values of the type take the same number of bytes each."""
    return kind.id in INTEGERS or kind.id in _FLOATS or kind.id in (_BOOL, _DECIMAL)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of the type are strings of bytes."""
    return kind.id in _TEXTS


def fixed_digits(column: pa.Array) -> list[tuple[int, NDArray[Any]]]:
    """Return integers per row that order the rows as a column of fixed width does, most significant first.

    SUBTLE: they are numbered by what they mean, not by their place. Some of the rows may have no nulls, or
    need one digit where all rows need two: a position in one list must mean the same in the other.
    """
    kind, rows = column.type.id, len(column)
    validity, data = column.buffers()
    if kind in INTEGERS:
        digits = [(VALUE, fixed_view(data, INTEGERS[kind], column.offset, rows))]
    elif kind in _FLOATS:
        digits = [(VALUE, float_digit(fixed_view(data, _FLOATS[kind], column.offset, rows)))]
    elif kind == _BOOL:
        digits = [(VALUE, bits(data, column.offset, rows))]
    else:
        digits = _decimal_digits(fixed_view(data, np.uint64, 2 * column.offset, 2 * rows))
    if column.null_count == 0:
        return digits
    valid = bits(validity, column.offset, rows).view(np.bool_)
    # What lies under a null is arbitrary: it must not make rows differ, nor widen the digit.
    some = int(valid.argmax())
    covered = [(digit, np.where(valid, values, values[some])) for digit, values in digits]
    return [(PRESENCE, valid.view(np.uint8)), *covered]


def unsigned(values: NDArray[Any]) -> Words:
    """Convert integers to the unsigned ones that are equal modulo 2^64."""
    if values.dtype == np.uint64:
        return values
    if values.dtype.kind == "u":
        return values.astype(np.uint64)
    return values.astype(np.int64, copy=False).view(np.uint64)


def fixed_view(data: pa.Buffer, dtype: Any, offset: int, rows: int) -> NDArray[Any]:
    """Return the values of a column of fixed width, without a copy."""
    return np.frombuffer(data, dtype, rows, offset * np.dtype(dtype).itemsize)


def float_digit(values: NDArray[Any]) -> NDArray[Any]:
    """Convert floats to unsigned integers in the same order; NaN is the largest, -0.0 is 0.0."""
    signed, kind = (np.int32, np.uint32) if values.dtype == np.float32 else (np.int64, np.uint64)
    sign = signed(np.iinfo(signed).min)
    digits = np.empty(len(values), kind)
    for block in blocks(len(values)):
        with np.errstate(invalid="ignore"):
            part = values[block] + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
        missing = np.isnan(part)
        if missing.any():
            part[missing] = np.nan
        whole = part.view(signed)
        # The bits of positive numbers are in order already; those of negative ones are in reverse.
        flip = whole >> signed(8 * whole.itemsize - 1)
        flip |= sign
        np.bitwise_xor(whole, flip, out=digits[block].view(signed))
    return digits


def _decimal_digits(halves: Words) -> list[tuple[int, NDArray[Any]]]:
    """Convert 128-bit integers to one digit if they fit 64 bits, else to two."""
    low, high = halves[0::2], halves[1::2].view(np.int64)
    if (high == low.view(np.int64) >> np.int64(63)).all():
        return [(LOWER, low.view(np.int64))]
    return [(VALUE, high), (LOWER, low)]
