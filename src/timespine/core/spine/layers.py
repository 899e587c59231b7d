"""The parts of a spine: batches, layers of them, merges in progress, and requests to merge."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from timespine.core.batch import HollowBatch
from timespine.core.spine import rope as ropes
from timespine.core.spine.rope import Leaf, Rope
from timespine.model.description import Description
from timespine.model.frontier import Frontier

BATCHES_PER_LAYER = 2
"""A layer with this many batches is a merge in progress."""

LEVELS_MAX = 64
"""Layers, at most: a batch has at most 2^62 updates."""


class MergePolicyKind(enum.Enum):
    """The rules for which batches of a collection to merge, and when."""

    FUELED = "fueled"
    """Merge as much as insertions pay for, expired or not: `core/spine/policy_fueled.py`."""
    BY_LEVEL = "by level"
    """Merge two of a level once both have expired: `core/spine/policy_leveled.py`."""


class SpineBatch(msgspec.Struct, frozen=True, gc=False):
    """One batch as the spine sees it: one hollow batch, or several that wait to be merged."""

    desc: Description
    """The times of all its hollow batches together; `since` is the frontier that a merge of them should reach."""
    rope: Rope
    """Its hollow batches."""
    fueled: bool
    """Whether it waits for a merge."""

    @property
    def id(self) -> tuple[int, int]:
        """The range of insertions [lo, hi) that went into it."""
        return (self.rope.lo, self.rope.hi)

    @property
    def len(self) -> int:
        """Updates in it: an upper bound until it is merged."""
        return self.rope.len

    @property
    def is_compact(self) -> bool:
        """Whether it is merged, and into a single sorted run."""
        return not self.fueled and isinstance(self.rope, Leaf) and self.rope.batch.is_sorted


class MergeProgress(msgspec.Struct, frozen=True, gc=False):
    """A merge in progress: pure bookkeeping."""

    since: Frontier
    """The since that the merged batch will have: fixed when the merge began."""
    remaining: int
    """Units of work until it completes."""


class Layer(msgspec.Struct, frozen=True, gc=False):
    """The batches of one level. By the fueled rule: none, one, or two and the merge of them."""

    batches: tuple[SpineBatch, ...] = ()
    """The batches, oldest first."""
    merge: MergeProgress | None = None
    """The merge in progress: by the fueled rule present exactly when the layer is full, by the others never."""

    @property
    def len(self) -> int:
        """Updates in it."""
        return sum(batch.len for batch in self.batches)

    @property
    def is_full(self) -> bool:
        """Whether it is merging, by the fueled rule, and can take no further batch."""
        return len(self.batches) == BATCHES_PER_LAYER


VACANT = Layer()


class MergeRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to merge these hollow batches into one."""

    desc: Description
    """The description that the result should have."""
    rope: Rope
    """The hollow batches to merge."""

    @property
    def id(self) -> tuple[int, int]:
        """The range of insertions [lo, hi) to be merged."""
        return (self.rope.lo, self.rope.hi)

    @property
    def inputs(self) -> Iterator[HollowBatch]:
        """Yield the hollow batches to merge, oldest first."""
        return (leaf.batch for leaf in ropes.leaves(self.rope))


def level_for(count: int) -> int:
    """Return the smallest layer that may hold a batch of this number of updates: ceil(log2 count), 0 for 0."""
    return max(count - 1, 0).bit_length()
