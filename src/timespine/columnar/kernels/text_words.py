"""Strings and binary as numbers in the order of their bytes.

Eight bytes of every value at once: an unaligned view of the data, read at the
offsets and turned to have the first byte on top. What lies behind the end of a
value is cut off, so shorter values are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.background_flag import is_background
from timespine.libraries import pc

Words = NDArray[np.uint64]

BLOCK = 1 << 15
"""Rows that several steps are applied to at once, so that what they pass on stays in the cache of the core."""

BACKGROUND_BLOCK = 1 << 17
"""The same in the background (`background`): what steps pass on is in the cache that cores share."""

_WIDE = {pa.large_string().id, pa.large_binary().id}
_ONES = 0x0101010101010101
_KEEP = np.array([((1 << 8 * count) - 1) << (64 - 8 * count) for count in range(9)], np.uint64)
"""The masks of the top bytes of a word, by the number of bytes."""

LARGE_ROWS = 1 << 11
"""Fewer rows are not worth to look for ways to need fewer bits."""

_PADDED_BYTES = 1 << 12
"""Less data than this is copied, to read it with less care."""

_SAMPLES = 12
"""Values that are looked at to guess what all of them begin with."""

_SHORT_BYTES = 3
"""Text that is not longer takes few bits as it is."""

_RANKED_SAMPLES = 1 << 9
_FEW = 4
"""Values are ranked if, of `_RANKED_SAMPLES` rows, at most one in `_FEW` has a value of its own."""

_PREFIX_BYTES_MAX = 1 << 16
"""Bytes of a common prefix that are looked for, at most."""

_FOLDS = (
    (8, np.uint64(0x00FF00FF00FF00FF)),
    (16, np.uint64(0x0000FFFF0000FFFF)),
    (32, np.uint64(0x00000000FFFFFFFF)),
)
"""Lanes that are pushed together two by two: their width, and the mask of every second one."""


class Text:
    """A column of strings or binary, seen as bytes."""

    WORDS_MAX: ClassVar[int] = 4
    """Words of eight bytes that are read of one column in one go, at most."""

    def __init__(self, column: pa.Array) -> None:
        validity, offsets, data = column.buffers()
        rows, offset = len(column), column.offset
        kind = np.int64 if column.type.id in _WIDE else np.int32
        ends = np.frombuffer(offsets, kind)[offset : offset + rows + 1]
        self._column = column
        self._starts = ends[:-1]
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        if self._data.size < _PADDED_BYTES:
            # Then eight bytes can be read of every value, the last one too.
            self._data = np.concatenate((self._data, np.zeros(8, np.uint8)))
        self.lengths: NDArray[Any] = np.subtract(ends[1:], ends[:-1])
        """Bytes of every value; none for a null."""
        self.valid: NDArray[np.uint8] | None = None
        """One where there is a value, zero at a null; None if there are no nulls."""
        if column.null_count:
            self.valid = bits(validity, offset, rows)
            # What lies under a null is arbitrary: it must not make rows differ.
            self.lengths *= self.valid
        self.longest = int(self.lengths.max())
        """Bytes of the longest value."""
        self._shortest = 0 if column.null_count else int(self.lengths.min())

    def common_prefix(self) -> int:
        """Return bytes that all values begin with."""
        rows = len(self._starts)
        if rows >= LARGE_ROWS:
            # A guess from a few values is checked faster than the first and the last of all are found.
            places = [*range(0, rows, rows // _SAMPLES), rows - 1]
            some = [self._value(place) for place in places if self.valid is None or self.valid[place]]
            shared = shared_bytes(min(some), max(some)) if some else b""
            if not shared or pc.all(pc.starts_with(self._column, shared)).as_py():
                return len(shared)
        ends = pc.min_max(self._column)
        return len(shared_bytes(*(ends[each].as_buffer().to_pybytes()[:_PREFIX_BYTES_MAX] for each in ("min", "max"))))

    def ranked(self) -> tuple[NDArray[np.uint32], pa.Array] | None:
        """Return the rank of the value of every row, and the values in order; None if there seem to be many of them."""
        rows = len(self._starts)
        if rows < LARGE_ROWS or self.longest <= _SHORT_BYTES:
            return None
        places = np.linspace(0, rows - 1, min(rows, _RANKED_SAMPLES)).astype(np.int64)
        if len(self._column.take(pa.array(places)).unique()) * _FEW > len(places):
            return None
        encoded = self._column.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary)
        ranks = np.empty(len(order), np.uint32)
        ranks[order.to_numpy()] = np.arange(len(order), dtype=np.uint32)
        places = np.frombuffer(encoded.indices.buffers()[1], np.int32, rows, 4 * encoded.indices.offset)
        if self.valid is not None:
            places = places * self.valid  # what lies under a null is arbitrary
        return ranks.take(places), encoded.dictionary.take(order)

    def _value(self, place: int) -> bytes:
        start = int(self._starts[place])
        return self._data[start : start + min(int(self.lengths[place]), _PREFIX_BYTES_MAX)].tobytes()

    def squeezed(self, at: int) -> tuple[Words, bool]:
        """Return eight bytes of every value from byte `at` on, in as few bits as their alphabet needs.

        And whether they are unclear: whether the end of a value looks like a NUL byte. In a smaller
        alphabet it does not: if values end inside of the word, zero is kept for that, and bytes count from one.
        """
        words = np.empty(len(self._starts), np.uint64)
        places = min(self.longest - at, 8)
        ends_inside = self._shortest < at + places
        low, high = (255, 0) if len(words) >= LARGE_ROWS else (0, 255)
        for block in blocks(len(words)):
            mask = self._mask(at, block)
            part = words[block]
            self._read(at, block, part)
            part &= mask
            if len(words) < LARGE_ROWS:
                continue
            high = max(high, int(part.view(np.uint8).max()))
            low = min(low, int((part | ~mask).view(np.uint8).min()))
        width = (high - low + ends_inside).bit_length()
        if width * places + 8 > 8 * places:
            if places < 8:
                words >>= np.uint64(64 - 8 * places)
            return words, ends_inside and low == 0
        by = low - ends_inside
        for block in blocks(len(words)):
            part = words[block]
            if by:
                lift = self._mask(at, block) & np.uint64(_ONES * abs(by))
                np.subtract(part, lift, out=part) if by > 0 else np.add(part, lift, out=part)
            part >>= np.uint64(64 - 8 * places)
            _squeeze(part, width, places)
        return words, False

    def words_at(self, at: int) -> Words:
        """Read eight bytes of every value from byte `at` on, padded with zeros. A null is zero."""
        words = np.empty(len(self._starts), np.uint64)
        for block in blocks(len(words)):
            self._read(at, block, words[block])
            words[block] &= self._mask(at, block)
        return words

    def ends_in_nul(self) -> bool:
        """Return whether a value ends in a NUL byte: padded with zeros, it looks like a shorter one."""
        filled = np.flatnonzero(self.lengths)
        return not self._data.take(self._starts[filled] + self.lengths[filled] - 1).all()

    def _mask(self, at: int, block: slice) -> Any:
        """Return ones for the bytes of a word that belong to the value: one number for all values, or an array."""
        if self._shortest == self.longest or self._shortest >= at + 8:
            return _KEEP[min(max(self._shortest - at, 0), 8)]
        return _KEEP.take(self.lengths[block] - at, mode="clip")

    def _read(self, at: int, block: slice, words: Words) -> None:
        """Read the next eight bytes of every value, whether they belong to it or not."""
        size = self._data.size
        if self._shortest == self.longest and int(self._starts[block.stop - 1]) + at + 8 <= size:
            # Values of one length lie in even steps.
            begin = int(self._starts[block.start]) + at
            words[:] = np.ndarray(words.shape, ">u8", self._data, begin, (self.longest,))
            return
        starts = self._starts[block].astype(np.int64)
        starts += at
        # Offsets ascend, so it is the last values that could be read beyond the end of the data.
        safe = len(starts)
        if int(starts[-1]) > size - 8:
            safe = int(np.searchsorted(starts, size - 8, "right")) if size >= 8 else 0
            begin = max(size - 8, 0)
            padded = np.zeros(24, np.uint8)
            padded[: size - begin] = self._data[begin:]
            tail: NDArray[Any] = np.ndarray((17,), "<u8", padded, 0, (1,))
            words[safe:] = tail[np.clip(starts[safe:] - begin, 0, 16)]
        if safe:
            view: NDArray[Any] = np.ndarray((size - 7,), "<u8", self._data, 0, (1,))
            words[:safe] = view[starts[:safe]]
        words.byteswap(inplace=True)


def shared_bytes(first: bytes, second: bytes) -> bytes:
    """Return what both begin with."""
    if first == second:
        return first
    pairs = zip(first, second, strict=False)
    return first[: next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))]


def _squeeze(words: Words, width: int, places: int) -> None:
    """Put the lower bytes of each word, each smaller than 2^width, side by side in `width` bits each."""
    for lane, keep in _FOLDS:
        if places * 8 <= lane:
            break
        upper = words & ~keep
        upper >>= np.uint64(lane - width * lane // 8)
        words &= keep
        words |= upper


def block_rows() -> int:
    """Return the rows of a block in this thread."""
    return max(BLOCK, BACKGROUND_BLOCK) if is_background() else BLOCK


def blocks(rows: int) -> Iterator[slice]:
    """Yield all rows, in blocks."""
    step = block_rows()
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def bits(bitmap: pa.Buffer, offset: int, rows: int) -> NDArray[np.uint8]:
    """Return a bitmap as a zero or one per row."""
    begin, skip = divmod(offset, 8)
    packed = np.frombuffer(bitmap, np.uint8)[begin : begin + (skip + rows + 7) // 8]
    return np.unpackbits(packed, count=skip + rows, bitorder="little")[skip:]
