"""Updates of several chunks put together: in order, each once, with the sum of its diffs.

    as of t:          for every row   sum(diff) == sum(diff of its updates at times <= t)
    folded to since:  for every row and every t >= since
                      sum(diff of its updates at times <= t) is the same before and after

Chunks of text have words behind prefixes of their own. Where these differ, words are made again behind what all
begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.arrangement.batch.chunk import CHUNK_ROWS, Chunk
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.kernels.comparable_words import absolute_words
from timespine.columnar.kernels.consolidate import RowOverflow, consolidate_words
from timespine.columnar.kernels.row_words import Index
from timespine.columnar.kernels.text_words import Words, shared_bytes
from timespine.columnar.scan.visibility import Coordinates, advance_times
from timespine.model.frontier import Frontier, advance_by
from timespine.model.time import Time, less_equal


class Piece(NamedTuple):
    """Some updates of a chunk, in order."""

    chunk: Chunk
    """Where they are from."""
    columns: dict[str, pa.Array]
    """The columns of their rows."""
    words: Words
    """Their words, behind the prefix of the chunk."""
    times: Coordinates | Time
    """Their times by coordinate, or the time of all."""
    diffs: NDArray[Any] | None
    """Their diffs; None if all are +1."""

    @property
    def rows(self) -> int:
        """Return the number of updates."""
        return len(self.words)


class SortedUpdates(NamedTuple):
    """Updates in order, each once."""

    columns: dict[str, pa.Array]
    """The columns of their rows."""
    times: Coordinates | Time
    """Their times by coordinate, or the time of all; empty if times were netted."""
    diffs: NDArray[Any] | None
    """Their diffs; None if all are +1."""
    rows: int
    """The number of updates."""

    def diff_array(self) -> NDArray[np.int64]:
        """Return their diffs, one by one; not to be written to."""
        return _ones(self.rows) if self.diffs is None else self.diffs.astype(np.int64, copy=False)


_shared_ones = np.ones(0, np.int64)


def _ones(rows: int) -> NDArray[np.int64]:
    """Return as many ones. They are a part of one array, so that a scan of rows that count once writes no memory."""
    global _shared_ones
    ones = _shared_ones
    if len(ones) < rows:
        ones = np.ones(rows, np.int64)
        ones.flags.writeable = False
        if rows <= CHUNK_ROWS:
            _shared_ones = ones
    return ones[:rows]


def piece_between(chunk: Chunk, start: int, stop: int) -> Piece:
    """Return neighbouring updates of a chunk, without a copy."""
    if stop - start == chunk.rows:
        return Piece(chunk, chunk.columns, chunk.index.words, _times_of(chunk), chunk.diffs)
    columns = {name: column.slice(start, stop - start) for name, column in chunk.columns.items()}
    return _piece(chunk, columns, slice(start, stop))


def piece_at(chunk: Chunk, index: Index) -> Piece:
    """Return some updates of a chunk, which an ascending index names."""
    named = pa.array(index)
    return _piece(chunk, {name: column.take(named) for name, column in chunk.columns.items()}, index)


def rows_of_chunk(chunk: Chunk, index: Index, names: Sequence[str]) -> SortedUpdates:
    """Return some updates of a chunk of one time, which an ascending index names, with some of their columns."""
    named = pa.array(index)
    diffs = None if chunk.diffs is None else chunk.diffs[index]
    return SortedUpdates({name: chunk.columns[name].take(named) for name in names}, (), diffs, len(index))


def _piece(chunk: Chunk, columns: dict[str, pa.Array], places: slice | Index) -> Piece:
    times: Coordinates | Time = _times_of(chunk)
    if chunk.times is not None:
        times = tuple(each[places] for each in chunk.times)
    diffs = None if chunk.diffs is None else chunk.diffs[places]
    return Piece(chunk, columns, chunk.index.words[places], times, diffs)


def _times_of(chunk: Chunk) -> Coordinates | Time:
    return chunk.times if chunk.time is None else chunk.time  # type: ignore[return-value]


def net_as_of(pieces: Sequence[Piece], layout: Layout, as_of: Time) -> SortedUpdates | None:
    """Net the updates at times not after one: the rows as of it, with their counts; None if there is none."""
    seen = [shown for piece in pieces if (shown := _as_of(piece, as_of)) is not None]
    if not seen:
        return None
    if len(seen) == 1 and seen[0].chunk.time is not None:
        return SortedUpdates(seen[0].columns, (), seen[0].diffs, seen[0].rows)
    index, sums, columns = _consolidated(seen, layout, ())
    if not len(index):
        return None
    named = pa.array(index)
    return SortedUpdates({name: column.take(named) for name, column in columns.items()}, (), sums, len(index))


def fold_times(pieces: Sequence[Piece], layout: Layout, since: Frontier) -> SortedUpdates | None:
    """Put updates together, with times before `since` advanced to it; None if nothing is left."""
    moved = [piece._replace(times=advance(piece.times, since)) for piece in pieces]
    if len(moved) == 1 and moved[0].times is pieces[0].times:
        piece = moved[0]
        return SortedUpdates(piece.columns, piece.times, piece.diffs, piece.rows)
    constant = _one_time(moved)
    times = () if constant is not None else _coordinates(moved)
    index, sums, columns = _consolidated(moved, layout, times)
    if not len(index):
        return None
    named = pa.array(index)
    taken = {name: column.take(named) for name, column in columns.items()}
    kept = constant if constant is not None else tuple(each[index] for each in times)
    return SortedUpdates(taken, kept, sums, len(index))


def _as_of(piece: Piece, as_of: Time) -> Piece | None:
    """Return the updates of a piece at times not after one."""
    chunk = piece.chunk
    if less_equal(chunk.latest, as_of):
        return piece
    if not less_equal(chunk.earliest, as_of) or chunk.times is None:
        return None
    mask = np.ones(piece.rows, np.bool_)
    for place, bound in enumerate(as_of):
        mask &= np.asarray(piece.times[place]) <= bound
    places = np.flatnonzero(mask)
    if not places.size:
        return None
    named = pa.array(places)
    return piece._replace(
        columns={name: column.take(named) for name, column in piece.columns.items()},
        words=piece.words[places],
        times=(),
        diffs=None if piece.diffs is None else piece.diffs[places],
    )


def _consolidated(
    pieces: Sequence[Piece], layout: Layout, times: Coordinates
) -> tuple[Index, NDArray[np.int64], dict[str, pa.Array]]:
    """Consolidate pieces by their rows and times: which updates remain, their diffs, and the columns of all."""
    columns = {name: _concatenated([piece.columns[name] for piece in pieces]) for name in layout.schema.names}
    words, is_exact = _words(pieces, layout.by[0])
    order = [columns[name] for name in layout.order]
    order += [pa.array(each) for each in times]
    diffs = [_ones(piece.rows) if piece.diffs is None else piece.diffs for piece in pieces]
    try:
        index, sums = consolidate_words(words, is_exact, order, np.concatenate(diffs).astype(np.int64, copy=False))
    except RowOverflow as error:
        error.rows = pa.table({name: columns[name] for name in layout.by}).take(error.places)
        raise error.explain("an arrangement", layout.by) from error
    return index, sums, columns


def _words(pieces: Sequence[Piece], first: str) -> tuple[Words, bool]:
    """Return words of the first column of all pieces that compare with each other."""
    prefixes = [piece.chunk.prefix for piece in pieces]
    # SUBTLE: prefixes of one length may be different texts (test_chunks_with_other_prefixes_are_put_together).
    shared = len(shared_bytes(min(prefixes), max(prefixes)))
    made, is_exact = [], True
    for piece in pieces:
        index = piece.chunk.index
        words, exact = piece.words, index.exact
        if index.prefix != shared:
            words, exact = absolute_words(piece.columns[first], shared)
        made.append(words)
        is_exact &= exact
    return (made[0] if len(made) == 1 else np.concatenate(made)), is_exact


def _concatenated(columns: Sequence[pa.Array]) -> pa.Array:
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def advance(times: Coordinates | Time, since: Frontier) -> Coordinates | Time:
    """Advance times to a frontier; return the same object if all are there."""
    if isinstance(times[0], int):
        moved = advance_by(times, since)
        return times if moved == times else moved
    arrays = advance_times(times, since)
    return times if all(a is b for a, b in zip(arrays, times, strict=True)) else arrays


def _one_time(pieces: Sequence[Piece]) -> Time | None:
    """Return the time of all updates, if they have one."""
    found: Time | None = None
    for piece in pieces:
        for coordinates in piece.times:
            if not isinstance(coordinates, int) and not (coordinates == coordinates[0]).all():
                return None
        time = tuple(each if isinstance(each, int) else int(each[0]) for each in piece.times)
        if found is not None and time != found:
            return None
        found = time
    return found


def _coordinates(pieces: Sequence[Piece]) -> Coordinates:
    """Return the times of all updates by coordinate."""
    arity = len(pieces[0].times)
    return tuple(
        np.concatenate([np.broadcast_to(np.asarray(piece.times[place], np.int64), piece.rows) for piece in pieces])
        for place in range(arity)
    )
