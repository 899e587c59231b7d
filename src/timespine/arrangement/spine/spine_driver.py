"""Carries out what the protocols of a spine ask for: swaps of its state, merges, files.

The state is one immutable value. Readers take it without a lock and keep what they took. A swap takes the lock,
replaces the value, rings a bell for those that wait for a condition, and starts the tasks of levels that are due.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.read.find_key import Courtesy
from timespine.arrangement.spine.merge_threads import LevelTask, Mergers
from timespine.arrangement.spine.process_memory import machine_memory_bytes, process_bytes
from timespine.arrangement.spine.retention_filters import RetentionFilters
from timespine.arrangement.spine.sliced_merge import SlicedMerge, merge_batches
from timespine.core.arrangement import level_transitions
from timespine.core.arrangement.level_transitions import MergePlan, fork
from timespine.core.arrangement.levels import LevelSlot, SpineLevels, due_levels
from timespine.core.arrangement.memory_pressure import MemoryPressure, Resources, pressure_of
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
    SavedManifest,
    Sleep,
    SliceResult,
    Swap,
    SyncFiles,
    TakeTurn,
    WaitUntil,
    WriteBatch,
    WriteManifest,
)
from timespine.core.protocols.merge_spine import merge_level
from timespine.errors import UsageError
from timespine.locks import Bell, Lock
from timespine.model.frontier import Frontier

_open: dict[int, weakref.ref[SpineDriver]] = {}
"""The drivers of this process: their batches share the memory.

SUBTLE: threads add drivers while others list them. `tuple(_open.values())` is one step of the interpreter; to iterate a
`WeakSet` is many (test_forks_are_made_while_others_measure_the_memory).
"""


def open_drivers() -> list[SpineDriver]:
    """Return the drivers of this process that are not closed."""
    return [driver for each in tuple(_open.values()) if (driver := each()) is not None]


def batch_bytes() -> int:
    """Return the bytes of the batches in memory of all spines of this process."""
    return sum(each.memory_bytes() for each in open_drivers())


class OpenedMerge:
    """A merge under way, and where its output goes."""

    def __init__(self, sliced: SlicedMerge, to_disk: bool) -> None:
        self.sliced = sliced
        self.to_disk = to_disk
        self.file: str | None = None
        """The file of the output, once it is written."""


class SpineDriver:
    """The state of a spine, and what changes it."""

    def __init__(
        self,
        layout: Layout,
        levels: SpineLevels[Batch],
        mergers: Mergers,
        folder: CheckpointFolder | None,
        memory_bytes: int | None,
    ) -> None:
        self.layout = layout
        self.levels = levels
        """The state now: take it once, and read on from what was taken."""
        self.retention = RetentionFilters()
        """The filters of merges that begin from now on."""
        self.courtesy = Courtesy()
        """Lets threads work beside readers."""
        self.waited_s = 0.0
        """Seconds that calls waited for merges."""
        self.seconds: dict[int, float] = {}
        """Seconds that the merges of each level took so far."""
        self._mergers = mergers
        self._folder = folder
        self.limit_bytes = memory_bytes or machine_memory_bytes()
        """The bytes that batches in memory may take."""
        # A limit of the machine is for the whole process. One that a user gives is for batches.
        self._counts_process = memory_bytes is None
        self._counted: tuple[SpineLevels[Batch] | None, tuple[int, ...]] = (None, ())
        self._woken_at = MemoryPressure.LOW
        """The pressure of memory when levels were last woken."""
        self._listed: tuple[SpineLevels[Batch], tuple[Batch, ...]] = (levels, levels.batches)
        self._begin()
        self._performers: dict[type[Effect], Callable[[Any], Any]] = {
            Swap: lambda effect: self.swap(effect.transition),
            WaitUntil: self._wait,
            TakeTurn: lambda effect: MergeTurn(self.levels, mergers.waiting == 0),
            MeasureResources: lambda effect: self.resources(),
            OpenMerge: lambda effect: self._open_merge(effect.plan),
            MergeSlice: self._merge_slice,
            FinishMerge: lambda effect: self._finish_merge(effect.merge),
            DropMerge: lambda effect: () if effect.merge.file is None else (effect.merge.file,),
            WriteBatch: self._write_batch,
            SyncFiles: lambda effect: self._stored.sync(effect.names),
            WriteManifest: lambda effect: self._write_manifest(effect.saved),
            ReadManifests: lambda effect: self._read_manifests(),
            OpenBatch: lambda effect: self._stored.open(effect.name),
            ListFiles: lambda effect: self._stored.listed(),
            DeleteFiles: lambda effect: self._stored.delete(effect.manifests, effect.names),
            Sleep: lambda effect: time.sleep(effect.ms / 1000),
        }
        key = id(self)
        _open[key] = weakref.ref(self, lambda _: _open.pop(key, None))

    def _begin(self) -> None:
        """Begin without tasks: when the driver is made, and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock("the state of a spine")
        self._bell = Bell()
        self._busy_levels: set[int] = set()
        """The levels that have a task."""

    def start_from(self, levels: SpineLevels[Batch]) -> None:
        """Begin with a state, of a checkpoint or of another spine, and merge what is due in it."""
        self.levels = levels
        self.wake_levels()
        if not self._mergers.threads:
            self._mergers.run_ready()

    def _adopt(self) -> None:
        """Take the spine over in a forked child: the threads of its parent are not here, and its folder is not ours."""
        if self._pid != os.getpid():
            self._begin()
            self._folder = None
            self.start_from(fork(self.levels))

    def run(self, protocol: Protocol[Any]) -> Any:
        """Drive a protocol in this thread; return its result."""
        self._adopt()
        try:
            return self._drive(protocol)
        finally:
            if not self._mergers.threads:
                self._mergers.run_ready()

    def _drive(self, protocol: Protocol[Any]) -> Any:
        answer, failure = None, None
        while True:
            try:
                effect = protocol.send(answer) if failure is None else protocol.throw(failure)
            except StopIteration as end:
                return end.value
            answer, failure = None, None
            try:
                answer = self.perform(effect)
            except Exception as error:
                failure = error

    def perform(self, effect: Effect) -> Any:
        """Carry out an effect."""
        return self._performers[type(effect)](effect)

    def swap(self, transition: Callable[[SpineLevels[Batch]], tuple[SpineLevels[Batch], Any]]) -> Any:
        """Replace the state by what a transition makes of it; return its answer."""
        with self._lock:
            before = self.levels
            self.levels, answer = transition(before)
        if self.levels is not before:
            self._bell.ring()
            self.wake_levels()
            if len(_open) > 1:
                batches = batch_bytes()
                for other in open_drivers():
                    if other is not self:
                        other.wake_if_memory_is_short(batches)
            if self.levels.is_closing:
                self._mergers.wake()
        return answer

    def wake_levels(self) -> None:
        """Start a task for each level that is due and has none.

        SUBTLE: a level may become due while its task ends. The task leaves `_busy_levels` under the lock, and then
        looks again: one of the two sees the other (test_a_level_that_is_due_when_its_task_ends_gets_a_new_one).
        """
        resources = self.resources()
        self._woken_at = resources.pressure
        due = due_levels(self.levels, resources)
        if not due:
            return
        with self._lock:
            starting = [level for level in due if level not in self._busy_levels]
            self._busy_levels.update(starting)
        for level in starting:
            perform, ended = partial(self._perform_for_level, level), partial(self._level_ended, level)
            self._mergers.start(LevelTask(merge_level(level), perform, ended))

    def wake_if_memory_is_short(self, batches: int) -> None:
        """Start the merges that are due early, if memory became short since levels were last woken.

        `batches` are the bytes of the batches in memory of all spines. Those of other spines, and all else that the
        process holds, take memory while nothing changes here.
        SUBTLE: in a forked child this spine may still have the folder of its parent; then nothing of it may run
        (test_a_forked_child_leaves_spines_alone_that_it_does_not_use).
        """
        if self._folder is None or self._pid != os.getpid():
            return
        before, self._woken_at = self._woken_at, pressure_of(self._used_bytes(batches), self.limit_bytes)
        if self._woken_at >= MemoryPressure.HIGH and self._woken_at > before:
            self.wake_levels()

    def _perform_for_level(self, level: int, effect: Effect) -> Any:
        """Carry out an effect of the task of a level, and count the time of its merges."""
        began = time.perf_counter()
        try:
            return self.perform(effect)
        finally:
            if isinstance(effect, MergeSlice | FinishMerge):
                self.seconds[level] = self.seconds.get(level, 0.0) + time.perf_counter() - began

    def _level_ended(self, level: int, error: BaseException | None) -> None:
        with self._lock:
            self._busy_levels.discard(level)
        self._bell.ring()
        if error is None:
            self.wake_levels()

    def resources(self) -> Resources:
        """Measure memory and disk."""
        pressure = pressure_of(self.used_bytes(), self.limit_bytes)
        folder = self._folder
        if folder is None:
            return Resources(pressure)
        return Resources(pressure, True, shutil.disk_usage(folder.path).free)

    def used_bytes(self) -> int:
        """Return the bytes that count against the limit: batches in memory of all spines, or what the process has."""
        return self._used_bytes(batch_bytes())

    def _used_bytes(self, batches: int) -> int:
        return max(batches, process_bytes()) if self._counts_process else batches

    def state_and_batches(self) -> tuple[SpineLevels[Batch], tuple[Batch, ...]]:
        """Return the state now and its batches, which are listed once per state: reads are more frequent than swaps."""
        state = self.levels
        listed = self._listed
        if listed[0] is not state:
            listed = self._listed = (state, state.batches)
        return listed

    def memory_bytes(self) -> int:
        """Return the bytes of the batches in memory, counted once per state, and only in levels that changed."""
        state = self.levels
        counted, known = self._counted
        if counted is not state:
            before = state.slots if counted is None else counted.slots
            known = tuple(map(_memory_bytes, state.slots, before, known or (None,) * len(state.slots)))
            self._counted = (state, known)
        return sum(known)

    def set_origin(self, origin: bytes) -> None:
        """Set what the next manifests say of the collection that the rows are of."""
        self._stored.origin = origin

    def release_folder(self) -> None:
        """Give up the folder: its files belong to the next spine there, and batches that are mapped stay so.

        A merge or a save that is writing there fails; a merge is tried again, in memory.
        """
        folder, self._folder = self._folder, None
        if folder is not None:
            self.swap(level_transitions.disown_files)
            folder.close()

    def close(self) -> None:
        """Let another process write to the folder."""
        if self._folder is not None:
            self._folder.close()
        _open.pop(id(self), None)

    @property
    def _stored(self) -> CheckpointFolder:
        if self._folder is None:
            raise UsageError("this spine has no folder: give one when you make it")
        return self._folder

    def _wait(self, effect: WaitUntil) -> bool:
        """Wait until the state meets a condition."""
        if effect.condition(self.levels):
            return True
        began = time.monotonic()
        deadline = began + effect.limit_ms / 1000
        try:
            while True:
                heard = self._bell.count
                if effect.condition(self.levels):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._mergers.threads:
                    self._bell.wait(heard, left)
                else:
                    self._mergers.run_next(left)
        finally:
            self.waited_s += time.monotonic() - began

    def _open_merge(self, plan: MergePlan[Batch]) -> OpenedMerge:
        since = self._fold_to(plan.since)
        merging = set(map(id, plan.inputs))

        def others() -> Sequence[Batch]:
            return [batch for batch in self.levels.batches if id(batch) not in merging]

        return OpenedMerge(SlicedMerge(plan.inputs, self.layout, since, self.retention, others), plan.to_disk)

    def _merge_slice(self, effect: MergeSlice) -> SliceResult:
        sliced: SlicedMerge = effect.merge.sliced
        thread = threading.get_ident()
        self.courtesy.busy.add(thread)
        try:
            rows = sliced.step(effect.rows if effect.rows is not None else max(sliced.left, 1))
            while effect.rows is None and not sliced.is_done:
                rows += sliced.step(max(sliced.left, 1))
        finally:
            self.courtesy.busy.discard(thread)
        return SliceResult(rows, sliced.is_done)

    def _finish_merge(self, merge: OpenedMerge) -> Batch | None:
        merged = merge.sliced.finish()
        if merged is None or not merge.to_disk:
            return merged
        stored = self._stored.write(merged, frees_memory=True)
        merge.file = stored.file
        return stored

    def _write_batch(self, effect: WriteBatch) -> Batch:
        """Write a batch to a file. One that goes there to free memory loses what filters reject, as in a merge."""
        batch: Batch = effect.batch
        if effect.frees_memory and self.retention.is_set:
            kept = merge_batches(
                [batch], self.layout, self._fold_to(self.levels.since), self.retention, lambda: self.levels.batches
            )
            if kept is None:
                return Batch(())
            batch = kept
        return self._stored.write(batch, frees_memory=effect.frees_memory)

    def _fold_to(self, since: Frontier | None) -> Frontier:
        return since or Frontier.minimum(self.layout.schema.arity)

    def _write_manifest(self, saved: SavedManifest) -> None:
        manifest = saved.manifest
        self._stored.write_manifest(manifest.number, manifest.files, saved.is_dirty, saved.since, saved.upper)

    def _read_manifests(self) -> list[SavedManifest]:
        found = []
        for each in self._stored.manifests():
            manifest = Manifest(each.number, tuple(file.name for file in each.files))
            found.append(SavedManifest(manifest, each.is_dirty, each.since, each.upper))
        return found


def _memory_bytes(slot: LevelSlot[Batch], before: LevelSlot[Batch], known: int | None) -> int:
    """Return the bytes of the batches in memory of a level; `known` are those that it had before."""
    entries, earlier = slot.entries, 0
    if known is not None:
        if slot is before:
            return known
        if entries[:-1] == before.entries:  # a batch was inserted, and nothing else happened
            entries, earlier = entries[-1:], known
    return earlier + sum(batch.nbytes for batch, _ in entries if batch.in_memory)
