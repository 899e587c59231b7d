"""The rows of one key: Python searches numbers, because one search is shorter than one call of a vectorised kernel.

A search in Python also keeps the interpreter, so it is never interrupted. A program that does nothing but gets would
starve threads that merge; `ArrangementView.get` yields to them (`Courtesy`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from timespine.arrangement.batch.batch import Batch, Span
from timespine.arrangement.batch.chunk import Chunk
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.comparable_words import Key
from timespine.columnar.kernels.find_keys import locate_key
from timespine.columnar.kernels.key_encoding import encode_arrow_scalar
from timespine.model.time import Time, less_equal

Hit = tuple[Chunk, int, int]
"""Rows of a chunk that a key has, as a range."""

SUMMED_MAX = 64
"""The most updates of a key that are summed one by one."""

YIELD_EVERY = 8
"""Gets after which a reader sleeps, while threads insert or merge."""

YIELD_S = 50e-6
"""How long it sleeps."""


class Courtesy:
    """Lets threads that insert or merge run, beside a reader that never waits.

    Every call of a vectorised kernel gives up the interpreter and then waits up to 5 ms to get it back from a thread
    that keeps it. A sleep of 50 microseconds after every 8th get ends that wait: inserts of 1,000 rows keep a third of
    their rate, and a tenth with 64 gets. The reader keeps half of its gets, while threads insert or merge.
    """

    def __init__(self) -> None:
        self.busy: set[int] = set()
        """The threads that insert or merge now."""
        self._gets = 0

    def pause(self) -> None:
        """Count a get, and sleep now and then while other threads are busy."""
        self._gets += 1
        if self.busy and self._gets % YIELD_EVERY == 0:
            time.sleep(YIELD_S)


class KeySearch:
    """Searches of some batches for one key at a time."""

    def __init__(self, batches: Sequence[Batch], counts: FilterCounts) -> None:
        self._batches = batches
        self._counts = counts

    def find(self, key: Key) -> list[Hit]:
        """Find the updates of a key, or of all keys that begin with it."""
        hits: list[Hit] = []
        if len(self._batches) != 1:
            self._find_by_filters(key, hits)
            return hits
        # One batch is searched without its filter, which costs as much as the search.
        around = list(self._batches[0].around(key))
        self._counts.range_hits += bool(around)
        self._counts.range_misses += not around
        _search(around, key, hits)
        return hits

    @cached_property
    def _spans(self) -> tuple[list[Span], list[Batch]]:
        """The batches of one chunk as a search needs them, and the others. To ask each batch takes a fifth of a get."""
        spans = [batch.span for batch in self._batches]
        large = [batch for batch, span in zip(self._batches, spans, strict=True) if span is None]
        return [span for span in spans if span is not None], large

    def _find_by_filters(self, key: Key, hits: list[Hit]) -> None:
        """Search the chunks whose filters do not say no."""
        small, large = self._spans
        encoded = key.encoded
        outside = asked = 0
        behind, word = -1, 0
        for first, last, prefix, may_contain, chunk in small:
            if not first <= encoded <= last and not first.startswith(encoded):
                outside += 1
                continue
            if prefix != behind:
                behind, word = prefix, key.word(prefix)[0]
            if may_contain(word):
                asked += 1
                _search((chunk,), key, hits)
        # The loop is short: what can be counted afterwards is.
        inside = filtered = len(small) - outside
        for batch in large:
            around = list(batch.around(key))
            chunks = [each for each in around if each.members.may_contain(key.word(each.index.prefix)[0])]
            outside += not around
            inside += bool(around)
            filtered += len(around)
            asked += len(chunks)
            _search(chunks, key, hits)
        counts = self._counts
        counts.range_misses += outside
        counts.range_hits += inside
        counts.member_misses += filtered - asked
        counts.member_hits += asked


def _search(chunks: Iterable[Chunk], key: Key, hits: list[Hit]) -> None:
    """Search chunks whose bounds a key is in."""
    for chunk in chunks:
        lower, upper = locate_key(chunk.index, key)
        if lower < upper:
            hits.append((chunk, lower, upper))


def needs_no_sum(hits: Sequence[Hit], as_of: Time) -> bool:
    """Return whether the updates that were found are the rows: from one chunk, at one time that is readable."""
    return len(hits) == 1 and hits[0][0].time is not None and less_equal(hits[0][0].latest, as_of)


def settled_rows(hit: Hit) -> list[tuple[dict[str, Any], int]]:
    """Return the rows of one chunk, with their counts."""
    chunk, lower, upper = hit
    columns, diffs = chunk.columns, chunk.diffs
    return [
        ({name: column[row].as_py() for name, column in columns.items()}, 1 if diffs is None else int(diffs[row]))
        for row in range(lower, upper)
    ]


def summed_rows(hits: Sequence[Hit], order: Sequence[str], as_of: Time) -> list[tuple[dict[str, Any], int]]:
    """Sum the updates of few rows one by one: the rows as of a time, in order, with their counts."""
    counts: dict[bytes, int] = {}
    places: dict[bytes, tuple[Chunk, int]] = {}
    for chunk, lower, upper in hits:
        columns = [chunk.columns[name] for name in order]
        is_seen = less_equal(chunk.latest, as_of)
        for row in range(lower, upper):
            if not is_seen and not less_equal(_time(chunk, row), as_of):
                continue
            encoded = b"".join(encode_arrow_scalar(column[row]) for column in columns)
            diff = 1 if chunk.diffs is None else int(chunk.diffs[row])
            counts[encoded] = counts.get(encoded, 0) + diff
            places.setdefault(encoded, (chunk, row))
    found = []
    for encoded in sorted(counts):
        if counts[encoded]:
            chunk, row = places[encoded]
            found.append(({name: column[row].as_py() for name, column in chunk.columns.items()}, counts[encoded]))
    return found


def _time(chunk: Chunk, row: int) -> Time:
    return chunk.time or tuple(int(each[row]) for each in chunk.times or ())
