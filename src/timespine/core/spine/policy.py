"""The working copy in which one change of a spine is made.

Here is the shared part of all merge policies: which batches may be inserted, and how
neighbours become one. Which batches to merge, and when, is up to the rules:
`core/spine/policy_fueled.py` and `core/spine/policy_leveled.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from timespine.core.batch import HollowBatch, empty_batch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import VACANT, Layer, MergePolicyKind, MergeRequest, SpineBatch
from timespine.errors import UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier

UPDATES_MAX = 1 << 61
"""Updates in one spine, at most: sums of two such still fit what is stored."""


class MergePolicy(ABC):
    """The working copy in which one change of a spine is made, by one rule of merging."""

    merging: ClassVar[MergePolicyKind]
    """The rule."""
    coalesces_requests: ClassVar[bool]
    """Whether a larger request absorbs one that waits, so that waiting saves work."""
    layer_max: ClassVar[int | None]
    """Batches in a layer, at most: a layer with this number is a merge in progress. None: any number, and no such
    merges."""

    def __init__(self, since: Frontier, upper: Frontier, next_id: int, layers: tuple[Layer, ...]) -> None:
        self.since = since
        self.upper = upper
        self.next_id = next_id
        self.layers = list(layers)
        self.requests: list[MergeRequest] = []
        """The requests of this change, in the order in which they came due. Later ones may cover earlier ones."""

    def insert(self, batch: HollowBatch) -> None:
        """Add a batch at the upper."""
        desc = batch.desc
        if desc.lower != self.upper:
            raise UsageError(f"a batch that begins at {desc.lower} cannot follow the upper {self.upper}")
        if desc.upper == self.upper:
            raise UsageError(f"a batch must span some time: lower and upper are both {desc.lower}")
        if desc.since != self.since and not desc.since <= self.since:
            raise UsageError(f"a batch exact from {desc.since} on is past the spine's since {self.since}")
        if batch.len + sum(layer.len for layer in self.layers) > UPDATES_MAX:
            raise UsageError(f"{batch.len} updates more are too many: a collection may have {UPDATES_MAX}")
        new = SpineBatch(desc, ropes.leaf(self.next_id, self.next_id + 1, batch), False)
        self.next_id += 1
        self.upper = desc.upper
        self._add(new)

    @abstractmethod
    def _add(self, new: SpineBatch) -> None:
        """Find a place for a batch that is newer than all others; an empty one may be fused with the newest."""

    @abstractmethod
    def since_moved(self) -> bool:
        """Take up the spine's new since; return whether that changed anything."""

    @abstractmethod
    def exert(self, fuel: int) -> None:
        """Spend fuel without data (see `Spine.exert`)."""

    @abstractmethod
    def roll_up_all(self, lo: int) -> None:
        """Make everything from `lo` on one batch (see `Spine.roll_up_all`); there is at least one."""

    @abstractmethod
    def put(self, level: int, old: SpineBatch, new: SpineBatch) -> None:
        """Replace a batch by another of the same times and ids: a merge result, or a request to merge it again."""

    @abstractmethod
    def is_stale(self, batch: SpineBatch) -> bool:
        """Tell whether a merged batch gains from being merged again by itself."""

    @abstractmethod
    def check(self) -> None:
        """Raise CorruptionError if the layers are not as this rule leaves them.

        That ids and times tile from the top layer down, and so that levels never rise from the oldest batch to the
        newest, is the same for all rules and checked in `core/encoding/flat_spine.py`.
        """

    def _grow(self, level: int) -> None:
        while len(self.layers) <= level:
            self.layers.append(VACANT)

    def _merge_since(self) -> Frontier:
        """Return the since of a merge that begins now: that of the spine, which no batch of it is past (`insert`)."""
        return self.since

    def _merged(self, batches: tuple[SpineBatch, ...], since: Frontier) -> SpineBatch:
        """Return neighbours as one fueled batch, which is the request to merge them."""
        first, last = batches[0], batches[-1]
        desc = Description(first.desc.lower, last.desc.upper, since)
        if all(batch.len == 0 for batch in batches):
            return SpineBatch(desc, ropes.leaf(first.rope.lo, last.rope.hi, empty_batch(desc)), False)
        merged = SpineBatch(desc, ropes.balance([batch.rope for batch in batches]), True)
        self.requests.append(MergeRequest(desc, merged.rope))
        return merged
