"""Words that compare with any value of a column, so that a key finds its rows by a search among numbers.

The words of `row_words` count from what the table at hand has, so those of two tables do not compare. A
search needs a function of one value alone. The *absolute word* of a value of the first arranged column is

    integer, date, timestamp, bool    the value, offset so that unsigned order is its order     exact
    float, double                     the bits of the double in the order of rows               exact
    decimal of at most 18 digits      the unscaled value, offset                                exact
    decimal of more digits            the upper half of the unscaled value, offset              not exact
    string, binary                    the 8 bytes after a prefix, zeros behind the end          exact if that is all
    null                              0                                                         not exact

and for all values a, b of one column, and one length of the prefix that both begin with:

    word(a) < word(b)     implies   a < b
    word(a) == word(b)    implies   a == b, if the words of both are exact

SUBTLE: the word of a text that does not begin with the prefix is a lie. Rows of a sorted table begin with what its
first and last row share; a probe does so only if it lies between them (test_a_text_outside_of_the_table_is_not_found).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.key_encoding import NULL, encode_arrow_scalar, encode_scalar
from timespine.columnar.kernels.row_words import INTEGERS, fixed_view, float_digit, is_fixed, is_text
from timespine.columnar.kernels.text_words import Text, Words, bits, shared_bytes
from timespine.errors import UsageError
from timespine.libraries import pl

WORD_BYTES = 8

_SIGN = 1 << 63
_DIGITS_MAX = 18
"""Decimals of at most this many digits fit 64 bits."""

Signs = NDArray[np.int8]


class WordColumn(NamedTuple):
    """The absolute words of a column."""

    words: Words
    """One per row."""
    exact: bool
    """Whether two values with equal words are equal, if the words of both are exact."""


def absolute_words(column: pa.Array, prefix: int) -> WordColumn:
    """Make the absolute words of a column, whose texts begin with the same `prefix` bytes."""
    rows = len(column)
    if column.null_count == rows:
        return WordColumn(np.zeros(rows, np.uint64), rows == 0)
    if is_text(column.type):
        text = Text(column)
        is_exact = column.null_count == 0 and text.longest <= prefix + WORD_BYTES and not text.ends_in_nul()
        return WordColumn(text.words_at(prefix), is_exact)
    first, *others = _fixed_words(column)
    return WordColumn(first, column.null_count == 0 and not others)


def shared_prefix(first: pa.Scalar, last: pa.Scalar) -> int:
    """Return how many bytes all values of a sorted column begin with: those of its first and its last value."""
    if not is_text(first.type) or not first.is_valid:
        return 0
    return len(shared_bytes(_text_bytes(first), _text_bytes(last)))


def compare(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Signs:
    """Compare the rows of two tables of equal length, pair by pair, in the order of rows: -1, 0 or 1."""
    signs: Signs = np.zeros(len(left[0]), np.int8)
    for ours, theirs in zip(left, right, strict=True):
        sign = _compare_text(ours, theirs) if is_text(ours.type) else _compare_fixed(ours, theirs)
        np.copyto(signs, sign, where=signs == 0)
    return signs


class Key:
    """The values of one key, or of its leading columns, ready to be searched for."""

    __slots__ = ("_kind", "_text", "_words", "encoded", "pieces")

    def __init__(self, pieces: Sequence[bytes], kind: pa.DataType, text: bytes | None) -> None:
        self.pieces = pieces
        """The encoding of each value (`key_encoding`)."""
        self.encoded = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        """The encoding of all of them."""
        self._kind = kind
        self._text = text
        self._words: dict[int, tuple[int, bool]] = {}

    @staticmethod
    def of(values: Sequence[Any], types: Sequence[pa.DataType]) -> Key:
        """Make a key of values as Python or Arrow have them. A value of another type is an InvalidRows."""
        pieces = [encode_scalar(value, kind) for value, kind in zip(values, types, strict=True)]
        first, kind = values[0], types[0]
        text = None
        if first is not None and is_text(kind):
            if isinstance(first, pa.Scalar):
                text = _text_bytes(first) if first.is_valid else None
            else:
                text = first.encode() if isinstance(first, str) else bytes(first)
        return Key(pieces, kind, text)

    @staticmethod
    def at(columns: Sequence[pa.Array], row: int) -> Key:
        """Make the key of one row."""
        scalars = [column[row] for column in columns]
        first = scalars[0]
        text = _text_bytes(first) if is_text(first.type) and first.is_valid else None
        return Key([encode_arrow_scalar(scalar) for scalar in scalars], first.type, text)

    def word(self, prefix: int) -> tuple[int, bool]:
        """Return the absolute word of the first value behind a prefix, and whether it is exact."""
        known = self._words.get(prefix)
        if known is None:
            known = self._words[prefix] = self._word(prefix)
        return known

    def _word(self, prefix: int) -> tuple[int, bool]:
        text = self._text
        if text is not None:
            is_exact = len(text) <= prefix + WORD_BYTES and not text.endswith(b"\0")
            return int.from_bytes(text[prefix : prefix + WORD_BYTES].ljust(WORD_BYTES, b"\0"), "big"), is_exact
        encoded, kind = self.pieces[0], self._kind
        if encoded == NULL:
            return 0, False
        value = int.from_bytes(encoded[1:], "big")
        if pa.types.is_unsigned_integer(kind):
            return value - _SIGN, True
        if pa.types.is_decimal(kind):
            return (value - (1 << 127) + _SIGN, True) if kind.precision <= _DIGITS_MAX else (value >> 64, False)
        return value, True


class Probes:
    """Distinct keys in the order of rows, ready to be searched for."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = list(columns)
        """The leading arranged columns, of the keys."""
        self._words: dict[int, WordColumn] = {}

    def __len__(self) -> int:
        return len(self.columns[0])

    def words(self, prefix: int) -> WordColumn:
        """Make the absolute words of the first values behind a prefix, once."""
        known = self._words.get(prefix)
        if known is None:
            known = self._words[prefix] = absolute_words(self.columns[0], prefix)
        return known

    def key(self, place: int) -> Key:
        """Return one of the keys."""
        return Key.at(self.columns, place)

    def slice(self, start: int, stop: int) -> Probes:
        """Return some neighbouring keys."""
        return Probes([column.slice(start, stop - start) for column in self.columns])


def _text_bytes(scalar: pa.Scalar) -> bytes:
    found: bytes = scalar.as_buffer().to_pybytes()
    return found


def _fixed_words(column: pa.Array) -> list[Words]:
    """Return unsigned integers that order values of fixed width, of any table, most significant first; null is 0."""
    kind, rows = column.type, len(column)
    if not is_fixed(kind):
        raise UsageError(f"rows cannot be arranged by a column of type {kind}")
    validity, data = column.buffers()
    words: list[Words]
    if kind.id in INTEGERS:
        words = [_offset(fixed_view(data, INTEGERS[kind.id], column.offset, rows))]
    elif pa.types.is_floating(kind):
        values = fixed_view(data, np.float32 if pa.types.is_float32(kind) else np.float64, column.offset, rows)
        with np.errstate(invalid="ignore"):
            words = [float_digit(values.astype(np.float64, copy=False))]
    elif pa.types.is_boolean(kind):
        words = [bits(data, column.offset, rows).astype(np.uint64)]
    else:
        halves = fixed_view(data, np.uint64, 2 * column.offset, 2 * rows)
        low, high = np.ascontiguousarray(halves[0::2]), np.ascontiguousarray(halves[1::2])
        words = [_offset(low.view(np.int64))] if kind.precision <= _DIGITS_MAX else [_offset(high.view(np.int64)), low]
    if column.null_count:
        valid = bits(validity, column.offset, rows)
        words = [each * valid for each in words]
    return words


def _offset(values: NDArray[Any]) -> Words:
    """Offset integers so that as unsigned ones they are in the same order."""
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    words: Words = values.astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(_SIGN)
    return words


def _present(column: pa.Array) -> Any:
    """Return one where there is a value; the same number for all if there is no null."""
    return bits(column.buffers()[0], column.offset, len(column)).view(np.int8) if column.null_count else np.int8(1)


def _compare_fixed(left: pa.Array, right: pa.Array) -> Signs:
    signs: Signs = np.zeros(len(left), np.int8)
    if left.null_count or right.null_count:
        signs += _nulls_apart(left, right)
        if left.null_count == len(left) or right.null_count == len(right):
            return signs
    for ours, theirs in zip(_fixed_words(left), _fixed_words(right), strict=True):
        sign = (ours > theirs).view(np.int8) - (ours < theirs).view(np.int8)
        np.copyto(signs, sign, where=signs == 0)
    return signs


def _compare_text(left: pa.Array, right: pa.Array) -> Signs:
    ours, theirs = pl.Series(left), pl.Series(right)
    after = (ours > theirs).fill_null(False).to_numpy().view(np.int8)
    before = (ours < theirs).fill_null(False).to_numpy().view(np.int8)
    signs: Signs = after - before
    if left.null_count or right.null_count:
        signs = signs + _nulls_apart(left, right)
    return signs


def _nulls_apart(left: pa.Array, right: pa.Array) -> Signs:
    """Compare by whether there is a value: null comes first."""
    apart: Signs = np.zeros(len(left), np.int8) + _present(left) - _present(right)
    return apart
