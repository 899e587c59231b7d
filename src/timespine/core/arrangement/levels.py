"""The batches of an arrangement in levels by size, and which of them to merge when.

These batches do not tile time as those of `core/spine` do: any batches may be merged, whatever their times are, since
sums commute. A state is one immutable value. Readers keep the value that they started with.

## The rule

- A batch of at most 14,999 rows enters at level 0. Each further level holds ten times as many rows.
- A level merges its oldest batches once it has enough of them (8, 8, 3, 3, 3, 3, 2, 2, 2), at most 64 at once, and at
  most one merge at a time. The output enters the level of its size.
- Retractions of a merged batch may count several times: such a batch rises sooner, and meets the rows that it cancels
  sooner. A fresh batch counts its rows once. Otherwise a retraction could rise past the row that it retracts.
- Insertion waits while there are 128 batches, those that are being merged included. While merging is paused it does
  not wait: the thread that paused may be the one that inserts.

## What follows from it

- At most (8-1) + (8-1) + 4 * (3-1) + 3 * (2-1) = 25 batches wait for company. So with 26 batches or more, some level
  merges or may start to, and every merge of two or more batches leaves fewer: 128 is always relieved.
- The oldest batches are merged first, so each is merged in the end if its level goes on to fill.
- Every batch is in exactly one place of one level: loose, merging or compacting.

`core/arrangement/merge_fuel.py` says how levels share time. `tests/core/arrangement/test_levels.py` checks these.
"""

from __future__ import annotations

import enum
import typing
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from timespine.config import DEFAULT, LEVELS, Config, check_level_rules
from timespine.core.arrangement.memory_pressure import Resources, merges_early
from timespine.core.arrangement.merge_fuel import AVERAGE_FIRST, SLICE_ROWS
from timespine.core.arrangement.spine_files import SpineFiles
from timespine.model.frontier import Frontier


class LeveledBatch(typing.Protocol):
    """What the policy knows of a batch."""

    @property
    def rows(self) -> int:
        """Updates in it."""

    @property
    def negatives(self) -> int:
        """Updates with a negative diff."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory or on disk."""

    @property
    def in_memory(self) -> bool:
        """Whether it takes memory, and not only pages of a mapped file."""

    @property
    def file(self) -> str | None:
        """The name of its durable file, if it has one."""


B = TypeVar("B", bound=LeveledBatch)


@dataclass(frozen=True, slots=True)
class LevelRules:
    """The bounds of levels and merges. `Config` has those that a store may set, with their reasons."""

    row_bounds: tuple[int, ...] = DEFAULT.arrangement_level_rows
    """Rows of a batch of each level but the last, at most."""
    merge_min: tuple[int, ...] = DEFAULT.arrangement_merge_min
    """Batches that each level needs to merge."""
    merge_max: int = DEFAULT.arrangement_merge_max
    """Batches of one merge, at most."""
    batches_max: int = DEFAULT.arrangement_batches
    """Batches at which insertion waits."""
    negative_multiplier: int = DEFAULT.arrangement_retraction_multiplier
    """How often a retraction of a merged batch counts in addition to once."""
    slice_rows_min: int = SLICE_ROWS
    """Rows of a slice, at least."""

    def __post_init__(self) -> None:
        check_level_rules(self.row_bounds, self.merge_min, self.merge_max, self.batches_max, self.negative_multiplier)


def level_rules(config: Config) -> LevelRules:
    """Return the rules that a configuration sets."""
    return LevelRules(
        config.arrangement_level_rows,
        config.arrangement_merge_min,
        config.arrangement_merge_max,
        config.arrangement_batches,
        config.arrangement_retraction_multiplier,
    )


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """What the merges of a level did so far."""

    merges: int = 0
    inputs: int = 0
    slices: int = 0
    rows_read: int = 0
    rows_written: int = 0
    failures: int = 0
    put_off: int = 0
    """How often a merge waited for space on the disk."""


class MergeStatus(enum.Enum):
    """What happens to a batch."""

    LOOSE = "no merge has it"
    MERGING = "the merge of its level has it"
    COMPACTING = "the merge of all levels has it"


@dataclass(frozen=True, slots=True)
class LevelSlot(Generic[B]):
    """The batches of one level. A batch keeps its position from its arrival to its replacement; its place changes."""

    entries: tuple[tuple[B, MergeStatus], ...] = ()
    """Batches with their places, the oldest first."""
    figures: LevelFigures = LevelFigures()

    def at(self, place: MergeStatus) -> tuple[B, ...]:
        """Return the batches of a place, the oldest first."""
        return tuple([batch for batch, there in self.entries if there is place]) if self.entries else ()

    @property
    def batches(self) -> tuple[B, ...]:
        """All batches, the oldest first."""
        return tuple([batch for batch, _ in self.entries]) if self.entries else ()

    @property
    def loose(self) -> tuple[B, ...]:
        """The batches that no merge has."""
        return self.at(MergeStatus.LOOSE)

    @property
    def merging(self) -> tuple[B, ...]:
        """The inputs of the merge of this level."""
        return self.at(MergeStatus.MERGING)

    @property
    def compacting(self) -> tuple[B, ...]:
        """The inputs of the merge of all levels that are of this level."""
        return self.at(MergeStatus.COMPACTING)

    def take(self, limit: int, place: MergeStatus) -> LevelSlot[B]:
        """Give the oldest loose batches to a merge, at most a number of them."""
        entries = []
        for batch, there in self.entries:
            takes = there is MergeStatus.LOOSE and limit > 0
            limit -= takes
            entries.append((batch, place if takes else there))
        return replace(self, entries=tuple(entries))

    def put_back(self, place: MergeStatus) -> LevelSlot[B]:
        """Make the inputs of a merge loose again."""
        entries = tuple((batch, MergeStatus.LOOSE if there is place else there) for batch, there in self.entries)
        return replace(self, entries=entries)

    def drop(self, place: MergeStatus) -> LevelSlot[B]:
        """Drop the inputs of a merge."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry[1] is not place))

    def add(self, batch: B) -> LevelSlot[B]:
        """Add a loose batch."""
        return replace(self, entries=(*self.entries, (batch, MergeStatus.LOOSE)))


@dataclass(frozen=True, slots=True)
class SpineLevels(Generic[B]):
    """The state of a spine."""

    rules: LevelRules = LevelRules()
    slots: tuple[LevelSlot[B], ...] = (LevelSlot(),) * LEVELS
    pauses: int = 0
    """Pauses that were not resumed: no merge starts meanwhile."""
    compactions: int = 0
    """Requests to merge everything that have not begun: merges of levels give way to them."""
    is_closing: bool = False
    is_dirty: bool = False
    """Whether batches were inserted since `clear_dirty`."""
    average: int = AVERAGE_FIRST
    """The moving average of the sizes of merges of level 0, in rows."""
    since: Frontier | None = None
    """The frontier up to which merges may fold times, if times matter."""
    upper: Frontier | None = None
    """The frontier below which the inserted batches are complete, if times matter."""
    files: SpineFiles = field(default_factory=SpineFiles)

    @property
    def batches(self) -> tuple[B, ...]:
        """All batches, wherever they are: what a reader reads."""
        return tuple([batch for slot in self.slots for batch, _ in slot.entries])

    @property
    def is_merging(self) -> bool:
        """Whether a merge is under way."""
        return any(there is not MergeStatus.LOOSE for slot in self.slots for _, there in slot.entries)

    @property
    def gives_way(self) -> bool:
        """Whether merges of levels stop at their next turn: the spine closes, or everything is to be merged."""
        return self.is_closing or self.compactions > 0


def level_of(rules: LevelRules, batch: LeveledBatch, is_merged: bool) -> int:
    """Return the level of a batch."""
    rows = batch.rows + (batch.negatives * rules.negative_multiplier if is_merged else 0)
    return next((level for level, bound in enumerate(rules.row_bounds) if rows <= bound), len(rules.row_bounds))


def count(levels: SpineLevels[B]) -> int:
    """Count the batches, those that are being merged included."""
    return sum(len(slot.entries) for slot in levels.slots)


def is_full(levels: SpineLevels[B]) -> bool:
    """Tell whether insertion waits."""
    return count(levels) >= levels.rules.batches_max and levels.pauses == 0 and not levels.is_closing


def has_room(levels: SpineLevels[B]) -> bool:
    """Tell whether insertion need not wait, or waits in vain since the spine closes."""
    return not is_full(levels)


def is_idle(levels: SpineLevels[B]) -> bool:
    """Tell whether no merge is under way."""
    return not levels.is_merging


def is_not_compacting(levels: SpineLevels[B]) -> bool:
    """Tell whether no merge of everything is under way."""
    return not any(slot.compacting for slot in levels.slots)


def may_compact(levels: SpineLevels[B]) -> bool:
    """Tell whether a merge of everything may begin, or never will since the spine closes."""
    return levels.is_closing or not (levels.is_merging or levels.pauses)


def merges_done(levels: SpineLevels[B]) -> int:
    """Count the merges that ended."""
    return sum(slot.figures.merges for slot in levels.slots)


def is_due(levels: SpineLevels[B], level: int, resources: Resources) -> bool:
    """Tell whether a merge of a level may start."""
    slot, enough = levels.slots[level], levels.rules.merge_min[level]
    is_early = merges_early(resources)
    if len(slot.entries) < enough and not is_early:
        return False  # the answer for most levels, at every insert
    if levels.pauses or levels.gives_way or slot.merging:
        return False
    return len(slot.loose) >= enough or (is_early and any(batch.in_memory for batch in slot.loose))


def due_levels(levels: SpineLevels[B], resources: Resources) -> tuple[int, ...]:
    """Return the levels of which a merge may start."""
    return tuple(level for level in range(len(levels.slots)) if is_due(levels, level, resources))


def is_settled(levels: SpineLevels[B], resources: Resources) -> bool:
    """Tell whether no merge is under way and none may start."""
    return not levels.is_merging and not due_levels(levels, resources)


def is_compaction_complete(levels: SpineLevels[B]) -> bool:
    """Tell whether everything is in one batch, or there is none."""
    return count(levels) <= 1 and not levels.is_merging
