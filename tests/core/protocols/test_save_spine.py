"""Checkpoints of spines: what is written, what stays, and what comes back after every failure."""

from dataclasses import replace

import msgspec
import pytest
from spine_harness import SMALL, SpineHarness

from timespine.core.arrangement import level_transitions as transitions
from timespine.core.arrangement import save_transitions
from timespine.core.effects import OpenMerge, SyncFiles, WaitUntil, WriteBatch, WriteManifest
from timespine.core.protocols import merge_spine, save_spine
from timespine.errors import CorruptionError, Determinate, Indeterminate
from timespine.model.frontier import Frontier
from timespine.testing.spines.spine_checks import counts_in


@pytest.fixture
def spine():
    return SpineHarness()


def restored(spine):
    other = SpineHarness()
    other.folder = spine.folder
    other.levels = other.run(save_spine.restore(SMALL))
    other.run(merge_spine.delete_garbage())
    return other


def test_a_restored_spine_is_the_saved_one(spine):
    spine.run(merge_spine.insert(spine.batch(5), Frontier.at(3)))
    spine.run(merge_spine.insert(spine.batch(2), Frontier.at(4)))
    spine.levels, _ = transitions.advance_since(spine.levels, Frontier.at(2))
    spine.run(save_spine.save())
    spine.put(3)
    other = restored(spine)
    assert counts_in(other.levels.batches) == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}
    assert (other.levels.upper, other.levels.since, other.levels.is_dirty) == (Frontier.at(4), Frontier.at(2), True)
    assert other.sizes == {0: [2], 1: [5]}


def test_unchanged_data_is_not_written_again(spine):
    spine.put(1, 8, 30)
    spine.run(save_spine.save())
    assert len(spine.named(WriteBatch)) == 3
    spine.effects.clear()
    spine.run(save_spine.save())
    assert not spine.named(WriteBatch)
    assert [effect.names for effect in spine.named(SyncFiles)] == [()]


def test_small_batches_are_saved_as_one_file(spine):
    spine.put(1, 1, 1)
    manifest = spine.run(save_spine.save())
    assert len(manifest.files) == 1
    assert len(spine.named(OpenMerge)) == 1


def test_files_are_durable_before_a_manifest_names_them(spine):
    spine.put(1, 8)
    spine.run(save_spine.save())
    kinds = [type(effect) for effect in spine.effects]
    assert kinds.index(SyncFiles) < kinds.index(WriteManifest)
    assert set(spine.named(SyncFiles)[0].names) == set(spine.folder.files)


def test_files_of_old_checkpoints_are_reclaimed_and_those_of_the_newest_two_stay(spine):
    for rows in (8, 30, 100):
        spine.put(rows)
        spine.run(merge_spine.compact_spine())
        spine.run(save_spine.save())
    assert sorted(spine.folder.manifests) == [2, 3]
    named = {name for saved in spine.folder.manifests.values() for name in saved.manifest.files}
    assert set(spine.folder.files) == named
    assert len(named) == 2


@pytest.mark.parametrize("kind", [WriteBatch, SyncFiles])
def test_a_save_that_fails_leaves_the_last_checkpoint_and_no_file(spine, kind):
    spine.put(8)
    spine.run(save_spine.save())
    spine.put(30)
    spine.failures[kind] = Determinate("no")
    with pytest.raises(Determinate):
        spine.run(save_spine.save())
    assert save_transitions.is_not_saving(spine.levels)
    live = {batch.file for batch in spine.levels.batches if batch.file}
    assert set(spine.folder.files) == live
    assert restored(spine).sizes == {1: [8]}


def test_a_manifest_in_doubt_keeps_its_files(spine):
    spine.put(8)
    spine.failures[WriteManifest] = Indeterminate("perhaps")
    with pytest.raises(Indeterminate):
        spine.run(save_spine.save())
    (doubtful,) = spine.levels.files.manifests
    spine.put(8)
    spine.run(merge_spine.compact_spine())
    assert set(doubtful.files) <= set(spine.folder.files)
    spine.run(save_spine.save())
    spine.run(save_spine.save())
    assert not set(doubtful.files) & set(spine.folder.files)


def test_a_batch_that_is_merged_while_it_is_saved_stays_in_the_checkpoint(spine):
    spine.put(8, 30)
    spine.before[SyncFiles] = lambda: spine.run(merge_spine.compact_spine())
    spine.run(save_spine.save())
    assert spine.sizes == {3: [38]}
    assert restored(spine).sizes == {1: [8], 3: [30]}


def test_a_batch_with_a_file_that_is_merged_while_others_are_written_stays_too(spine):
    spine.put(8)
    spine.run(save_spine.save())
    spine.run(merge_spine.compact_spine(rewrites=True))
    spine.run(save_spine.save())
    spine.run(save_spine.save())  # the first file is gone, the second one is named twice
    spine.put(30)
    spine.before[WriteBatch] = lambda: spine.run(merge_spine.compact_spine())
    spine.run(save_spine.save())
    assert restored(spine).sizes == {1: [8], 3: [30]}


def test_one_save_waits_for_the_other(spine):
    spine.put(8)
    spine.levels, _ = save_transitions.begin_save(spine.levels)
    with pytest.raises(Determinate, match="another save"):
        spine.run(save_spine.save(limit_ms=1))
    real = spine.perform
    waits = []

    def perform(effect):
        if isinstance(effect, WaitUntil):
            waits.append(effect)
            if len(waits) == 1:
                return True  # it was over for a moment, and a third one began
            spine.levels, _ = save_transitions.doubt_save(spine.levels)
        return real(effect)

    spine.perform = perform
    assert spine.run(save_spine.save()).number == 2


def test_a_missing_file_is_an_error_and_not_a_smaller_answer(spine):
    spine.put(8, 30)
    manifest = spine.run(save_spine.save())
    del spine.folder.files[manifest.files[0]]
    with pytest.raises(CorruptionError):
        restored(spine)


def test_restoring_deletes_what_no_checkpoint_names(spine):
    spine.put(8)
    for _ in range(3):
        spine.run(save_spine.save())
    spine.folder.write(spine.batch(1), in_memory=False)  # a process died before anything named it
    newest = spine.folder.manifests[3]
    spine.folder.manifests[1] = msgspec.structs.replace(newest, manifest=replace(newest.manifest, number=1))
    other = restored(spine)
    assert sorted(spine.folder.manifests) == [2, 3]
    assert set(spine.folder.files) == set(newest.manifest.files)
    assert other.sizes == {1: [8]}


def test_a_folder_without_a_checkpoint_is_an_empty_spine(spine):
    spine.folder.write(spine.batch(1), in_memory=False)
    other = restored(spine)
    assert other.sizes == {}
    assert spine.folder.files == {}
