"""The reads of histories of the core: lease first, then plan, then fetch; a feed that misses and repeats nothing."""

from __future__ import annotations

import pytest
from core_read_cases import compact_and_collect, counts, lapse, some, written
from protocol_harness import CONFIG, FAILURES, Fault, ProtocolHarness, accepted, at, configured, up

from timespine.core.batch import Part, Run
from timespine.core.effects import CompareAndSet, GetBlob, Scan
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import expire_lapsed_leases, roll_up
from timespine.core.read_plan import Plan
from timespine.core.transitions import Retain
from timespine.errors import CorruptionError, Determinate, LeaseExpired, NotSealed, SinceError, UsageError
from timespine.model import CLOSED
from timespine.model.time import INT64_MAX
from timespine.testing.simulator.core_reads import (
    advance_lease,
    fetch_leased,
    fetch_snapshot,
    fetch_snapshot_without_lease,
    release_lease,
    take_lease,
)
from timespine.testing.simulator.core_writes import compare_and_append_data

# Leases.


def test_lease_holds_history_from_its_time_on_and_the_state_it_was_taken_at() -> None:
    stage, session, other = written()
    seqno = stage.head().seqno
    reader = stage.run(take_lease(session, "c", (2,)))
    held = stage.head().readers[reader]
    assert (held.since, held.seqno, held.term_ms) == (at(2), seqno, CONFIG.reader_lease_ms)
    assert held.until_ms == stage.now_ms + CONFIG.reader_lease_ms
    stage.commit(other, Retain(at(3)))
    assert stage.head().since == at(2)


def test_since_follows_when_the_lease_is_released() -> None:
    stage, session, other = written()
    reader = stage.run(take_lease(session, "c", (2,)))
    stage.commit(other, Retain(at(3)))
    stage.run(release_lease(session, "c", reader))
    assert stage.head().since == at(3)
    stage.run(release_lease(session, "c", reader))  # once more is fine


def test_lease_below_since_begins_at_since() -> None:
    stage, session, _ = written()
    stage.commit(session, Retain(at(3)))
    reader = stage.run(take_lease(session, "c", (1,)))
    assert stage.head().readers[reader].since == at(3)


@pytest.mark.parametrize(("name", "as_of"), [("nowhere", (0,)), ("c", (0, 0))])
def test_lease_on_what_cannot_be_is_a_usage_error(name: str, as_of: tuple[int, ...]) -> None:
    stage, session, _ = written()
    with pytest.raises(UsageError):
        stage.run(take_lease(session, name, as_of))
    assert not stage.head().readers


@pytest.mark.parametrize("fault", list(Fault))
def test_lease_whose_reply_was_lost_is_taken_once(fault: Fault) -> None:
    stage, session, _ = written()
    stage.fail(CompareAndSet, fault)
    reader = stage.run(take_lease(session, "c", (2,)))
    assert list(stage.head().readers) == [reader]


def test_advancing_a_lease_releases_older_history_and_older_states() -> None:
    stage, session, other = written()
    reader = stage.run(take_lease(session, "c", (1,)))
    stage.commit(other, Retain(at(3)))
    stage.append(session, 5, up("r4", 4))
    known = session.state("c").seqno
    stage.run(advance_lease(session, "c", reader, (2,)))
    held = stage.head().readers[reader]
    assert (held.since, held.seqno) == (at(2), known)
    assert stage.head().since == at(2)


def test_advancing_a_lease_keeps_it_alive() -> None:
    stage, session, other = written()
    reader = stage.run(take_lease(session, "c", (1,)))
    for _ in range(3):
        stage.now_ms += CONFIG.reader_lease_ms // 2
        stage.run(advance_lease(session, "c", reader, (1,)))
        stage.run(expire_lapsed_leases(other, "c"))
    assert reader in stage.head().readers


def test_advancing_a_lease_that_lapsed_is_lease_expired() -> None:
    stage, session, other = written()
    reader = stage.run(take_lease(session, "c", (1,)))
    lapse(stage, other)
    with pytest.raises(LeaseExpired, match=reader):
        stage.run(advance_lease(session, "c", reader, (2,)))


def test_advancing_a_lease_to_a_time_of_another_shape_is_a_usage_error() -> None:
    stage, session, _ = written()
    reader = stage.run(take_lease(session, "c", (1,)))
    with pytest.raises(UsageError):
        stage.run(advance_lease(session, "c", reader, (2, 2)))
    assert stage.head().readers[reader].since == at(1)


# Snapshots under a lease.


@pytest.mark.parametrize("as_of", range(4))
def test_snapshot_gives_the_collection_as_of_a_time_and_leaves_no_lease(as_of: int) -> None:
    stage, session, _ = written()
    assert counts(stage.run(fetch_snapshot(session, "c", (as_of,)))) == some(*range(as_of + 1))
    assert not stage.head().readers


def test_snapshot_takes_its_lease_before_it_fetches_and_releases_it_after() -> None:
    stage, session, _ = written()
    stage.run(fetch_snapshot(session, "c", (3,)))
    kinds = [type(each) for each in stage.of(CompareAndSet, GetBlob)]
    assert kinds == [CompareAndSet, *[GetBlob] * 4, CompareAndSet]


def test_snapshot_needs_no_blob_for_what_is_in_the_state() -> None:
    stage = ProtocolHarness()
    session = stage.session(config=configured(inline_part_bytes=99))
    stage.append(session, 1, up("r0", 0))
    assert counts(stage.run(fetch_snapshot(session, "c", (0,)))) == some(0)
    assert not stage.of(GetBlob)


def test_snapshot_sees_through_hollow_runs() -> None:
    stage, session, _ = written(6)
    stage.compact(session, 5)
    assert [part.hollow for part in stage.head().parts()] == [False, True]  # the newest was passed through
    assert counts(stage.run(fetch_snapshot(session, "c", (5,)))) == some(*range(6))
    assert len(stage.of(GetBlob)) == 1 + 1 + 3


def test_snapshot_sees_through_nested_hollow_runs_in_order() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    prefix = f"c/{session.writer}"
    parts = [stage.put(f"{prefix}/q{when}", up(f"r{when}", when)) for when in range(4)]
    inner = stage.put_run(session, f"{prefix}/h1", parts[1], parts[2])
    outer = stage.put_run(session, f"{prefix}/h2", parts[0], inner, parts[3])
    stage.append_parts(session, 4, outer)
    reply = stage.run(fetch_snapshot(session, "c", (2,)))
    assert counts(reply) == some(0, 1, 2)
    assert isinstance(reply, tuple)
    assert [part.key for part, _ in reply[1]] == [part.key for part in parts]


def test_snapshot_of_a_time_not_sealed_is_told_so_and_leaves_no_lease() -> None:
    stage, session, _ = written()
    reply = stage.run(fetch_snapshot(session, "c", (4,)))
    assert isinstance(reply, NotSealed)
    assert (reply.asked, reply.upper) == ((4,), at(4))
    assert not stage.head().readers


def test_snapshot_of_a_time_that_was_sealed_meanwhile_succeeds() -> None:
    stage, session, other = written()
    stage.before(Scan, lambda: stage.append(other, 5, up("r4", 4)))
    assert counts(stage.run(fetch_snapshot(session, "c", (4,)))) == some(*range(5))


def test_snapshot_of_a_time_below_since_is_told_so_and_leaves_no_lease() -> None:
    stage, session, other = written()
    stage.commit(other, Retain(at(3)))
    reply = stage.run(fetch_snapshot(session, "c", (1,)))
    assert isinstance(reply, SinceError)
    assert (reply.asked, reply.since) == ((1,), at(3))
    assert not stage.head().readers


def test_snapshot_under_a_lease_is_undisturbed_by_merges_and_garbage_collection() -> None:
    stage, session, other = written()
    stage.before(GetBlob, lambda: compact_and_collect(stage, other, 3), nth=2)
    assert counts(stage.run(fetch_snapshot(session, "c", (1,)))) == some(0, 1)
    before = len(stage.there())
    for _ in range(2):
        stage.run(roll_up(other, "c"))
        stage.run(collect_garbage(other, "c"))
    assert len(stage.there()) < before  # what the lease had kept is gone with it
    stage.check_storage()
    stage.agree()


def test_snapshot_whose_lease_lapsed_while_reading_is_lease_expired() -> None:
    stage, session, other = written()

    def too_slow() -> None:
        lapse(stage, other)
        compact_and_collect(stage, other, 3)

    stage.before(GetBlob, too_slow, nth=2)
    with pytest.raises(LeaseExpired, match="expired while it was reading"):
        stage.run(fetch_snapshot(session, "c", (1,)))


def test_snapshot_whose_lease_lapsed_but_whose_blobs_are_still_there_succeeds() -> None:
    stage, session, other = written()
    stage.before(GetBlob, lambda: lapse(stage, other), nth=2)
    assert counts(stage.run(fetch_snapshot(session, "c", (1,)))) == some(0, 1)


def test_blob_missing_under_a_live_lease_is_corruption() -> None:
    stage, session, _ = written()
    key = next(stage.head().keys())
    del stage.world.blobs[key]
    with pytest.raises(CorruptionError, match=f"{key} is missing though reader"):
        stage.run(fetch_snapshot(session, "c", (3,)))


def test_part_missing_inside_a_hollow_run_under_a_live_lease_is_corruption() -> None:
    stage, session, _ = written(6)
    stage.compact(session, 5)
    child = next(key for key in sorted(stage.there()) if key.split("/")[2].startswith("p") and "/m" in key)
    del stage.world.blobs[child]
    with pytest.raises(CorruptionError, match=child):
        stage.run(fetch_snapshot(session, "c", (5,)))


def test_hollow_run_that_does_not_decode_is_corruption() -> None:
    stage, session, _ = written(6)
    stage.compact(session, 5)
    (run,) = (part for part in stage.head().parts() if part.hollow)
    stage.world.blobs[run.key] = b"nonsense"
    with pytest.raises(CorruptionError):
        stage.run(fetch_snapshot(session, "c", (5,)))


def test_missing_part_of_a_collection_that_is_gone_is_lease_expired() -> None:
    stage = ProtocolHarness()
    plan = Plan(0, at(0), None, (0,), (Run((Part("nowhere/w1/p1", 1),)),), at(1))
    with pytest.raises(LeaseExpired):
        stage.run(fetch_leased(stage.stranger(), "nowhere", "r1", plan))


@pytest.mark.parametrize("fault", FAILURES)
@pytest.mark.parametrize("nth", [1, 3])
def test_fetch_that_failed_is_tried_again(fault: Fault, nth: int) -> None:
    stage, session, _ = written()
    stage.fail(GetBlob, fault, nth=nth)
    assert counts(stage.run(fetch_snapshot(session, "c", (3,)))) == some(*range(4))


def test_fetch_that_fails_for_good_is_unavailable_and_not_corruption() -> None:
    stage, session, _ = written()
    stage.fail(GetBlob, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Determinate):
        stage.run(fetch_snapshot(session, "c", (3,)))


def test_snapshot_of_a_closed_collection_is_complete_at_every_time() -> None:
    stage, session, _ = written()
    accepted(stage.run(compare_and_append_data(session, "c", None, at(4), CLOSED)))
    assert counts(stage.run(fetch_snapshot(session, "c", (INT64_MAX,)))) == some(*range(4))


# Snapshots without a lease.


def test_snapshot_without_lease_writes_nothing() -> None:
    stage, _, _ = written()
    stranger = stage.stranger()
    assert counts(stage.run(fetch_snapshot_without_lease(stranger, "c", (2,)))) == some(0, 1, 2)
    assert {type(each) for each in stage.effects} == {Scan, GetBlob}
    assert "replans" not in stranger.counters


def test_snapshot_without_lease_of_a_collection_that_is_not_there_is_a_usage_error() -> None:
    stage = ProtocolHarness()
    with pytest.raises(UsageError, match="there is no collection nowhere"):
        stage.run(fetch_snapshot_without_lease(stage.stranger(), "nowhere", (0,)))


def test_snapshot_without_lease_is_refused_like_any_other() -> None:
    stage, session, _ = written()
    stage.commit(session, Retain(at(2)))
    assert isinstance(stage.run(fetch_snapshot_without_lease(stage.stranger(), "c", (1,))), SinceError)
    assert isinstance(stage.run(fetch_snapshot_without_lease(stage.stranger(), "c", (4,))), NotSealed)


def test_snapshot_without_lease_plans_again_when_a_part_went_away() -> None:
    stage, _, other = written()
    stranger = stage.stranger()
    stage.before(GetBlob, lambda: compact_and_collect(stage, other, 2), nth=2)
    assert counts(stage.run(fetch_snapshot_without_lease(stranger, "c", (3,)))) == some(*range(4))
    assert stranger.counters["replans"] == 1


def test_snapshot_without_lease_whose_time_was_expired_meanwhile_is_a_since_error() -> None:
    stage, _, other = written()
    stage.before(GetBlob, lambda: compact_and_collect(stage, other, 3), nth=2)
    reply = stage.run(fetch_snapshot_without_lease(stage.stranger(), "c", (1,)))
    assert isinstance(reply, SinceError)
    assert reply.since == at(3)


def test_part_that_the_newest_state_refers_to_and_that_is_missing_is_corruption() -> None:
    stage, _, _ = written()
    del stage.world.blobs[next(stage.head().keys())]
    with pytest.raises(CorruptionError, match="though its newest state refers to it"):
        stage.run(fetch_snapshot_without_lease(stage.stranger(), "c", (3,)))
    assert len(stage.of(GetBlob)) == 1


def test_parts_that_keep_going_missing_are_corruption_after_a_bounded_number_of_plans() -> None:
    stage, _, other = written()
    del stage.world.blobs[next(stage.head().keys())]
    stranger = stage.stranger()
    stage.before(GetBlob, lambda: stage.disturb(other), times=CONFIG.commit_attempts)
    with pytest.raises(CorruptionError, match="keep going missing"):
        stage.run(fetch_snapshot_without_lease(stranger, "c", (3,)))
    assert stranger.counters["replans"] == CONFIG.commit_attempts
