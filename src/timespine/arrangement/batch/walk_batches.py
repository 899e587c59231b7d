"""Walk over several batches at once, by ranges of keys.

A step takes of every batch the updates up to one key: the smallest of those that lie a share of the wanted rows
ahead in each, in proportion to what is left of it. So a step has about as many updates as wanted, updates of one key
never fall apart, and what is kept between steps is a place per batch. Merges, scans and cursors are such steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.chunk import Chunk
from timespine.arrangement.batch.combine_chunks import Piece, piece_between
from timespine.columnar.kernels.comparable_words import Key
from timespine.columnar.kernels.find_keys import rows_before

CREEP = 4
"""The reciprocal of the part of an equal share that a step looks ahead in a batch at least."""


class _Place:
    """How far the walk is in one batch."""

    def __init__(self, batch: Batch, start: tuple[int, int], stop: tuple[int, int]) -> None:
        self._chunks = batch.chunks
        self._fence = batch.fence
        self.number, self.row = start
        self._stop = stop
        self.left = _rows_between(batch, start, stop)
        """Updates that are still to come."""
        self._key: bytes | None = None

    @property
    def key(self) -> bytes:
        """The encoded key of the next update."""
        if self._key is None:
            self._key = Key.at(self._chunks[self.number].index.columns, self.row).encoded
        return self._key

    def key_ahead(self, rows: int) -> Key:
        """Return the key of the update that lies some rows ahead."""
        number, row = self.number, self.row + rows
        while row >= self._chunks[number].rows:
            row -= self._chunks[number].rows
            number += 1
        return Key.at(self._chunks[number].index.columns, row)

    def next_whole(self, rows_min: int) -> Key | None:
        """Return the first key of the next chunk of which nothing was taken, if it has `rows_min` updates at least."""
        number = self.number + (self.row > 0)
        if number >= self._stop[0] or self._chunks[number].rows < rows_min:
            return None
        return Key.at(self._chunks[number].index.columns, 0)

    def whole_chunk(self) -> Chunk | None:
        """Return the next chunk, if none of it was taken, all of it is wanted, and its keys are in no other one.

        SUBTLE: updates of one row may be in two chunks, at two times (test_a_row_at_two_times_in_two_chunks_is_netted).
        """
        number = self.number
        if self.row or number >= self._stop[0]:
            return None
        after = self._chunks[number + 1 : number + 2]
        return None if after and after[0].first == self._fence[number] else self._chunks[number]

    def skip_chunk(self) -> None:
        """Pass over the next chunk."""
        self._move(self.number, self._chunks[self.number].rows)

    def take(self, cut: Key | None, *, inclusive: bool) -> list[Piece]:
        """Take the updates of all keys before one, and of itself if it is included; all if there is none."""
        taken = []
        while self.left:
            chunk = self._chunks[self.number]
            end = self._stop[1] if self.number == self._stop[0] else chunk.rows
            stop = end
            if cut is not None and (self._fence[self.number] > cut.encoded or not inclusive):
                stop = min(rows_before(chunk.index, cut, inclusive=inclusive), end)
            if stop > self.row:
                taken.append(piece_between(chunk, self.row, stop))
                self._move(self.number, stop)
            if stop < end:
                break
        return taken

    def _move(self, number: int, row: int) -> None:
        """Stand before a row, or before the next chunk if it is the last of one."""
        self.left -= row - self.row
        is_end = row == self._chunks[number].rows
        self.number, self.row = (number + 1, 0) if is_end else (number, row)
        self._key = None


class Walk:
    """Steps through the updates of some batches, in the order of keys."""

    def __init__(
        self,
        batches: Sequence[Batch],
        lower: Key | None = None,
        upper: Key | None = None,
        *,
        inclusive: bool = False,
        is_after: bool = False,
        alone_rows: int | None = None,
    ) -> None:
        """Walk from the first key not before `lower` to the last before `upper`; with `inclusive`, `upper` too.

        With `is_after`, the first key is the one after `lower` and after all that begin with it. Chunks of `alone_rows`
        updates at least, which no other batch reaches into, can be taken whole.
        """
        self._alone_rows = alone_rows
        self.reached: Key | None = None
        """The last key that the last step looked at; None if it took all that was left."""
        starts = [position_of(batch, lower, inclusive=is_after) if lower is not None else (0, 0) for batch in batches]
        stops = [
            position_of(batch, upper, inclusive=inclusive) if upper is not None else (len(batch.chunks), 0)
            for batch in batches
        ]
        places = [_Place(*each) for each in zip(batches, starts, stops, strict=True)]
        self._places = [place for place in places if place.left > 0]

    @property
    def left(self) -> int:
        """Return how many updates are still to come."""
        return sum(place.left for place in self._places)

    def step(self, rows: int) -> list[Piece]:
        """Take the updates of the next keys, about `rows` of them; none at the end."""
        if not self._places:
            return []
        # In proportion to what is left of each, so that batches end together; but none creeps.
        left, least = self.left, rows // (CREEP * len(self._places)) + 1
        shares = [(place, max(rows * place.left // left, least)) for place in self._places]
        ahead = [place.key_ahead(share - 1) for place, share in shares if place.left > share]
        cut = min(ahead, key=lambda key: key.encoded, default=None)
        border = self._border()
        inclusive = border is None or (cut is not None and cut.encoded < border.encoded)
        last = self.reached = cut if inclusive else border
        taken = [piece for place in self._places for piece in place.take(last, inclusive=inclusive)]
        self._drop_ended()
        return taken

    def _border(self) -> Key | None:
        """Return where a chunk begins that could be taken whole, if there are updates before it."""
        if self._alone_rows is None:
            return None
        begins = [key for place in self._places if (key := place.next_whole(self._alone_rows)) is not None]
        if not begins:
            return None
        start = min(place.key for place in self._places)
        return min((key for key in begins if key.encoded > start), key=lambda key: key.encoded, default=None)

    def step_alone(self) -> Chunk | None:
        """Take the next chunk, if it is large, and no other batch reaches into it."""
        if not self._places or self._alone_rows is None:
            return None
        ahead = min(self._places, key=lambda place: place.key)
        chunk = ahead.whole_chunk()
        if chunk is None or chunk.rows < self._alone_rows:
            return None
        if any(place.key <= chunk.last for place in self._places if place is not ahead):
            return None
        ahead.skip_chunk()
        self._drop_ended()
        return chunk

    def _drop_ended(self) -> None:
        self._places = [place for place in self._places if place.left > 0]


def step_back(
    batches: Sequence[Batch], upper: Key | None, rows: int, *, inclusive: bool
) -> tuple[list[Piece], Key | None]:
    """Take the updates of the last keys before one, about `rows` of them; return them, and the first key of them.

    With `inclusive`, those of `upper` and of all keys that begin with it too. The key is None if no update is before.
    """
    stops = [
        (len(batch.chunks), 0) if upper is None else position_of(batch, upper, inclusive=inclusive) for batch in batches
    ]
    lefts = [_rows_between(batch, (0, 0), stop) for batch, stop in zip(batches, stops, strict=True)]
    total, least = sum(lefts), rows // (CREEP * max(len(batches), 1)) + 1
    behind = []
    for batch, left in zip(batches, lefts, strict=True):
        share = max(rows * left // max(total, 1), least)
        if left > share:
            behind.append(_key_at(batch, left - share))
    cut = max(behind, key=lambda key: key.encoded, default=None)
    taken = []
    for batch, stop in zip(batches, stops, strict=True):
        start = (0, 0) if cut is None else position_of(batch, cut, inclusive=False)
        taken += _pieces_between(batch, start, stop)
    return taken, cut


def _key_at(batch: Batch, row: int) -> Key:
    """Return the key of an update by its number in the batch."""
    for chunk in batch.chunks:
        if row < chunk.rows:
            return Key.at(chunk.index.columns, row)
        row -= chunk.rows
    raise AssertionError("a batch has fewer updates than it says")


def _pieces_between(batch: Batch, start: tuple[int, int], stop: tuple[int, int]) -> list[Piece]:
    """Return the updates of a batch between two places."""
    pieces = []
    for number in range(start[0], min(stop[0] + 1, len(batch.chunks))):
        chunk = batch.chunks[number]
        low = start[1] if number == start[0] else 0
        high = stop[1] if number == stop[0] else chunk.rows
        if low < high:
            pieces.append(piece_between(chunk, low, high))
    return pieces


def rows_until(batch: Batch, place: tuple[int, int]) -> int:
    """Return the number of updates before a place."""
    return _rows_between(batch, (0, 0), place)


def position_of(batch: Batch, key: Key, *, inclusive: bool) -> tuple[int, int]:
    """Return the chunk and the row in it that follow all updates before a key; with `inclusive`, also those of it."""
    length = len(key.encoded)
    if inclusive:
        number = bisect_right(batch.fence, key.encoded, key=lambda last: last[:length])
    else:
        number = bisect_left(batch.fence, key.encoded)
    if number == len(batch.chunks):
        return number, 0
    return number, rows_before(batch.chunks[number].index, key, inclusive=inclusive)


def _rows_between(batch: Batch, start: tuple[int, int], stop: tuple[int, int]) -> int:
    """Return the number of updates between two places."""
    if stop <= start:
        return 0
    return sum(chunk.rows for chunk in batch.chunks[start[0] : stop[0]]) - start[1] + stop[1]
