"""The fueled rule: merge as much as insertions pay for, expired or not.

Layer k holds no batch, one, or two; a batch at layer k counts as 2^k updates and
has at most that many.

Two batches in a layer are a merge in progress. It needs as much fuel as there
are updates in the two; every insertion gives fuel to every merge; a merge out
of work moves on, as one batch, to the layer above. Here a merge moves no rows:
completing it concatenates hollow batches into a *fueled* batch, which is a request
to merge. Any process may answer that request, at any later time, and the answer
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
  amortized O(log N) per update inserted; `tests/core/spine/test_spine_bounds.py`
  checks 2 * (ceil(log2 N) + 2) per update and the number of batches above.
- Insertion itself: O(log N) steps, no matter how many hollow batches there are.
"""

from __future__ import annotations

from timespine.core.spine.layers import (
    BATCHES_PER_LAYER,
    VACANT,
    Layer,
    MergePolicyKind,
    MergeProgress,
    SpineBatch,
    level_for,
)
from timespine.core.spine.policy import MergePolicy
from timespine.errors import CorruptionError

FUEL = 8
"""Units of merge work per (virtual) update inserted. Derived above."""


class FueledPolicy(MergePolicy):
    """The fueled rule."""

    merging = MergePolicyKind.FUELED
    coalesces_requests = True
    layer_max = BATCHES_PER_LAYER

    def _add(self, new: SpineBatch) -> None:
        if new.len > 0 or not self._fuse(new):
            self._introduce(new, level_for(new.len))

    def _fuse(self, empty: SpineBatch) -> bool:
        """Fuse an empty batch with the newest one if that is empty too; return whether it was."""
        for level, layer in enumerate(self.layers):
            if layer.batches:
                if len(layer.batches) > 1 or layer.len > 0:
                    return False
                self._insert_at(empty, level)
                fused = self._complete_at(level)
                assert fused is not None  # the layer has two batches
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
        """Give each merge in progress that much fuel, and move completed ones to the layer above.

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
            self.layers[level] = Layer(layer.batches, MergeProgress(layer.merge.since, remaining))
            if remaining == 0:
                self._promote(level)

    def _promote(self, level: int) -> None:
        """Complete the merge of a layer, and put the result into the layer above."""
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
        """Move the top batch down to a layer that fits its size.

        It moves down through vacant layers, and into a merge with a single batch if no insertion can reach that merge
        soon: at most an eighth of what the layer above would hold may wait below
        (`tests/core/spine/test_spine_bounds.py`).
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

    def since_moved(self) -> bool:
        """Do nothing: merges that begin later take the new since up."""
        return False

    def exert(self, fuel: int) -> None:
        """Give fuel to the merges in progress; if there are none, begin that of the two newest batches."""
        self._tidy()
        occupied = [level for level, layer in enumerate(self.layers) if layer.batches]
        if len(occupied) > 1 and all(layer.merge is None for layer in self.layers):
            newest = self.layers[occupied[0]].batches[0]
            self.layers[occupied[0]] = VACANT
            self._insert_at(newest, occupied[1])
        self._apply_fuel(fuel)
        self._tidy()

    def roll_up_all(self, lo: int) -> None:
        """Make everything from `lo` on one batch.

        All of it goes into the layer that fits its size; the newest part of it into the highest layer that it comes
        from, or above. So no row sinks that the layers below still count on, and each later merge raises it. The batch
        includes older ones if there is no room, or if a merge above would come too late (`_late`).
        """
        before = self.layers
        tops = [level for level, layer in enumerate(before) if layer.batches]
        top = next(level for level in tops if before[level].batches[0].id[0] <= lo or level == tops[-1])
        while top != tops[-1]:
            above = next(level for level in tops if level > top)
            whole = self._rolled_up(before[: top + 1])
            level = max(top, level_for(whole.len))
            if level < above or (level == above and not before[above].is_full):
                self.layers = [*(VACANT for _ in range(top + 1)), *before[top + 1 :]]
                self._insert_at(whole, level)
                if self._late() is None:
                    return
            top = above
        whole = self._rolled_up(before)
        self.layers = []
        self._insert_at(whole, level_for(whole.len))

    def _rolled_up(self, layers: list[Layer]) -> SpineBatch:
        batches = tuple(batch for layer in reversed(layers) for batch in layer.batches)
        return self._merged(batches, self._merge_since())

    def put(self, level: int, old: SpineBatch, new: SpineBatch) -> None:
        """Replace a batch in its layer: sizes are bounded from above, and no batch grows."""
        layer = self.layers[level]
        merge = layer.merge
        if merge is not None:
            # SUBTLE: a refreshed batch may ask for a later since than the merge that it is part of
            # (test_refresh_inside_a_merge_raises_the_since_of_the_merge).
            merge = MergeProgress(merge.since.join(new.desc.since), merge.remaining)
        self.layers[level] = Layer(tuple(new if batch is old else batch for batch in layer.batches), merge)

    def is_stale(self, batch: SpineBatch) -> bool:
        """Tell whether a batch has several runs, or lags behind since at all."""
        return batch.len > 0 and (not batch.is_compact or not self.since <= batch.desc.since)

    def check(self) -> None:
        """Check sizes, and that each merge completes before another batch can reach it, for a permitted since.

        With V virtual updates below a merge at layer k, V < 2^k and at most 4 * (2^k - V) units of work are left: an
        insertion at layer i gives 8 * 2^i units and adds fewer than 2 * 2^i to V.
        """
        for level, layer in enumerate(self.layers):
            merge = layer.merge
            if layer.is_full != (merge is not None):
                raise CorruptionError(f"level {level} has {len(layer.batches)} batches and merge {merge}")
            for batch in layer.batches:
                if batch.len > 1 << level:
                    what = f"spine batch {batch.rope.lo}-{batch.rope.hi}"
                    raise CorruptionError(f"{what} has {batch.len} updates, too many for level {level}")
            if merge is not None and not all(each.desc.since <= merge.since <= self.since for each in layer.batches):
                raise CorruptionError(f"the merge at level {level} has since {merge.since}")
        late = self._late()
        if late is not None:
            raise CorruptionError(late)

    def _late(self) -> str | None:
        """Name a merge that may not be complete when another batch reaches it; None if there is none."""
        virtual = 0
        for level, layer in enumerate(self.layers):
            merge = layer.merge
            if merge is not None and (virtual >= 1 << level or merge.remaining > 4 * ((1 << level) - virtual)):
                return f"the merge at level {level} has {merge.remaining} left above {virtual} updates"
            virtual += len(layer.batches) << level
        return None

    def _insert_at(self, batch: SpineBatch, level: int) -> None:
        """Put a batch, newer than the others of the layer, into a layer that is not full."""
        self._grow(level)
        layer = self.layers[level]
        assert not layer.is_full, "a batch was pushed into a merge in progress"
        batches = (*layer.batches, batch)
        merge = None
        if len(batches) == BATCHES_PER_LAYER:
            # SUBTLE: the since of the merge is fixed here, not when it completes: the answer
            # to a request must not be newer than the request.
            merge = MergeProgress(self._merge_since(), sum(each.len for each in batches))
        self.layers[level] = Layer(batches, merge)

    def _complete_at(self, level: int) -> SpineBatch | None:
        """Empty a layer, and return its batches, merged if there are two."""
        layer = self.layers[level]
        self.layers[level] = VACANT
        if layer.merge is None:
            return layer.batches[0] if layer.batches else None
        return self._merged(layer.batches, layer.merge.since)
