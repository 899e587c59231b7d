"""An immutable sequence that is cheap to append to, however long it is.

A plain tuple copies all of itself per append. This one is a tuple of chunks, so
an append copies the last chunk and, once per chunk, the spine of chunks: with
chunks of 256, a hundred thousand items cost less than copying 512 pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

CHUNK = 256
"""Items per chunk."""


class Chunks(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """Full chunks, and one that is being filled."""

    full: tuple[tuple[T, ...], ...] = ()
    tail: tuple[T, ...] = ()

    @staticmethod
    def of(items: Iterable[T]) -> Chunks[T]:
        """All items, in order."""
        listed = tuple(items)
        cut = len(listed) - len(listed) % CHUNK
        return Chunks(tuple(listed[i : i + CHUNK] for i in range(0, cut, CHUNK)), listed[cut:])

    def append(self, item: T) -> Chunks[T]:
        """One item more."""
        tail = (*self.tail, item)
        return Chunks((*self.full, tail), ()) if len(tail) == CHUNK else Chunks(self.full, tail)

    def extend(self, items: Iterable[T]) -> Chunks[T]:
        """Some items more."""
        longer = self
        for item in items:
            longer = longer.append(item)
        return longer

    @property
    def last(self) -> T | None:
        """The last item, if there is one."""
        chunk = self.tail or (self.full[-1] if self.full else ())
        return chunk[-1] if chunk else None

    def __iter__(self) -> Iterator[T]:
        for chunk in self.full:
            yield from chunk
        yield from self.tail

    def __len__(self) -> int:
        return len(self.full) * CHUNK + len(self.tail)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunks):
            return NotImplemented
        return self is other or tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((len(self), self.tail))

    def after_common(self, other: Chunks[T]) -> Iterator[T]:
        """The items behind the chunks that both share: where a difference can be."""
        shared = 0
        for mine, theirs in zip(self.full, other.full, strict=False):
            if mine is not theirs:
                break
            shared += 1
        for chunk in self.full[shared:]:
            yield from chunk
        yield from self.tail
