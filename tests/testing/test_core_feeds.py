"""Changes and feeds of the simulated reads: net, complete, and under a lease that moves."""

from __future__ import annotations

import pytest
from core_read_cases import compact_and_collect, counts, lapse, some, written
from protocol_harness import CONFIG, Fault, ProtocolHarness, accepted, at, up

from timespine.core.effects import CompareAndSet, DeleteBlobs, GetBlob, Now, Scan
from timespine.core.protocols.maintain import expire_lapsed_leases
from timespine.core.protocols.session import Session
from timespine.core.read_plan import Plan
from timespine.core.transitions import AdvanceUpper, ExpireReader, Retain
from timespine.errors import Fenced, Indeterminate, LeaseExpired, NotSealed, SinceError, UsageError
from timespine.model import CLOSED
from timespine.model.time import INT64_MAX
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_reads import (
    advance_lease,
    fetch_changes,
    fetch_news,
    fetch_snapshot,
    release_lease,
    take_lease,
)
from timespine.testing.simulator.core_writes import compare_and_append_data

# Changes.


def leased(stage: ProtocolHarness, session: Session, after: int) -> str:
    return stage.run(take_lease(session, "c", (after,)))


@pytest.mark.parametrize(("after", "until"), [(0, 3), (1, 2), (2, 2)])
def test_changes_are_those_after_one_time_until_another(after: int, until: int) -> None:
    stage, session, _ = written()
    reader = leased(stage, session, after)
    reply = stage.run(fetch_changes(session, "c", reader, (after,), (until,)))
    assert counts(reply) == some(*range(after + 1, until + 1))


def test_changes_that_cancel_out_are_none() -> None:
    stage, session, _ = written(2)
    stage.append(session, 4, up("r1", 2, -1), up("r0", 3))
    reader = leased(stage, session, 0)
    assert counts(stage.run(fetch_changes(session, "c", reader, (0,), (3,)))) == {"r0": 1}


def test_changes_below_since_or_past_the_upper_are_refused() -> None:
    stage, session, _ = written()
    stage.commit(session, Retain(at(2)))
    reader = leased(stage, session, 2)
    assert isinstance(stage.run(fetch_changes(session, "c", reader, (1,), (3,))), SinceError)
    assert isinstance(stage.run(fetch_changes(session, "c", reader, (2,), (4,))), NotSealed)
    with pytest.raises(UsageError):
        stage.run(fetch_changes(session, "c", reader, (3,), (2,)))


def test_changes_under_a_lease_that_lapsed_are_lease_expired() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    lapse(stage, other)
    compact_and_collect(stage, other, 3)
    with pytest.raises(LeaseExpired):
        stage.run(fetch_changes(session, "c", reader, (0,), (3,)))


# Feeds.


def until_of(reply: object) -> int:
    """How far a feed got."""
    assert isinstance(reply, tuple), reply
    plan: Plan = reply[0]
    return plan.until[0]


def test_feed_gives_what_became_complete_and_goes_on_from_there() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 1)
    reply = stage.run(fetch_news(session, "c", reader, (1,)))
    assert counts(reply) == some(2, 3)
    assert until_of(reply) == 3
    assert stage.run(fetch_news(session, "c", reader, (3,))) is None
    stage.append(other, 6, up("r4", 4), up("r5", 5))
    reply = stage.run(fetch_news(session, "c", reader, (3,)))
    assert counts(reply) == some(4, 5)
    assert until_of(reply) == 5


def test_feed_releases_what_the_caller_has_and_nothing_of_what_it_is_given() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.commit(other, Retain(at(3)))
    assert stage.head().since == at(0)
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
    assert stage.head().readers[reader].since == at(1)
    assert stage.head().since == at(1)
    assert stage.run(fetch_news(session, "c", reader, (3,))) is None
    assert stage.head().readers[reader].since == at(3)
    assert stage.head().since == at(3)


def test_feed_moves_its_lease_before_it_fetches_and_not_after() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 0)
    stage.run(fetch_news(session, "c", reader, (1,)))
    assert [type(each) for each in stage.effects] == [Now, CompareAndSet, GetBlob, GetBlob]


def test_feed_holds_the_state_that_it_reads() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.append(other, 5, up("r4", 4))
    known = session.state("c").seqno
    reply = stage.run(fetch_news(session, "c", reader, (1,)))
    assert counts(reply) == some(2, 3, 4)
    assert isinstance(reply, tuple)
    assert known <= stage.head().readers[reader].seqno <= reply[0].seqno


def test_feed_asked_the_same_again_gives_the_same_again_and_more_if_there_is_more() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 1)
    stage.commit(other, Retain(at(3)))
    for _ in range(3):
        assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
        compact_and_collect(stage, other, 3)
    stage.append(other, 5, up("r4", 4))
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3, 4)
    assert stage.head().since == at(1)


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_answer_of_a_feed_that_was_lost_on_the_way_can_be_asked_for_again(fault: Fault) -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.commit(session, Retain(at(3)))
    stage.fail(CompareAndSet, fault)
    stage.fail(CompareAndSet, Fault.DETERMINATE, nth=2, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(fetch_news(session, "c", reader, (1,)))
    assert stage.head().since == at(1 if fault is Fault.DONE else 0)
    compact_and_collect(stage, other, 3)
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
    assert stage.head().since == at(1)
    stage.agree()


def test_feed_that_could_not_fetch_can_be_asked_again() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.commit(other, Retain(at(3)))
    stage.fail(GetBlob, Fault.NOT_DONE, nth=2, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(fetch_news(session, "c", reader, (1,)))
    compact_and_collect(stage, other, 3)
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)


def test_feed_that_is_asked_often_enough_keeps_its_lease() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 3)
    for _ in range(10):
        stage.now_ms += CONFIG.reader_lease_ms // 2
        assert stage.run(fetch_news(session, "c", reader, (3,))) is None
        stage.run(expire_lapsed_leases(stage.session(), "c"))
    assert stage.head().readers[reader].until_ms == stage.now_ms + CONFIG.reader_lease_ms


def test_feed_of_nothing_new_writes_nothing() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 3)
    for _ in range(3):
        assert stage.run(fetch_news(session, "c", reader, (3,))) is None
    assert [type(each) for each in stage.effects] == [Now, Scan]


def test_feed_whose_lease_another_thread_moved_as_far_writes_nothing() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.append(other, 5, up("r4", 4))
    stage.run(advance_lease(other, "c", reader, (1,)))
    before = stage.head()
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3, 4)
    # One compare-and-set that was lost, and then nothing was left to change.
    assert [type(each) for each in stage.effects] == [Now, CompareAndSet, Scan, Now, Scan, *[GetBlob] * 3]
    assert stage.head() is before


def test_feed_of_a_collection_where_nothing_is_complete_has_nothing() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    reader = leased(stage, session, 0)
    assert stage.run(fetch_news(session, "c", reader, (0,))) is None


def test_feed_tells_progress_where_nothing_happened() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 3)
    stage.commit(other, AdvanceUpper(at(9)))
    reply = stage.run(fetch_news(session, "c", reader, (3,)))
    assert counts(reply) == {}
    assert until_of(reply) == 8


def test_feed_of_a_closed_collection_ends_with_the_last_time() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 1)
    accepted(stage.run(compare_and_append_data(other, "c", data_of([up("r4", 4)]), at(4), CLOSED)))
    reply = stage.run(fetch_news(session, "c", reader, (1,)))
    assert counts(reply) == some(2, 3, 4)
    assert until_of(reply) == INT64_MAX
    assert stage.run(fetch_news(session, "c", reader, (INT64_MAX,))) is None


def test_feed_over_partially_ordered_times_is_a_usage_error() -> None:
    stage = ProtocolHarness(arity=2)
    session = stage.session()
    reader = stage.run(take_lease(session, "c", (0, 0)))
    with pytest.raises(UsageError, match="totally ordered"):
        stage.run(fetch_news(session, "c", reader, (0, 0)))


def test_feed_after_a_time_of_another_shape_is_a_usage_error_and_stays_where_it_is() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 1)
    held = stage.head().readers[reader]
    with pytest.raises(UsageError):
        stage.run(fetch_news(session, "c", reader, (2, 2)))
    assert stage.head().readers[reader] == held


def test_feed_whose_lease_lapsed_is_lease_expired_and_fetches_nothing() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 1)
    lapse(stage, other)
    before = stage.head()
    for _ in range(2):  # what it knows is old at first, and the newest state then
        with pytest.raises(LeaseExpired, match=f"{reader} of c expired: take a new lease"):
            stage.run(fetch_news(session, "c", reader, (1,)))
        assert not stage.of(GetBlob)
    assert [type(each) for each in stage.effects] == [Now, Scan]
    assert stage.head() is before


def test_feed_of_a_collection_that_is_not_there_is_lease_expired() -> None:
    stage = ProtocolHarness()
    with pytest.raises(LeaseExpired, match="so is the collection"):
        stage.run(fetch_news(stage.stranger(), "nowhere", "r1", (0,)))
    assert [type(each) for each in stage.effects] == [Scan]


def test_feed_by_a_session_that_never_entered_is_fenced_and_moves_nothing() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 0)
    before = stage.head()
    with pytest.raises(Fenced):
        stage.run(fetch_news(stage.stranger(), "c", reader, (1,)))
    assert stage.head() is before


def test_feed_whose_lease_lapsed_while_it_was_reading_is_lease_expired() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)

    def too_slow() -> None:
        lapse(stage, other)
        compact_and_collect(stage, other, 3)

    stage.before(GetBlob, too_slow)
    with pytest.raises(LeaseExpired, match="expired while it was reading"):
        stage.run(fetch_news(session, "c", reader, (1,)))


def test_feed_whose_lease_lapsed_but_whose_blobs_are_still_there_is_told_by_its_next_step() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.before(GetBlob, lambda: stage.commit(other, ExpireReader(reader)))
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
    with pytest.raises(LeaseExpired, match="take a new lease"):
        stage.run(fetch_news(session, "c", reader, (3,)))


def test_feed_that_asks_for_more_than_its_lease_holds_is_a_since_error_and_stays_where_it_is() -> None:
    stage, session, _ = written()
    reader = leased(stage, session, 2)
    stage.commit(session, Retain(at(2)))
    reply = stage.run(fetch_news(session, "c", reader, (0,)))
    assert isinstance(reply, SinceError)
    assert (reply.asked, reply.since) == ((0,), at(2))
    assert stage.head().readers[reader].since == stage.head().since == at(2)
    assert counts(stage.run(fetch_news(session, "c", reader, (2,)))) == some(3)


def test_feed_is_undisturbed_by_merges_and_garbage_collection() -> None:
    stage, session, other = written()
    reader = leased(stage, session, 1)
    stage.before(GetBlob, lambda: compact_and_collect(stage, other, 3))
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
    stage.agree()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("kind", [Scan, GetBlob, CompareAndSet])
def test_feed_misses_and_repeats_nothing_whichever_effect_fails(kind: type, fault: Fault) -> None:
    stage, session, other = written()
    reader = leased(stage, session, 0)
    stage.commit(other, Retain(at(3)))  # so that the first compare-and-set is lost, and the log is read again
    stage.fail(kind, fault, nth=2 if kind is CompareAndSet else 1)
    assert counts(stage.run(fetch_news(session, "c", reader, (1,)))) == some(2, 3)
    assert stage.head().since == at(1)
    stage.append(other, 5, up("r4", 4))
    assert counts(stage.run(fetch_news(session, "c", reader, (3,)))) == some(4)
    assert stage.head().since == at(3)


def test_feed_that_dies_at_any_point_can_be_taken_up_again_where_it_was() -> None:
    for after in range(100):
        stage, session, other = written(6)
        reader = leased(stage, session, 0)
        stage.commit(other, Retain(at(5)))
        if not stage.crash(fetch_news(session, "c", reader, (1,)), after):
            break
        heir = stage.session()
        assert stage.head().readers[reader].since in (at(0), at(1))
        compact_and_collect(stage, other, 5)
        assert counts(stage.run(fetch_news(heir, "c", reader, (1,)))) == some(2, 3, 4, 5)
        stage.run(release_lease(other, "c", reader))
    assert after > 4


def test_reading_deletes_nothing() -> None:
    stage, session, _ = written()
    stage.run(fetch_snapshot(session, "c", (3,)))
    assert not stage.of(DeleteBlobs)
