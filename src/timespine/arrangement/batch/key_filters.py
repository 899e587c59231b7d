"""Membership of keys in a chunk, asked by their words before the chunk is searched.

A filter never says no to a word that the chunk has. Which kind a chunk gets depends on its size and its words:

    few rows                            a set of the words
    words that lie close together       a bit per word of the span: exact, for dense integers; it also tells the
                                        row of a word, so that fetches of many keys need no search
    others                              a Bloom filter: 16 bits per row, 2 of them set, 1.4 % of false answers

Words of a text are those behind the prefix of the chunk, so a key must be within the bounds of the chunk first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.row_words import Index
from timespine.columnar.kernels.text_words import Words

SET_ROWS_MAX = 4096
"""The most rows of a chunk whose words are kept as a set: some 80 bytes per row, asked in 30 ns."""

BITMAP_SPAN = 16
"""The most numbers per row that a bitmap spans: as many bits as a Bloom filter takes."""

BLOOM_BITS = 16
"""Bits of a Bloom filter per row."""

_BLOCK_SHIFT = 6
_BLOCK = 1 << _BLOCK_SHIFT
"""Bits of a bitmap that one number of the words before them stands for."""

_MIX = 0x9E3779B97F4A7C15
_WRAP = (1 << 64) - 1
_HALF = (1 << 32) - 1


class MemberFilter(Protocol):
    """Says whether a chunk may have rows of a word. No is certain, yes is not."""

    kind: str
    """What it is, for people."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        ...

    @property
    def may_contain(self) -> Callable[[int], bool]:
        """Return the function that says whether the chunk may have a row of a word."""
        ...


@dataclass(slots=True)
class FilterCounts:
    """How often filters were asked. Threads count without a lock, so a few may be lost."""

    range_hits: int = 0
    """Keys within the bounds of a chunk."""
    range_misses: int = 0
    """Keys outside of the bounds of all chunks of a batch."""
    member_hits: int = 0
    """Keys that a chunk may have, as its filter says."""
    member_misses: int = 0
    """Keys that a chunk does not have, as its filter says."""


def are_dense(words: Words) -> bool:
    """Return whether ascending words lie close together."""
    return int(words[-1]) - int(words[0]) < BITMAP_SPAN * len(words)


def member_filter(words: Words, *, is_dense: bool) -> MemberFilter:
    """Make the filter of the ascending words of a chunk."""
    if is_dense:
        return WordBitmap(words)
    return WordSet(words) if len(words) <= SET_ROWS_MAX else WordBloom(words)


class WordSet:
    """The words themselves. The set is made when it is asked first: most chunks are merged before."""

    kind = "set"

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes, about; none before it is asked first."""
        return 80 * len(self._words) if "may_contain" in vars(self) else 0

    @cached_property
    def may_contain(self) -> Callable[[int], bool]:
        """The function that says whether the chunk has a row of a word: that of the set itself, without a call more."""
        return frozenset(self._words.tolist()).__contains__


class WordBitmap:
    """A bit for every word between the smallest and the largest. The bits before that of a word count its place."""

    kind = "bitmap"

    def __init__(self, words: Words) -> None:
        self._rows = len(words)
        self._low = int(words[0])
        self._span = int(words[-1]) - self._low + 1
        flags = np.zeros(-(-self._span // _BLOCK) * _BLOCK, np.bool_)
        flags[(words - np.uint64(self._low)).view(np.int64)] = True
        self._bits = np.packbits(flags, bitorder="little").tobytes()

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return len(self._bits) + (self._before.nbytes if "_before" in vars(self) else 0)

    @cached_property
    def _before(self) -> NDArray[np.uint32]:
        """How many words come before each block of bits; one more number for the end. A chunk has at most 2^20 rows."""
        counts = np.bitwise_count(np.frombuffer(self._bits, "<u8"))
        before = np.zeros(len(counts) + 1, np.uint32)
        np.cumsum(counts, out=before[1:], dtype=np.uint32)
        return before

    @property
    def tells_places(self) -> bool:
        """Return whether every row has a word of its own: then the words before one are the rows before its row."""
        return int(self._before[-1]) == self._rows

    def places(self, wanted: Words) -> tuple[Index, Index]:
        """Return which of some words within the bounds of the chunk it has, and their rows, without a search."""
        bits = (wanted - np.uint64(self._low)).view(np.int64)
        block, bit = bits >> _BLOCK_SHIFT, (bits & (_BLOCK - 1)).astype(np.uint64)
        shown = np.frombuffer(self._bits, "<u8").take(block)
        there = np.flatnonzero(shown >> bit & np.uint64(1))
        if len(there) < len(wanted):
            block, bit, shown = block[there], bit[there], shown[there]
        below = np.bitwise_count(shown & ((np.uint64(1) << bit) - np.uint64(1)))
        return there, self._before.take(block).astype(np.int64) + below

    def may_contain(self, word: int) -> bool:
        """Return whether the chunk has a row of that word."""
        place = word - self._low
        return 0 <= place < self._span and bool(self._bits[place >> 3] >> (place & 7) & 1)


class WordBloom:
    """Two bits per row, at places that a hash of its word gives."""

    kind = "bloom"

    def __init__(self, words: Words) -> None:
        self._size = BLOOM_BITS * len(words)
        flags = np.zeros(self._size, np.bool_)
        mixed = _mixed(words)
        size = np.uint64(self._size)
        flags[((mixed >> np.uint64(32)) * size >> np.uint64(32)).view(np.int64)] = True
        flags[((mixed & np.uint64(_HALF)) * size >> np.uint64(32)).view(np.int64)] = True
        self._bits = np.packbits(flags, bitorder="little").tobytes()

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return len(self._bits)

    def may_contain(self, word: int) -> bool:
        """Return whether the chunk may have a row of that word."""
        mixed = _mixed_word(word)
        size, bits = self._size, self._bits
        place = (mixed >> 32) * size >> 32
        if not bits[place >> 3] >> (place & 7) & 1:
            return False
        place = (mixed & _HALF) * size >> 32
        return bool(bits[place >> 3] >> (place & 7) & 1)


@lru_cache(maxsize=16)
def _mixed_word(word: int) -> int:
    """Spread a word over all numbers. A get asks the filters of all batches for one word: it is spread once."""
    word ^= word >> 32
    mixed = word * _MIX & _WRAP
    mixed ^= mixed >> 29
    return mixed * _MIX & _WRAP


def _mixed(words: Words) -> NDArray[np.uint64]:
    """Spread words over all numbers. SUBTLE: `_mixed_word` does the same for one (test_a_filter_never_says_no)."""
    mixed = words ^ (words >> np.uint64(32))
    mixed *= np.uint64(_MIX)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MIX)
    return mixed
