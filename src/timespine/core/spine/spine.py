"""The spine: the batches of a collection, in layers, and what there is to merge.

Layers from the largest down to 0 hold the batches from the oldest to the newest,
and the batches tile the times from the minimum to `upper` and the ids from 0 to
`next_id`. So levels never rise from the oldest batch to the newest.

A *fueled* batch is a request to merge the hollow batches that it consists of.
Anybody may answer it, at any later time (`core/spine/merge_result.py`). Which batches become
fueled, and when, is decided by the rule of the collection, which is chosen when it
is created and stays: `core/spine/policy_fueled.py` (the default) or `core/spine/policy_leveled.py`. Both
make their changes in a working copy, the loom (`core/spine/policy.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from timespine.core.batch import HollowBatch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import Layer, MergeRequest, Merging, SpineBatch
from timespine.core.spine.policy import Loom
from timespine.core.spine.policy_fueled import Fueled
from timespine.core.spine.policy_leveled import ByLevel
from timespine.core.spine.rope import Leaf
from timespine.errors import UsageError, shown
from timespine.model.description import Description
from timespine.model.frontier import Frontier

LOOMS: dict[Merging, type[Loom]] = {each.merging: each for each in (Fueled, ByLevel)}
"""Where a change of a spine is made, by its rule."""


class SpineMetrics(msgspec.Struct, frozen=True):
    """Spine batches, counted by how compact they are."""

    compact: int
    """Merged into a single sorted run."""
    compacting: int
    """Fueled: a merge is asked for."""
    noncompact: int
    """Merged, or appended, with several runs or none in order."""


class Spine(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The trace of a collection. Immutable: every change gives a new one that shares most of it."""

    since: Frontier
    """No reader reads before this; merges that begin now may advance times to it."""
    upper: Frontier
    """The batches tile the times below this."""
    next_id: int = 0
    """How many batches were ever inserted."""
    layers: tuple[Layer, ...] = ()
    """From layer 0 (newest, smallest) up."""
    merging: Merging = Merging.FUELED
    """The rule by which it is merged. Stays what it is."""

    def batches(self) -> Iterator[SpineBatch]:
        """The spine batches, oldest first."""
        for layer in reversed(self.layers):
            yield from layer.batches

    def leaves(self) -> Iterator[Leaf]:
        """The hollow batches with their ids, oldest first."""
        for batch in self.batches():
            yield from ropes.leaves(batch.rope)

    def hollow_batches(self) -> Iterator[HollowBatch]:
        """The hollow batches, oldest first."""
        return (leaf.batch for leaf in self.leaves())

    def __eq__(self, other: object) -> bool:
        """The same rule, since, upper and hollow batches, however they are layered."""
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
        """Spine batches: what a reader has to merge if every fueled batch was answered."""
        return sum(len(layer.batches) for layer in self.layers)

    @property
    def hollow_count(self) -> int:
        """Hollow batches: what a reader has to merge now, at most."""
        return sum(batch.rope.count for layer in self.layers for batch in layer.batches)

    @property
    def update_count(self) -> int:
        """Updates in all batches, at most."""
        return sum(layer.len for layer in self.layers)

    def metrics(self) -> SpineMetrics:
        """How compact it is."""
        compact = sum(batch.is_compact for batch in self.batches())
        compacting = sum(batch.fueled for batch in self.batches())
        return SpineMetrics(compact, compacting, self.batch_count - compact - compacting)

    def describe(self) -> list[tuple[int, int]]:
        """Per layer, from 0 up: batches and updates. For people."""
        return [(len(layer.batches), layer.len) for layer in self.layers]

    def downgrade_since(self, since: Frontier) -> Spine:
        """Let merges that begin from now on advance times to `since`. Never goes back."""
        joined = self.since.join(since)
        if joined == self.since:
            return self
        moved = msgspec.structs.replace(self, since=joined)
        loom = moved.loom()
        return freeze(loom) if loom.since_moved() else moved

    def insert(self, batch: HollowBatch) -> Spine:
        """Add a batch at the upper."""
        loom = self.loom()
        loom.insert(batch)
        return freeze(loom)

    def exert(self, fuel: int) -> Spine:
        """Spend fuel without data, so that a spine that nobody writes to gets compact too.

        By the fueled rule, fuel goes to the merges in progress. If there are none,
        the newest batch is moved up beside the next older one, which begins their
        merge. With enough fuel, one batch remains. The work done is at most the fuel
        given for each merge, so calling this after every insertion costs what it is
        given. Merging by level costs no fuel, and this changes nothing.
        """
        if type(fuel) is not int or fuel < 0:
            raise UsageError(f"fuel must be an integer from 0 on, not {shown(fuel)}")
        loom = self.loom()
        loom.exert(fuel)
        return freeze(loom)

    def refresh(self, id: tuple[int, int]) -> Spine | None:
        """Ask for a merged batch to be merged again, by itself, up to the spine's since.

        It becomes a fueled batch of one hollow batch, so an idle collection still
        loses what was expired, and a batch of several runs becomes one run.
        None if there is no such merged batch or nothing to gain.
        """
        loom = self.loom()
        for level, layer in enumerate(self.layers):
            for batch in layer.batches:
                if batch.id == id and not batch.fueled and loom.is_stale(batch):
                    since = batch.desc.since.join(self.since)
                    desc = Description(batch.desc.lower, batch.desc.upper, since)
                    return self.with_batch(level, batch, SpineBatch(desc, batch.rope, True))
        return None

    def stale(self) -> list[tuple[int, int]]:
        """The merged batches that `refresh` would accept, oldest first."""
        loom = self.loom()
        return [batch.id for batch in self.batches() if not batch.fueled and loom.is_stale(batch)]

    def roll_up_all(self, lo: int = 0) -> Spine:
        """All layers become one fueled batch, up to the spine's since: the way to a single run.

        With `lo`, those from the batch with that insertion on, and older ones if that is needed to keep the
        layers in order.
        """
        loom = self.loom()
        batches = [batch for batch in self.batches() if batch.id[1] > lo]
        stale = any(not batch.fueled and loom.is_stale(batch) for batch in batches)
        if len(batches) <= 1 and not stale and all(self.since <= batch.desc.since for batch in batches):
            return self
        loom.roll_up_all(lo)
        return freeze(loom)

    def requests(self) -> list[MergeRequest]:
        """Every fueled batch, oldest first: what somebody should merge, derived from the state alone."""
        return [MergeRequest(batch.desc, batch.rope) for batch in self.batches() if batch.fueled]

    @property
    def gathers(self) -> bool:
        """Whether a request that is left alone is taken up by a larger one, so that waiting saves work."""
        return LOOMS[self.merging].gathers

    def with_batch(self, level: int, old: SpineBatch, new: SpineBatch) -> Spine:
        """This spine with one batch swapped for another of the same times and ids, and what follows from it."""
        loom = self.loom()
        loom.put(level, old, new)
        return freeze(loom)

    def loom(self) -> Loom:
        """A working copy to make one change in."""
        return LOOMS[self.merging](self.since, self.upper, self.next_id, self.layers)


def empty_spine(arity: int, merging: Merging = Merging.FUELED) -> Spine:
    """The spine of a collection that was just created."""
    minimum = Frontier.minimum(arity)
    return Spine(minimum, minimum, merging=merging)


def freeze(loom: Loom) -> Spine:
    """Return the spine that a working copy has become."""
    return Spine(loom.since, loom.upper, loom.next_id, tuple(loom.layers), loom.merging)
