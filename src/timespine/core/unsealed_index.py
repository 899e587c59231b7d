"""The unsealed batches of a collection, cheap to add to and cheap to search by time.

An append has to find the unsealed updates whose times it seals, among batches
that may be a hundred thousand and mostly far ahead. So the index keeps them as perfect
binary trees of falling sizes, like the digits of a binary number: a new batch is
a tree of one, and two trees of the same size become one. Every tree knows a time
before and a time after all of its own, so that a search skips whole trees.

Adding costs O(log n), searching O(log n) per batch found, and two indexes that
share trees are compared without looking into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from timespine.core.batch import Count, Part
from timespine.model import time as times
from timespine.model.frontier import Frontier
from timespine.model.time import Time


class UnsealedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Updates that are durable, at times that may not be sealed yet."""

    seqno: Count
    """Its number among the writes of the collection: without gaps, in the order of commit."""
    lower: Frontier
    """Its minimal times."""
    max: Time
    """A time at or after all of its times (the largest one if times are totally ordered)."""
    rows: Count
    """Updates in it."""
    parts: tuple[Part, ...]
    """The parts that hold them, in no order."""
    schema: int | None = None
    """The id of the schema that they were written with."""

    def has_times_below(self, frontier: Frontier) -> bool:
        """Tell whether some of its times are not at or after the frontier."""
        return not frontier <= self.lower

    def is_wholly_below(self, frontier: Frontier) -> bool:
        """Tell whether surely none of its times is at or after the frontier."""
        return not frontier.less_equal(self.max)


class UnsealedTree(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One batch, or two trees of the same size."""

    size: int
    min: Time
    """A time at or before all of its times."""
    max: Time
    """A time at or after all of its times."""
    batch: UnsealedBatch | None
    """The batch of a tree of one; None in a larger tree."""
    left: UnsealedTree | None = None
    right: UnsealedTree | None = None


class UnsealedIndex(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Unsealed batches in order of their number."""

    trees: tuple[UnsealedTree, ...] = ()
    """The trees, of falling sizes, oldest first."""

    @staticmethod
    def of(batches: Iterable[UnsealedBatch]) -> UnsealedIndex:
        """Build the index of batches in order."""
        return UnsealedIndex().extend(batches)

    def append(self, batch: UnsealedBatch) -> UnsealedIndex:
        """Return the index with one more batch."""
        return self.extend((batch,))

    def extend(self, batches: Iterable[UnsealedBatch]) -> UnsealedIndex:
        """Return the index with more batches."""
        trees = list(self.trees)
        for batch in batches:
            tree = _single(batch)
            while trees and trees[-1].size == tree.size:
                tree = _joined(trees.pop(), tree)
            trees.append(tree)
        return UnsealedIndex(tuple(trees))

    @property
    def last(self) -> UnsealedBatch | None:
        """The newest batch, if there is one."""
        tree = self.trees[-1] if self.trees else None
        while tree is not None and tree.right is not None:
            tree = tree.right
        return tree.batch if tree is not None else None

    def __iter__(self) -> Iterator[UnsealedBatch]:
        return _batches(self.trees)

    def __len__(self) -> int:
        return sum(tree.size for tree in self.trees)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnsealedIndex):
            return NotImplemented
        return self is other or tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((len(self), self.last))

    def between(self, lower: Frontier, upper: Frontier) -> Iterator[UnsealedBatch]:
        """Yield the batches that may have a time at or after `lower` and not at or after `upper`, in order."""
        stack = list(reversed(self.trees))
        while stack:
            tree = stack.pop()
            if upper.less_equal(tree.min) or not lower.less_equal(tree.max):
                continue
            if tree.batch is not None:
                if tree.batch.has_times_below(upper):
                    yield tree.batch
            else:
                stack.extend(_halves(tree))

    def reaching(self, lower: Frontier, until: Time) -> Iterator[UnsealedBatch]:
        """Yield the batches that may have a time at or after `lower` and at or before `until`, in order."""
        stack = list(reversed(self.trees))
        while stack:
            tree = stack.pop()
            if not times.less_equal(tree.min, until) or not lower.less_equal(tree.max):
                continue
            if tree.batch is None:
                stack.extend(_halves(tree))
            elif tree.batch.lower.less_equal(until):
                yield tree.batch

    def changes(self, new: UnsealedIndex) -> tuple[list[UnsealedBatch], list[UnsealedBatch]]:
        """Return the batches that may be only here, and those that may be only in a later index.

        A tree that both share is skipped whole.
        """
        known = {id(tree): tree for tree in self.trees}
        shared: set[int] = set()
        fresh: list[UnsealedBatch] = []
        stack = list(reversed(new.trees))
        while stack:
            tree = stack.pop()
            if id(tree) in known:
                shared.add(id(tree))
            elif tree.batch is not None:
                fresh.append(tree.batch)
            else:
                stack.extend(_halves(tree))
        return list(_batches(tree for tree in self.trees if id(tree) not in shared)), fresh


def _single(batch: UnsealedBatch) -> UnsealedTree:
    least = batch.lower.elements[0] if batch.lower.elements else batch.max
    for time in batch.lower.elements[1:]:
        least = times.meet(least, time)
    return UnsealedTree(1, least, batch.max, batch)


def _joined(left: UnsealedTree, right: UnsealedTree) -> UnsealedTree:
    return UnsealedTree(
        2 * left.size, times.meet(left.min, right.min), times.join(left.max, right.max), None, left, right
    )


def _halves(tree: UnsealedTree) -> list[UnsealedTree]:
    """Return the two trees in a larger one, the newer one first: the order in which a stack takes them."""
    return [half for half in (tree.right, tree.left) if half is not None]


def _batches(trees: Iterable[UnsealedTree]) -> Iterator[UnsealedBatch]:
    stack = list(trees)[::-1]
    while stack:
        tree = stack.pop()
        if tree.batch is not None:
            yield tree.batch
        else:
            stack.extend(_halves(tree))
