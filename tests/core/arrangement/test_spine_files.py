"""Which files of a spine stay, and which are garbage."""

from spine_harness import SpineHarness

from timespine.core.arrangement import spine_files
from timespine.core.arrangement.level_transitions import disown_files
from timespine.core.arrangement.save_transitions import begin_save, begun_anew, is_not_saving, unsaved
from timespine.core.arrangement.spine_files import Manifest, SpineFiles


def confirmed(*numbers):
    return tuple(Manifest(number, (f"f{number}",)) for number in numbers)


def test_files_of_batches_and_manifests_stay_and_others_are_garbage():
    files = SpineFiles(frozenset({"f1", "live", "old"}), confirmed(1))
    dropped = spine_files.drop_unnamed(files, frozenset({"live", "of another spine"}))
    assert (dropped.owned, dropped.garbage) == ({"f1", "live"}, ("old",))


def test_the_newest_two_confirmed_manifests_stay():
    files, third = spine_files.begin_manifest(SpineFiles(manifests=confirmed(1, 2)), ("f3",))
    assert third == Manifest(3, ("f3",), is_confirmed=False)
    files = spine_files.confirm_manifest(files, 3)
    assert [each.number for each in files.manifests] == [2, 3]
    assert files.dropped_manifests == (1,)


def test_a_manifest_in_doubt_stays_until_two_later_ones_are_confirmed():
    files, first = spine_files.begin_manifest(SpineFiles(), ("a",))
    files = spine_files.doubt_manifest(files)
    for wanted in ([1, 2], [2, 3]):
        files, later = spine_files.begin_manifest(files, ("b",))
        files = spine_files.confirm_manifest(files, later.number)
        assert [each.number for each in files.manifests] == wanted
    assert first.number == 1


def test_numbers_rise_past_manifests_that_are_to_be_deleted():
    files = SpineFiles(dropped_manifests=(7,))
    assert spine_files.begin_manifest(files, ())[1].number == 8


def test_what_was_deleted_is_forgotten_and_the_rest_is_not():
    files = SpineFiles(garbage=("a", "b"), dropped_manifests=(1, 2))
    left = spine_files.forget_deleted(files, ("a",), (2,))
    assert (left.garbage, left.dropped_manifests) == (("b",), (1,))


def test_one_save_at_a_time():
    harness = SpineHarness()
    harness.put(1)
    levels, (began, manifest) = begin_save(harness.levels)
    assert began is levels
    assert unsaved(levels) == levels.batches
    assert not is_not_saving(levels)
    assert begin_save(levels) == (levels, None)
    assert manifest.files == ()


def test_a_spine_that_begins_anew_keeps_the_newest_checkpoint_for_its_readers():
    rules = SpineHarness().levels.rules
    levels = begun_anew(rules, (7, 5, 4), ("a", "b"))
    assert levels.batches == ()
    assert levels.files.dropped_manifests == (5, 4)
    assert levels.files.garbage == ()
    files = levels.files
    for wanted in ((), ("a", "b")):
        files, later = spine_files.begin_manifest(files, ())
        files = spine_files.drop_unnamed(spine_files.confirm_manifest(files, later.number), frozenset())
        assert files.garbage == wanted
    assert later.number == 9
    assert 7 in files.dropped_manifests
    assert begun_anew(rules, (), ("a",)).files.garbage == ("a",)


def test_a_spine_that_gives_up_its_folder_deletes_nothing():
    harness = SpineHarness()
    harness.put(1)
    harness.set(files=SpineFiles(frozenset("ab"), garbage=("c",), dropped_manifests=(1,)))
    levels, _ = disown_files(harness.levels)
    assert levels.files == SpineFiles()
    assert levels.batches == harness.levels.batches
