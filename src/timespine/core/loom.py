"""The loom: the working copy in which one change of a spine is made.

How the spine works and why it is bounded stands in `core/spine.py`; here are the
steps: insert, fuel, roll up, tidy.
"""

from __future__ import annotations

from timespine.core import rope as ropes
from timespine.core.hollow import HollowBatch, empty_batch
from timespine.core.layers import (
    BATCHES_PER_LAYER,
    VACANT,
    Fueling,
    Layer,
    MergeRequest,
    SpineBatch,
    level_for,
)
from timespine.errors import UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier

FUEL = 8
"""Units of merge work per (virtual) update inserted. Derived in `core/spine.py`."""

UPDATES_MAX = 1 << 61
"""Updates in one spine, at most: sums of two such still fit what is stored."""


class Loom:
    """The working copy in which one change of a spine is made."""

    def __init__(self, since: Frontier, upper: Frontier, next_id: int, layers: tuple[Layer, ...]) -> None:
        self.since = since
        self.upper = upper
        self.next_id = next_id
        self.layers = list(layers)
        self.requests: list[MergeRequest] = []

    def insert(self, batch: HollowBatch) -> None:
        """Add a batch at the upper."""
        desc = batch.desc
        if desc.is_empty_interval:
            raise UsageError(f"a batch must span some time: lower and upper are both {desc.lower}")
        if desc.lower != self.upper:
            raise UsageError(f"a batch that begins at {desc.lower} cannot follow the upper {self.upper}")
        if not desc.since <= self.since:
            raise UsageError(f"a batch exact from {desc.since} on is past the spine's since {self.since}")
        if batch.len + sum(layer.len for layer in self.layers) > UPDATES_MAX:
            raise UsageError(f"{batch.len} updates more are too many: a collection may have {UPDATES_MAX}")
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
        """See `Spine.roll_up_all`; there is at least one batch."""
        batches = tuple(batch for layer in reversed(self.layers) for batch in layer.batches)
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
