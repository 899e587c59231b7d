"""How a process learns the state of a collection: cached state + diffs, or rollup + diffs."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from protocol_harness import CONFIG, FAILURES, Fault, ProtocolHarness, at, up
from state_harness import same_state

from timespine.core.effects import CompareAndSet, GetBlob, Scan, Truncate
from timespine.core.encoding.codec import decode_diff, encode_diff, encode_state
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.load_state import (
    apply_newer_diffs,
    diffs_of,
    load_state,
    newest_base,
    refresh_state,
)
from timespine.core.protocols.maintain import roll_up
from timespine.core.protocols.session import Session
from timespine.core.state import Rollup, State, new_state
from timespine.core.transitions import Seal
from timespine.errors import CorruptionError, Determinate, Unavailable, UsageError, VersionError
from timespine.testing.create_or_find import create_or_find

Entries = list[tuple[int, bytes]]


def rolled_up(seals_after: int = 2) -> tuple[ProtocolHarness, Session]:
    """A collection with a rollup of state 3, recorded by entry 4, and some commits after it."""
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    stage.append(session, 2, up("b", 1))
    assert stage.run(roll_up(session, "c")) is True
    for upper in range(3, 3 + seals_after):
        stage.append(session, upper, up(f"r{upper}", upper - 1))
    assert list(stage.head().rollups) == [3]
    return stage, session


def cut(stage: ProtocolHarness, below: int) -> None:
    """Cut the log."""
    stage.world.perform[Truncate](Truncate("c", below))


def entries_of(stage: ProtocolHarness) -> Entries:
    """The live entries of the log."""
    return stage.world.perform[Scan](Scan("c", 0))  # type: ignore[return-value]


def check_loaded(stage: ProtocolHarness, state: State | None) -> None:
    assert state is not None
    assert same_state(state, stage.head()) == []


# Creating.


def test_new_collection_is_empty_and_begins_at_the_minimum() -> None:
    stage = ProtocolHarness("b")
    session = stage.stranger()
    state = stage.run(create_or_find(session, "c", 2))
    assert (state.seqno, state.arity, state.upper, state.since) == (0, 2, at(0, 0), at(0, 0))
    assert session.state("c") is state


def test_collection_that_is_there_is_found_and_not_created_again() -> None:
    stage, _ = rolled_up()
    session = stage.stranger()
    check_loaded(stage, stage.run(create_or_find(session, "c")))
    assert len(stage.world.logs["c"]) == stage.head().seqno + 1


def test_collection_that_another_process_created_meanwhile_is_found() -> None:
    stage = ProtocolHarness("b")
    stage.before(CompareAndSet, lambda: stage.run(create_or_find(stage.stranger(), "c")))
    assert stage.run(create_or_find(stage.stranger(), "c")).seqno == 0
    assert len(stage.world.logs["c"]) == 1


def test_creating_with_another_number_of_coordinates_is_a_usage_error() -> None:
    stage = ProtocolHarness("c", arity=2)
    with pytest.raises(UsageError, match="times of 2 coordinates, not 1"):
        stage.run(create_or_find(stage.stranger(), "c", 1))
    assert stage.head().arity == 2


@pytest.mark.parametrize(("name", "arity"), [("Big", 1), ("", 1), ("a/b", 1), ("c", 0), ("c", 99)])
def test_creating_what_cannot_be_asks_nothing_of_storage(name: str, arity: int) -> None:
    stage = ProtocolHarness("b")
    with pytest.raises(UsageError):
        stage.run(create_or_find(stage.stranger(), name, arity))
    assert not stage.effects


@pytest.mark.parametrize("fault", list(Fault))
def test_creating_survives_a_failure(fault: Fault) -> None:
    stage = ProtocolHarness("b")
    stage.fail(CompareAndSet, fault)
    assert stage.run(create_or_find(stage.stranger(), "c")).seqno == 0
    assert len(stage.world.logs["c"]) == 1


def test_creating_gives_up_when_storage_stays_away() -> None:
    stage = ProtocolHarness("b")
    stage.fail(CompareAndSet, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Determinate):
        stage.run(create_or_find(stage.stranger(), "c"))
    assert "c" not in stage.world.logs


def test_storage_that_does_not_show_what_was_created_is_called_out() -> None:
    stage = ProtocolHarness("b")
    stage.answer(Scan, lambda effect: [])
    with pytest.raises(Unavailable, match="not linearizable"):
        stage.run(create_or_find(stage.stranger(), "c"))


# Keeping up.


def test_collection_that_is_not_there_has_no_state() -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    assert stage.run(refresh_state(session, "nowhere")) is None
    assert stage.run(load_state(session, "nowhere")) is None
    assert session.states == {}


def test_state_is_the_same_object_while_nothing_happens() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    known = session.state("c")
    assert stage.run(refresh_state(session, "c")) is known
    assert stage.effects == [Scan("c", known.seqno + 1)]


def test_state_that_lags_is_brought_up_by_the_diffs_that_it_lacks() -> None:
    stage = ProtocolHarness()
    session, other = stage.session(), stage.session()
    stage.append(other, 1, up("a", 0))
    stage.append(other, 2, up("b", 1))
    state = stage.run(refresh_state(session, "c"))
    check_loaded(stage, state)
    assert session.state("c") is state
    assert len(stage.effects) == 1


def test_state_that_lags_behind_the_cut_is_loaded_anew() -> None:
    stage, session = rolled_up()
    late = stage.stranger()
    late.remember_state(new_state("c"))
    stage.run(collect_garbage(session, "c"))
    check_loaded(stage, stage.run(refresh_state(late, "c")))
    assert late.counters == {"reloads": 1}
    assert late.state("c").seqno == stage.head().seqno


def test_cut_log_that_is_then_found_empty_has_no_state() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.answer(Scan, lambda effect: [(effect.from_seqno + 1, b"")])
    stage.answer(Scan, lambda effect: [], nth=2)
    assert stage.run(refresh_state(session, "c")) is None


@pytest.mark.parametrize("fault", FAILURES)
def test_scan_that_fails_is_tried_again(fault: Fault) -> None:
    stage, _ = rolled_up()
    stage.fail(Scan, fault)
    stage.fail(GetBlob, fault)
    check_loaded(stage, stage.run(refresh_state(stage.stranger(), "c")))


def test_diff_that_does_not_follow_is_corruption() -> None:
    stage = ProtocolHarness()
    session, other = stage.session(), stage.session()
    stage.commit(other, Seal(at(1)))
    stage.commit(other, Seal(at(2)))
    stage.answer(Scan, lambda effect: [entry for entry in entries_of(stage) if entry[0] in (2, 4)])
    with pytest.raises(CorruptionError, match="cannot follow state 2"):
        stage.run(refresh_state(session, "c"))


@pytest.mark.parametrize("number", [0, 1, 3, 9])
def test_diff_in_a_slot_that_is_not_its_own_is_corruption(number: int) -> None:
    stage = ProtocolHarness()
    late, session = stage.session(), stage.session()
    change = decode_diff(stage.world.logs["c"][2])
    moved = encode_diff(msgspec.structs.replace(change, n=number))
    assert session.state("c").seqno == 2
    stage.answer(Scan, lambda effect: [(2, moved)])
    with pytest.raises(CorruptionError, match=f"entry 2 of c holds a diff to state {number}"):
        stage.run(refresh_state(late, "c"))


def test_state_where_a_diff_should_be_is_corruption() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.answer(Scan, lambda effect: [(effect.from_seqno, encode_state(new_state("c")))])
    with pytest.raises(CorruptionError):
        stage.run(refresh_state(session, "c"))


# Loading.


def test_collection_without_rollups_is_loaded_from_its_first_entry() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    check_loaded(stage, stage.run(load_state(stage.stranger(), "c")))
    assert stage.effects == [Scan("c", 0)]


def test_collection_is_loaded_from_its_newest_rollup_and_the_diffs_that_follow_it() -> None:
    stage, session = rolled_up()
    assert stage.run(roll_up(session, "c")) is True
    stage.append(session, 9, up("z", 8))
    newest = stage.head().rollups[max(stage.head().rollups)]
    check_loaded(stage, stage.run(load_state(stage.stranger(), "c")))
    assert stage.effects == [Scan("c", 0), GetBlob(newest.key)]


@pytest.mark.parametrize("below", [1, 2, 3, 4])
def test_log_may_be_cut_anywhere_up_to_the_newest_rollup(below: int) -> None:
    stage, _ = rolled_up()
    cut(stage, below)
    check_loaded(stage, stage.run(load_state(stage.stranger(), "c")))


def test_rollup_that_is_the_last_thing_recorded_is_enough() -> None:
    stage, _ = rolled_up(seals_after=0)
    cut(stage, 4)
    assert len(entries_of(stage)) == 1
    check_loaded(stage, stage.run(load_state(stage.stranger(), "c")))


def test_rollup_that_garbage_collection_took_meanwhile_is_replaced_by_a_newer_one() -> None:
    stage, session = rolled_up()
    (old,) = stage.head().rollups.values()

    def race() -> None:
        for _ in range(2):
            stage.append(session, stage.head().upper.elements[0][0] + 1)
            stage.run(roll_up(session, "c"))
            stage.run(collect_garbage(session, "c"))

    stage.before(GetBlob, race)
    late = stage.stranger()
    check_loaded(stage, stage.run(load_state(late, "c")))
    assert old.key not in stage.world.blobs
    assert late.counters == {"reloads": 1}
    stage.agree()


def test_rollup_that_stays_missing_is_corruption_after_a_bounded_number_of_tries() -> None:
    stage, _ = rolled_up()
    (rollup,) = stage.head().rollups.values()
    del stage.world.blobs[rollup.key]
    with pytest.raises(CorruptionError, match="no rollup of c could be read"):
        stage.run(load_state(stage.stranger(), "c"))
    assert len(stage.of(Scan)) == len(stage.of(GetBlob)) == CONFIG.commit_attempts


def test_log_with_gaps_is_corruption() -> None:
    stage, _ = rolled_up()
    entries = entries_of(stage)
    del entries[2]
    stage.answer(Scan, lambda effect: entries)
    with pytest.raises(CorruptionError, match="gaps"):
        stage.run(load_state(stage.stranger(), "c"))


def recording(*seqnos: int) -> bytes:
    """An entry that records rollups of some states."""
    return encode_diff(StateDiff(n=9, rollups={seqno: Rollup(f"c/w/s{seqno}", 1) for seqno in seqnos}))


@pytest.mark.parametrize("live", [range(5, 9), range(3, 4)])
def test_rollup_that_no_live_entry_follows_is_corruption(live: range) -> None:
    with pytest.raises(CorruptionError, match="rollup 3 is not followed by live entries"):
        newest_base([(seqno, recording(3)) for seqno in live])


def test_newest_of_several_rollups_in_one_entry_counts() -> None:
    following, base = newest_base([(seqno, recording(2, 5, 4)) for seqno in range(3, 8)])
    assert [seqno for seqno, _ in following] == [6, 7]
    assert base == (5, Rollup("c/w/s5", 1))


def test_log_that_knows_of_no_rollup_and_no_state_is_corruption() -> None:
    stage, _ = rolled_up()
    cut(stage, 5)
    with pytest.raises(CorruptionError, match="know of no rollup"):
        stage.run(load_state(stage.stranger(), "c"))


def test_entry_of_no_known_kind_is_corruption() -> None:
    stage = ProtocolHarness()
    stage.answer(Scan, lambda effect: [(0, b"")])
    with pytest.raises(CorruptionError):
        stage.run(load_state(stage.stranger(), "c"))


@pytest.mark.parametrize("wrong", ["collection", "seqno"])
def test_rollup_of_something_else_is_corruption(wrong: str) -> None:
    stage, _ = rolled_up()
    (rollup,) = stage.head().rollups.values()
    changes = {"collection": "d"} if wrong == "collection" else {"seqno": 2}
    foreign = msgspec.structs.replace(stage.world.states["c"][3], **changes)
    stage.world.blobs[rollup.key] = encode_state(foreign)
    with pytest.raises(CorruptionError, match="where one of c at 3 should be"):
        stage.run(load_state(stage.stranger(), "c"))


def test_first_entry_of_another_collection_is_corruption() -> None:
    stage = ProtocolHarness("c", "d")
    stage.world.logs["c"] = stage.world.logs["d"]
    with pytest.raises(CorruptionError, match="a state of d at 0 where one of c"):
        stage.run(load_state(stage.stranger(), "c"))


def test_first_entry_with_the_number_of_another_state_is_corruption() -> None:
    stage = ProtocolHarness()
    stage.world.logs["c"] = [encode_state(msgspec.structs.replace(new_state("c"), seqno=5))]
    with pytest.raises(CorruptionError):
        stage.run(load_state(stage.stranger(), "c"))


@pytest.mark.parametrize("where", ["rollup", "diff"])
def test_flipped_bit_is_corruption_and_the_future_is_a_version_error(where: str) -> None:
    stage, _ = rolled_up()
    blobs, log = stage.world.blobs, stage.world.logs["c"]
    (rollup,) = stage.head().rollups.values()

    def spoil(change: bytes) -> None:
        if where == "rollup":
            blobs[rollup.key] = change
        else:
            log[-1] = change

    good = blobs[rollup.key] if where == "rollup" else log[-1]
    spoil(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CorruptionError, match="checksum"):
        stage.run(load_state(stage.stranger(), "c"))
    spoil(good[:5])
    with pytest.raises(CorruptionError, match="truncated"):
        stage.run(load_state(stage.stranger(), "c"))
    spoil(_of_version(good, 9))
    with pytest.raises(VersionError):
        stage.run(load_state(stage.stranger(), "c"))


def _of_version(data: bytes, version: int) -> bytes:
    """The same entry as a newer version would seal it."""
    head, payload = data[:3] + bytes([version]), data[8:]
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big") + payload


def test_diffs_of_a_log_are_all_but_its_first_state() -> None:
    stage, _ = rolled_up()
    entries = entries_of(stage)
    assert [change.n for change in diffs_of(entries)] == [seqno for seqno, _ in entries[1:]]


# Following.


def test_follower_of_a_log_gets_the_diffs_after_a_state_some_at_a_time() -> None:
    stage, session = rolled_up()
    newest = stage.head().seqno
    found: list[int] = []
    while diffs := stage.run(apply_newer_diffs(session, "c", found[-1] if found else 0, 3)):
        assert len(diffs) <= 3
        found += [each.n for each in diffs]
    assert found == list(range(1, newest + 1))
    assert stage.of(Scan) == [Scan("c", newest + 1, 3)]
    assert stage.run(apply_newer_diffs(session, "nobody", 0, 3)) == []


def test_follower_of_a_log_that_was_cut_gets_an_error() -> None:
    stage, session = rolled_up()
    cut(stage, 4)
    assert stage.run(apply_newer_diffs(session, "c", 2, 3)) is None
    diffs = stage.run(apply_newer_diffs(session, "c", 3, 3))
    assert diffs is not None
    assert diffs[0].n == 4


def test_a_diff_in_the_wrong_place_is_not_followed() -> None:
    stage, session = rolled_up()
    entries = entries_of(stage)
    stage.answer(Scan, lambda effect: [(2, entries[3][1])])
    with pytest.raises(CorruptionError, match="entry 2 of c holds a diff to state 3"):
        stage.run(apply_newer_diffs(session, "c", 1, 3))
