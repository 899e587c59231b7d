"""A batch of an arrangement: chunks in order, and the facts that reads and the merge policy need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

import pyarrow as pa

from timespine.arrangement.batch.chunk import Chunk, chunks_of
from timespine.arrangement.batch.key_filters import MemberFilter
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.comparable_words import Key, Probes
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.find_keys import located_rows
from timespine.columnar.kernels.row_words import Index
from timespine.core.batch import wrap_int64
from timespine.model.time import Time, join, meet

Span = tuple[bytes, bytes, int, Callable[[int], bool], Chunk]
"""First key, last key, bytes of the prefix, filter, and the chunk: side by side, since there may be a hundred."""


class Location(Enum):
    """Where the chunks of a batch are."""

    MEMORY = "memory"
    STORAGE = "storage"


class Batch:
    """Sorted, consolidated updates: at least one. Two batches may have updates of one key."""

    def __init__(self, chunks: Sequence[Chunk], location: Location = Location.MEMORY, file: str | None = None) -> None:
        self.chunks = tuple(chunks)
        """The chunks in order. Updates of one key may be in several, side by side."""
        self.location = location
        """Where they are."""
        self.file = file
        """The name of the file that holds the same updates, if there is one."""
        self.rows = sum(chunk.rows for chunk in self.chunks)
        """The number of updates."""

    @property
    def in_memory(self) -> bool:
        """Return whether it takes memory, and not only pages of a mapped file."""
        return self.location is Location.MEMORY

    def with_file(self, name: str) -> Batch:
        """Return the same batch, which a file now holds too."""
        return Batch(self.chunks, self.location, name)

    @cached_property
    def fence(self) -> list[bytes]:
        """The encoded last key of every chunk."""
        return [chunk.last for chunk in self.chunks]

    @property
    def first(self) -> bytes:
        """Return the smallest key, encoded."""
        return self.chunks[0].first

    @property
    def last(self) -> bytes:
        """Return the largest key, encoded."""
        return self.fence[-1]

    @cached_property
    def keys(self) -> int:
        """The number of different keys."""
        total = sum(chunk.keys for chunk in self.chunks)
        pairs = zip(self.chunks, self.chunks[1:], strict=False)
        return total - sum(before.last == after.first for before, after in pairs)

    @cached_property
    def negatives(self) -> int:
        """The number of updates with a diff below zero."""
        return sum(chunk.negatives for chunk in self.chunks)

    @cached_property
    def diff_sum(self) -> int:
        """The sum of all diffs, modulo 2^64."""
        return wrap_int64(sum(chunk.diff_sum for chunk in self.chunks))

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the updates and their words."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def filters(self) -> list[MemberFilter]:
        """Return the filters that were made so far: each is made when it is asked first."""
        return [vars(chunk)["members"] for chunk in self.chunks if "members" in vars(chunk)]

    @cached_property
    def earliest(self) -> Time:
        """The smallest of each coordinate of the times."""
        least = self.chunks[0].earliest
        for chunk in self.chunks[1:]:
            least = meet(least, chunk.earliest)
        return least

    @cached_property
    def latest(self) -> Time:
        """The largest of each coordinate of the times."""
        most = self.chunks[0].latest
        for chunk in self.chunks[1:]:
            most = join(most, chunk.latest)
        return most

    @cached_property
    def span(self) -> Span | None:
        """What a search for one key needs of a batch of one chunk."""
        if len(self.chunks) > 1:
            return None
        chunk = self.chunks[0]
        return chunk.first, chunk.last, chunk.index.prefix, chunk.members.may_contain, chunk

    def verify(self) -> None:
        """Verify all chunks of a mapped file now, instead of each at its first touch."""
        for chunk in self.chunks:
            _ = chunk.columns

    def around(self, key: Key) -> Iterator[Chunk]:
        """Give the chunks whose bounds a key, or one that begins with it, is in."""
        for place in range(bisect_left(self.fence, key.encoded), len(self.chunks)):
            chunk = self.chunks[place]
            if not chunk.covers(key):
                break
            yield chunk

    def locate(self, probes: Probes) -> list[tuple[Chunk, Index]]:
        """Find the rows of many keys, or of all that begin with them, chunk by chunk.

        A chunk of a file that no key lies in is not touched, and so not read
        (test_a_fetch_touches_only_chunks_that_keys_lie_in).
        """
        found = []
        for chunk in self.chunks:
            if chunk.may_have(probes):
                located = chunk.locate(probes)
                if len(located.keys):
                    found.append((chunk, located_rows(located)))
        return found

    def __repr__(self) -> str:
        return f"Batch({self.rows} rows, {len(self.chunks)} chunks, {self.location.value})"


def batch_of(updates: pa.Table, layout: Layout) -> Batch | None:
    """Make a batch of an update table, consolidated or not; None if nothing is left of it."""
    table = consolidate(updates, layout.update_order)
    return Batch(chunks_of(table, layout)) if table.num_rows else None
