"""Find parts that may hold expired history, from their statistics.

A merge removes an update when it cancels out, or folds into another one of the same row: when since has passed both
of their times. So all updates to forget are in parts that have

- *repeats*: several updates of one row, in the part itself, or
- *negatives*: retractions, whose insertions may be in any older batch of the same keys.

A part of insertions alone, one per row, has nothing to forget, however far since has moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from timespine.client.inner_handles import CollectionHandle
from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.parts.part_stats import PartMeta, describe_updates
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.maintenance_policy import REMOVED_SHARE
from timespine.core.spine.layers import MergePolicyKind, SpineBatch
from timespine.core.spine.rope import Leaf
from timespine.core.state import State
from timespine.core.transitions import Refresh, RollUpAll

LEAVES_MAX = 256
"""Most hollow batches that are compared with each other: if there are more, all are assumed to share keys."""


@dataclass(frozen=True, slots=True)
class _BatchHistory:
    """The contents of one hollow batch, as far as statistics tell."""

    batch: HollowBatch
    folds: bool
    """Whether it may hold several updates of one row that since has passed."""
    retracts: bool
    """Whether it may hold retractions that since has passed."""
    schema: int | None
    """The id of the schema of all its runs; None if they have several."""
    lower: bytes | None
    """A lower bound of its rows; None: unknown."""
    upper: bytes | None
    """An upper bound of its rows; None: unknown."""

    def touches(self, other: _BatchHistory) -> bool:
        """Return whether both may have updates of one row. Bounds of two schemas do not compare."""
        if None in (self.lower, self.upper, other.lower, other.upper) or self.schema != other.schema:
            return True
        return self.lower <= other.upper and other.lower <= self.upper  # type: ignore[operator]


def oldest_to_rewrite(handle: CollectionHandle, state: State) -> int | None:
    """Return the insertion from which on batches may hold expired history; None if none can."""
    if not state.since.elements:
        return None  # nothing can be read: maintenance is about to purge the whole collection
    leaves = list(state.trace.leaves())
    parts = handle.parts(state)
    held = [_describe_batch(parts, leaf, state) for leaf in leaves]
    if len(leaves) > LEAVES_MAX:
        return 0 if any(each.folds or each.retracts for each in held) else None
    oldest: int | None = None
    for place, each in enumerate(held):
        reach = place if each.folds else None
        if each.retracts:
            touched = (older for older in range(place) if each.touches(held[older]))
            reach = next(touched, reach)
        if reach is not None:
            oldest = reach if oldest is None else min(oldest, reach)
    return None if oldest is None else leaves[oldest].lo


def _describe_batch(parts: Parts, leaf: Leaf, state: State) -> _BatchHistory:
    """Describe a hollow batch from the statistics of its parts; decode inline parts."""
    batch = leaf.batch
    known = [_meta(parts, run, part) for run in batch.runs for part in run.parts]
    expired = [meta for meta in known if meta is None or _has_expired(meta, state)]
    # SUBTLE: a merge up to a since folds updates up to there: one per row is left, and a retraction that is left
    # in the oldest batch has nothing to cancel (test_estimate_expired_history.py).
    loose = [meta for meta in expired if meta is None or not _is_folded(meta, batch)]
    retracts = any(meta is None or meta.negatives != 0 for meta in expired)
    folds = any(meta is None or meta.repeats != 0 for meta in loose)
    # SUBTLE: a retraction and its insertion may lie in two runs, or in two neighbouring parts of one run: no part has
    # a repeat then (test_estimate_expired_history.py).
    listed = list(batch.parts)
    several = len(listed) > 1 or any(part.hollow for part in listed)
    folds = folds or (several and any(meta is None or meta.negatives != 0 for meta in loose))
    schemas = {run.schema for run in batch.runs}
    bounds = [(meta.lower, meta.upper) for meta in known if meta is not None]
    unknown = len(bounds) < len(known) or any(None in each for each in bounds) or not bounds
    return _BatchHistory(
        batch,
        folds,
        retracts,
        schemas.pop() if len(schemas) == 1 else None,
        None if unknown else min(lower for lower, _ in bounds if lower is not None),
        None if unknown else max(upper for _, upper in bounds if upper is not None),
    )


def _meta(parts: Parts, run: Run, part: Part) -> PartMeta | None:
    """Return the statistics of a part; compute those of an inline part from its data."""
    meta = meta_of(part)
    if part.inline is None or (meta is not None and meta.repeats is not None):
        return meta
    id, schema = parts.schema(run)
    return describe_updates(parts.decoded((part,), id, schema, CacheHint.NEVER_ADD), schema, sorted=True)


def _has_expired(meta: PartMeta, state: State) -> bool:
    """Return whether since may have passed some of the times of a part. True with several coordinates."""
    return state.arity != 1 or meta.min_time[0] <= state.since.time


def _is_folded(meta: PartMeta, batch: HollowBatch) -> bool:
    """Return whether the merge that made a batch folded all times of a part."""
    since = batch.desc.since
    return bool(since.elements) and all(
        top <= min(each) for top, each in zip(meta.max_time, zip(*since, strict=True), strict=True)
    )


def worth_forgetting(state: State) -> Refresh | RollUpAll | None:
    """Return the rewrite that removes at least one of REMOVED_SHARE updates within the budget; None if there is none.

    A rewrite of one batch with repeats comes first; then one of all batches, if retractions are many. The share of
    times that since has passed is interpolated between the smallest and the largest time of a part.
    """
    if state.arity != 1 or not state.since.elements or state.trace.requests():
        return None
    budget = state.totals.budget_rows
    batches = [batch for batch in state.trace.batches() if batch.len]
    for batch in batches:
        repeats = sum(share * (meta.repeats or 0) for meta, share in _shares(batch, state))
        if batch.len <= budget and repeats * REMOVED_SHARE >= batch.len:
            return Refresh(batch.id, extra=True)
    rows = sum(batch.len for batch in batches)
    gone = sum(
        share * max(meta.repeats or 0, 2 * (meta.negatives or 0))
        for batch in batches
        for meta, share in _shares(batch, state)
        if batch is not batches[0] or not _is_folded(meta, _only(batch))
    )
    merges_all = (
        len(batches) > 1 and state.trace.merging is MergePolicyKind.FUELED
    )  # by level, what is not expired stays
    if merges_all and rows <= budget and gone * REMOVED_SHARE >= rows:
        return RollUpAll(extra=True)
    return None


def _shares(batch: SpineBatch, state: State) -> Iterator[tuple[PartMeta, float]]:
    """Give the statistics of the parts of a merged batch, and the share of their times that since has passed."""
    ((since,),) = state.since.elements
    for part in _only(batch).parts:
        meta = meta_of(part)
        if meta is not None:
            low, high = meta.min_time[0], meta.max_time[0]
            yield meta, 1.0 if high <= since else 0.0 if since <= low else (since - low) / (high - low)


def _only(batch: SpineBatch) -> HollowBatch:
    """Return the hollow batch of a merged batch."""
    assert isinstance(batch.rope, Leaf)
    return batch.rope.batch
