"""Find the rows of keys in a sorted table: by words, then by the columns that words do not tell apart.

A search among 64-bit numbers finds the rows whose word is that of the key. If words are not exact, or the key has
more columns, rows of one word are narrowed further: by a binary search between bounds of its own for every key. So
what is found is verified, and the work per key is logarithmic however many rows share a word.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.comparable_words import Key, Probes, absolute_words, compare, shared_prefix
from timespine.columnar.kernels.key_encoding import encode_arrow_scalar
from timespine.columnar.kernels.row_words import Index, is_fixed
from timespine.columnar.kernels.text_words import Words

KEYS_PER_RUN = 16
"""The fewest keys per different word for which each run of equal words is searched at once."""


FEW_ROWS = 1.5
"""The least number of keys per row for which rows are searched among keys first: the fewer are searched in the more."""


class Located(NamedTuple):
    """The keys that have rows, and where these lie."""

    keys: Index
    """Numbers of the keys, ascending."""
    lower: Index
    """The first row of each."""
    upper: Index
    """One behind the last row of each."""


Places = Callable[[Words], tuple[Index, Index]]
"""Which of some words within the bounds of the first and last there are, and the row of each."""


class WordIndex:
    """The arranged columns of a sorted table, with their words."""

    def __init__(self, columns: Sequence[pa.Array], words: Words, prefix: int, exact: bool) -> None:
        self.columns = columns
        """The columns that rows are sorted by first, each in one piece."""
        self.words = words
        """The absolute words of the first column."""
        self.prefix = prefix
        """Bytes of text that all its values begin with."""
        self.exact = exact
        """Whether equal words mean equal values."""

    @staticmethod
    def of(columns: Sequence[pa.Array]) -> WordIndex:
        """Make the index of columns in the order of rows, with at least one row."""
        first = columns[0]
        prefix = shared_prefix(first[0], first[len(first) - 1])
        words, is_exact = absolute_words(first, prefix)
        return WordIndex(columns, words, prefix, is_exact)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def view(self) -> memoryview:
        """The words as a sequence of Python integers, which a search for one key reads faster than an array."""
        return self.words.data

    @cached_property
    def first(self) -> bytes:
        """The encoding of the key of the first row."""
        return Key.at(self.columns, 0).encoded

    @cached_property
    def last(self) -> bytes:
        """The encoding of the key of the last row."""
        return Key.at(self.columns, len(self) - 1).encoded

    def covers(self, key: Key) -> bool:
        """Return whether a key, or one that begins with it, lies between the first and the last row."""
        encoded, first = key.encoded, self.first
        return self.last >= encoded and (first <= encoded or first.startswith(encoded))


def locate_key(index: WordIndex, key: Key) -> tuple[int, int]:
    """Return the rows of a key, or of all that begin with it, as a range; empty if there is none.

    The index must cover the key: a caller has looked at its bounds already.
    """
    word, is_exact = key.word(index.prefix)
    view = index.view
    lower = bisect_left(view, word)
    if lower == len(view) or view[lower] != word:
        return 0, 0
    upper = lower + 1
    if upper < len(view) and view[upper] == word:
        upper = bisect_right(view, word, upper)
    if is_exact and index.exact and len(key.pieces) == 1:
        return lower, upper
    return _narrow_key(index, key, lower, upper)


def rows_before(index: WordIndex, key: Key, *, inclusive: bool) -> int:
    """Return how many rows come before a key; with `inclusive`, also those of the key and of all that begin with it."""
    encoded, length = key.encoded, len(key.encoded)
    if encoded < index.first[:length] or (encoded == index.first[:length] and not inclusive):
        return 0
    if encoded > index.last[:length] or (encoded == index.last[:length] and inclusive):
        return len(index)
    word, _ = key.word(index.prefix)
    lower = bisect_left(index.view, word)
    upper = bisect_right(index.view, word, lower)
    search = bisect_right if inclusive else bisect_left
    depth = len(key.pieces)
    return search(range(len(index)), encoded, lower, upper, key=lambda row: _encode_key(index, row, depth))


def _narrow_key(index: WordIndex, key: Key, lower: int, upper: int) -> tuple[int, int]:
    """Narrow a range of equal words to the rows of a key."""
    depth, encoded = len(key.pieces), key.encoded
    if upper - lower > 1:
        rows = range(len(index))
        lower = bisect_left(rows, encoded, lower, upper, key=lambda row: _encode_key(index, row, depth))
    if lower == upper or _encode_key(index, lower, depth) != encoded:
        return 0, 0
    if upper - lower > 1 and _encode_key(index, upper - 1, depth) != encoded:
        rows = range(len(index))
        upper = bisect_right(rows, encoded, lower, upper, key=lambda row: _encode_key(index, row, depth))
    return lower, upper


def _encode_key(index: WordIndex, row: int, depth: int) -> bytes:
    if depth == 1:
        return encode_arrow_scalar(index.columns[0][row])
    return b"".join(encode_arrow_scalar(column[row]) for column in index.columns[:depth])


def locate(index: WordIndex, probes: Probes, places: Places | None = None) -> Located:
    """Find the rows of many keys, or of all that begin with them.

    `places` is a way to find rows without a search, for words that are different for all rows.
    """
    words = index.words
    wanted, is_exact = probes.words(index.prefix)
    start, stop = _keys_in_range(index, probes, wanted)
    covered = wanted[start:stop]
    if places is not None:
        there, lower = places(covered)
        located = Located(start + there, lower, lower + 1)
        is_told = is_exact and index.exact and len(probes.columns) == 1
        return located if is_told else _narrow(index, probes, located)
    if len(words) * FEW_ROWS < len(covered):
        few = _among(words, covered)
        found, sought = start + few, covered[few]
        lower = np.searchsorted(words, sought)
    else:
        lower = np.searchsorted(words, covered)
        there = np.flatnonzero(words.take(lower, mode="clip") == covered)
        found, sought, lower = start + there, covered[there], lower[there]
    upper = lower + 1
    # The last row is compared with itself: no row follows it.
    more = np.flatnonzero((words.take(upper, mode="clip") == sought) & (upper < len(words)))
    if more.size:
        upper[more] = np.searchsorted(words, sought[more], "right")
    located = Located(found, lower, upper)
    if is_exact and index.exact and len(probes.columns) == 1:
        return located
    return _narrow(index, probes, located)


def located_rows(located: Located) -> Index:
    """Return the rows of all ranges that were found."""
    lengths = located.upper - located.lower
    if (lengths == 1).all():
        return located.lower
    ends = np.cumsum(lengths)
    rows: Index = np.arange(int(ends[-1])) + np.repeat(located.lower - (ends - lengths), lengths)
    return rows


def _keys_in_range(index: WordIndex, probes: Probes, wanted: Words) -> tuple[int, int]:
    """Return the range of keys that may lie between the first and the last row.

    Without a prefix the words of keys outside are true, and only cost time. Behind a prefix they are not.
    """
    if not index.prefix:
        words = index.words
        return int(np.searchsorted(wanted, words[0])), int(np.searchsorted(wanted, words[-1], "right"))
    places = range(len(probes))
    depth = len(probes.columns)
    first, last = Key.at(index.columns[:depth], 0).encoded, Key.at(index.columns[:depth], len(index) - 1).encoded
    start = bisect_left(places, first, key=lambda place: probes.key(place).encoded)
    return start, bisect_right(places, last, start, key=lambda place: probes.key(place).encoded)


def _among(words: Words, wanted: Words) -> Index:
    """Return which of many ascending words are among a few: the few are searched in the many."""
    lower: Index = np.searchsorted(wanted, words)
    lower = lower[wanted.take(lower, mode="clip") == words]
    if not lower.size:
        return lower
    lower = lower[np.concatenate(([True], lower[1:] != lower[:-1]))]
    after = np.minimum(lower + 1, len(wanted) - 1)
    if not ((wanted[after] == wanted[lower]) & (after > lower)).any():
        return lower
    upper = np.searchsorted(wanted, wanted[lower], "right")
    changes = np.zeros(len(wanted) + 1, np.int64)
    np.add.at(changes, lower, 1)
    np.add.at(changes, upper, -1)
    return np.flatnonzero(np.cumsum(changes[:-1]))


def _narrow(index: WordIndex, probes: Probes, located: Located) -> Located:
    """Narrow ranges of equal words to the rows of the keys; drop keys without rows."""
    located = _narrow_by_runs(index, probes, located)
    keys, lower, upper = located
    ends = upper.copy()
    # Most ranges are one row, or begin with the row that is looked for.
    signs = _signs(index, probes, keys, lower)
    active = np.flatnonzero(signs < 0)
    lower = lower.copy()
    lower[active] += 1
    active = active[lower[active] < upper[active]]
    moved = active
    while active.size:
        middle = (lower[active] + upper[active]) >> 1
        is_before = _signs(index, probes, keys[active], middle) < 0
        lower[active[is_before]] = middle[is_before] + 1
        upper[active[~is_before]] = middle[~is_before]
        active = active[lower[active] < upper[active]]
    matched = signs == 0
    inside = moved[lower[moved] < ends[moved]]
    matched[inside] = _signs(index, probes, keys[inside], lower[inside]) == 0
    keys, lower, ends = keys[matched], lower[matched], ends[matched]
    return Located(keys, lower, _ends(index, probes, keys, lower, ends))


def _ends(index: WordIndex, probes: Probes, keys: Index, lower: Index, upper: Index) -> Index:
    """Return where the rows of each key end: `lower` is its first row, and rows from `upper` on are others."""
    several = np.flatnonzero(upper - lower > 1)
    active = several[_signs(index, probes, keys[several], upper[several] - 1) > 0]
    low, high = lower + 1, upper.copy()
    high[active] -= 1
    active = active[low[active] < high[active]]
    while active.size:
        middle = (low[active] + high[active]) >> 1
        is_after = _signs(index, probes, keys[active], middle) > 0
        high[active[is_after]] = middle[is_after]
        low[active[~is_after]] = middle[~is_after] + 1
        active = active[low[active] < high[active]]
    return high


def _signs(index: WordIndex, probes: Probes, keys: Index, rows: Index) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Compare rows with keys, pair by pair."""
    if not len(keys):
        return np.zeros(0, np.int8)
    places, numbers = pa.array(rows), pa.array(keys)
    depth = len(probes.columns)
    return compare(
        [column.take(places) for column in index.columns[:depth]],
        [column.take(numbers) for column in probes.columns],
    )


def _narrow_by_runs(index: WordIndex, probes: Probes, located: Located) -> Located:
    """Narrow by the second column, one run of equal words after the other, if many keys share each run."""
    keys, lower, upper = located
    if len(probes.columns) < 2 or not index.exact or not is_fixed(index.columns[1].type) or not len(keys):
        return located
    starts = np.flatnonzero(np.concatenate(([True], lower[1:] != lower[:-1])))
    if len(starts) * KEYS_PER_RUN > len(keys):
        return located
    wanted = absolute_words(probes.columns[1].take(pa.array(keys)), 0).words
    low, high = lower.copy(), upper.copy()
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(keys)], strict=True):
        begin, end = int(lower[start]), int(upper[start])
        inside = absolute_words(index.columns[1].slice(begin, end - begin), 0).words
        low[start:stop] = np.searchsorted(inside, wanted[start:stop]) + begin
        high[start:stop] = np.searchsorted(inside, wanted[start:stop], "right") + begin
    there = low < high
    return Located(keys[there], low[there], high[there])
