"""Sorted runs merged into one, within a bound of memory.

A little of every run is loaded. Whatever is at or before the smallest of the last
rows that are loaded is complete, except for rows equal to that one: nothing that is
still to come can be before it. So everything up to there is cut off, consolidated at
once by the vectorised kernel, and given out, and the runs are loaded again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate_inputs
from timespine.columnar.kernels.consolidate_shared_keys import consolidate_touched
from timespine.columnar.kernels.key_encoding import encode_row
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, DiffOverflow, UsageError

_SHARE = 6
"""Of the memory, the share that is loaded: the rest is for the rows as they are put together, sorted and taken."""

_ALONE_ROWS = 1 << 13
"""Rows of a table that are worth a round of their own."""


def kway_merge(
    runs: Sequence[Iterator[pa.Table]],
    order: Sequence[str],
    cut: Sequence[str] | None = None,
    *,
    chunk_bytes: int,
    apart: int = 0,
    any_order_rows: int = DEFAULT.any_order_rows,
) -> Iterator[pa.Table]:
    """Yield the rows of all runs ascending in `order`, each once, with the sum of its diffs; zeros are dropped.

    Every run must be ascending in `cut`, the leading columns of `order` (all of them, if not given);
    neighbours may be equal. Rows that are equal in `cut` come in one table. About `chunk_bytes` of memory
    are used, and what the rows of the largest such group take once they are consolidated.

    A caller that needs no order gives in `apart` how many of the columns of the cut separate rows for good, as those
    of a key do: then each table is ascending by itself, and rows of a run of at least `any_order_rows` that are alone
    with their key pass (`consolidate_touched`).

    A run that is seen not to be ascending is a CorruptionError.
    """
    leading = tuple(order) if cut is None else tuple(cut)
    if leading != tuple(order)[: len(leading)]:
        raise UsageError("runs are cut by leading columns of the order that they are merged in")
    if chunk_bytes < 1:
        raise UsageError(f"{chunk_bytes} bytes are too few to merge in")
    if apart > len(leading):
        raise UsageError("what sets rows apart are columns that the runs are cut by")
    return _Merge(runs, tuple(order), leading, chunk_bytes, apart, any_order_rows).tables()


class _Run:
    """What is loaded of one run."""

    def __init__(self, tables: Iterator[pa.Table], cut: tuple[str, ...]) -> None:
        self._tables = tables
        self._cut = cut
        self._loaded: deque[tuple[pa.Table, bytes]] = deque()
        self._bytes = 0
        self._first: bytes | None = None
        self.last = b""
        """The last row that is loaded, or was. Rows here are encoded by the columns of the cut."""
        self.ended = False
        """Whether there is nothing more to load."""

    def load(self, target_bytes: int) -> None:
        """Load tables until they have `target_bytes`, and at least one."""
        while not self.ended and (not self._loaded or self._bytes < target_bytes):
            table = next(self._tables, None)
            if table is None:
                self.ended = True
            elif table.num_rows:
                first = encode_row(table, 0, self._cut)
                if first < self.last:
                    raise CorruptionError("a run is not in order from one chunk to the next: it cannot be merged")
                self.last = encode_row(table, table.num_rows - 1, self._cut)
                self._loaded.append((table, self.last))
                self._bytes += table.nbytes

    @property
    def is_empty(self) -> bool:
        return not self._loaded

    @property
    def first(self) -> bytes:
        """The first row that is loaded."""
        if self._first is None:
            self._first = encode_row(self._loaded[0][0], 0, self._cut)
        return self._first

    @property
    def first_last(self) -> bytes:
        """The last row of the first table that is loaded."""
        return self._loaded[0][1]

    @property
    def first_rows(self) -> int:
        """Rows of the first table that is loaded."""
        return int(self._loaded[0][0].num_rows)

    def take(self, cut: bytes | None) -> list[pa.Table]:
        """Take everything up to and including a row; everything if there is none."""
        taken: list[pa.Table] = []
        while self._loaded:
            table, last = self._loaded[0]
            if cut is None or last <= cut:
                taken.append(table)
                self._loaded.popleft()
                self._bytes -= table.nbytes
                continue
            stop = bisect_right(range(table.num_rows), cut, key=lambda row: encode_row(table, row, self._cut))
            if stop:
                left = table.slice(stop)
                self._loaded[0] = (left, last)
                self._bytes -= table.nbytes - left.nbytes
                taken.append(table.slice(0, stop))
            break
        if taken:
            self._first = None
        return taken


class _Merge:
    """One merge under way."""

    def __init__(
        self,
        runs: Sequence[Iterator[pa.Table]],
        order: tuple[str, ...],
        cut: tuple[str, ...],
        chunk_bytes: int,
        apart: int,
        any_order_rows: int,
    ) -> None:
        self._runs = [_Run(tables, cut) for tables in runs]
        self._order = order
        self._cut = cut
        self._apart = apart
        self._any_order_rows = any_order_rows
        self._bytes = max(chunk_bytes // _SHARE, 1)
        self._open: list[pa.Table] = []
        """Rows that are equal to each other in the columns of the cut, and perhaps to some that are not loaded yet."""
        self._open_row = b""
        """What they are equal to."""
        self._open_bytes = 0
        """Bytes of them at which it is time to consolidate them."""
        self._given: bytes | None = None
        """The last row that was given out."""

    def tables(self) -> Iterator[pa.Table]:
        """Merge, round by round."""
        merged: list[pa.Table] = []
        while True:
            self._load()
            # Only now, with the next rows at hand, is it known whether the last rows of a round have equals to come.
            yield from self._complete(merged)
            merged = []  # before memory is needed for the next round
            if not self._runs:
                break
            merged = self._round(self._next_cut())
        if self._open:
            yield from self._emit(self._consolidate([[table] for table in self._open]))

    def _load(self) -> None:
        for run in self._runs:
            run.load(self._bytes // len(self._runs))
        self._runs = [run for run in self._runs if not run.is_empty]

    def _next_cut(self) -> bytes | None:
        """Return a row up to which everything is loaded; None if there is no more to load."""
        ahead, *others = sorted(self._runs, key=lambda run: run.first)
        last = ahead.first_last
        if ahead.first_rows >= _ALONE_ROWS and all(last < run.first for run in others[:1]):
            # No other run has rows there: a table by itself passes without a copy.
            return last
        return min((run.last for run in self._runs if not run.ended), default=None)

    def _round(self, cut: bytes | None) -> list[pa.Table]:
        """Return everything up to a row, consolidated; nothing if all of it is kept open."""
        taken = [tables for run in self._runs if (tables := run.take(cut))]
        if self._open and cut == self._open_row:
            self._keep_open([table for tables in taken for table in tables])
            return []
        inputs = [*([table] for table in self._open), *taken]
        try:
            merged = self._consolidate(inputs)
            self._open = []
        except DiffOverflow:
            if cut is None:
                raise
            # SUBTLE: the sum of the row at the cut may fit again once the rest of it is loaded.
            below = [[self._before(table, cut) for table in tables] for tables in inputs]
            merged = self._consolidate(below)
            pairs = zip(inputs, below, strict=True)
            rest = [table.slice(part.num_rows) for old, new in pairs for table, part in zip(old, new, strict=True)]
            self._open, self._open_row, self._open_bytes = rest, cut, self._bytes
        return merged

    def _keep_open(self, tables: list[pa.Table]) -> None:
        """Add rows to the group that is open, and consolidate them whenever they have doubled."""
        self._open.extend(tables)
        if sum(table.nbytes for table in self._open) < self._open_bytes:
            return
        with suppress(DiffOverflow):  # what is still to come may bring the sum back
            self._open = self._consolidate([[table] for table in self._open])
        self._open_bytes = max(self._bytes, 2 * sum(table.nbytes for table in self._open))

    def _complete(self, merged: list[pa.Table]) -> Iterator[pa.Table]:
        """Yield what is complete of the rows of a round. The rest is kept open."""
        last = max((self._last(table) for table in merged if table.num_rows), default=None)
        if last is not None and any(run.first == last for run in self._runs):
            complete = [self._before(table, last) for table in merged]
            pairs = zip(merged, complete, strict=True)
            self._open[:0] = [table.slice(before.num_rows) for table, before in pairs]
            open_bytes = sum(table.nbytes for table in self._open)
            self._open_row, self._open_bytes = last, max(self._bytes, 2 * open_bytes)
            merged = complete
        yield from self._emit(merged)

    def _before(self, table: pa.Table, row: bytes) -> pa.Table:
        """Return the rows of an ascending table that are before a row."""
        return table.slice(0, bisect_left(range(table.num_rows), row, key=lambda at: encode_row(table, at, self._cut)))

    def _consolidate(self, inputs: list[list[pa.Table]]) -> list[pa.Table]:
        """Return tables of several ascending runs, consolidated."""
        if self._apart:
            return consolidate_touched(inputs, self._order, len(self._cut), self._apart, self._any_order_rows)
        return [consolidate_inputs(inputs, self._order, len(self._cut))]

    def _emit(self, merged: list[pa.Table]) -> Iterator[pa.Table]:
        """Yield the tables that have rows in them, if all of these come after all those before."""
        tables = [table for table in merged if table.num_rows]
        if not tables:
            return
        if self._given is not None and min(self._first(table) for table in tables) <= self._given:
            raise CorruptionError("a run is not in order: what it has cannot be merged")
        self._given = max(self._last(table) for table in tables)
        yield from tables

    def _first(self, table: pa.Table) -> bytes:
        return encode_row(table, 0, self._cut)

    def _last(self, table: pa.Table) -> bytes:
        return encode_row(table, table.num_rows - 1, self._cut)
