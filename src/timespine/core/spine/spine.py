"""The spine: the batches of a collection, in layers, and the requests to merge them.

Layers from the largest down to 0 hold the batches from the oldest to the newest,
and the batches tile the times from the minimum to `upper` and the ids from 0 to
`next_id`. So levels never rise from the oldest batch to the newest.

A *fueled* batch is a request to merge the hollow batches that it consists of.
Any process may answer it, at any later time (`core/spine/merge_result.py`). The rule of
the collection decides which batches become fueled, and when. It is chosen at creation
and never changes: `core/spine/policy_fueled.py` (the default) or
`core/spine/policy_leveled.py`. Both make their changes in a working copy
(`core/spine/policy.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from timespine.core.batch import HollowBatch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import Layer, MergePolicyKind, MergeRequest, SpineBatch
from timespine.core.spine.policy import MergePolicy
from timespine.core.spine.policy_fueled import FueledPolicy
from timespine.core.spine.policy_leveled import LeveledPolicy
from timespine.core.spine.rope import Leaf
from timespine.errors import UsageError, short_repr
from timespine.model.description import Description
from timespine.model.frontier import Frontier

POLICIES: dict[MergePolicyKind, type[MergePolicy]] = {each.merging: each for each in (FueledPolicy, LeveledPolicy)}
"""The class of the working copy for each rule."""


class SpineMetrics(msgspec.Struct, frozen=True):
    """Spine batches, counted by how compact they are."""

    compact: int
    """Batches that are a single sorted run."""
    compacting: int
    """Fueled batches, which wait for a merge."""
    noncompact: int
    """Merged or appended batches with several runs, or with an unordered one."""


class Spine(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The trace of a collection. Immutable: every change gives a new one that shares most of it."""

    since: Frontier
    """The frontier before which no reader reads; merges that begin now may advance times to it."""
    upper: Frontier
    """The frontier below which the batches tile the times."""
    next_id: int = 0
    """The number of batches that were ever inserted."""
    layers: tuple[Layer, ...] = ()
    """The layers, from layer 0 (newest, smallest) up."""
    merging: MergePolicyKind = MergePolicyKind.FUELED
    """The rule by which it is merged. It never changes."""

    def batches(self) -> Iterator[SpineBatch]:
        """Yield the spine batches, oldest first."""
        for layer in reversed(self.layers):
            yield from layer.batches

    def leaves(self) -> Iterator[Leaf]:
        """Yield the hollow batches with their ids, oldest first."""
        return ropes.leaves_of([batch.rope for layer in self.layers for batch in reversed(layer.batches)])

    def hollow_batches(self) -> Iterator[HollowBatch]:
        """Yield the hollow batches, oldest first."""
        return (leaf.batch for leaf in self.leaves())

    def __eq__(self, other: object) -> bool:
        """Tell whether rule, since, upper and hollow batches are the same, however they are layered."""
        if not isinstance(other, Spine):
            return NotImplemented
        if self.merging is not other.merging:
            return False
        if (self.since, self.upper, self.hollow_count) != (other.since, other.upper, other.hollow_count):
            return False
        return all(a == b for a, b in zip(self.hollow_batches(), other.hollow_batches(), strict=True))

    def __ne__(self, other: object) -> bool:
        # SUBTLE: without this, `!=` is that of msgspec's structs and compares identities (test_spine).
        return not self == other

    def __hash__(self) -> int:
        # Not of next_id: empty batches may have been fused in one of two equal spines and not in the other.
        return hash((self.since, self.upper, self.hollow_count))

    @property
    def batch_count(self) -> int:
        """The number of spine batches: the most that a reader has to merge once every request is answered."""
        return sum(len(layer.batches) for layer in self.layers)

    @property
    def hollow_count(self) -> int:
        """The number of hollow batches: the most that a reader has to merge now."""
        return sum(batch.rope.count for layer in self.layers for batch in layer.batches)

    @property
    def update_count(self) -> int:
        """Updates in all batches, at most."""
        return sum(layer.len for layer in self.layers)

    def metrics(self) -> SpineMetrics:
        """Count the batches by how compact they are."""
        compact = sum(batch.is_compact for batch in self.batches())
        compacting = sum(batch.fueled for batch in self.batches())
        return SpineMetrics(compact, compacting, self.batch_count - compact - compacting)

    def describe(self) -> list[tuple[int, int]]:
        """List batches and updates per layer, from 0 up, for people."""
        return [(len(layer.batches), layer.len) for layer in self.layers]

    def downgrade_since(self, since: Frontier) -> Spine:
        """Let merges that begin from now on advance times to `since`. Never goes back."""
        joined = self.since.join(since)
        if joined == self.since:
            return self
        moved = msgspec.structs.replace(self, since=joined)
        policy = moved.policy()
        return freeze(policy) if policy.since_moved() else moved

    def insert(self, batch: HollowBatch) -> Spine:
        """Add a batch at the upper."""
        policy = self.policy()
        policy.insert(batch)
        return freeze(policy)

    def exert(self, fuel: int) -> Spine:
        """Spend fuel without data, so that a spine without writers gets compact too.

        By the fueled rule, fuel goes to the merges in progress. If there are none, the newest batch moves up beside the
        next older one, which begins their merge. With enough fuel, one batch remains. The work is at most the given
        fuel for each merge, so a call after every insertion costs no more than its fuel. Merging by level costs no
        fuel, and this changes nothing.
        """
        if type(fuel) is not int or fuel < 0:
            raise UsageError(f"fuel must be an integer from 0 on, not {short_repr(fuel)}")
        policy = self.policy()
        policy.exert(fuel)
        return freeze(policy)

    def refresh(self, id: tuple[int, int]) -> Spine | None:
        """Request another merge of a merged batch by itself, up to the spine's since.

        It becomes a fueled batch of one hollow batch, so an idle collection still loses expired history, and a batch of
        several runs becomes one run. Return None if there is no such merged batch or nothing to gain.
        """
        policy = self.policy()
        for level, layer in enumerate(self.layers):
            for batch in layer.batches:
                if batch.id == id and not batch.fueled and policy.is_stale(batch):
                    since = batch.desc.since.join(self.since)
                    desc = Description(batch.desc.lower, batch.desc.upper, since)
                    return self.with_batch(level, batch, SpineBatch(desc, batch.rope, True))
        return None

    def stale(self) -> list[tuple[int, int]]:
        """Return the merged batches that `refresh` would accept, oldest first."""
        policy = self.policy()
        return [batch.id for batch in self.batches() if not batch.fueled and policy.is_stale(batch)]

    def roll_up_all(self, lo: int = 0) -> Spine:
        """Make all layers one fueled batch, up to the spine's since: the way to a single run.

        With `lo`, those from the batch with that insertion on, and older ones if that is needed to keep the layers in
        order.
        """
        policy = self.policy()
        batches = [batch for batch in self.batches() if batch.id[1] > lo]
        stale = any(not batch.fueled and policy.is_stale(batch) for batch in batches)
        if len(batches) <= 1 and not stale and all(self.since <= batch.desc.since for batch in batches):
            return self
        policy.roll_up_all(lo)
        return freeze(policy)

    def requests(self) -> list[MergeRequest]:
        """List every fueled batch, oldest first, as a request to merge it; derived from the state alone."""
        return [MergeRequest(batch.desc, batch.rope) for batch in self.batches() if batch.fueled]

    @property
    def coalesces_requests(self) -> bool:
        """Whether a larger request absorbs one that waits, so that waiting saves work."""
        return POLICIES[self.merging].coalesces_requests

    def with_batch(self, level: int, old: SpineBatch, new: SpineBatch) -> Spine:
        """Return the spine with one batch replaced by another of the same times and ids, and all that follows."""
        policy = self.policy()
        policy.put(level, old, new)
        return freeze(policy)

    def policy(self) -> MergePolicy:
        """Return a working copy for one change."""
        return POLICIES[self.merging](self.since, self.upper, self.next_id, self.layers)


def empty_spine(arity: int, merging: MergePolicyKind = MergePolicyKind.FUELED) -> Spine:
    """Return the spine of a new collection."""
    minimum = Frontier.minimum(arity)
    return Spine(minimum, minimum, merging=merging)


def freeze(policy: MergePolicy) -> Spine:
    """Freeze a working copy into a spine."""
    return Spine(policy.since, policy.upper, policy.next_id, tuple(policy.layers), policy.merging)
