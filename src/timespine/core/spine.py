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
from timespine.core.hollow import HollowBatch, empty_batch
from timespine.core.rope import Leaf, Rope
from timespine.errors import UsageError, shown
from timespine.model.description import Description
from timespine.model.frontier import Frontier

FUEL = 8
"""Units of merge work per (virtual) update inserted. Derived in the module's docstring."""

BATCHES_PER_LAYER = 2
"""A layer with this many batches is a merge in progress."""

LEVELS_MAX = 64
"""Layers, at most: a batch has at most 2^62 updates."""


class SpineBatch(msgspec.Struct, frozen=True, gc=False):
    """One batch as the spine sees it: one hollow batch, or several that wait to be merged."""

    desc: Description
    """The times of all its hollow batches together; `since` is what a merge of them should reach."""
    rope: Rope
    """Its hollow batches."""
    fueled: bool
    """Whether a merge of it has been paid for and is asked for."""

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
        """Whether it is merged, and into a single run."""
        return not self.fueled and isinstance(self.rope, Leaf) and len(self.rope.batch.runs) <= 1


class Fueling(msgspec.Struct, frozen=True, gc=False):
    """A merge in progress: pure bookkeeping."""

    since: Frontier
    """What the merged batch will have as its since: fixed when the merge began."""
    remaining: int
    """Units of work until it completes."""


class Layer(msgspec.Struct, frozen=True, gc=False):
    """No batch, one batch, or two and the merge of them."""

    batches: tuple[SpineBatch, ...] = ()
    """Oldest first."""
    merge: Fueling | None = None
    """Present exactly when the layer is full."""

    @property
    def len(self) -> int:
        """Updates in it."""
        return sum(batch.len for batch in self.batches)

    @property
    def is_full(self) -> bool:
        """Whether it is merging and can take no further batch."""
        return len(self.batches) == BATCHES_PER_LAYER


VACANT = Layer()


class MergeRequest(msgspec.Struct, frozen=True, gc=False):
    """Somebody should merge these hollow batches into one."""

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
        """The hollow batches to merge, oldest first."""
        return (leaf.batch for leaf in ropes.leaves(self.rope))

    def covers(self, other: MergeRequest) -> bool:
        """Whether answering this one makes the other needless."""
        return (
            self.desc.lower <= other.desc.lower
            and other.desc.upper <= self.desc.upper
            and self.desc.since == other.desc.since
        )


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

    def describe(self) -> list[tuple[int, int]]:
        """Per layer, from 0 up: batches and updates. For people."""
        return [(len(layer.batches), layer.len) for layer in self.layers]

    def downgrade_since(self, since: Frontier) -> Spine:
        """Let merges that begin from now on advance times to `since`. Never goes back."""
        joined = self.since.join(since)
        return self if joined == self.since else msgspec.structs.replace(self, since=joined)

    def insert(self, batch: HollowBatch) -> tuple[Spine, list[MergeRequest]]:
        """Add a batch at the upper; the requests that came due, without redundant ones."""
        loom = Loom(self)
        loom.insert(batch)
        return loom.finish(), without_redundant(loom.requests)

    def insert_quietly(self, batch: HollowBatch) -> Spine:
        """`insert` for callers that derive requests from the state anyway."""
        loom = Loom(self)
        loom.insert(batch)
        return loom.finish()

    def exert(self, fuel: int) -> Spine:
        """Spend fuel without data, so that a spine that nobody writes to gets compact too.

        Fuel goes to the merges in progress. If there are none, the newest batch
        is moved up beside the next older one, which begins their merge. With
        enough fuel, one batch remains. The work done is at most the fuel given
        for each merge, so calling this after every insertion costs what it is given.
        """
        if type(fuel) is not int or fuel < 0:
            raise UsageError(f"fuel must be an integer from 0 on, not {shown(fuel)}")
        loom = Loom(self)
        loom.exert(fuel)
        return loom.finish()

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
        if self.batch_count == 1 and not self.stale() and not self.requests():
            return self
        loom = Loom(self)
        loom.roll_up_all()
        return loom.finish()

    def requests(self) -> list[MergeRequest]:
        """Every fueled batch, oldest first: what somebody should merge, derived from the state alone."""
        return [MergeRequest(batch.desc, batch.rope) for batch in self.batches() if batch.fueled]

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


def level_for(count: int) -> int:
    """The smallest layer that may hold a batch of that many updates: ceil(log2 count), 0 for 0."""
    return max(count - 1, 0).bit_length()


def without_redundant(requests: list[MergeRequest]) -> list[MergeRequest]:
    """The requests that no other one covers, last created first.

    Rolling up completes one layer after the other and so asks for (a, b), then
    (a, b, c), ...; only the last is worth doing. One insertion makes at most one
    request per layer, so the quadratic search is over a handful.
    """
    kept: list[MergeRequest] = []
    for request in reversed(requests):
        if not any(other.covers(request) for other in kept):
            kept = [other for other in kept if not request.covers(other)]
            kept.append(request)
    return kept


class Loom:
    """The working copy in which one change of a spine is made."""

    def __init__(self, spine: Spine) -> None:
        self.since = spine.since
        self.upper = spine.upper
        self.next_id = spine.next_id
        self.layers = list(spine.layers)
        self.requests: list[MergeRequest] = []

    def finish(self) -> Spine:
        """The changed spine."""
        return Spine(self.since, self.upper, self.next_id, tuple(self.layers))

    def insert(self, batch: HollowBatch) -> None:
        """Add a batch at the upper."""
        desc = batch.desc
        if desc.is_empty_interval:
            raise UsageError(f"a batch must span some time: lower and upper are both {desc.lower}")
        if desc.lower != self.upper:
            raise UsageError(f"a batch that begins at {desc.lower} cannot follow the upper {self.upper}")
        if not desc.since <= self.since:
            raise UsageError(f"a batch exact from {desc.since} on is past the spine's since {self.since}")
        new = SpineBatch(desc, ropes.leaf(self.next_id, self.next_id + 1, batch), False)
        self.next_id += 1
        self.upper = desc.upper
        if batch.is_empty and self._fuse(new):
            return
        self._introduce(new, level_for(batch.len))

    def _fuse(self, empty: SpineBatch) -> bool:
        """Fuse an empty batch with the newest one if that is empty too; whether it was."""
        for level, layer in enumerate(self.layers):
            if layer.batches:
                if len(layer.batches) > 1 or layer.len > 0:
                    return False
                self._insert_at(empty, level)
                fused = self._complete_at(level)
                assert fused is not None  # two batches were just there
                self._insert_at(fused, level)
                return True
        return False

    def _introduce(self, batch: SpineBatch, level: int) -> None:
        """Add a batch at a level: fuel the merges, make room, insert, tidy."""
        self._apply_fuel(FUEL << level)
        self._roll_up(level)
        self._insert_at(batch, level)
        self._tidy()

    def _apply_fuel(self, fuel: int) -> None:
        """Give each merge in progress that much; what completes moves to the layer above.

        SUBTLE: layers that completed merges make anew in this pass lie above the
        one at hand and get their share when the loop reaches them, but a layer
        that did not exist when the pass began gets none. Going from the top down
        would starve merges, and refuse insertions into layers about to complete.
        """
        for level in range(len(self.layers)):
            layer = self.layers[level]
            if layer.merge is None:
                continue
            remaining = layer.merge.remaining - min(fuel, layer.merge.remaining)
            self.layers[level] = Layer(layer.batches, Fueling(layer.merge.since, remaining))
            if remaining == 0:
                self._promote(level)

    def _promote(self, level: int) -> None:
        """Complete what is at a layer and put it into the one above."""
        completed = self._complete_at(level)
        if completed is not None:
            self._insert_at(completed, level + 1)

    def _roll_up(self, level: int) -> None:
        """Clear all layers below `level`, and make sure that `level` takes one more batch."""
        self._grow(level)
        if all(not layer.batches for layer in self.layers[:level]):
            return
        for below in range(level):
            self._promote(below)
        if self.layers[level].is_full:
            self._promote(level)

    def _tidy(self) -> None:
        """Draw the top batch down to a layer that fits its size.

        It moves down through vacant layers, and into a merge with a single batch
        if that cannot be invaded soon: at most an eighth of what the layer above
        would hold may wait below (`tests/core/test_spine_bounds.py`).
        """
        if not self.layers or len(self.layers[-1].batches) != 1:
            return
        fitting = level_for(self.layers[-1].len)
        while fitting < len(self.layers) - 1:
            length = len(self.layers)
            below = self.layers[length - 2]
            if not below.batches:
                del self.layers[length - 2]
                continue
            virtual = sum(len(layer.batches) << level for level, layer in enumerate(self.layers[: length - 2]))
            if not below.is_full and virtual <= (1 << length) // 8:
                del self.layers[length - 2]
                self._insert_at(below.batches[0], length - 2)
            return

    def exert(self, fuel: int) -> None:
        """See `Spine.exert`."""
        self._tidy()
        occupied = [level for level, layer in enumerate(self.layers) if layer.batches]
        if len(occupied) > 1 and all(layer.merge is None for layer in self.layers):
            newest = self.layers[occupied[0]].batches[0]
            self.layers[occupied[0]] = VACANT
            self._insert_at(newest, occupied[1])
        self._apply_fuel(fuel)
        self._tidy()

    def roll_up_all(self) -> None:
        """See `Spine.roll_up_all`."""
        batches = tuple(batch for layer in reversed(self.layers) for batch in layer.batches)
        if batches:
            whole = self._merged(batches, self._joined_since(batches))
            self.layers = []
            self._insert_at(whole, level_for(whole.len))

    def _grow(self, level: int) -> None:
        while len(self.layers) <= level:
            self.layers.append(VACANT)

    def _insert_at(self, batch: SpineBatch, level: int) -> None:
        """Put a batch, newer than what is there, into a layer that is not full."""
        self._grow(level)
        layer = self.layers[level]
        assert not layer.is_full, "a batch was pushed into a merge in progress"
        batches = (*layer.batches, batch)
        merge = None
        if len(batches) == BATCHES_PER_LAYER:
            # SUBTLE: the since of the merge is fixed here, not when it completes: what
            # answers a request must not be newer than what was asked for.
            merge = Fueling(self._joined_since(batches), sum(each.len for each in batches))
        self.layers[level] = Layer(batches, merge)

    def _joined_since(self, batches: tuple[SpineBatch, ...]) -> Frontier:
        since = self.since
        for batch in batches:
            since = since.join(batch.desc.since)
        return since

    def _complete_at(self, level: int) -> SpineBatch | None:
        """Take out whatever is at a layer, merged if there are two; the layer is vacant then."""
        layer = self.layers[level]
        self.layers[level] = VACANT
        if layer.merge is None:
            return layer.batches[0] if layer.batches else None
        return self._merged(layer.batches, layer.merge.since)

    def _merged(self, batches: tuple[SpineBatch, ...], since: Frontier) -> SpineBatch:
        """Neighbours as one fueled batch, and the request to merge them."""
        first, last = batches[0], batches[-1]
        desc = Description(first.desc.lower, last.desc.upper, since)
        if all(batch.len == 0 for batch in batches):
            return SpineBatch(desc, ropes.leaf(first.rope.lo, last.rope.hi, empty_batch(desc)), False)
        merged = SpineBatch(desc, ropes.balanced([batch.rope for batch in batches]), True)
        self.requests.append(MergeRequest(desc, merged.rope))
        return merged
