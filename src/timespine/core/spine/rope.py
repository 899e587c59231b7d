"""Ropes: the hollow batches of one spine batch, concatenated without copying.

A fueled batch may consist of many thousand hollow batches that wait to be
merged. Completing a merge concatenates two of them, on the path of an
append, so it must not cost in proportion to their number. A rope is a binary
tree whose leaves are hollow batches in order of time: concatenation makes one
node, and replacing a contiguous range copies one path.

Every leaf has an id range [lo, hi) of spine ids; neighbours tile. Nothing here
recurses, because the depth follows from what was inserted. The nodes make no cycles
and are not tracked by the garbage collector, which would otherwise walk all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from timespine.core.batch import HollowBatch, wrap_int64
from timespine.model.frontier import Frontier


class Leaf(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One hollow batch and its id range."""

    lo: int
    hi: int
    batch: HollowBatch
    len: int
    diff_sum: int | None
    count: int = 1

    @property
    def lower(self) -> Frontier:
        """The frontier at which its times begin."""
        return self.batch.desc.lower

    @property
    def upper(self) -> Frontier:
        """The frontier at which its times end."""
        return self.batch.desc.upper


class Fork(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Two ropes, one after the other, and their common properties."""

    left: Rope
    right: Rope
    lo: int
    hi: int
    lower: Frontier
    upper: Frontier
    len: int
    diff_sum: int | None
    count: int


Rope: TypeAlias = Leaf | Fork


def leaf(lo: int, hi: int, batch: HollowBatch) -> Leaf:
    """Return a rope of one hollow batch."""
    return Leaf(lo, hi, batch, batch.len, batch.diff_sum)


def concat(left: Rope, right: Rope) -> Fork:
    """Concatenate two ropes."""
    a, b = left.diff_sum, right.diff_sum
    diff_sum = None if a is None or b is None else wrap_int64(a + b)
    length, count = left.len + right.len, left.count + right.count
    return Fork(left, right, left.lo, right.hi, left.lower, right.upper, length, diff_sum, count)


def leaves(rope: Rope) -> Iterator[Leaf]:
    """Yield all leaves, oldest first."""
    return leaves_of([rope])


def leaves_of(stack: list[Rope]) -> Iterator[Leaf]:
    """Yield all leaves of ropes, of which the oldest is the last in the list; the list is empty after that."""
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            yield node
        else:
            stack += (node.right, node.left)


def balance(ropes: list[Rope]) -> Rope:
    """Concatenate one or more ropes, as flat as possible."""
    while len(ropes) > 1:
        paired: list[Rope] = [
            concat(ropes[i], ropes[i + 1]) if i + 1 < len(ropes) else ropes[i] for i in range(0, len(ropes), 2)
        ]
        ropes = paired
    return ropes[0]


def leaf_from(rope: Rope, lower: Frontier) -> Leaf | None:
    """Return the leaf that begins exactly at `lower`."""
    while isinstance(rope, Fork):
        rope = rope.right if rope.right.lower <= lower else rope.left
    return rope if rope.lower == lower else None


def leaf_until(rope: Rope, upper: Frontier) -> Leaf | None:
    """Return the leaf that ends exactly at `upper`."""
    while isinstance(rope, Fork):
        rope = rope.left if upper <= rope.left.upper else rope.right
    return rope if rope.upper == upper else None


def leaves_between(rope: Rope, lo: int, hi: int) -> Iterator[Leaf]:
    """Yield the leaves whose ids lie in [lo, hi), oldest first."""
    stack = [rope]
    while stack:
        node = stack.pop()
        if node.hi <= lo or hi <= node.lo:
            continue
        if isinstance(node, Fork):
            stack.append(node.right)
            stack.append(node.left)
        else:
            yield node


def replace_leaves(rope: Rope, new: Leaf) -> Rope | None:
    """Return the rope with the leaves in the id range of `new` replaced by it.

    None if the range does not begin and end at leaves of this rope.
    """
    before: list[Rope] = []
    after: list[Rope] = []
    stack = [rope]
    # Walk down to the pieces left and right of the range, and drop those inside of it.
    while stack:
        node = stack.pop()
        if node.hi <= new.lo:
            before.append(node)
        elif new.hi <= node.lo:
            after.append(node)
        elif new.lo <= node.lo and node.hi <= new.hi:
            continue
        elif isinstance(node, Fork):
            stack.append(node.right)
            stack.append(node.left)
        else:
            return None
    if not (rope.lo <= new.lo and new.hi <= rope.hi):
        return None
    return _around(new, before, after)


def _around(middle: Rope, before: list[Rope], after: list[Rope]) -> Rope:
    """Concatenate from the middle outwards, smaller neighbours first: at most about twice as deep as before."""
    i, j = len(before), 0
    while i > 0 or j < len(after):
        if j == len(after) or (i > 0 and before[i - 1].count <= after[j].count):
            i -= 1
            middle = concat(before[i], middle)
        else:
            middle = concat(middle, after[j])
            j += 1
    return middle
