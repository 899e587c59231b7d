"""Garbage collection: what nobody can reach goes, in an order that survives every crash; the rest stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from garbage_cases import compacted, deleted, littered, opened, settle
from protocol_harness import CONFIG, ProtocolHarness, at, up

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.effects import CompareAndSet, DeleteBlobs, GetBlob, MergeOutput, MergeRuns, Scan, Truncate
from timespine.core.encoding.codec import encode_state
from timespine.core.protocols.garbage import collect_garbage, references, sweep
from timespine.core.protocols.maintain import merge_once, roll_up, tidy_unsealed
from timespine.core.protocols.session import Session
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.transitions import AddRollup, ExpireCommitter, ExpireWriter, Finalize, Retain, RollUpAll, Seal
from timespine.errors import Fenced
from timespine.testing.formats.naive import data_of, row_counts
from timespine.testing.simulator.core_reads import fetch_snapshot, release_lease, take_lease
from timespine.testing.simulator.core_writes import write_data


def names(keys: Iterable[str]) -> list[str]:
    """The last segments of keys."""
    return [key.split("/")[2] for key in keys]


# What is deleted and what is kept.


def test_what_only_old_states_refer_to_is_deleted_and_the_log_is_cut() -> None:
    stage, session, _ = compacted()
    old = {part.key for state in stage.world.states["c"] for part in state.parts()}
    live = {part.key for part in stage.head().parts()}
    base = max(stage.head().rollups)
    assert stage.run(collect_garbage(session, "c")) == len(old - live) == 3
    assert stage.there() == live | {stage.head().rollups[base].key}
    assert stage.world.first["c"] == base + 1
    stage.check_storage()
    stage.agree()


def test_part_that_a_merge_passed_through_is_kept() -> None:
    stage, session, _ = compacted()
    passed = [part.key for part in stage.head().parts() if part.key.split("/")[1] == session.writer]
    assert len(passed) == 1
    stage.run(collect_garbage(session, "c"))
    assert passed[0] in stage.world.blobs


def test_garbage_goes_before_the_log_is_cut_and_the_log_before_the_rollups() -> None:
    stage, session, _ = compacted()
    stage.run(roll_up(session, "c"))
    stage.run(collect_garbage(session, "c"))
    kinds = [type(each) for each in stage.of(DeleteBlobs, Truncate, CompareAndSet)]
    assert kinds == [DeleteBlobs, DeleteBlobs, Truncate, CompareAndSet]
    assert len(stage.head().rollups) == 1


def test_without_a_rollup_there_is_nothing_to_collect() -> None:
    stage, session, _ = opened()
    for when in range(3):
        stage.append(session, when + 1, up(f"r{when}", when))
    stage.compact(session, 2)
    assert stage.run(collect_garbage(session, "c")) == 0
    assert not stage.of(DeleteBlobs, Truncate)


def test_collection_that_is_not_there_has_no_garbage() -> None:
    stage = ProtocolHarness()
    assert stage.run(collect_garbage(stage.stranger(), "nowhere")) == 0
    assert stage.run(sweep(stage.stranger(), "nowhere")) == 0


def test_second_collection_has_nothing_left_to_do() -> None:
    stage, session, other = compacted()
    stage.run(collect_garbage(session, "c"))
    assert stage.run(collect_garbage(other, "c")) == 0
    assert not stage.of(DeleteBlobs, Truncate, CompareAndSet)


def test_old_rollups_are_forgotten_first_and_deleted_by_a_later_collection() -> None:
    stage, session, _ = compacted()
    (old,) = stage.head().rollups.values()
    stage.run(roll_up(session, "c"))
    stage.run(collect_garbage(session, "c"))
    assert old not in stage.head().rollups.values()
    assert old.key in stage.world.blobs
    settle(stage, session)
    assert old.key not in stage.world.blobs
    stage.check_storage()


def test_rollup_that_was_overtaken_before_it_was_recorded_is_deleted_in_the_end() -> None:
    stage, session, _ = opened()
    states = stage.world.states["c"]
    stage.append(session, 1, up("a", 0))
    late, newer = states[-2], states[-1]
    keys = [f"c/{session.writer}/s-{name}" for name in ("late", "newer")]
    for key, state in zip(keys, (late, newer), strict=True):
        stage.world.blobs[key] = encode_state(state)
        stage.commit(session, AddRollup(state.seqno, key, 1))
    stage.run(collect_garbage(session, "c"))
    assert stage.world.first["c"] <= late.seqno + 2  # the entry that recorded it is still there
    assert keys[0] in stage.world.blobs
    settle(stage, session)
    assert keys[0] not in stage.world.blobs
    stage.check_storage()


def test_write_that_was_never_drained_goes_with_its_collection() -> None:
    stage, session, _ = opened()
    stage.run(write_data(session, "c", data_of([up("a", 0)]), at(0), (0,)))
    (part,) = stage.there()
    stage.commit(session, Seal(at()), Retain(at()), Finalize())
    settle(stage, session)
    assert part not in stage.world.blobs
    stage.check_storage()


def test_states_that_a_reader_holds_keep_what_they_refer_to() -> None:
    stage, session, other = opened()
    for when in range(3):
        stage.append(session, when + 1, up(f"r{when}", when))
    reader = stage.run(take_lease(other, "c", (2,)))
    held = {part.key for part in stage.head().parts()}
    stage.compact(session, 2)
    settle(stage, session)
    assert held <= stage.there()
    stage.run(release_lease(other, "c", reader))
    settle(stage, session)
    assert len(held & stage.there()) == 1  # the one that was passed through
    stage.check_storage()
    stage.agree()


def test_reader_between_two_rollups_keeps_the_older_one_and_all_that_followed() -> None:
    stage, session, other = compacted()
    older = max(stage.head().rollups)
    reader = stage.run(take_lease(other, "c", (3,)))
    stage.append(session, 5, up("r4", 4))
    stage.compact(session, 4)
    stage.run(roll_up(session, "c"))
    assert stage.run(collect_garbage(session, "c")) == 3
    assert stage.world.first["c"] == older + 1
    assert older in stage.head().rollups
    assert reader in stage.head().readers
    stage.agree()


def test_reader_of_the_very_state_of_a_rollup_does_not_hold_back_what_went_before() -> None:
    stage, session, other = opened()
    for when in range(4):
        stage.append(session, when + 1, up(f"r{when}", when))
    stage.compact(session, 3)
    seqno = stage.head().seqno
    stage.before(CompareAndSet, lambda: stage.run(take_lease(other, "c", (3,))))
    stage.run(roll_up(session, "c"))
    assert stage.head().seqno_since == max(stage.head().rollups) == seqno
    assert stage.run(collect_garbage(session, "c")) == 3
    stage.agree()


def test_reader_older_than_every_rollup_stops_collection() -> None:
    stage, session, other = opened()
    stage.run(take_lease(other, "c", (0,)))
    for when in range(3):
        stage.append(session, when + 1, up(f"r{when}", when))
    stage.compact(session, 0)
    stage.run(roll_up(session, "c"))
    assert stage.run(collect_garbage(session, "c")) == 0
    assert not stage.of(DeleteBlobs, Truncate)


def test_part_that_is_drained_and_not_yet_evicted_is_kept() -> None:
    stage, session, _ = opened()
    stage.run(write_data(session, "c", data_of([up("a", 0), up("b", 7)]), at(0), (7,)))
    stage.commit(session, Seal(at(1)))
    stage.run(tidy_unsealed(session, "c"))
    stage.append(session, 2, up("c", 1))
    stage.append(session, 3, up("d", 2))
    stage.compact(session, 2)
    settle(stage, session)
    stage.commit(session, Seal(at(8)))
    stage.agree()


def test_reading_while_garbage_is_collected_gives_the_truth() -> None:
    stage, session, other = compacted()
    stage.before(GetBlob, lambda: settle(stage, session))
    assert row_counts(*stage.run(fetch_snapshot(other, "c", (3,)))) == {f"r{when}": 1 for when in range(4)}  # type: ignore[misc]


def test_references_of_a_state_are_its_parts_and_its_rollups() -> None:
    stage, _ = littered()
    state = stage.head()
    found = references(state)
    assert set(found) == set(state.keys())
    assert sorted(names(key for key, hollow in found.items() if hollow)) == names(
        part.key for part in state.parts() if part.hollow
    )
    assert "" not in found


# Hollow runs.


def test_garbage_of_every_kind_is_deleted_and_nothing_else() -> None:
    stage, session = littered()
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()
    settle(stage, session)
    stage.check_storage()
    stage.agree()


def test_children_go_before_their_run_and_inner_runs_before_outer_ones() -> None:
    stage, session = littered()
    stage.run(collect_garbage(session, "c"))
    order = names(deleted(stage))
    for child, run in [
        ("q-x", "h-outer"),
        ("q-y", "h-inner"),
        ("q-z", "h-inner"),
        ("h-inner", "h-outer"),
        ("q-y", "h-again"),
    ]:
        assert max(index for index, name in enumerate(order) if name == child) < order.index(run)
    merged = [key for key in deleted(stage) if key.split("/")[1].startswith("m")]
    assert names(merged)[-1].startswith("h")


def test_runs_are_deleted_one_at_a_time_and_parts_a_bounded_number_at_once() -> None:
    stage, session = littered()
    stage.run(collect_garbage(session, "c"))
    sizes = [len(each.keys) for each in stage.of(DeleteBlobs)]
    assert max(sizes) == CONFIG.delete_batch
    assert all(len(each.keys) == 1 for each in stage.of(DeleteBlobs) if any("/h" in key for key in each.keys))


def test_number_of_deleted_blobs_is_what_is_gone() -> None:
    stage, session = littered()
    before = stage.there()
    count = stage.run(collect_garbage(session, "c"))
    assert count == len(before - stage.there())


@pytest.mark.parametrize("missing", ["q-x", "q-y", "q-z", "h-inner", "h-outer", "h-again"])
def test_garbage_that_is_gone_already_is_no_obstacle(missing: str) -> None:
    stage, session = littered()
    # What an earlier collection may have left: a run is gone only when its children are.
    gone = {"h-inner": ["q-y", "q-z"], "h-outer": ["q-x", "q-y", "q-z", "h-inner"], "h-again": ["q-y"]}
    for name in (missing, *gone.get(missing, [])):
        del stage.world.blobs[f"c/{session.writer}/{name}"]
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()


def answer_merge(stage: ProtocolHarness, session: Session, parts: Callable[[str], list[Part]]) -> None:
    """Let a merge of everything result in these parts of its writer."""

    def answer(effect: MergeRuns) -> MergeOutput:
        made = parts(effect.writer)
        return MergeOutput(
            HollowBatch(effect.request.desc, sum(part.rows for part in made), tuple(Run((each,)) for each in made))
        )

    before = stage.head().upper.elements[0][0]
    stage.append(session, before + 1)
    # Since is past the rows, so that they cannot be kept as they are.
    stage.commit(session, Retain(at(before)), RollUpAll())
    stage.answer(MergeRuns, answer)
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT


def test_what_a_live_run_shares_with_a_dead_one_is_kept() -> None:
    stage, session, _ = opened()
    prefix = f"c/{session.writer}"
    a, b, c = (stage.put(f"{prefix}/q-{name}", up(name, 0)) for name in "abc")
    inner = stage.put_run(session, f"{prefix}/h-in", b)
    stage.append_parts(session, 1, stage.put_run(session, f"{prefix}/h-old", a, inner, c))
    stage.world.truth["c"] += [up(name, 0) for name in "abc"]

    def merged(writer: str) -> list[Part]:
        new = stage.put(f"c/{writer}/q-new", up("c", 0))
        return [stage.put_run(session, f"c/{writer}/h-new", a, inner, new)]

    answer_merge(stage, session, merged)
    stage.run(roll_up(session, "c"))
    assert stage.run(collect_garbage(session, "c")) == 2
    assert names(deleted(stage)) == ["q-c", "h-old"]
    stage.check_storage()
    stage.agree()


def test_run_that_lives_on_inside_of_another_is_kept() -> None:
    stage, session, _ = opened()
    prefix = f"c/{session.writer}"
    a, b, c = (stage.put(f"{prefix}/q-{name}", up(name, 0)) for name in "abc")
    inner = stage.put_run(session, f"{prefix}/h-in", a, b)
    stage.append_parts(session, 1, inner, c)
    stage.world.truth["c"] += [up(name, 0) for name in "abc"]
    answer_merge(stage, session, lambda writer: [stage.put_run(session, f"c/{writer}/h-new", inner, c)])
    stage.run(roll_up(session, "c"))
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()


def test_part_that_lives_on_inside_of_a_run_is_kept() -> None:
    stage, session, _ = opened()
    prefix = f"c/{session.writer}"
    a, b = (stage.put(f"{prefix}/q-{name}", up(name, 0)) for name in "ab")
    stage.append_parts(session, 1, a, b)
    stage.world.truth["c"] += [up(name, 0) for name in "ab"]
    answer_merge(stage, session, lambda writer: [stage.put_run(session, f"c/{writer}/h-new", a, b)])
    stage.run(roll_up(session, "c"))
    stage.run(collect_garbage(session, "c"))  # the world objects to the deletion of what is reachable
    stage.agree()


def handed_on(stage: ProtocolHarness, session: Session) -> tuple[Part, Callable[[], None]]:
    """A part inside a run, both of a writer that is gone; and what passes it on from its run to a new one."""
    writer = stage.borrowed_writer(session)
    kept = stage.put(f"c/{writer}/q-kept", up("kept", 0))
    stage.append_parts(session, 1, stage.put_run(session, f"c/{writer}/h0", kept))
    stage.world.truth["c"] += [up("kept", 0)]
    stage.commit(session, ExpireWriter(writer))

    def hand_on() -> None:
        answer_merge(stage, session, lambda writer: [stage.put_run(session, f"c/{writer}/h-next", kept)])

    return kept, hand_on


def test_part_that_several_merges_pass_on_from_run_to_run_stays() -> None:
    stage, session, other = opened()
    kept, hand_on = handed_on(stage, session)
    for _ in range(3):
        hand_on()
        settle(stage, other)
        assert kept.key in stage.world.blobs
    stage.run(sweep(other, "c"))
    assert sum("/h" in key for key in stage.world.blobs) == 1
    stage.check_storage()
    stage.agree()


def test_collection_that_finds_a_live_run_gone_deletes_nothing() -> None:
    # SUBTLE: `first` is garbage, `second` is live when the slow collector reads the log. Meanwhile the part inside of
    # both is passed on to `third`, and a fast collector deletes `second` and then `first`.
    stage, slow, fast = opened()
    kept, hand_on = handed_on(stage, fast)
    hand_on()
    stage.run(roll_up(slow, "c"))
    first = dict(stage.world.blobs)

    def overtake() -> None:
        hand_on()
        for _ in range(2):
            stage.run(roll_up(fast, "c"))
            stage.run(collect_garbage(fast, "c"))
        # As if the fast collector were about to delete the older run.
        gone = {key: data for key, data in first.items() if key.split("/")[2] == "h0" and key not in stage.world.blobs}
        stage.world.blobs.update(gone)

    stage.before(GetBlob, overtake, where=lambda effect: "/h" in effect.key)
    assert stage.run(collect_garbage(slow, "c")) == 0
    assert kept.key in stage.world.blobs
    stage.agree()


def test_sweep_that_finds_a_live_run_gone_deletes_nothing() -> None:
    stage, slow, fast = opened()
    kept, hand_on = handed_on(stage, fast)
    hand_on()
    settle(stage, fast)

    def overtake() -> None:
        hand_on()
        for _ in range(2):
            stage.run(roll_up(fast, "c"))
            stage.run(collect_garbage(fast, "c"))

    stage.before(GetBlob, overtake, where=lambda effect: "/h" in effect.key)
    assert stage.run(sweep(slow, "c")) == 0
    assert kept.key in stage.world.blobs
    stage.agree()


# Others at the same time.


def test_collection_that_others_do_meanwhile_is_left_to_them() -> None:
    stage, session, other = compacted()
    stage.before(GetBlob, lambda: settle(stage, other))
    assert stage.run(collect_garbage(session, "c")) == 0
    stage.check_storage()
    stage.agree()


def test_log_that_was_cut_past_all_rollups_that_are_known_is_left_to_others() -> None:
    stage, session, other = compacted()

    def faster() -> None:
        stage.append(other, 9)
        settle(stage, other)

    stage.before(Scan, faster, nth=2)
    assert stage.run(collect_garbage(session, "c")) == 0
    assert not stage.of(GetBlob)[1:]
    stage.check_storage()


def test_log_that_storage_does_not_show_is_not_collected() -> None:
    stage, session, _ = compacted()
    stage.answer(Scan, lambda effect: [], nth=2)
    assert stage.run(collect_garbage(session, "c")) == 0
    assert not stage.of(DeleteBlobs, Truncate)


def test_commit_that_comes_in_the_middle_of_a_collection_is_safe() -> None:
    stage, session, other = compacted()
    stage.before(DeleteBlobs, lambda: stage.append(other, 9, up("late", 8)))
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()


def test_garbage_made_while_the_rollups_are_forgotten_is_found_later() -> None:
    stage, session, other = compacted()

    def make_more() -> None:
        stage.append(other, 5, up("r4", 4))
        stage.compact(other, 4)
        stage.run(roll_up(other, "c"))

    stage.run(roll_up(session, "c"))
    stage.before(CompareAndSet, make_more)
    stage.run(collect_garbage(session, "c"))
    settle(stage, session)
    stage.check_storage()
    stage.agree()


def test_two_collections_at_once_do_no_harm() -> None:
    stage, session = littered()
    other = stage.session()
    stage.before(DeleteBlobs, lambda: settle(stage, other), nth=3)
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()


def test_collector_that_was_expired_has_done_no_harm() -> None:
    stage, session, other = compacted()
    stage.before(Truncate, lambda: stage.commit(other, ExpireCommitter(session.committer)))
    with pytest.raises(Fenced):
        stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    stage.agree()
