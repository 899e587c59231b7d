"""One simulated spine: its state, its tasks, and how their effects are carried out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from timespine.core.arrangement.levels import SpineLevels, due_levels
from timespine.core.arrangement.memory_pressure import Resources
from timespine.core.arrangement.spine_files import Manifest
from timespine.core.effects import (
    DeleteFiles,
    DropMerge,
    Effect,
    FinishMerge,
    ListFiles,
    MeasureResources,
    MergeSlice,
    MergeTurn,
    OpenBatch,
    OpenMerge,
    Protocol,
    ReadManifests,
    Swap,
    SyncFiles,
    TakeTurn,
    WriteBatch,
    WriteManifest,
)
from timespine.core.protocols.merge_spine import merge_level
from timespine.errors import Determinate, Indeterminate, NoSpace
from timespine.testing.spines.folder import SimulatedFolder
from timespine.testing.spines.naive_batches import NaiveBatch
from timespine.testing.spines.spine_checks import NaiveLevels, SpineChecks

if TYPE_CHECKING:
    from timespine.testing.spines.history import SpineHistory

FAILING = (OpenMerge, MergeSlice, FinishMerge, WriteBatch, SyncFiles, WriteManifest, DeleteFiles)
"""The effects that may fail."""

FREE_BYTES = 1 << 40


class SpineTask:
    """A protocol that runs on a spine."""

    __slots__ = ("deadline", "effect", "ended", "name", "protocol", "spine", "wake")

    def __init__(
        self,
        name: str,
        spine: SimulatedSpine,
        protocol: Protocol[Any],
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        self.name = name
        self.spine = spine
        self.protocol = protocol
        self.ended = ended
        """Takes the result or the error."""
        self.effect: Effect | None = None
        self.wake = 0
        """The moment before which it sleeps."""
        self.deadline = 0
        """The moment at which it gives up waiting."""


class SimulatedSpine:
    """A spine and the truth about it."""

    def __init__(self, history: SpineHistory, name: str, levels: NaiveLevels, folder: SimulatedFolder | None) -> None:
        self.history = history
        self.name = name
        self.levels = levels
        self.folder = folder
        """The folder of its checkpoints; forks have none."""
        self.checks = SpineChecks(history.violate)
        self.accepted: set[int] = set()
        """The batches that it took."""
        self.bound = 0
        """The row from which on its filter keeps rows."""
        self.time = 0
        """The last time of an inserted batch."""
        self.merging: set[int] = set()
        """The levels that have a task."""

    def perform(self, effect: Effect) -> Any:
        """Carry out an effect, or fail as chance has it."""
        history = self.history
        if isinstance(effect, FAILING) and history.chance() < history.faults.fail:
            self._fail(effect)
        if isinstance(effect, Swap):
            return self.swap(effect)
        if isinstance(effect, MeasureResources):
            return self.resources()
        if isinstance(effect, TakeTurn):
            return MergeTurn(self.levels, len(self.merging) == 1)
        if isinstance(effect, OpenMerge):
            return history.batches.open_merge(effect.plan, self.bound)
        if isinstance(effect, MergeSlice):
            return effect.merge.slice(effect.rows)
        if isinstance(effect, FinishMerge):
            return self._finish(effect.merge)
        if isinstance(effect, DropMerge):
            return () if effect.merge.file is None else (effect.merge.file,)
        return self._store(effect)

    def resources(self) -> Resources:
        """Return how full memory and disk are."""
        if self.folder is None:
            return Resources(self.history.pressure)
        return Resources(self.history.pressure, True, 0 if self.folder.is_full else FREE_BYTES)

    def swap(self, effect: Swap) -> Any:
        """Replace the state, check the new one, and wake the levels that are due."""
        old = self.levels
        self.levels, answer = effect.transition(old)
        inserted = effect.transition.keywords.get("batch") if isinstance(effect.transition, partial) else None
        if inserted is not None and answer is True:
            self.accepted.add(inserted.id)
            self.checks.inserted(inserted)
        if isinstance(answer, tuple) and isinstance(answer[1], Manifest):
            began: SpineLevels[NaiveBatch] = answer[0]
            assert self.folder is not None
            truth = list(self.checks.truth)
            self.folder.expected[answer[1].number] = (truth, began.is_dirty, began.upper, self.checks.floor)
        if self.levels is not old:
            self.checks.after_swap(old, self.levels)
            self.wake_levels()
        return answer

    def wake_levels(self) -> None:
        """Start a task for each level that is due and has none."""
        for level in due_levels(self.levels, self.resources()):
            if level not in self.merging:
                self.merging.add(level)
                self.history.start(f"{self.name} level {level}", self, merge_level(level), partial(self._ended, level))

    def _ended(self, level: int, result: object, error: BaseException | None) -> None:
        self.merging.discard(level)
        if error is not None:
            self.history.violate(f"the task of level {level} of {self.name} ended with {error!r}", error)
        self.wake_levels()

    def must_end(self, result: object, error: BaseException | None) -> None:
        """Check that a call succeeded that nothing disturbs."""
        if error is not None and not self.history.faults.fail:
            self.history.violate(f"after the faults stopped: {error!r}", error)

    def _finish(self, merge: Any) -> NaiveBatch | None:
        output: NaiveBatch | None = merge.output(self.history.fresh())
        if output is None or not merge.plan.to_disk:
            return output
        assert self.folder is not None
        if self.folder.is_full:
            raise NoSpace("injected: the disk is full")
        stored = self.folder.write(output, in_memory=False)
        merge.file = stored.file
        return stored

    def _store(self, effect: Effect) -> Any:
        """Carry out an effect on the folder."""
        folder = self.folder
        assert folder is not None
        if isinstance(effect, WriteBatch):
            if folder.is_full:
                raise NoSpace("injected: the disk is full")
            return folder.write(effect.batch, in_memory=not effect.frees_memory)
        if isinstance(effect, SyncFiles):
            return folder.sync(effect.names)
        if isinstance(effect, WriteManifest):
            folder.manifests[effect.saved.manifest.number] = effect.saved
            self.history.counts["commits"] += 1
            return self.checks.check_manifests(folder)
        if isinstance(effect, ReadManifests):
            return folder.newest()
        if isinstance(effect, OpenBatch):
            return folder.open(effect.name)
        if isinstance(effect, ListFiles):
            return sorted(folder.files)
        assert isinstance(effect, DeleteFiles)
        folder.delete(effect.manifests, effect.names)
        return self.checks.check_manifests(folder)

    def _fail(self, effect: Effect) -> None:
        """Fail: before the effect, or, where that makes a difference, after it or in the middle of it."""
        history = self.history
        kind = int(history.chance() * 3) if isinstance(effect, (WriteManifest, DeleteFiles)) else 0
        if kind == 1:
            history.counts["indeterminate done"] += 1
            if isinstance(effect, DeleteFiles):
                effect = DeleteFiles(effect.manifests, effect.names[: len(effect.names) // 2])
            self._store(effect)
            raise Indeterminate("injected: may have happened")
        if kind == 2:
            history.counts["indeterminate not"] += 1
            raise Indeterminate("injected: may have happened")
        history.counts["determinate"] += 1
        if isinstance(effect, FinishMerge) and effect.merge.plan.to_disk and history.chance() < 0.5:
            self._finish(effect.merge)
        raise Determinate("injected: did not happen")
