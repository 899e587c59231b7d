"""The transitions of the levels of a spine: pure functions from one state to the next, with an answer.

Each is one step of a protocol (`core/protocols/merge_spine.py`), and happens at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic

from timespine.core.arrangement import spine_files
from timespine.core.arrangement.levels import (
    B,
    LevelFigures,
    LevelSlot,
    MergeStatus,
    SpineLevels,
    count,
    is_due,
    is_full,
    level_of,
)
from timespine.core.arrangement.memory_pressure import Resources, has_space, spills_output
from timespine.core.arrangement.merge_fuel import next_average
from timespine.errors import NoSpace, StoreClosed, UsageError
from timespine.model.frontier import Frontier


@dataclass(frozen=True, slots=True)
class MergePlan(Generic[B]):
    """A merge that has begun."""

    inputs: tuple[B, ...]
    to_disk: bool
    """Whether the output goes to a file."""
    since: Frontier | None
    """The frontier up to which it may fold times."""
    is_whole: bool = False
    """Whether the inputs are all batches of the spine."""

    @property
    def rows(self) -> int:
        """Rows of all inputs."""
        return sum(batch.rows for batch in self.inputs)


class PutOff:
    """The answer to a merge that has to wait for space on the disk."""


def insert_batch(
    levels: SpineLevels[B], batch: B, upper: Frontier | None = None, owns_file: bool = False
) -> tuple[SpineLevels[B], bool]:
    """Add a fresh batch, and move the upper with it; return False, and change nothing, if there is no room for it.

    An empty batch moves the upper, and is not added. The file of a batch belongs to this spine if this spine wrote it.
    """
    if levels.is_closing:
        raise StoreClosed("this spine is closed: nothing can be inserted")
    if batch.rows and is_full(levels):
        return levels, False
    grown = _add(levels, batch, is_merged=False) if batch.rows else levels
    if owns_file and batch.file:
        grown, _ = own_files(grown, (batch.file,))
    # SUBTLE: a closed frontier is empty, and so false.
    moved = levels.upper if upper is None else upper
    return replace(grown, is_dirty=levels.is_dirty or batch.rows > 0, upper=moved), True


def start_merge(
    levels: SpineLevels[B], level: int, resources: Resources, batches_min: int | None = None
) -> tuple[SpineLevels[B], MergePlan[B] | PutOff | None]:
    """Begin the merge of a level, the oldest batches first; None if it is not due.

    With `batches_min`, this number of batches is enough. A merge to disk waits for space, unless memory has room: then
    its output stays there.
    """
    slot = levels.slots[level]
    is_enough = batches_min is not None and len(slot.loose) >= batches_min
    may_start = not (levels.pauses or levels.gives_way or slot.merging)
    if not (is_due(levels, level, resources) or (is_enough and may_start)):
        return levels, None
    begun = slot.take(levels.rules.merge_max, MergeStatus.MERGING)
    inputs = begun.merging
    nbytes = sum(batch.nbytes for batch in inputs)
    to_disk = spills_output(resources, nbytes)
    if to_disk and not has_space(resources, nbytes):
        if resources.pressure > 0:
            figures = replace(slot.figures, put_off=slot.figures.put_off + 1)
            return _put(levels, level, replace(slot, figures=figures)), PutOff()
        to_disk = False
    return _put(levels, level, begun), MergePlan(inputs, to_disk, levels.since)


def complete_merge(levels: SpineLevels[B], level: int, output: B | None, slices: int) -> tuple[SpineLevels[B], None]:
    """Replace the inputs of the merge of a level by its output, which is None if they cancelled each other out."""
    slot = levels.slots[level]
    figures = _completed(slot.figures, slot.merging, output, slices)
    if level == 0:
        rows = sum(batch.rows for batch in slot.merging)
        levels = replace(levels, average=next_average(levels.average, rows))
    merged = _put(levels, level, replace(slot.drop(MergeStatus.MERGING), figures=figures))
    return drop_unnamed_files(_add_output(merged, output))


def abandon_merge(levels: SpineLevels[B], level: int, has_failed: bool = False) -> tuple[SpineLevels[B], None]:
    """Make the inputs of the merge of a level loose again, before those that came later."""
    slot = levels.slots[level]
    figures = replace(slot.figures, failures=slot.figures.failures + has_failed)
    return _put(levels, level, replace(slot.put_back(MergeStatus.MERGING), figures=figures)), None


def pause_merges(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Let no merge start until this pause is resumed. Batches stay where readers find them."""
    return replace(levels, pauses=levels.pauses + 1), None


def resume_merges(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Take back one pause."""
    if levels.pauses == 0:
        raise UsageError("merging is not paused: call pause before resume")
    return replace(levels, pauses=levels.pauses - 1), None


def request_close(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Begin to close: no merge starts, and those under way give up at their next turn."""
    return replace(levels, is_closing=True), None


def request_compaction(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Ask for a merge of everything: merges of levels give up, since this one does their work as well."""
    if levels.is_closing:
        raise StoreClosed("this spine is closed: nothing can be merged")
    if levels.pauses:
        raise UsageError("merging is paused: resume it before you merge everything")
    return replace(levels, compactions=levels.compactions + 1), None


def withdraw_compaction(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Take back the request for a merge of everything."""
    return replace(levels, compactions=levels.compactions - 1), None


def start_compaction(levels: SpineLevels[B], resources: Resources) -> tuple[SpineLevels[B], MergePlan[B] | None]:
    """Begin to merge everything, from the smallest level up, and at most `merge_max` batches; None if others merge.

    The caller has requested it. If all batches are inputs, the request is answered, and levels merge on beside it. An
    output that goes to disk needs space there: without it, it stays in memory, or is a NoSpace if memory is short too.
    """
    if levels.is_closing:
        raise StoreClosed("this spine is closed: nothing can be merged")
    if levels.is_merging or levels.pauses:
        return levels, None
    slots, inputs = list[LevelSlot[B]](), list[B]()
    for slot in levels.slots:
        slots.append(slot.take(levels.rules.merge_max - len(inputs), MergeStatus.COMPACTING))
        inputs += slots[-1].compacting
    nbytes = sum(batch.nbytes for batch in inputs)
    to_disk = spills_output(resources, nbytes)
    if to_disk and not has_space(resources, nbytes):
        if resources.pressure > 0:
            raise NoSpace(f"a merge of {nbytes} bytes was not begun: memory is short, and the disk has no space for it")
        to_disk = False
    is_whole = len(inputs) == count(levels)
    begun = replace(levels, slots=tuple(slots), compactions=levels.compactions - is_whole)
    return begun, MergePlan(tuple(inputs), to_disk, levels.since, is_whole)


def complete_compaction(levels: SpineLevels[B], output: B | None, slices: int) -> tuple[SpineLevels[B], None]:
    """Replace the inputs of the merge of all levels by its output. Its figures are those of the highest input."""
    inputs = tuple(batch for slot in levels.slots for batch in slot.compacting)
    highest = max((level for level, slot in enumerate(levels.slots) if slot.compacting), default=0)
    slots = [slot.drop(MergeStatus.COMPACTING) for slot in levels.slots]
    slots[highest] = replace(slots[highest], figures=_completed(slots[highest].figures, inputs, output, slices))
    return drop_unnamed_files(_add_output(replace(levels, slots=tuple(slots)), output))


def abandon_compaction(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Make the inputs of the merge of all levels loose again."""
    return replace(levels, slots=tuple(slot.put_back(MergeStatus.COMPACTING) for slot in levels.slots)), None


def advance_since(levels: SpineLevels[B], since: Frontier) -> tuple[SpineLevels[B], None]:
    """Let later merges fold times up to a frontier. Never goes back."""
    return replace(levels, since=since if levels.since is None else levels.since.join(since)), None


def clear_dirty(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Forget that batches were inserted."""
    return replace(levels, is_dirty=False), None


def fork(levels: SpineLevels[B]) -> SpineLevels[B]:
    """Return a state of its own with the same batches. Nothing merges in it, and no file is its own."""
    slots = tuple(LevelSlot(tuple((batch, MergeStatus.LOOSE) for batch in slot.batches)) for slot in levels.slots)
    return replace(SpineLevels(levels.rules, slots, since=levels.since, upper=levels.upper), average=levels.average)


def disown_files(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Give up the folder: no file is this spine's own, and none is deleted."""
    return replace(levels, files=spine_files.SpineFiles()), None


def look(levels: SpineLevels[B]) -> tuple[SpineLevels[B], SpineLevels[B]]:
    """Return the state, and change nothing."""
    return levels, levels


def _put(levels: SpineLevels[B], level: int, slot: LevelSlot[B]) -> SpineLevels[B]:
    return replace(levels, slots=(*levels.slots[:level], slot, *levels.slots[level + 1 :]))


def _add(levels: SpineLevels[B], batch: B, is_merged: bool) -> SpineLevels[B]:
    level = level_of(levels.rules, batch, is_merged)
    return _put(levels, level, levels.slots[level].add(batch))


def _add_output(levels: SpineLevels[B], output: B | None) -> SpineLevels[B]:
    """Add the output of a merge, and own its file."""
    if output is None:
        return levels
    added = _add(levels, output, is_merged=True)
    return own_files(added, (output.file,) if output.file else ())[0]


def _completed(figures: LevelFigures, inputs: tuple[B, ...], output: B | None, slices: int) -> LevelFigures:
    """Count a merge."""
    return replace(
        figures,
        merges=figures.merges + 1,
        inputs=figures.inputs + len(inputs),
        slices=figures.slices + slices,
        rows_read=figures.rows_read + sum(batch.rows for batch in inputs),
        rows_written=figures.rows_written + (output.rows if output else 0),
    )


def own_files(levels: SpineLevels[B], names: tuple[str, ...]) -> tuple[SpineLevels[B], None]:
    """Own new files. What no batch and no manifest names becomes garbage at the next transition that drops one."""
    return replace(levels, files=spine_files.own(levels.files, names)), None


def drop_unnamed_files(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """Make garbage of the files that no batch and no manifest names."""
    live = frozenset(batch.file for batch in levels.batches if batch.file)
    return replace(levels, files=spine_files.drop_unnamed(levels.files, live)), None
