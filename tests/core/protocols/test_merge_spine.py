"""Inserting into a spine and merging it, effect by effect: what each failure leaves behind."""

import pytest
from spine_harness import SMALL, SpineHarness

from timespine.core.arrangement import level_transitions as transitions
from timespine.core.arrangement.levels import is_idle
from timespine.core.arrangement.memory_pressure import MemoryPressure, Resources
from timespine.core.effects import (
    DeleteFiles,
    DropMerge,
    FinishMerge,
    KeptFiles,
    MergeSlice,
    OpenMerge,
    Sleep,
    Swap,
    TakeTurn,
    WaitUntil,
    WriteBatch,
)
from timespine.core.protocols import merge_spine
from timespine.errors import Determinate, NoSpace, StoreClosed, UsageError
from timespine.model.frontier import Frontier

HIGH = Resources(MemoryPressure.HIGH, has_folder=True, free_bytes=1 << 40)
FULL = [1] * SMALL.batches_max


@pytest.fixture
def spine():
    return SpineHarness()


def change(spine, transition, *arguments):
    spine.levels, answer = transition(spine.levels, *arguments)
    return answer


def test_insert_adds_a_batch_and_moves_the_upper(spine):
    spine.run(merge_spine.insert(spine.batch(2), Frontier.at(7)))
    assert spine.sizes == {0: [2]}
    assert spine.levels.upper == Frontier.at(7)


def test_insert_waits_again_if_another_inserter_took_the_room(spine):
    spine.put(*FULL[1:])

    def taken():
        if len(spine.levels.batches) < SMALL.batches_max:
            spine.put(1)
            spine.before[WaitUntil] = merged

    def merged():
        change(spine, transitions.start_merge, 0, Resources())
        change(spine, transitions.complete_merge, 0, spine.batch(4), 1)

    spine.before[Swap] = taken
    spine.run(merge_spine.insert(spine.batch(1)))
    assert len(spine.named(WaitUntil)) == 2
    assert len(spine.levels.batches) == SMALL.batches_max - 2


def test_insert_gives_up_after_its_limit_and_the_batch_is_not_in(spine):
    spine.put(*FULL)
    with pytest.raises(Determinate, match="full for"):
        spine.run(merge_spine.insert(spine.batch(1), limit_ms=5))
    assert len(spine.levels.batches) == SMALL.batches_max


def test_a_closed_spine_refuses_batches(spine):
    change(spine, transitions.request_close)
    for protocol in (merge_spine.insert, merge_spine.try_insert):
        with pytest.raises(StoreClosed):
            spine.run(protocol(spine.batch(1)))


def test_try_insert_says_no_and_writes_nothing(spine):
    spine.put(*FULL)
    spine.resources = HIGH
    assert spine.run(merge_spine.try_insert(spine.batch(1))) is False
    assert not spine.named(WriteBatch)
    assert not spine.named(WaitUntil)


def test_try_insert_that_lost_the_room_meanwhile_deletes_what_it_wrote(spine):
    spine.put(*FULL[1:])
    spine.resources = HIGH
    spine.before[WriteBatch] = lambda: spine.put(1)
    assert spine.run(merge_spine.try_insert(spine.batch(1))) is False
    assert spine.folder.files == {}


def test_try_insert_adds_a_batch(spine):
    assert spine.run(merge_spine.try_insert(spine.batch(1))) is True
    assert spine.sizes == {0: [1]}


def test_under_high_pressure_a_batch_goes_to_disk_before_it_is_inserted(spine):
    spine.resources = HIGH
    spine.run(merge_spine.insert(spine.batch(1)))
    (batch,) = spine.levels.batches
    assert not batch.in_memory
    assert spine.levels.files.owned == {batch.file}


def test_a_file_that_a_shared_batch_brings_is_not_owned(spine):
    spine.run(merge_spine.insert(spine.batch(1).stored("elsewhere", in_memory=False)))
    assert spine.levels.files.owned == frozenset()


def test_a_spilled_batch_is_written_once_and_deleted_if_the_spine_closes(spine):
    spine.put(*FULL[1:])
    spine.resources = HIGH

    def taken():
        spine.put(1)
        spine.before[WaitUntil] = lambda: change(spine, transitions.request_close)

    spine.before[WriteBatch] = taken
    with pytest.raises(StoreClosed):
        spine.run(merge_spine.insert(spine.batch(1)))
    assert len(spine.named(WriteBatch)) == 1
    assert spine.folder.files == {}


def test_a_full_disk_refuses_a_batch_only_if_memory_is_short(spine):
    moderate = Resources(MemoryPressure.MODERATE, has_folder=True, free_bytes=1 << 40)
    spine.resources, spine.failures[WriteBatch] = moderate, NoSpace("full")
    spine.run(merge_spine.insert(spine.batch(30)))
    assert [batch.in_memory for batch in spine.levels.batches] == [True]
    spine.resources, spine.failures[WriteBatch] = HIGH, NoSpace("full")
    with pytest.raises(NoSpace):
        spine.run(merge_spine.insert(spine.batch(1)))
    assert len(spine.levels.batches) == 1


def test_try_insert_that_fails_after_a_spill_deletes_the_file(spine):
    spine.resources = HIGH
    spine.before[WriteBatch] = lambda: change(spine, transitions.request_close)
    with pytest.raises(StoreClosed):
        spine.run(merge_spine.try_insert(spine.batch(1)))
    assert spine.folder.files == {}


def test_under_critical_pressure_an_inserter_waits_for_one_merge(spine):
    spine.resources = Resources(MemoryPressure.CRITICAL, has_folder=True, free_bytes=1 << 40)
    spine.put(1)  # in memory, so its level is due
    spine.run(merge_spine.insert(spine.batch(1)))
    waited = spine.named(WaitUntil)[-1]
    assert waited.limit_ms == merge_spine.CRITICAL_WAIT_MS
    assert not waited.condition(spine.levels)
    spine.run(merge_spine.merge_level(0))
    assert waited.condition(spine.levels)


def test_a_level_merges_until_it_has_too_few_batches(spine):
    spine.put(1, 1, 1, 1, 1)
    spine.run(merge_spine.merge_level(0))
    assert spine.sizes == {0: [1], 1: [4]}
    assert len(spine.named(TakeTurn)) == 1  # others run between two merges


def test_a_merge_of_a_higher_level_runs_in_slices(spine):
    spine.put(8, 8)
    spine.run(merge_spine.merge_level(1))
    assert spine.sizes == {2: [16]}
    assert [effect.rows for effect in spine.named(MergeSlice)] == [4, 4, 4, 4]
    assert spine.levels.slots[1].figures.slices == 4


def test_a_level_beside_others_saves_credit_for_a_slice(spine):
    spine.put(8, 8)
    spine.is_alone = False
    spine.set(average=1)
    spine.run(merge_spine.merge_level(1))
    assert len(spine.named(MergeSlice)) == 4
    assert len(spine.named(TakeTurn)) == 16 + 1


def test_batches_that_cancel_leave_nothing(spine):
    for diff in (1, -1):
        spine.run(merge_spine.insert(spine.batch(2, diff)))
    spine.run(merge_spine.merge_level(0))
    assert spine.sizes == {}


@pytest.mark.parametrize("kind", [OpenMerge, MergeSlice, FinishMerge])
def test_a_merge_that_fails_leaves_its_inputs_and_is_tried_again_later(spine, kind):
    spine.put(1, 1)
    spine.failures[kind] = Determinate("no")
    spine.run(merge_spine.merge_level(0))
    assert spine.sizes == {0: [2]}
    assert spine.levels.slots[0].figures.failures == 1
    assert [effect.ms for effect in spine.named(Sleep)] == [merge_spine.PAUSE_MS]
    assert len(spine.named(DropMerge)) == (kind is not OpenMerge)


def test_the_pause_after_failures_doubles(spine):
    spine.put(1, 1)

    def fail_again():
        if len(spine.named(Sleep)) < 10:
            spine.failures[MergeSlice] = Determinate("no")
            spine.before[MergeSlice] = fail_again

    fail_again()
    spine.run(merge_spine.merge_level(0))
    assert [effect.ms for effect in spine.named(Sleep)][:3] == [100, 200, 400]
    assert max(effect.ms for effect in spine.named(Sleep)) == merge_spine.PAUSE_MAX_MS


def test_a_failed_merge_to_disk_deletes_its_file(spine):
    spine.resources = HIGH
    spine.put(8, 8)
    real = spine.perform

    def perform(effect):
        answer = real(effect)
        if isinstance(effect, FinishMerge):
            change(spine, transitions.pause_merges)  # the level must not try again at once
            raise Determinate("after the file was written")
        return answer

    spine.perform = perform
    spine.run(merge_spine.merge_level(1))
    assert spine.folder.files == {}
    assert spine.sizes == {1: [8, 8]}


def test_a_merge_gives_way_and_nothing_is_lost(spine):
    spine.put(8, 8)
    spine.before[MergeSlice] = lambda: change(spine, transitions.request_close)
    spine.run(merge_spine.merge_level(1))
    assert spine.sizes == {1: [8, 8]}
    assert is_idle(spine.levels)
    assert spine.levels.slots[1].figures.failures == 0


def test_a_merge_waits_until_the_disk_has_space(spine):
    spine.put(1, 1)
    spine.resources = Resources(MemoryPressure.MODERATE, has_folder=True, free_bytes=0)
    spine.before[Sleep] = lambda: setattr(spine, "resources", HIGH)
    spine.run(merge_spine.merge_level(0))
    assert [effect.ms for effect in spine.named(Sleep)] == [merge_spine.PUT_OFF_MS]
    assert [batch.in_memory for batch in spine.levels.batches] == [False]


def test_everything_becomes_one_batch(spine):
    spine.put(1, 8, 30, 1)
    spine.run(merge_spine.compact_spine())
    assert spine.sizes == {3: [40]}
    assert not spine.levels.gives_way


def test_everything_needs_several_merges_if_there_are_many_batches(spine):
    spine.put(*FULL)
    spine.run(merge_spine.compact_spine())
    assert spine.sizes == {2: [11]}
    assert len(spine.named(OpenMerge)) == 4  # of at most four batches, the smallest first


def test_one_batch_is_merged_again_only_on_request(spine):
    spine.put(2)
    spine.run(merge_spine.compact_spine())
    assert not spine.named(OpenMerge)
    spine.run(merge_spine.compact_spine(rewrites=True))
    assert len(spine.named(OpenMerge)) == 1
    assert spine.sizes == {0: [2]}


@pytest.mark.parametrize("kind", [OpenMerge, MergeSlice, FinishMerge])
@pytest.mark.parametrize("batches", [3, 11])
def test_a_merge_of_everything_that_fails_leaves_all_as_it_was(spine, kind, batches):
    spine.put(*[1] * batches)
    spine.failures[kind] = Determinate("no")
    with pytest.raises(Determinate, match="no"):
        spine.run(merge_spine.compact_spine())
    assert spine.sizes == {0: [1] * batches}
    assert is_idle(spine.levels)
    assert spine.levels.compactions == 0


def test_a_merge_of_everything_stops_when_the_spine_closes(spine):
    spine.put(8, 8)
    spine.before[MergeSlice] = lambda: change(spine, transitions.request_close)
    with pytest.raises(StoreClosed, match="nothing is lost"):
        spine.run(merge_spine.compact_spine())
    assert spine.sizes == {1: [8, 8]}


def test_a_merge_of_everything_waits_for_pauses_and_others(spine):
    spine.put(1, 1)
    change(spine, transitions.pause_merges)
    with pytest.raises(UsageError):
        spine.run(merge_spine.compact_spine())
    change(spine, transitions.resume_merges)
    change(spine, transitions.start_merge, 0, Resources())
    with pytest.raises(Determinate, match="did not end"):
        spine.run(merge_spine.compact_spine(limit_ms=1))
    assert spine.levels.compactions == 0
    change(spine, transitions.abandon_merge, 0)
    change(spine, transitions.request_compaction)
    change(spine, transitions.start_compaction, Resources())
    with pytest.raises(Determinate, match="another merge of everything"):
        spine.run(merge_spine.compact_spine(limit_ms=1))


def test_a_merge_of_everything_that_finds_a_pause_when_it_begins_waits_again(spine):
    spine.put(1, 1)
    real = spine.perform
    looks = []

    def perform(effect):
        if isinstance(effect, WaitUntil):
            looks.append(effect)
            if len(looks) == 3:
                change(spine, transitions.resume_merges)
        answer = real(effect)
        if isinstance(effect, WaitUntil) and len(looks) == 2:
            change(spine, transitions.pause_merges)  # after it saw that it may begin
        return answer

    spine.perform = perform
    spine.run(merge_spine.compact_spine())
    assert len(looks) == 3
    assert spine.sizes == {0: [2]}


def test_pause_waits_for_merges_and_hides_nothing(spine):
    spine.put(1, 1)
    spine.run(merge_spine.pause())
    spine.run(merge_spine.merge_level(0))
    assert spine.sizes == {0: [1, 1]}
    spine.run(merge_spine.resume())
    spine.run(merge_spine.merge_level(0))
    assert spine.sizes == {0: [2]}


def test_pause_that_waits_in_vain_is_taken_back(spine):
    spine.put(1, 1)
    change(spine, transitions.start_merge, 0, Resources())
    with pytest.raises(Determinate, match="did not end"):
        spine.run(merge_spine.pause(limit_ms=1))
    assert spine.levels.pauses == 0
    spine.run(merge_spine.pause(waits=False))
    assert spine.levels.pauses == 1
    with pytest.raises(Determinate, match="did not end"):
        spine.run(merge_spine.close(limit_ms=1))


def test_close_deletes_garbage_and_what_cannot_be_deleted_stays_garbage(spine):
    spine.resources = HIGH
    spine.put(1, 1)
    spine.run(merge_spine.merge_level(0))
    assert len(spine.folder.files) == 1
    spine.resources = Resources()
    spine.put(1, 1, 1)
    spine.failures[DeleteFiles] = Determinate("no")
    spine.run(merge_spine.merge_level(0))
    assert len(spine.levels.files.garbage) == len(spine.folder.files) == 1
    spine.run(merge_spine.close())
    assert spine.levels.files.garbage == ()
    assert spine.folder.files == {}


def test_what_a_reader_needs_stays_garbage_until_it_is_gone(spine):
    spine.resources = HIGH
    spine.put(1, 1)
    spine.run(merge_spine.merge_level(0))
    (name,) = spine.folder.files
    spine.resources = Resources()
    spine.put(1, 1, 1)
    real = spine.folder.delete
    spine.folder.delete = lambda manifests, names: KeptFiles(manifests, names)
    spine.run(merge_spine.merge_level(0))
    assert spine.levels.files.garbage == (name,)
    spine.folder.delete = real
    spine.run(merge_spine.close())
    assert spine.levels.files.garbage == ()


def test_small_batches_are_merged_on_request(spine):
    spine.put(1)
    spine.run(merge_spine.merge_small(2))
    assert not spine.named(OpenMerge)
    spine.put(1)
    spine.run(merge_spine.merge_small(2))
    assert spine.sizes == {0: [2]}
