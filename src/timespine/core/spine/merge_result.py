"""Merge results: they replace their inputs, if they still fit.

A result may come late: after other merges, after the spine was rebuilt, after
`since` moved. It fits if it covers exactly one spine batch, or a contiguous
range of the hollow batches of a fueled one; if it is not exact from later on
than the batches that it replaces; if it does not have more updates (a better merge came
first, and layers bound sizes from above); and if its diffs have the same sum,
where both sums are known.
"""

from __future__ import annotations

import enum

import msgspec

from timespine.core.batch import HollowBatch, wrap_int64
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import SpineBatch
from timespine.core.spine.rope import Leaf, Rope
from timespine.core.spine.spine import Spine


class MergeApplication(enum.Enum):
    """The outcome of a merge result."""

    EXACT = "applied exact"
    """It replaced a whole spine batch."""
    SUBSET = "applied subset"
    """It replaced a contiguous range of the hollow batches of a fueled batch."""
    NO_MATCH = "no-op"
    """Nothing in the spine has these bounds."""
    INVALID_SINCE = "no-op invalid since"
    """It is exact only from later on than the batches that it would replace."""
    TOO_MANY_UPDATES = "no-op too many updates"
    """It has more updates than the batches that it would replace."""
    DIFF_SUM = "no-op diff sum"
    """Its diffs do not add up to those of the batches that it would replace: the merge was wrong."""

    @property
    def is_applied(self) -> bool:
        """Whether the spine changed."""
        return self in (MergeApplication.EXACT, MergeApplication.SUBSET)

    @property
    def ends_search(self) -> bool:
        """Whether no other batch can match: bounds matched, applied or not."""
        return self not in (MergeApplication.NO_MATCH, MergeApplication.INVALID_SINCE)


class Replacement(msgspec.Struct, frozen=True, gc=False):
    """The answer to a merge result."""

    applied: MergeApplication
    """The outcome."""
    spine: Spine
    """The spine after it: the same one if nothing was applied."""
    removed: tuple[Leaf, ...] = ()
    """The hollow batches that it replaced."""


def apply_merge_result(spine: Spine, output: HollowBatch) -> Replacement:
    """Replace the inputs of a merge by its result.

    SUBTLE: a since that is too new for one batch does not end the search, so the answer is NO_MATCH if nothing else
    matches (tests/scripts/invalid_since).
    """
    for level in reversed(range(len(spine.layers))):
        for batch in spine.layers[level].batches:
            applied, new, removed = _replace(batch, output)
            if new is not None:
                return Replacement(applied, spine.with_batch(level, batch, new), removed)
            if applied.ends_search:
                return Replacement(applied, spine)
    return Replacement(MergeApplication.NO_MATCH, spine)


def _replace(batch: SpineBatch, output: HollowBatch) -> tuple[MergeApplication, SpineBatch | None, tuple[Leaf, ...]]:
    """Try one spine batch: return the outcome, the new batch if it was applied, and the leaves that it replaced."""
    desc = output.desc
    if not desc.since <= batch.desc.since:
        return MergeApplication.INVALID_SINCE, None, ()
    if desc.is_empty_interval:
        return MergeApplication.NO_MATCH, None, ()
    if desc.lower == batch.desc.lower and desc.upper == batch.desc.upper:
        refusal = _refusal(batch.rope, output)
        if refusal is not None:
            return refusal, None, ()
        leaf = ropes.leaf(batch.rope.lo, batch.rope.hi, output)
        return MergeApplication.EXACT, SpineBatch(desc, leaf, False), tuple(ropes.leaves(batch.rope))
    first = ropes.leaf_from(batch.rope, desc.lower) if batch.fueled else None
    last = ropes.leaf_until(batch.rope, desc.upper) if batch.fueled else None
    if first is None or last is None:
        return MergeApplication.NO_MATCH, None, ()
    inside = list(ropes.leaves_between(batch.rope, first.lo, last.hi))
    refusal = _refusal(ropes.balance([*inside]), output)
    if refusal is not None:
        return refusal, None, ()
    rope = ropes.replace_leaves(batch.rope, ropes.leaf(first.lo, last.hi, output))
    assert rope is not None  # the range begins and ends at leaves
    return MergeApplication.SUBSET, SpineBatch(batch.desc, rope, True), tuple(inside)


def _refusal(replaced: Rope, output: HollowBatch) -> MergeApplication | None:
    """Return why a result with matching bounds is refused, or None."""
    if output.len > replaced.len:
        return MergeApplication.TOO_MANY_UPDATES
    known = replaced.diff_sum is not None and output.diff_sum is not None
    if known and wrap_int64(replaced.diff_sum) != output.diff_sum:  # type: ignore[arg-type]
        return MergeApplication.DIFF_SUM
    return None
