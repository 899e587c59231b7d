"""What must hold for a spine at every step of a history, whatever its policy does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timespine.core.arrangement.levels import LevelRules, SpineLevels
from timespine.core.arrangement.spine_files import MANIFESTS_KEPT
from timespine.model.oracle import OracleRow, Update, accumulate, difference
from timespine.model.time import Time
from timespine.testing.spines.folder import SimulatedFolder
from timespine.testing.spines.naive_batches import MASK, NaiveBatch, fingerprint

NaiveLevels = SpineLevels[NaiveBatch]

LAST: Time = (1 << 60,)
"""A time after all others."""


class SpineChecks:
    """The truth about one spine: what was inserted, and where batches were seen."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self.violate = violate
        self.truth: list[Update] = []
        """Every update that was inserted."""
        self._sum = 0
        self._arrived: list[list[int]] = []
        """Per level the batches in the order in which they arrived there."""
        self._known: set[int] = set()
        self.quiet = 0
        """Pauses whose call has returned: no merge may be under way."""
        self.floor = 0
        """The largest row that a filter ever began to keep: rows before it may be gone."""

    def begin(self, truth: list[Update], levels: NaiveLevels, floor: int) -> None:
        """Begin with a state: an empty one, a fork, or what a checkpoint has."""
        self.truth = list(truth)
        self.raise_floor(floor)
        self._arrived = [[batch.id for batch in slot.batches] for slot in levels.slots]
        self._known = {batch.id for batch in levels.batches}
        self.quiet = 0
        self.check_sum(levels)

    def raise_floor(self, floor: int) -> None:
        """Compare only rows from one on: a filter may drop the others."""
        self.floor = max(floor, self.floor)
        self._sum = fingerprint(from_floor(self.truth, self.floor))

    def inserted(self, batch: NaiveBatch) -> None:
        """Record a batch that the spine has accepted."""
        self.truth += batch.updates
        self._sum = (self._sum + batch.fingerprint_from(self.floor)) & MASK

    def after_swap(self, old: NaiveLevels, new: NaiveLevels) -> None:
        """Check a new state."""
        self.check_places(new)
        self.check_sum(new)
        self.check_order(new)
        self.check_one_merge(old, new)
        self.check_full(old, new)
        self.check_quiet(new)

    def check_places(self, levels: NaiveLevels) -> None:
        """Check that each batch is in exactly one place, and in the level of its size."""
        places = [batch.id for slot in levels.slots for batch in slot.batches]
        if len(places) != len(set(places)):
            self.violate(f"a batch is in two places: {sorted(places)}")
        for level, slot in enumerate(levels.slots):
            for batch in slot.batches:
                if not batch.rows:
                    self.violate(f"batch {batch.id} of level {level} is empty")
                elif batch.id not in self._known:
                    wanted = expected_level(levels.rules, batch)
                    if wanted != level:
                        self.violate(f"batch {batch.id} has {batch.rows} rows, and is in level {level}, not {wanted}")
        self._known.update(places)

    def check_sum(self, levels: NaiveLevels) -> None:
        """Check that all batches together are what was inserted."""
        there = sum(batch.fingerprint_from(self.floor) for batch in levels.batches) & MASK
        if there != self._sum:
            wanted = accumulate(from_floor(self.truth, self.floor), LAST)
            differ = difference(wanted, counts_in(levels.batches, floor=self.floor))
            self.violate(f"the batches are not what was inserted: {len(differ)} rows differ")

    def check_order(self, levels: NaiveLevels) -> None:
        """Check that a level keeps its batches in the order of their arrival, so that the oldest merge first."""
        for level, slot in enumerate(levels.slots):
            ids = [batch.id for batch in slot.batches]
            there = set(ids)
            arrived = [each for each in self._arrived[level] if each in there]
            arrived += [each for each in ids if each not in arrived]
            self._arrived[level] = arrived
            if ids != arrived:
                self.violate(f"level {level} has {ids}, and they arrived as {arrived}")

    def check_one_merge(self, old: NaiveLevels, new: NaiveLevels) -> None:
        """Check that a merge begins only where none is, of few enough batches, and of the oldest."""
        for level, (before, after) in enumerate(zip(old.slots, new.slots, strict=True)):
            ids = [batch.id for batch in after.merging]
            if ids and not before.merging and ids != [batch.id for batch in before.loose][: len(ids)]:
                self.violate(f"level {level} begins to merge {ids}, and they are not the oldest")
            if ids and before.merging and ids != [batch.id for batch in before.merging]:
                self.violate(f"level {level} begins to merge {ids} while it merges others")
            if len(ids) > new.rules.merge_max:
                self.violate(f"level {level} merges {len(ids)} batches at once")
        if sum(len(slot.compacting) for slot in new.slots) > new.rules.merge_max:
            self.violate("too many batches are merged at once")

    def check_full(self, old: NaiveLevels, new: NaiveLevels) -> None:
        """Check that nothing is inserted beyond the limit, unless merging is paused."""
        if len(new.batches) > len(old.batches) and len(old.batches) >= new.rules.batches_max and not old.pauses:
            self.violate(f"a batch was inserted beside {len(old.batches)} others")

    def check_quiet(self, levels: NaiveLevels) -> None:
        """Check that no merge is under way while merging is paused."""
        if self.quiet and levels.is_merging:
            self.violate("a merge is under way though merging is paused")

    def check_view(self, seen: dict[OracleRow, int], as_of: Time, expected: dict[OracleRow, int]) -> None:
        """Check that a view shows what it showed at first, whatever was merged since."""
        if seen != expected:
            self.violate(f"a view as of {as_of} has other counts of {len(difference(seen, expected))} rows")

    def check_compacted(self, levels: NaiveLevels, wanted: frozenset[int]) -> None:
        """Check that what was there when the merge of everything was requested is in one batch."""
        holders = [batch.id for batch in levels.batches if batch.origins & wanted]
        if len(holders) > 1:
            self.violate(f"everything was merged, and is still in batches {holders}")

    def check_settled(self, levels: NaiveLevels) -> None:
        """Check at the end that merging has caught up: no level has enough batches for a merge."""
        if levels.is_merging:
            self.violate("a merge is still under way at the end")
        for level, slot in enumerate(levels.slots):
            if len(slot.loose) >= levels.rules.merge_min[level]:
                self.violate(f"level {level} still has {len(slot.loose)} batches at the end")

    def check_manifests(self, folder: SimulatedFolder) -> None:
        """Check that the newest checkpoints are whole."""
        for saved in folder.newest()[:MANIFESTS_KEPT]:
            missing = [name for name in saved.manifest.files if name not in folder.files]
            if missing:
                self.violate(f"checkpoint {saved.manifest.number} names {missing[:3]}, which are gone")

    def check_files(self, levels: NaiveLevels, folder: SimulatedFolder) -> None:
        """Check at the end that every file is named by a checkpoint or a batch."""
        named = {batch.file for batch in levels.batches}
        named.update(name for saved in folder.newest() for name in saved.manifest.files)
        left = sorted(name for name in folder.files if name not in named)
        if left:
            self.violate(f"nothing names the files {left[:3]}")
        if len(folder.manifests) > MANIFESTS_KEPT + 1:
            self.violate(f"there are still {len(folder.manifests)} manifests")


def expected_level(rules: LevelRules, batch: NaiveBatch) -> int:
    """Return the level of a batch by its size, computed apart from the policy."""
    rows = batch.rows
    if batch.is_merged:
        rows += batch.negatives * rules.negative_multiplier
    return sum(rows > bound for bound in rules.row_bounds)


def counts_in(batches: tuple[NaiveBatch, ...], as_of: Time = LAST, floor: int = 0) -> dict[OracleRow, int]:
    """Return the counts of the rows from one on."""
    return accumulate(from_floor((update for batch in batches for update in batch.updates), floor), as_of)


def from_floor(updates: Iterable[Update], floor: int) -> list[Update]:
    """Return the updates of the rows from one on."""
    return [update for update in updates if update[0] >= floor]  # type: ignore[operator]
