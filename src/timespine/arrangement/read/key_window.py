"""Windows: the rows of neighbouring keys of some batches, put together. A cursor steps in one, and then takes the next.

A window holds all updates of its keys, so what cancels is gone: a value whose diffs add up to nothing, a key without
values. A window may be empty though others follow: `edge` says from where.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.chunk import Chunk
from timespine.arrangement.batch.combine_chunks import Piece, SortedUpdates, fold_times, net_as_of, piece_between
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.batch.walk_batches import Walk, position_of, rows_until, step_back
from timespine.arrangement.read.find_key import KeySearch
from timespine.columnar.kernels.comparable_words import Key, compare
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.key_encoding import encode_arrow_scalar
from timespine.columnar.kernels.row_words import Index
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time

WINDOW_ROWS = 1 << 12
"""Updates of the first window after a seek: a seek may need only one of them."""

WINDOW_ROWS_MAX = 1 << 16
"""Updates of a window at most, but for keys with more: windows double while the cursor only steps."""

KeyTest = Callable[[dict[str, Any]], bool]


class KeyWindow:
    """Keys in order, each with its values in order, each with its times in order."""

    def __init__(self, updates: SortedUpdates | None, layout: Layout, as_of: Time | None, edge: Key | None) -> None:
        self._layout = layout
        self._columns = {} if updates is None else updates.columns
        self._as_of = as_of
        self._times: Sequence[Any] = () if updates is None else updates.times
        self._diffs = np.zeros(0, np.int64) if updates is None else updates.diff_array()
        self.edge = edge
        """The key that the next window begins or ends at, in the direction of this one; None if there is no other."""
        rows = 0 if updates is None else updates.rows
        self._value_ends = np.arange(1, rows + 1) if as_of is not None else self._ends_of_values(rows)
        self._value_starts = np.concatenate(([0], self._value_ends[:-1])) if rows else self._value_ends
        self.key_values = self._starts_of_keys(rows)
        """The number of the first value of every key, and one behind the last of all."""
        self.keys = len(self.key_values) - 1
        """The number of keys."""

    def _ends_of_values(self, rows: int) -> Index:
        """Return one behind the last update of every value: those at several times have several updates."""
        if not rows:
            return np.zeros(0, np.int64)
        # Which rows are equal, also where columns are nested: the kernel counts them.
        names = list(self._layout.order)
        ones = pa.array(np.ones(rows, np.int64))
        table = pa.Table.from_arrays([*(self._columns[name] for name in names), ones], names=[*names, DIFF])
        ends: Index = np.cumsum(consolidate(table, names).column(DIFF).to_numpy())
        return ends

    def _starts_of_keys(self, rows: int) -> Index:
        if not rows:
            return np.zeros(1, np.int64)
        values = len(self._value_ends)
        starts = np.ones(values, np.bool_)
        if values > 1:
            firsts = pa.array(self._value_starts)
            columns = [self._columns[name].take(firsts) for name in self._layout.by]
            starts[1:] = compare([each.slice(1) for each in columns], [each.slice(0, values - 1) for each in columns])
        return np.append(np.flatnonzero(starts), values)

    def key(self, number: int) -> dict[str, Any]:
        """Return a key by its number."""
        return _plain(self._columns, self._layout.by, self._row_of_key(number))

    def value(self, number: int) -> dict[str, Any]:
        """Return a value by its number."""
        return _plain(self._columns, self._layout.value_names, int(self._value_starts[number]))

    def key_encoded(self, number: int) -> bytes:
        """Return a key by its number, encoded."""
        return self._encoded(self._layout.by, self._row_of_key(number))

    def value_encoded(self, number: int) -> bytes:
        """Return a value by its number, encoded."""
        return self._encoded(self._layout.value_names, int(self._value_starts[number]))

    def search_key(self, number: int) -> Key:
        """Return a key by its number, ready to be searched for."""
        return Key.at([self._columns[name] for name in self._layout.by], self._row_of_key(number))

    def _row_of_key(self, number: int) -> int:
        return int(self._value_starts[self.key_values[number]])

    def _encoded(self, names: Sequence[str], row: int) -> bytes:
        return b"".join(encode_arrow_scalar(self._columns[name][row]) for name in names)

    def weight(self, value: int) -> int:
        """Return the sum of the diffs of a value."""
        start, stop = int(self._value_starts[value]), int(self._value_ends[value])
        return sum(self._diffs[start:stop].tolist())

    def times(self, value: int) -> list[tuple[Time, int]]:
        """Return the times of a value in order, each with its diff."""
        start, stop = int(self._value_starts[value]), int(self._value_ends[value])
        diffs = self._diffs[start:stop].tolist()
        if self._as_of is not None:
            return [(self._as_of, diffs[0])]
        coordinates = [
            [each] * (stop - start) if isinstance(each, int) else each[start:stop].tolist() for each in self._times
        ]
        return list(zip(zip(*coordinates, strict=True), diffs, strict=True))


class WindowSource:
    """Makes windows of some batches: as of one time, or with all times, folded to `since`."""

    def __init__(
        self, layout: Layout, batches: Sequence[Batch], as_of: Time | None, since: Frontier, counts: FilterCounts
    ) -> None:
        self.layout = layout
        self.as_of = as_of
        """The time of all values; None if values have times of their own."""
        self._batches = batches
        self._since = since
        self._search = KeySearch(batches, counts)
        self.rows = sum(batch.rows for batch in batches)
        """Updates of all batches."""

    def after(self, key: Key | None, rows: int, *, inclusive: bool) -> KeyWindow:
        """Make the window of the keys after one, or from it on, or of the first keys."""
        walk = Walk(self._batches, key, is_after=not inclusive)
        return self._window(walk.step(rows), walk.reached)

    def before(self, key: Key | None, rows: int, *, inclusive: bool) -> KeyWindow:
        """Make the window of the keys before one, or up to it, or of the last keys."""
        return self._window(*step_back(self._batches, key, rows, inclusive=inclusive))

    def of_key(self, key: Key) -> KeyWindow:
        """Make the window of one key, found through the filters."""
        return self._window([piece_between(*hit) for hit in self._search.find(key)], None)

    def rows_before(self, key: Key, *, inclusive: bool) -> int:
        """Return the number of updates of the keys before one; with `inclusive`, also of it."""
        return sum(rows_until(batch, position_of(batch, key, inclusive=inclusive)) for batch in self._batches)

    def first_with(self, test: KeyTest) -> Key | None:
        """Return the first key of the batches that passes a test that all later ones pass; None if none does."""
        found = []
        for batch in self._batches:
            number, row = _first_place(batch, partial(self._passes, test))
            if number < len(batch.chunks):
                found.append(Key.at(batch.chunks[number].index.columns, row))
        return min(found, key=lambda key: key.encoded, default=None)

    def last_with(self, test: KeyTest) -> Key | None:
        """Return the last key of the batches that passes a test that all earlier ones pass; None if none does."""
        found = []
        for batch in self._batches:
            number, row = _first_place(batch, lambda chunk, row: not self._passes(test, chunk, row))
            if row or number:
                chunk = batch.chunks[number if row else number - 1]
                found.append(Key.at(chunk.index.columns, (row or chunk.rows) - 1))
        return max(found, key=lambda key: key.encoded, default=None)

    def _passes(self, test: KeyTest, chunk: Chunk, row: int) -> bool:
        return bool(test(_plain(chunk.columns, self.layout.by, row)))

    def _window(self, pieces: Sequence[Piece], edge: Key | None) -> KeyWindow:
        updates = None
        if pieces and self.as_of is not None:
            updates = net_as_of(pieces, self.layout, self.as_of)
        elif pieces:
            updates = fold_times(pieces, self.layout, self._since)
        return KeyWindow(updates, self.layout, self.as_of, edge)


def _first_place(batch: Batch, passes: Callable[[Chunk, int], bool]) -> tuple[int, int]:
    """Return the chunk and the row in it of the first update that passes a test that all later ones pass."""
    chunks = batch.chunks
    number = bisect_left(range(len(chunks)), True, key=lambda number: passes(chunks[number], chunks[number].rows - 1))
    if number == len(chunks):
        return number, 0
    return number, bisect_left(range(chunks[number].rows), True, key=lambda row: passes(chunks[number], row))


def _plain(columns: dict[str, pa.Array], names: Sequence[str], row: int) -> dict[str, Any]:
    """Return some values of a row as Python has them."""
    try:
        return {name: columns[name][row].as_py() for name in names}
    except (OverflowError, ValueError) as error:
        # Python has no year 10000.
        raise UsageError("a row has a value that Python cannot hold: use `fetch` or `scan`") from error
