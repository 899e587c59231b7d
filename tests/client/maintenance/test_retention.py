"""Retention: history goes by the policy of a collection or of its store."""

import pytest
from key_value_cases import create, now
from maintenance_cases import background
from memory_store import BLOBS

from timespine.client.maintenance.maintenance import EXPIRE_S
from timespine.errors import SinceError, UsageError
from timespine.model.frontier import Frontier

DAY = 86_400


def test_retention_moves_since_with_the_clock(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="7 days")
    times = []
    for n in range(12):
        times.append(orders.append([{"k": n, "v": "x"}]).time)
        store.maintain()
        place.clock.advance(DAY)
    since = orders.since.elements[0][0]
    assert times[3] < since <= times[4]
    with pytest.raises(SinceError):
        orders.snapshot(times[2])
    assert orders.count(times[6]) == 7
    assert orders.count() == 12


def test_a_policy_of_the_store_is_that_of_collections_without_their_own(place):
    store = place.open(config=BLOBS)
    plain, patient = create(store, timeline="clock"), create(store, "patient", timeline="clock", retain="100 days")
    counting = create(store, "counting", timeline="counter")
    store.retain("7 days")
    everything = (plain, patient, counting)
    first = [collection.append([{"k": 1, "v": "a"}]).time for collection in everything]
    place.clock.advance(30 * DAY)
    for collection in everything:
        collection.append([{"k": 1, "v": "b"}])
    place.open(config=BLOBS).maintain()
    assert (patient.count(first[1]), counting.count(first[2])) == (1, 1)
    with pytest.raises(SinceError):
        plain.snapshot(first[0])
    store.retain(None)
    since = plain.since
    place.clock.advance(30 * DAY)
    plain.append([{"k": 1, "v": "c"}])
    store.maintain()
    assert plain.since == since


def test_a_collection_that_keeps_history_for_ever_is_exempt_from_the_policy_of_the_store(place):
    store = place.open(config=BLOBS)
    audit, kept = create(store, "audit", timeline="clock"), create(store, "kept", timeline="clock", retain="for ever")
    store.retain("1 hour")
    audit.retain(None)
    first = [each.append([{"k": 1, "v": "a"}]).time for each in (audit, kept)]
    place.clock.advance(DAY)
    for each in (audit, kept):
        each.append([{"k": 1, "v": "b"}])
    place.open(config=BLOBS).maintain()
    store.maintain()
    assert [audit.count(first[0]), kept.count(first[1])] == [1, 1]
    audit.retain("store")
    store.maintain()
    with pytest.raises(SinceError):
        audit.snapshot(first[0])
    assert kept.count(first[1]) == 1


def test_a_collection_says_how_long_history_is_kept_and_by_which_policy(place):
    store = place.open(config=BLOBS)
    orders, counting = create(store, timeline="clock"), create(store, "counting", timeline="counter")
    assert str(orders.retention) == "for ever, by no policy"
    store.retain("7 days")
    other = place.open(config=BLOBS, read_only=True)
    for each in (orders, other["orders"]):
        assert str(each.retention) == "for 7 days, by the policy of the store"
    assert (counting.retention.duration_ms, counting.retention.by) == (None, "none")
    orders.retain(1.5)
    assert str(other["orders"].retention) == "for 1,500 milliseconds, by its own policy"
    orders.retain("1 hour")
    assert str(orders.retention) == "for 1 hour, by its own policy"
    for for_ever in (None, "for ever"):
        for each in (orders, counting):
            each.retain(for_ever)
            assert str(each.retention) == "for ever, by its own policy"
    orders.retain("store")
    assert orders.retention.by == "store"
    store.retain("for ever")
    assert orders.retention.by == "none"
    with pytest.raises(UsageError, match="no other policy"):
        store.retain("store")
    with pytest.raises(UsageError, match="is not a duration"):
        orders.retain("a while")


def test_retention_never_goes_past_the_newest_time(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 h")
    first = orders.append([{"k": 1, "v": "a"}]).time
    last = orders.upsert([{"k": 1, "v": "b"}]).time
    place.clock.advance(1000 * DAY)
    background(store, place.clock, 3 * EXPIRE_S)
    assert orders.since == Frontier.at(last)
    assert now(orders) == {(1, "b"): 1}
    with pytest.raises(SinceError):
        orders.snapshot(first)
    assert orders.inspect().rows == 1  # and what was expired is gone from storage too
    empty = create(store, "empty", timeline="clock", retain="1 h")
    background(store, place.clock, 3 * EXPIRE_S)
    assert empty.count() == 0
    assert empty.append([{"k": 1, "v": "a"}]).rows == 1


def test_retention_is_held_back_by_those_who_read_and_can_be_taken_back(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 day")
    first = orders.append([{"k": 1, "v": "a"}]).time
    hold = orders.critical_hold("audit", first)
    for _ in range(3):
        place.clock.advance(2 * DAY)
        orders.append([{"k": 1, "v": "b"}])
        store.maintain()
    assert orders.count(first) == 1
    hold.release()
    store.maintain()
    with pytest.raises(SinceError):
        orders.snapshot(first)
    orders.retain(None)
    since = orders.since
    place.clock.advance(100 * DAY)
    orders.append([{"k": 1, "v": "c"}])
    store.maintain()
    assert orders.since == since


def test_a_policy_that_another_process_took_back_is_no_longer_carried_out(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 day")
    first = orders.append([{"k": 1, "v": "a"}]).time
    background(store, place.clock, 1)
    other["orders"].retain(None)
    background(store, place.clock, 2 * EXPIRE_S)
    place.clock.advance(10 * DAY)
    orders.append([{"k": 1, "v": "b"}])
    background(store, place.clock, 2 * EXPIRE_S)
    assert orders.count(first) == 1
