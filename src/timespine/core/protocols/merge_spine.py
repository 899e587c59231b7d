"""Insert into a spine of an arrangement, and merge it: generators of effects.

Threads drive them in production, and the simulator in tests. A failure in the middle of a merge loses nothing: the
inputs stay in the state until the output replaces them, and go back to the front of their level.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from timespine.core.arrangement import level_transitions, merge_fuel, save_transitions
from timespine.core.arrangement import levels as conditions
from timespine.core.arrangement.level_transitions import MergePlan, PutOff
from timespine.core.arrangement.levels import LeveledBatch, SpineLevels
from timespine.core.arrangement.memory_pressure import MemoryPressure, Resources, spills_insert
from timespine.core.effects import (
    DeleteFiles,
    DropMerge,
    FinishMerge,
    KeptFiles,
    MeasureResources,
    MergeSlice,
    MergeTurn,
    OpenMerge,
    Protocol,
    Sleep,
    SliceResult,
    Swap,
    TakeTurn,
    WaitUntil,
    WriteBatch,
)
from timespine.errors import Determinate, NoSpace, StoreClosed, Unavailable
from timespine.model.frontier import Frontier

B = TypeVar("B", bound=LeveledBatch)

WAIT_MS = 600_000
"""How long a call waits for merges, unless it gives its own limit. The longest slice takes about a second, so a spine
that does not move for ten minutes has a merge that fails each time, or a disk that hangs."""

CRITICAL_WAIT_MS = 1_000
"""How long an inserter waits for one merge while memory is critical: a slower merge may free nothing."""

PUT_OFF_MS = 1_000
"""How long a level waits before it looks again whether the disk has space."""

PAUSE_MS = 100
PAUSE_MAX_MS = 30_000
"""How long a level waits after a merge that failed. The pause doubles with each failure, up to the maximum."""


def insert(batch: B, upper: Frontier | None = None, limit_ms: int = WAIT_MS) -> Protocol[None]:
    """Add a batch, and move the upper with it. While the spine is full, wait for merges.

    Raises Determinate if the limit passes first, NoSpace if memory is short and the disk is full, and StoreClosed.
    After an error the batch is not in the spine.
    """
    stored = batch
    try:
        while True:
            if not (yield WaitUntil(conditions.has_room, limit_ms)):
                raise Determinate(
                    f"this spine was full for {limit_ms / 1000} s: merges fail or are paused, see its metrics"
                )
            resources: Resources = yield MeasureResources()
            if stored is batch:
                stored = yield from _spilled(batch, resources)
            if (yield from _insert_now(batch, stored, upper)):
                break
    except Exception:
        yield from _discard(batch, stored)
        raise
    if resources.pressure is MemoryPressure.CRITICAL:
        yield from _wait_for_a_merge(resources)


def try_insert(batch: B, upper: Frontier | None = None) -> Protocol[bool]:
    """Add a batch if the spine is not full, without waiting; return False, and change nothing, if it is."""
    levels: SpineLevels[B] = yield Swap(level_transitions.look)
    if conditions.is_full(levels):
        return False
    resources: Resources = yield MeasureResources()
    stored = yield from _spilled(batch, resources)
    try:
        is_in: bool = yield from _insert_now(batch, stored, upper)
    except Exception:
        yield from _discard(batch, stored)
        raise
    if not is_in:
        yield from _discard(batch, stored)
    return is_in


def _insert_now(batch: B, stored: B, upper: Frontier | None) -> Protocol[bool]:
    change = partial(level_transitions.insert_batch, batch=stored, upper=upper, owns_file=stored is not batch)
    is_in: bool = yield Swap(change)
    return is_in


def _spilled(batch: B, resources: Resources) -> Protocol[B]:
    """Write a batch to disk if memory is short; return it with its file, or as it was."""
    if not (batch.rows and batch.in_memory and spills_insert(resources, batch.nbytes)):
        return batch
    try:
        stored: B = yield WriteBatch(batch, frees_memory=True)
    except NoSpace:
        if resources.pressure >= MemoryPressure.HIGH:
            raise
        return batch
    return stored


def _discard(batch: B, stored: B) -> Protocol[None]:
    """Delete the file of a batch that was written and not inserted."""
    if stored is not batch and stored.file is not None:
        yield Swap(partial(save_transitions.discard_files, names=(stored.file,)))
        yield from delete_garbage()


def _wait_for_a_merge(resources: Resources) -> Protocol[None]:
    """Wait until one more merge has ended, or none is to come."""
    levels: SpineLevels[LeveledBatch] = yield Swap(level_transitions.look)
    before = conditions.merges_done(levels)

    def is_relieved(now: SpineLevels[LeveledBatch]) -> bool:
        return conditions.merges_done(now) > before or conditions.is_settled(now, resources)

    yield WaitUntil(is_relieved, CRITICAL_WAIT_MS)


def merge_level(level: int) -> Protocol[None]:
    """Merge the batches of a level, for as long as it has enough of them."""
    pause_ms = PAUSE_MS
    while True:
        resources: Resources = yield MeasureResources()
        plan = yield Swap(partial(level_transitions.start_merge, level=level, resources=resources))
        if plan is None:
            return
        if isinstance(plan, PutOff):
            yield Sleep(PUT_OFF_MS)
            continue
        try:
            yield from _run_merge(level, plan)
            pause_ms = PAUSE_MS
        except Exception:
            # The figures of the level count it; the driver has logged it. The next attempt may go better.
            yield Sleep(pause_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
        yield from delete_garbage()
        yield TakeTurn()


def merge_small(batches_min: int) -> Protocol[None]:
    """Merge the batches of level 0 if there are at least a few, whether the level is due or not."""
    resources: Resources = yield MeasureResources()
    change = partial(level_transitions.start_merge, level=0, resources=resources, batches_min=batches_min)
    plan = yield Swap(change)
    if isinstance(plan, MergePlan):
        yield from _run_merge(0, plan)
        yield from delete_garbage()


def _run_merge(level: int, plan: MergePlan[B]) -> Protocol[None]:
    """Run a merge of a level, slice by slice, and put its output in the place of its inputs."""
    merge = None
    try:
        merge = yield OpenMerge(plan)
        slices = yield from _run_slices(level, merge)
        if slices is None:
            yield Swap(partial(level_transitions.abandon_merge, level=level))
            yield from _drop(merge)
            return
        output: B | None = yield FinishMerge(merge)
    except Exception:
        yield Swap(partial(level_transitions.abandon_merge, level=level, has_failed=True))
        if merge is not None:
            yield from _drop(merge)
        raise
    yield Swap(partial(level_transitions.complete_merge, level=level, output=output, slices=slices))


def _run_slices(level: int, merge: object) -> Protocol[int | None]:
    """Run the slices of a merge of a level in turns with others; return their number, or None if it must give way."""
    if level == 0:
        yield MergeSlice(merge, None)
        return 1
    credit = slices = 0
    while True:
        turn: MergeTurn = yield TakeTurn()
        if turn.levels.gives_way:
            return None
        credit += turn.levels.average
        rows = merge_fuel.slice_rows(turn.levels.average, turn.levels.rules.slice_rows_min)
        if not merge_fuel.runs_slice(credit, rows, turn.is_alone):
            continue
        done: SliceResult = yield MergeSlice(merge, rows)
        slices += 1
        credit = merge_fuel.charge(credit, done.rows)
        if done.is_last:
            return slices


def _drop(merge: object) -> Protocol[None]:
    """Give up a merge, and delete what it wrote."""
    names: tuple[str, ...] = yield DropMerge(merge)
    if names:
        yield Swap(partial(save_transitions.discard_files, names=names))
        yield from delete_garbage()


def compact_spine(rewrites: bool = False, limit_ms: int = WAIT_MS) -> Protocol[None]:
    """Merge everything that is in the spine now into one batch, while others read, insert and merge on.

    With `rewrites`, one batch alone is merged too: filters or since may drop rows of it. Merges of levels give way only
    for the moment in which this one begins, so it waits for an earlier one of its kind before it asks.
    """
    if not (yield WaitUntil(conditions.is_not_compacting, limit_ms)):
        raise Determinate(f"another merge of everything did not end within {limit_ms / 1000} s: try again later")
    yield Swap(level_transitions.request_compaction)
    while True:
        try:
            if not (yield WaitUntil(conditions.may_compact, limit_ms)):
                raise Determinate(f"merges did not end within {limit_ms / 1000} s: try again later")
            resources: Resources = yield MeasureResources()
            plan: MergePlan[LeveledBatch] | None = yield Swap(
                partial(level_transitions.start_compaction, resources=resources)
            )
        except Exception:
            yield Swap(level_transitions.withdraw_compaction)
            raise
        if plan is not None:
            yield from _run_compaction(plan, rewrites)
            if plan.is_whole:
                yield from delete_garbage()
                return


def _run_compaction(plan: MergePlan[B], rewrites: bool) -> Protocol[None]:
    """Run a merge of all levels, slice by slice."""
    if len(plan.inputs) < (1 if rewrites else 2):
        yield Swap(level_transitions.abandon_compaction)
        return
    merge = None
    try:
        merge = yield OpenMerge(plan)
        slices = 0
        while True:
            levels: SpineLevels[B] = yield Swap(level_transitions.look)
            if levels.is_closing:
                raise StoreClosed("this spine was closed: the merge of everything was given up, and nothing is lost")
            rows = merge_fuel.slice_rows(levels.average, levels.rules.slice_rows_min)
            done: SliceResult = yield MergeSlice(merge, rows)
            slices += 1
            if done.is_last:
                break
        output: B | None = yield FinishMerge(merge)
    except Exception:
        yield Swap(level_transitions.abandon_compaction)
        if not plan.is_whole:
            yield Swap(level_transitions.withdraw_compaction)
        if merge is not None:
            yield from _drop(merge)
        raise
    yield Swap(partial(level_transitions.complete_compaction, output=output, slices=slices))


def pause(waits: bool = True, limit_ms: int = WAIT_MS) -> Protocol[None]:
    """Let no merge start; wait for those under way to end, unless told otherwise. Nothing is hidden from readers."""
    yield Swap(level_transitions.pause_merges)
    if waits and not (yield WaitUntil(conditions.is_idle, limit_ms)):
        yield Swap(level_transitions.resume_merges)
        raise Determinate(f"merges did not end within {limit_ms / 1000} s: try again later")


def resume() -> Protocol[None]:
    """Let merges start again."""
    yield Swap(level_transitions.resume_merges)


def close(limit_ms: int = WAIT_MS) -> Protocol[None]:
    """Let the slices under way end, and give up the merges that they belong to: their inputs are still there."""
    yield Swap(level_transitions.request_close)
    if not (yield WaitUntil(conditions.is_idle, limit_ms)):
        raise Determinate(f"a slice of a merge did not end within {limit_ms / 1000} s: try again later")
    yield from delete_garbage()


def delete_garbage() -> Protocol[None]:
    """Delete the files that nothing names. If that fails they stay garbage, and the next call tries again."""
    levels: SpineLevels[LeveledBatch] = yield Swap(level_transitions.look)
    names, manifests = levels.files.garbage, levels.files.dropped_manifests
    if names or manifests:
        try:
            kept = (yield DeleteFiles(manifests, names)) or KeptFiles()
        except Unavailable:
            return
        names = tuple(name for name in names if name not in kept.names)
        manifests = tuple(number for number in manifests if number not in kept.manifests)
        yield Swap(partial(save_transitions.forget_deleted_files, names=names, manifests=manifests))
