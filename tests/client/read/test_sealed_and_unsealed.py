"""Sealed and unsealed data read together: of one state, under one lease."""

from __future__ import annotations

import pytest
from memory_store import BLOBS, Script

from timespine.errors import LeaseExpired, NotSealed


def row(id, time):
    return {"id": id, "_time": time}


@pytest.fixture
def orders(place):
    orders = place.open(config=BLOBS).create("orders", key={"id": "int64"}, timeline="counter")
    orders.write([row(1, 0), row(2, 4), row(3, 9)])
    orders.seal(5)
    return orders


def ids(rows):
    return sorted(each["id"] for each in rows.to_pylist())


def test_contents_are_the_sealed_rows_and_the_unsealed_updates(orders):
    with orders.contents() as found:
        assert (ids(found.sealed), found.sealed.as_of) == ([1, 2], 4)
        assert found.unsealed.to_pylist() == [{"id": 3, "_time": 9, "_diff": 1}]
        assert (found.since.elements, found.upper.elements) == (((0,),), ((5,),))
        assert found.seqno == found.sealed.seqno == found.unsealed.seqno
    assert ids(orders.contents(0).sealed) == [1]
    assert ids(orders.contents(columns=["id"], where="id > 1").sealed) == [2]
    assert orders.contents(where="id > 3").unsealed.to_pylist() == []
    assert orders.contents(multiplicity="column").sealed.to_pylist()[0] == {"id": 1, "_diff": 1}
    with pytest.raises(NotSealed):
        orders.contents(7, timeout=0)


def test_what_others_seal_and_write_afterwards_is_in_neither_half_nor_in_both(place, orders):
    found = orders.contents()
    other = place.open()["orders"]
    other.write([row(4, 9), row(5, 20)])
    other.seal(10)
    other.compact(wait=True)
    place.open().maintain(sweep=True)
    assert (ids(found.sealed), ids(found.unsealed)) == ([1, 2], [3])
    again = orders.contents()
    assert (ids(again.sealed), ids(again.unsealed)) == ([1, 2, 3, 4], [5])
    assert again.seqno > found.seqno


def test_both_halves_take_one_lease_and_give_it_back(place):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    orders = store.create("orders", key={"id": "int64"}, timeline="counter")
    orders.write([row(1, 0), row(2, 9)])
    orders.seal(5)
    before = script.calls["compare_and_set"]
    with orders.contents() as found:
        assert (ids(found.sealed), ids(found.unsealed)) == ([1], [2])
        (lease,) = store._leases._leases[orders.id]
        assert len(lease.users) == 2
    assert script.calls["compare_and_set"] == before + 1
    assert not lease.users


def test_a_collection_of_which_nothing_is_sealed_has_unsealed_contents(place):
    orders = place.open().create("orders", key={"id": "int64"}, timeline="counter")
    orders.write([row(1, 3)])
    with orders.contents() as found:
        assert (found.sealed.as_of, ids(found.sealed), ids(found.unsealed)) == (None, [], [1])
        assert (found.upper.elements, found.seqno) == (((0,),), found.unsealed.seqno)


def test_contents_of_several_coordinates_are_as_of_a_time(place):
    orders = place.open().create("orders", key={"id": "int64"}, time_coordinates=2, timeline="counter")
    orders.write([{"id": 1, "_time_0": 0, "_time_1": 0}, {"id": 2, "_time_0": 9, "_time_1": 0}])
    orders.seal((5, 5))
    with orders.contents((4, 4)) as found:
        assert (ids(found.sealed), ids(found.unsealed)) == ([1], [])
    orders.write([{"id": 3, "_time_0": 7, "_time_1": 7}])
    assert ids(orders.contents((4, 4)).unsealed) == [3]


def test_unsealed_contents_that_are_gone_are_said_to_be_gone_when_nothing_holds_them(place, orders):
    reading = place.open(config=BLOBS, read_only=True)["orders"]
    found, ahead = reading.contents(), reading.unsealed()
    orders.seal(20)
    orders.compact(wait=True)
    writing = place.open(config=BLOBS)
    for _ in range(3):
        place.clock.advance(3600)
        orders.append([{"id": 9}])
        writing.maintain(sweep=True)
    for rows in (found.unsealed, ahead):
        with pytest.raises(LeaseExpired, match="reading only"):
            rows.to_pylist()
    assert ids(found.sealed) == [1, 2], "a time that is sealed stays what it was"
