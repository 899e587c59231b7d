"""The transitions of the files of a spine: checkpoints, and what may be deleted."""

from __future__ import annotations

from dataclasses import replace

from timespine.core.arrangement import spine_files
from timespine.core.arrangement.level_transitions import drop_unnamed_files, own_files
from timespine.core.arrangement.levels import B, LevelRules, LevelSlot, SpineLevels, level_of
from timespine.core.arrangement.spine_files import Manifest, SpineFiles
from timespine.model.frontier import Frontier


def unsaved(levels: SpineLevels[B]) -> tuple[B, ...]:
    """Return the batches without a file of this spine."""
    return tuple(batch for batch in levels.batches if batch.file not in levels.files.owned)


def is_not_saving(levels: SpineLevels[B]) -> bool:
    """Tell whether no save is under way."""
    return levels.files.saving is None


def begin_save(levels: SpineLevels[B]) -> tuple[SpineLevels[B], tuple[SpineLevels[B], Manifest] | None]:
    """Begin a checkpoint of this state; return the state and the manifest, which names the files that are there.

    None if another save is under way: its manifest may not be dropped by one that is faster.

    SUBTLE: the manifest is recorded before anything is written. A merge that ends meanwhile drops its inputs, and would
    have their files deleted (planted bug `a_save_claims_its_files_when_it_ends`).
    """
    if not is_not_saving(levels):
        return levels, None
    names = tuple(batch.file for batch in levels.batches if batch.file is not None and batch.file in levels.files.owned)
    files, manifest = spine_files.begin_manifest(levels.files, names)
    begun = replace(levels, files=files)
    return begun, (begun, manifest)


def extend_save(
    levels: SpineLevels[B], number: int, written: tuple[tuple[B, B], ...]
) -> tuple[SpineLevels[B], Manifest]:
    """Add the batches that were written to the manifest, and put each in the place of the one without a file.

    One that a merge has replaced meanwhile leaves a file that only the manifest names.
    """
    stored = {id(batch): saved for batch, saved in written}
    slots = tuple(
        replace(slot, entries=tuple((stored.get(id(batch), batch), place) for batch, place in slot.entries))
        for slot in levels.slots
    )
    names = tuple(saved.file for _, saved in written if saved.file is not None)
    files = spine_files.extend_manifest(levels.files, number, names)
    manifest = next(each for each in files.manifests if each.number == number)
    return replace(levels, slots=slots, files=files), manifest


def withdraw_save(levels: SpineLevels[B], number: int, names: tuple[str, ...]) -> tuple[SpineLevels[B], None]:
    """Give up a checkpoint whose manifest was not written, and make garbage of what was written for it."""
    return discard_files(replace(levels, files=spine_files.withdraw_manifest(levels.files, number)), names)


def doubt_save(levels: SpineLevels[B]) -> tuple[SpineLevels[B], None]:
    """End a checkpoint whose manifest may have been written."""
    return replace(levels, files=spine_files.doubt_manifest(levels.files)), None


def confirm_save(levels: SpineLevels[B], number: int) -> tuple[SpineLevels[B], None]:
    """Record that a manifest is durable, and make garbage of what only older ones name."""
    return drop_unnamed_files(replace(levels, files=spine_files.confirm_manifest(levels.files, number)))


def discard_files(levels: SpineLevels[B], names: tuple[str, ...]) -> tuple[SpineLevels[B], None]:
    """Make garbage of files that were written for nothing."""
    return drop_unnamed_files(own_files(levels, names)[0])


def forget_deleted_files(
    levels: SpineLevels[B], names: tuple[str, ...], manifests: tuple[int, ...]
) -> tuple[SpineLevels[B], None]:
    """Record that garbage was deleted."""
    return replace(levels, files=spine_files.forget_deleted(levels.files, names, manifests)), None


def restored(
    rules: LevelRules,
    batches: tuple[B, ...],
    manifests: tuple[Manifest, ...],
    is_dirty: bool,
    since: Frontier | None,
    upper: Frontier | None,
) -> SpineLevels[B]:
    """Return the state that a checkpoint describes. Restoring waits for no room: the batches were there before."""
    slots: list[LevelSlot[B]] = [LevelSlot()] * (len(rules.row_bounds) + 1)
    for batch in batches:
        level = level_of(rules, batch, is_merged=False)
        slots[level] = slots[level].add(batch)
    files = SpineFiles(frozenset(name for manifest in manifests for name in manifest.files), manifests)
    return SpineLevels(rules, tuple(slots), is_dirty=is_dirty, since=since, upper=upper, files=files)


def begun_anew(rules: LevelRules, numbers: tuple[int, ...], names: tuple[str, ...]) -> SpineLevels[B]:
    """Return an empty state in a folder whose checkpoints are of no use: a misfit, or damaged.

    The newest stays for those that read it, until two newer ones are confirmed. What it names is not known, so all
    files stay as long.
    """
    newest = tuple(Manifest(number, names) for number in numbers[:1])
    owned = frozenset(names if newest else ())
    files = SpineFiles(owned, newest, dropped_manifests=numbers[1:], garbage=() if newest else names)
    return SpineLevels(rules, files=files)
