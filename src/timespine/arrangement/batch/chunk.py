"""A chunk: some updates of an arrangement, sorted and consolidated, with the words that they are found by.

Updates are sorted by (arranged columns, the other columns, time). What is the same for all of them takes no memory:
their time, if they have one, as usual once times are folded; their diffs, if all are +1. Chunks are immutable. A
chunk owns its memory: a slice of a larger table would keep all of that alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.arrangement.batch.key_filters import MemberFilter, WordBitmap, are_dense, member_filter
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.comparable_words import Key, Probes, compare
from timespine.columnar.kernels.find_keys import Located, WordIndex, locate
from timespine.columnar.kernels.row_words import INTEGERS, Index, is_text, single
from timespine.columnar.scan.visibility import Coordinates
from timespine.columnar.schema.schema import DIFF
from timespine.libraries import pc
from timespine.model.time import Time

CHUNK_ROWS = 1 << 20
"""The most updates of a chunk. Fetches get slower with fewer: more chunks are searched."""

CHUNK_BYTES = 1 << 26
"""About the most bytes of a chunk."""

PLACES_PAY = 8
"""The reciprocal of the share of its rows that a chunk is asked for by fetches before it makes a bitmap for them. To
make one takes about what the searches for that many keys take."""

_SLACK_BYTES = 1 << 12
"""Bytes of other rows that a column may keep alive, whatever its size."""

Diffs = NDArray[Any]
"""Diffs in the narrowest signed type that holds them."""


class Chunk:
    """Updates in order, at least one."""

    _asked = 0
    """Keys that fetches asked for. Threads count without a lock, so a few may be lost."""

    def __init__(
        self,
        columns: dict[str, pa.Array],
        index: WordIndex,
        time: Time | None,
        times: Coordinates | None,
        diffs: Diffs | None,
    ) -> None:
        self.columns = columns
        """The columns of the rows, each in one piece."""
        self.index = index
        """The words of the first arranged column, and the arranged columns."""
        self.time = time
        """The time of all updates, if they have one."""
        self.times = times
        """Their times otherwise, by coordinate."""
        self.diffs = diffs
        """Their diffs; None if all are +1."""
        self.rows = len(index)
        """The number of updates."""

    @cached_property
    def earliest(self) -> Time:
        """The smallest of each coordinate of the times."""
        return self.time or tuple(int(each.min()) for each in self.times or ())

    @cached_property
    def latest(self) -> Time:
        """The largest of each coordinate of the times."""
        return self.time or tuple(int(each.max()) for each in self.times or ())

    @cached_property
    def first(self) -> bytes:
        """The encoded key of the first update."""
        return self.index.first

    @cached_property
    def last(self) -> bytes:
        """The encoded key of the last update."""
        return self.index.last

    def covers(self, key: Key) -> bool:
        """Return whether a key, or one that begins with it, lies between the first and the last."""
        encoded, first = key.encoded, self.first
        return self.last >= encoded and (first <= encoded or first.startswith(encoded))

    @cached_property
    def prefix(self) -> bytes:
        """What all texts of the first arranged column begin with."""
        length = self.index.prefix
        first: bytes = self.index.columns[0][0].as_buffer().to_pybytes()[:length] if length else b""
        return first

    @cached_property
    def negatives(self) -> int:
        """The number of updates with a diff below zero."""
        return 0 if self.diffs is None else int(np.count_nonzero(np.less(self.diffs, 0)))

    @cached_property
    def diff_sum(self) -> int:
        """The sum of the diffs, modulo 2^64."""
        return self.rows if self.diffs is None else int(self.diffs.sum(dtype=np.int64))

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the updates and their words."""
        own = [self.index.words, *(self.times or ()), *(() if self.diffs is None else (self.diffs,))]
        return int(sum(column.nbytes for column in self.columns.values()) + sum(each.nbytes for each in own))

    @cached_property
    def members(self) -> MemberFilter:
        """The filter that says whether there may be rows of a word."""
        return member_filter(self.index.words, is_dense=self._is_dense)

    @cached_property
    def _is_dense(self) -> bool:
        """Whether rows are arranged by integers that lie close together."""
        first = self.index.columns[0]
        return first.type.id in INTEGERS and not first.null_count and are_dense(self.index.words)

    def may_have(self, probes: Probes) -> bool:
        """Return whether some of the keys may have rows here; `locate` tells it exactly."""
        return True

    def locate(self, probes: Probes) -> Located:
        """Find the rows of many keys, or of all that begin with them: by a search, or by a bitmap if there is one."""
        self._asked += len(probes)
        if self._asked * PLACES_PAY >= self.rows and self._is_dense:
            members = self.members
            if isinstance(members, WordBitmap) and members.tells_places:
                return locate(self.index, probes, members.places)
        return locate(self.index, probes)

    @cached_property
    def key_starts(self) -> Index | None:
        """The first row of every key; None if every row has a key of its own."""
        words, columns = self.index.words, self.index.columns
        first = np.empty(self.rows, np.bool_)
        first[0] = True
        np.not_equal(words[1:], words[:-1], out=first[1:])
        tied = np.flatnonzero(~first)
        if tied.size and not (self.index.exact and len(columns) == 1):
            here, before = pa.array(tied), pa.array(tied - 1)
            first[tied] = compare([each.take(here) for each in columns], [each.take(before) for each in columns]) != 0
        return None if first.all() else np.flatnonzero(first)

    @property
    def keys(self) -> int:
        """The number of different keys."""
        starts = self.key_starts
        return self.rows if starts is None else len(starts)


def chunks_of(table: pa.Table, layout: Layout) -> list[Chunk]:
    """Cut a consolidated update table into chunks."""
    times = tuple(single(table.column(name)).to_numpy() for name in layout.schema.time_names)
    return cut_chunks(table.select(layout.schema.names), times, single(table.column(DIFF)).to_numpy(), layout)


def cut_chunks(
    rows: pa.Table, times: Coordinates | Time, diffs: NDArray[np.int64] | None, layout: Layout
) -> list[Chunk]:
    """Cut consolidated rows into chunks, with times by coordinate or one time for all; without diffs, all are +1."""
    chunks = []
    for start, stop in pairwise(_cuts(rows)):
        part = rows if stop - start == rows.num_rows else rows.slice(start, stop - start)
        columns = {name: _owned(single(part.column(name))) for name in layout.schema.names}
        own = tuple(each if isinstance(each, int) else each[start:stop] for each in times)
        chunks.append(chunk_of(columns, own, None if diffs is None else diffs[start:stop], layout))  # type: ignore[arg-type]
    return chunks


def chunk_of(
    columns: dict[str, pa.Array], times: Coordinates | Time, diffs: NDArray[np.int64] | None, layout: Layout
) -> Chunk:
    """Make a chunk of columns in order, with times by coordinate or one time for all; without diffs, all are +1."""
    index = WordIndex.of([columns[name] for name in layout.by])
    arrays = tuple(each for each in times if not isinstance(each, int))
    time = tuple(each if isinstance(each, int) else int(each[0]) for each in times)
    narrowed = None if diffs is None else _narrow(diffs)
    if all((each == each[0]).all() for each in arrays):
        return Chunk(columns, index, time, None, narrowed)
    # Copies: the arrays may be parts of larger ones.
    return Chunk(columns, index, None, tuple(np.array(each) for each in arrays), narrowed)


def _narrow(diffs: NDArray[np.int64]) -> Diffs | None:
    """Return diffs in as few bytes as they need; None if all are +1."""
    low, high = int(diffs.min()), int(diffs.max())
    if low == high == 1:
        return None
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return diffs.astype(kind)
    return diffs.astype(np.int64)  # a copy: the array may be a part of a larger one


def _owned(column: pa.Array) -> pa.Array:
    """Return a column that keeps no rows of others alive."""
    if column.get_total_buffer_size() <= 2 * column.nbytes + _SLACK_BYTES:
        return column
    return column.take(pa.array(np.arange(len(column))))


def _cuts(table: pa.Table) -> Sequence[int]:
    """Return where chunks begin and end, so that none is too large."""
    rows = table.num_rows
    if rows <= CHUNK_ROWS and table.nbytes <= CHUNK_BYTES:
        return (0, rows) if rows else (0,)
    ends = np.cumsum(_row_bytes(table))
    cuts = [0]
    while cuts[-1] < rows:
        start = cuts[-1]
        used = int(ends[start - 1]) if start else 0
        by_bytes = int(np.searchsorted(ends, used + CHUNK_BYTES, "right"))
        cuts.append(min(max(by_bytes, start + 1), start + CHUNK_ROWS, rows))
    return cuts


def _row_bytes(table: pa.Table) -> Index:
    """Return the bytes of every row, about."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        if is_text(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        else:
            total += -(-column.nbytes // table.num_rows)
    return total
