"""A read of a state without blobs takes no lease: its rows are in memory, whatever other processes do meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest
from memory_store import BLOBS, Script
from test_read_path import READS

from timespine.errors import SinceError
from timespine.testing.unreliable import Fault


@pytest.fixture
def orders(place):
    """A collection whose rows are all in its state."""
    orders = place.open().create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    for time in range(3):
        orders.append([{"id": time, "name": "x"}])
    return orders


@pytest.mark.parametrize("name", READS)
def test_a_read_of_rows_in_the_state_writes_nothing(place, orders, name):
    script = Script()
    reader = place.open(script=script)["orders"]
    before = Counter(script.calls)
    READS[name](reader)
    calls = Counter(script.calls) - before
    assert (calls["scan"], calls["compare_and_set"], calls["get"]) == (1, 0, 0)
    assert orders._handle.state().readers == {}


def test_an_open_read_keeps_its_rows_though_others_expire_merge_and_collect(place, orders):
    reader = place.open()["orders"]
    snapshot, changes = reader.snapshot(as_of=1), reader.changes(after=0, until=1)
    orders.delete({"id": 0})
    result = orders.expire(before=3)
    assert result.held_by == ()
    orders.compact(wait=True)
    place.open(config=BLOBS).maintain()
    with pytest.raises(SinceError):
        reader.snapshot(as_of=1)
    for _ in range(2):
        assert [row["id"] for row in snapshot.to_pylist()] == [0, 1]
        assert [(row["id"], row["_diff"]) for row in changes.to_pylist()] == [(1, 1)]


def test_a_read_that_waits_is_leased_before_it_waits(place, orders):
    """Otherwise another process could expire the time that the read waits for."""
    script = Script()
    reader = place.open(script=script)["orders"]

    def commit_and_expire():
        orders.append([{"id": 3, "name": "x"}])
        orders.append([{"id": 4, "name": "x"}])
        assert orders.expire(before=4).held_by, "the lease of the reader"

    script.add("scan", Fault.NONE, hook=commit_and_expire, skip=1)  # the first look, then the lease
    assert [row["id"] for row in reader.snapshot(as_of=3).to_pylist()] == [0, 1, 2, 3]


def test_a_read_takes_a_lease_as_soon_as_some_rows_are_in_a_blob(place, orders):
    writer = place.open(config=BLOBS)["orders"]
    writer.append([{"id": 3, "name": "x"}])
    with place.open()["orders"].snapshot(as_of=1):
        assert len(orders._handle.state().readers) == 1


def test_a_change_without_a_lease_reads_again_if_later_rows_of_others_are_gone(place):
    """Its first rows were in the state. Those that others commit meanwhile may be in blobs, and be deleted."""
    store = place.open()
    orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    orders.append([{"id": 1, "name": "first"}])
    script = Script()
    changer = place.open(script=script)["orders"]
    other = place.open(config=BLOBS)

    def commit_and_collect():
        theirs = other["orders"]
        theirs.upsert([{"id": 1, "name": "other"}])
        theirs.expire(before=1)
        theirs.compact(wait=True)
        for _ in range(3):
            other.maintain()

    script.add("compare_and_set", Fault.NONE, key="", hook=commit_and_collect, skip=1)
    changer.upsert([{"id": 1, "name": "mine"}])
    assert script.is_done
    assert [row["name"] for row in orders.snapshot().to_pylist()] == ["mine"]
