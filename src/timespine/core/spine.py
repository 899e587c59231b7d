"""The fueled spine: which batches of a collection to merge, and when.

The spine is a list of layers. Layer k holds no batch, one, or two; a batch at
layer k counts as 2^k updates and has at most that many. Layers from the largest
down to 0 hold the batches from the oldest to the newest, and the batches tile
the times from the minimum to `upper` and the ids from 0 to `next_id`.

Two batches in a layer are a merge in progress. It needs as much fuel as there
are updates in the two; every insertion gives fuel to every merge; a merge out
of work moves on, as one batch, to the layer above. Here a merge moves no rows:
completing it concatenates hollow batches into a *fueled* batch and asks for a
merge. Anybody may answer that request, at any later time, and the answer
replaces the fueled batch (or a contiguous part of it) if it still fits. So
compaction never blocks and never conflicts with a writer.

## Why eight units of fuel per update

Invariant: below a merge in progress at layer k there are fewer than 2^k
(virtual) updates, so the layers below cannot produce another batch for k.

- A merge that completes at layer k makes one at k + 1 that needs at most
  2 * 2^(k+1) = 2^(k+2) units of work. Before the layers below can hand another
  batch to layer k + 1, more than 2^k updates must arrive. 2^(k+2) / 2^k = 4
  units per update finish it in time.
- Inserting a batch at layer i first rolls up everything below i. That promotes
  at most 2^i updates' worth of smaller batches: as if they were inserted again,
  which is another 4 units for each of the at most 2^i.

Hence FUEL = 8 per (virtual) update, given to each merge in progress.

## What follows from it

(An empty batch that is not fused counts as one update in N below.)

- Batches: at most two per layer, and a batch of n updates enters at layer
  ceil(log2 n). With N updates in all there are at most ceil(log2 N) + 2 layers
  (one for the roll-up, one for the completed merge above it), so at most
  2 * ceil(log2 N) + 4 batches, however many insertions there were.
- Work: an update takes part in a merge only to rise at least one layer, so
  at most ceil(log2 N) + 2 times, but for `tidy`, which lowers the top layer only
  when its batch has shrunk or was rolled up with virtual updates, and which
  those virtual updates have paid for. Total work is O(N log N) updates merged,
  amortized O(log N) per update inserted; `tests/core/test_spine_bounds.py`
  checks 2 * (ceil(log2 N) + 2) per update and the number of batches above.
- Insertion itself: O(log N) steps, no matter how many hollow batches there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from timespine.core import rope as ropes
from timespine.core.hollow import HollowBatch
from timespine.core.layers import Fueling, Layer, MergeRequest, SpineBatch, without_redundant
from timespine.core.loom import Loom
from timespine.core.rope import Leaf
from timespine.errors import UsageError, shown
from timespine.model.description import Description
from timespine.model.frontier import Frontier


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
        """The same since, upper and hollow batches, however they are layered."""
        if not isinstance(other, Spine):
            return NotImplemented
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
        return self if joined == self.since else msgspec.structs.replace(self, since=joined)

    def insert(self, batch: HollowBatch) -> tuple[Spine, list[MergeRequest]]:
        """Add a batch at the upper; the requests that came due, without redundant ones."""
        loom = self._loom()
        loom.insert(batch)
        return _woven(loom), without_redundant(loom.requests)

    def insert_quietly(self, batch: HollowBatch) -> Spine:
        """`insert` for callers that derive requests from the state anyway."""
        loom = self._loom()
        loom.insert(batch)
        return _woven(loom)

    def exert(self, fuel: int) -> Spine:
        """Spend fuel without data, so that a spine that nobody writes to gets compact too.

        Fuel goes to the merges in progress. If there are none, the newest batch
        is moved up beside the next older one, which begins their merge. With
        enough fuel, one batch remains. The work done is at most the fuel given
        for each merge, so calling this after every insertion costs what it is given.
        """
        if type(fuel) is not int or fuel < 0:
            raise UsageError(f"fuel must be an integer from 0 on, not {shown(fuel)}")
        loom = self._loom()
        loom.exert(fuel)
        return _woven(loom)

    def refresh(self, id: tuple[int, int]) -> Spine | None:
        """Ask for a merged batch to be merged again, by itself, up to the spine's since.

        It becomes a fueled batch of one hollow batch, so an idle collection still
        loses what was expired, and a batch of several runs becomes one run.
        None if there is no such merged batch or nothing to gain.
        """
        for level, layer in enumerate(self.layers):
            for batch in layer.batches:
                if batch.id == id and not batch.fueled and self._is_stale(batch):
                    since = batch.desc.since.join(self.since)
                    desc = Description(batch.desc.lower, batch.desc.upper, since)
                    return self._with_batch(level, batch, SpineBatch(desc, batch.rope, True))
        return None

    def stale(self) -> list[tuple[int, int]]:
        """The merged batches that `refresh` would accept, oldest first."""
        return [batch.id for batch in self.batches() if not batch.fueled and self._is_stale(batch)]

    def _is_stale(self, batch: SpineBatch) -> bool:
        return batch.len > 0 and (not batch.is_compact or not self.since <= batch.desc.since)

    def roll_up_all(self) -> Spine:
        """All layers become one fueled batch, up to the spine's since: the way to a single run."""
        batches = list(self.batches())
        if len(batches) <= 1 and not self.stale() and all(self.since <= each.desc.since for each in batches):
            return self
        loom = self._loom()
        loom.roll_up_all()
        return _woven(loom)

    def requests(self) -> list[MergeRequest]:
        """Every fueled batch, oldest first: what somebody should merge, derived from the state alone."""
        return [MergeRequest(batch.desc, batch.rope) for batch in self.batches() if batch.fueled]

    def _loom(self) -> Loom:
        return Loom(self.since, self.upper, self.next_id, self.layers)

    def _with_batch(self, level: int, old: SpineBatch, new: SpineBatch) -> Spine:
        """This spine with one batch swapped for another of the same times and ids."""
        layer = self.layers[level]
        batches = tuple(new if batch is old else batch for batch in layer.batches)
        merge = layer.merge
        if merge is not None:
            # SUBTLE: a refreshed batch may ask for more than the merge that it is part of did when it began
            # (test_refresh_inside_a_merge_raises_the_since_of_the_merge).
            merge = Fueling(merge.since.join(new.desc.since), merge.remaining)
        changed = Layer(batches, merge)
        layers = (*self.layers[:level], changed, *self.layers[level + 1 :])
        return msgspec.structs.replace(self, layers=layers)


def empty_spine(arity: int) -> Spine:
    """The spine of a collection that was just created."""
    minimum = Frontier.minimum(arity)
    return Spine(minimum, minimum)


def _woven(loom: Loom) -> Spine:
    """What came off the loom."""
    return Spine(loom.since, loom.upper, loom.next_id, tuple(loom.layers))
