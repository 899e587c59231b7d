"""Holds: history stays while somebody holds it, for as long as they said, and no longer."""

import pytest
from memory_store import BLOBS, QUICK, Script

from timespine.client.read.user_holds import TERM_MIN_MS
from timespine.errors import Fenced, Indeterminate, LeaseExpired, SinceError, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

TERM_S = BLOBS.reader_lease_ms / 1000


@pytest.fixture
def store(place):
    return place.open(config=BLOBS)


@pytest.fixture
def orders(store):
    made = store.create("orders", key={"id": "int64"}, timeline="counter")
    for time in range(10):
        made.append([{"id": time}])
    return made


def ids(place, as_of):
    """What there is as of a time; looking holds nothing."""
    with place.open(read_only=True) as store:
        return sorted(row["id"] for row in store["orders"].snapshot(as_of).to_pylist())


def leave(store):
    """A process that is killed: its leases stay where they are, and nobody looks after them."""
    store._leases._leases.clear()
    store._committer._entered.clear()
    store.close()


# Leased holds.


def test_history_from_a_hold_on_stays_until_it_is_closed(place, store, orders):
    hold = orders.hold(3)
    assert hold.since == Frontier.at(3)
    expired = orders.expire(before=8)
    assert (expired.asked, expired.since) == (Frontier.at(8), Frontier.at(3))
    assert len(expired.held_by) == 1
    store.maintain(sweep=True)
    assert ids(place, 3) == [0, 1, 2, 3]
    with pytest.raises(SinceError):
        ids(place, 2)
    hold.release()
    hold.release()
    assert orders.since == Frontier.at(8)


def test_a_hold_may_be_a_block(orders):
    with orders.hold(3):
        orders.expire(before=8)
        assert orders.since == Frontier.at(3)
    assert orders.since == Frontier.at(8)


def test_a_hold_lets_go_of_history_as_it_releases_it_and_never_goes_back(orders):
    hold = orders.hold(1)
    orders.expire(before=9)
    hold.release_before(4)
    assert orders.since == hold.since == Frontier.at(4)
    hold.release_before(2)
    assert orders.since == hold.since == Frontier.at(4)
    hold.release()
    with pytest.raises(LeaseExpired):
        hold.release_before(5)


def test_a_hold_at_no_time_is_on_all_that_there_is(place, orders):
    orders.expire(before=2)
    with orders.hold() as hold:
        assert hold.since == Frontier.at(2)
        orders.expire(before=9)
        assert ids(place, 2) == [0, 1, 2]


def test_a_hold_on_history_that_is_gone_is_refused_and_holds_nothing(orders):
    orders.expire(before=5)
    with pytest.raises(SinceError, match="5"):
        orders.hold(4)
    assert orders.inspect().readers == {}
    assert orders.expire(before=6).since == Frontier.at(6)


TAKE = {
    "hold": lambda collection, as_of: collection.hold(as_of),
    "critical hold": lambda collection, as_of: collection.critical_hold("backup", as_of),
}


@pytest.mark.parametrize("kind", TAKE)
def test_a_refused_hold_of_several_coordinates_names_the_since_of_the_collection(store, kind):
    pairs = store.create("pairs", key={"id": "int64"}, time_coordinates=2, timeline="counter")
    pairs.append([{"id": 1}], at=(0, 10), upper=(20, 20))
    pairs.expire(before=(5, 10))
    with pytest.raises(SinceError, match="history is exact from") as refused:
        TAKE[kind](pairs, (6, 6))
    assert refused.value.since == pairs.since == Frontier.at(5, 10)
    assert (pairs.inspect().readers, pairs.inspect().holds) == ({}, {})


def test_holds_and_reads_do_not_share_their_leases(orders):
    with orders.hold(2) as hold, orders.snapshot(5) as snapshot:
        assert len(orders.inspect().readers) == 2
        hold.release_before(9)
        orders.expire(before=9)
        assert orders.since == Frontier.at(5)
        assert snapshot.count() == 6


def test_a_hold_lives_for_as_long_as_its_process_beats(place, store, orders):
    hold = orders.hold(3)
    other = place.open(config=BLOBS)
    for _ in range(10):
        place.clock.advance(TERM_S / 2)
        store._heartbeat_thread.heartbeat_once()
        other["orders"].expire(before=9)
        other.maintain()
    assert ids(place, 3) == [0, 1, 2, 3]
    place.clock.advance(2 * TERM_S)
    other.maintain()
    assert orders.since == Frontier.at(9)
    with pytest.raises(LeaseExpired):
        hold.release_before(4)
    hold.release()


@pytest.mark.parametrize(("ttl", "term_s"), [(None, TERM_S), ("2 h", 7200.0), (1, TERM_MIN_MS / 1000)])
def test_a_hold_ends_its_ttl_after_its_process_did(place, store, orders, ttl, term_s):
    killed = place.open(config=BLOBS)
    killed["orders"].hold(3, ttl=ttl)
    leave(killed)
    orders.expire(before=9)
    place.clock.advance(term_s - 1)
    store.maintain()
    assert orders.since == Frontier.at(3)
    place.clock.advance(2)
    store.maintain()
    assert orders.since == Frontier.at(9)


def test_closing_the_store_gives_its_holds_back(place, orders):
    other = place.open(config=BLOBS)
    other["orders"].hold(3)
    orders.expire(before=9)
    other.close()
    assert orders.since == Frontier.at(9)


def test_history_of_two_coordinates_is_held_from_a_tuple_on(store):
    pairs = store.create("pairs", key={"id": "int64"}, timeline="counter", time_coordinates=2)
    pairs.append([{"id": 1}], at=(1, 1), upper=(9, 9))
    with pairs.hold((2, 3)) as hold:
        assert hold.since == Frontier(((2, 3),))
        assert pairs.expire(before=(5, 1)).since == Frontier(((2, 3), (5, 1)))
        hold.release_before((4, 4))
        assert pairs.since == Frontier(((4, 4), (5, 1)))
    assert pairs.since == Frontier(((5, 1),))


# Critical holds.


def test_a_critical_hold_outlives_its_process_and_every_clock(place, store, orders):
    gone = place.open(config=BLOBS)
    token = gone["orders"].critical_hold("backup", 3).token
    leave(gone)
    place.clock.advance(1000 * TERM_S)
    expired = orders.expire(before=9)
    assert (expired.since, len(expired.held_by)) == (Frontier.at(3), 1)
    assert "backup" in expired.held_by[0]
    store.maintain(sweep=True)
    again = orders.critical_hold("backup", token=token)
    assert (again.since, again.name, again.token) == (Frontier.at(3), "backup", token)
    assert "backup" in repr(again)
    assert ids(place, 3) == [0, 1, 2, 3]
    again.release_before(5)
    assert orders.since == again.since == Frontier.at(5)
    again.release_before(4)
    assert again.since == Frontier.at(5)
    again.release()
    again.release()
    assert orders.since == Frontier.at(9)
    assert orders.inspect().holds == {}


def test_a_critical_hold_is_moved_by_its_token_alone(place, orders):
    hold = orders.critical_hold("backup", 3)
    theirs = place.open()["orders"]
    for token in (None, "guessed"):
        with pytest.raises(Fenced, match="backup"):
            theirs.critical_hold("backup", 3, token=token)
    mine = theirs.critical_hold("backup", token=hold.token)
    mine.take_over()
    assert mine.token != hold.token
    for fenced in (lambda: hold.release_before(5), hold.take_over, hold.release):
        with pytest.raises(Fenced, match="backup"):
            fenced()
    assert orders.inspect().holds == {"backup": 3}
    mine.release_before(6)
    mine.release()
    with pytest.raises(Fenced):
        mine.release_before(7)


def test_a_critical_hold_on_history_that_is_gone_is_refused_and_only_a_new_one_is_undone(orders):
    orders.expire(before=5)
    with pytest.raises(SinceError, match="5"):
        orders.critical_hold("backup", 4)
    assert orders.inspect().holds == {}
    hold = orders.critical_hold("backup", 6)
    with pytest.raises(SinceError, match=r"hold backup keeps history from \[6\] on: for 5 take another one"):
        orders.critical_hold("backup", 5, token=hold.token)
    assert orders.inspect().holds == {"backup": 6}
    assert orders.critical_hold("backup", 8, token=hold.token).since == Frontier.at(6)


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT])
def test_a_hold_whose_take_over_is_in_doubt_is_not_lost(place, orders, fault):
    script = Script()
    store = place.open(script=script)
    hold = store["orders"].critical_hold("backup", 3, token=orders.critical_hold("backup", 3).token)
    before = hold.token
    script.add("compare_and_set", fault, times=1)
    script.add("compare_and_set", Fault.DETERMINATE, times=QUICK.storage_attempts)
    with pytest.raises(Indeterminate):
        hold.take_over()
    assert script.is_done
    hold.take_over()
    assert hold.token != before
    hold.release()
    assert orders.inspect().holds == {}


@pytest.mark.parametrize("kind", TAKE)
def test_both_kinds_of_hold_have_the_same_verbs_and_are_released_by_their_block(orders, kind):
    with TAKE[kind](orders, 3) as hold:
        hold.release_before(5)
        orders.expire(before=9)
        assert orders.inspect().since == 5
    hold.release()  # twice is fine
    assert (orders.inspect().readers, orders.inspect().holds) == ({}, {})


# What makes no sense.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ttl": "soon"}, "soon"),
        ({"ttl": 0}, "duration"),
        ({"as_of": "yesterday"}, "yesterday"),
        ({"as_of": (1, 2)}, "2 coordinates"),
        ({"as_of": -1}, "-1"),
    ],
)
def test_a_hold_that_makes_no_sense_is_refused_and_holds_nothing(orders, options, says):
    with pytest.raises(UsageError, match=says):
        orders.hold(**options)
    found = orders.inspect()
    assert (found.readers, found.holds) == ({}, {})


# What is asked for.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": 5}, "the name of a hold is a text"),
        ({"name": "n", "token": ""}, "the token of a hold is a text"),
        ({"name": "n", "token": 5}, "the token of a hold is a text"),
        ({"name": ""}, "name of a hold"),
        ({"name": "No such name"}, "name of a hold"),
    ],
)
def test_a_critical_hold_without_a_proper_name_or_token_is_refused(orders, options, says):
    with pytest.raises(UsageError, match=says):
        orders.critical_hold(as_of=1, **options)
    assert orders._handle.state().holds == {}


def test_an_error_about_a_hold_of_another_owner_names_its_collection(orders):
    orders.critical_hold("audit", 1)
    with pytest.raises(Fenced, match="hold audit of orders belongs to another owner"):
        orders.critical_hold("audit", 1, token="other")


def test_of_several_coordinates_not_everything_can_be_let_go(store):
    plane = store.create("plane", key={"id": "int64"}, time_coordinates=2, timeline="counter")
    plane.append([{"id": 1, "_time_0": 1, "_time_1": 1}], upper=(5, 5))
    for before in ((100, 100), (5, 5)):
        with pytest.raises(UsageError, match="no complete time would stay readable"):
            plane.expire(before)
    plane.expire((4, 0))
    plane.expire((4, 100))
    assert plane.snapshot((4, 100)).to_pylist() == [{"id": 1}]
    with pytest.raises(UsageError, match="no complete time would stay readable"):
        plane.expire((100, 0))  # beside what was let go before
    assert plane.snapshot((4, 100)).to_pylist() == [{"id": 1}]
