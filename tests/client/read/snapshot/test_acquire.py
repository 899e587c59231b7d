"""Rows as a user reads them: whole or as a stream, in every form, and never others than there were."""

from __future__ import annotations

import datetime
import threading

import numpy as np
import pytest
from assertions import check, until
from memory_store import BLOBS, Script
from snapshot_cases import filled, orders_of, row

from timespine.errors import NotSealed, SinceError, UsageError
from timespine.model.time import INT64_MAX

# Times.


def test_a_snapshot_is_that_of_its_time(store):
    orders = orders_of(store)
    for time in range(3):
        orders.append([row(time)])
    assert [len(orders.snapshot(as_of=time).to_pylist()) for time in range(3)] == [1, 2, 3]
    assert orders.snapshot().to_pylist() == orders.snapshot(as_of=2).to_pylist()
    snapshot = orders.snapshot(as_of=1)
    assert (snapshot.as_of, snapshot.since.elements, snapshot.upper.elements) == (1, ((0,),), ((3,),))
    assert snapshot.seqno is not None
    assert repr(snapshot) == f"<snapshot of orders as of 1, state {snapshot.seqno}>"


def test_a_snapshot_may_be_as_of_a_datetime(place, store):
    orders = orders_of(store, timeline="clock")
    first = orders.append([row(1)])
    place.clock.advance(60)
    orders.append([row(2)])
    begun = datetime.datetime.fromtimestamp(first.time / 1000, datetime.UTC)
    assert [each["id"] for each in orders.snapshot(begun).to_pylist()] == [1]
    assert [each["id"] for each in orders.snapshot(begun + datetime.timedelta(seconds=60)).to_pylist()] == [1, 2]
    assert orders.snapshot(np.int64(first.time)).as_of == first.time
    with pytest.raises(UsageError, match="zone"):
        orders.snapshot(begun.replace(tzinfo=None))
    with pytest.raises(UsageError, match="not a time"):
        orders.snapshot("yesterday")


def test_with_two_coordinates_the_time_is_a_tuple(store):
    pairs = store.create("pairs", key={"id": "int64"}, time_coordinates=2)
    rows = [{"id": 10 * a + b, "_time_0": a, "_time_1": b, "_diff": 1} for a in range(3) for b in range(3)]
    pairs.append(rows, upper=(3, 0))
    assert [each["id"] for each in pairs.snapshot((1, 1)).to_pylist()] == [0, 1, 10, 11]
    assert [each["id"] for each in pairs.changes((0, 1), (1, 1)).to_pylist()] == [10, 11]
    assert pairs.snapshot((2, 0)).as_of == (2, 0)
    assert pairs.count((2, 2)) == 9
    assert pairs.updates(until=(0, 2)).to_arrow().num_rows == 3
    for read in (pairs.snapshot, pairs.changes, pairs.updates, pairs.count):
        with pytest.raises(UsageError, match="no newest time"):
            read()
    with pytest.raises(UsageError, match="totally ordered"):
        pairs.subscribe()
    with pytest.raises(UsageError, match="coordinates"):
        pairs.snapshot(1)
    with pytest.raises(NotSealed):
        pairs.snapshot((3, 1), timeout=0)


def test_an_empty_collection_has_no_rows_in_any_form(store):
    orders = orders_of(store)
    snapshot = orders.snapshot()
    assert (snapshot.as_of, snapshot.seqno, snapshot.since, snapshot.upper) == (None, None, None, None)
    assert snapshot.to_pylist() == []
    assert snapshot.count() == orders.count() == 0
    assert list(snapshot.batches()) == []
    assert snapshot.split(4) == [snapshot]
    assert snapshot.to_reader().read_all().num_rows == 0
    assert snapshot.schema.names == ["id", "name", "total"]
    assert orders.changes().to_pylist() == orders.updates().to_pylist() == []
    assert orders.changes().schema.names == ["id", "name", "total", "_diff"]
    assert orders.updates().schema.names == ["id", "name", "total", "_time", "_diff"]
    assert orders.lookup({"id": 1}).to_pylist() == []
    with pytest.raises(NotSealed):
        orders.snapshot(as_of=0, timeout=0)
    snapshot.close()


def test_a_closed_collection_is_read_at_its_end(store):
    orders = filled(store)
    expected = orders.snapshot().to_pylist()
    orders.finish()
    assert orders.snapshot().to_pylist() == expected
    assert orders.snapshot().as_of == INT64_MAX
    assert orders.snapshot(as_of=10**9).to_pylist() == expected
    assert orders.count() == len(expected)


def test_history_before_since_is_an_error_that_says_since(place):
    store = place.open(config=BLOBS)
    orders = filled(store)
    orders.expire(before=3)
    for read in (
        lambda: orders.snapshot(as_of=2),
        lambda: orders.changes(after=2),
        lambda: orders.count(2),
        lambda: orders.lookup({"id": 1}, as_of=2),
        lambda: orders.updates(until=2),
    ):
        with pytest.raises(SinceError) as caught:
            read()
        assert caught.value.asked == 2
        assert caught.value.since.elements == ((3,),)
    assert orders.snapshot(as_of=3).to_pylist()
    store._leases.heartbeat()
    assert store._leases._leases == {} or all(
        not lease.users for leases in store._leases._leases.values() for lease in leases
    ), "a read that fails counts itself out"


# Waiting.


def test_a_read_waits_for_a_commit_of_its_own_process(store):
    orders = orders_of(store)
    orders.append([row(1)])
    found = []
    reader = threading.Thread(target=lambda: found.extend(orders.snapshot(as_of=1, timeout=60).to_pylist()))
    reader.start()
    orders.append([row(2)])
    reader.join(60)
    assert [each["id"] for each in found] == [1, 2]


def test_a_read_waits_for_a_commit_of_another_process(place, store):
    orders = orders_of(store)
    orders.append([row(1)])
    found = []
    reader = threading.Thread(target=lambda: found.extend(orders.snapshot(as_of=1, timeout=60).to_pylist()))
    reader.start()
    place.open()["orders"].append([row(2)])
    reader.join(60)
    assert [each["id"] for each in found] == [1, 2]


def test_a_commit_between_the_look_and_the_wait_is_not_missed(store):
    orders = orders_of(store)
    context = store._context
    waits = []

    class Deaf(type(context.committed)):
        def wait(self, heard, timeout):
            if self.count == heard:  # otherwise it returns at once
                waits.append(timeout)
            return super().wait(heard, 0)

    context.committed = Deaf()
    looks = []

    def is_there(state):
        looks.append(state.seqno)
        if len(looks) == 1:
            orders.append([row(1)])  # after the state was read, before anybody waits
            return False
        return not state.upper.less_equal((0,))

    assert orders._handle.wait(is_there, 60) is not None
    assert waits == [], "it looked again at once"


def test_no_commit_waits_for_a_reader_that_looks_at_the_log(store):
    orders = orders_of(store)
    looking, go_on = threading.Event(), threading.Event()

    def slow(state):
        looking.set()
        assert go_on.wait(60)
        return True

    reader = threading.Thread(target=lambda: orders._handle.wait(slow, 60))
    reader.start()
    assert looking.wait(60)
    orders.append([row(1)])
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()


def test_a_read_that_waited_in_vain_says_how_far_the_collection_is_now(place, store):
    orders = orders_of(store)
    orders.append([row(1)])
    other = place.open()["orders"]
    context = store._context
    context.monotonic = iter([0.0, *([1.0] * 3), 100.0]).__next__
    looks = []

    class Busy(type(context.committed)):
        def wait(self, heard, timeout):
            looks.append(other.append([row(len(looks) + 2)]))
            return True

    context.committed = Busy()
    with pytest.raises(NotSealed) as caught:
        orders.snapshot(as_of=9, timeout=50)
    assert (caught.value.asked, caught.value.upper.elements) == (9, ((4,),))
    assert len(looks) == 3


@pytest.mark.parametrize("timeout", ["5", True, float("nan"), object()])
def test_a_timeout_is_a_number_of_seconds(store, timeout):
    orders = orders_of(store)
    orders.append([row(1)])
    for read in (lambda: orders.snapshot(as_of=7, timeout=timeout), lambda: orders.subscribe(timeout=timeout)):
        with pytest.raises(UsageError, match="number of seconds"):
            read()
    leases = [lease for leases in store._leases._leases.values() for lease in leases]
    assert all(not lease.users for lease in leases)


def test_without_a_timeout_a_read_waits_until_it_is_there(store):
    orders = orders_of(store)
    found = []
    reader = threading.Thread(target=lambda: found.append(orders.snapshot(as_of=0, timeout=None).count()))
    reader.start()
    orders.append([row(1)])
    reader.join(60)
    assert found == [1]


# Times that were expired ahead of the seal.


READS = {
    "snapshot": lambda orders, timeout: orders.snapshot(timeout=timeout).to_pylist(),
    "contents": lambda orders, timeout: orders.contents(timeout=timeout).sealed.to_pylist(),
    "count": lambda orders, timeout: orders.count(timeout=timeout),
    "lookup": lambda orders, timeout: orders.lookup({"id": 1}, timeout=timeout),
    "changes": lambda orders, timeout: orders.changes(timeout=timeout).to_pylist(),
    "updates": lambda orders, timeout: orders.updates(timeout=timeout).to_pylist(),
}


class Limited(Script):
    """Storage that is called so often and not more: a read that spins fails instead of going on for ever."""

    def __call__(self, operation, key):
        check(self.calls.total() < 500, "the read calls storage again and again")
        return super().__call__(operation, key)


def passing(place, collection, monkeypatch):
    """Let time pass while a collection waits, and only then; how often it has waited."""
    waits = []

    def wait(heard, seconds):
        waits.append(seconds)
        place.clock.advance(seconds)

    monkeypatch.setattr(collection._handle.context.committed, "wait", wait)
    return waits


@pytest.fixture
def expired_ahead(place):
    """A collection that is sealed up to 3 and expired up to 5, and what counts its compare-and-sets."""
    script = Limited()
    store = place.open(script=script)
    orders = filled(store, commits=3)
    orders.expire(before=5, ahead=True)
    return orders, script.calls


@pytest.mark.parametrize("read", READS)
def test_a_read_after_expire_ahead_waits_for_its_timeout_and_writes_no_more_than_a_lease(
    place, expired_ahead, read, monkeypatch
):
    orders, calls = expired_ahead
    waits = passing(place, orders, monkeypatch)
    before = calls["compare_and_set"]
    for timeout in (0, 3.0, 0):
        with pytest.raises(NotSealed, match="nothing can be read before 5 is complete") as caught:
            READS[read](orders, timeout)
        assert (caught.value.asked, caught.value.upper.elements) == (5, ((3,),))
    assert calls["compare_and_set"] - before <= 1, "the lease is shared by all of these reads"
    assert sum(waits) == pytest.approx(3.0)
    assert len(waits) > 10, "it looked many times"


@pytest.mark.parametrize("read", READS)
def test_a_read_only_read_after_expire_ahead_waits_for_its_timeout_and_writes_nothing(
    place, expired_ahead, read, monkeypatch
):
    script = Limited()
    orders = place.open(script=script, read_only=True)["orders"]
    waits = passing(place, orders, monkeypatch)
    with pytest.raises(NotSealed, match="nothing can be read before 5 is complete"):
        READS[read](orders, 3.0)
    assert sum(waits) == pytest.approx(3.0)
    assert script.calls["compare_and_set"] == 0


@pytest.mark.parametrize("read", READS)
def test_a_read_that_waits_after_expire_ahead_answers_when_the_time_is_sealed(place, expired_ahead, read):
    orders, _ = expired_ahead
    found = []
    reader = threading.Thread(target=lambda: found.append(READS[read](orders, None)))
    reader.start()
    until(lambda: orders._handle.state().readers)
    place.open()["orders"].seal(5)
    assert reader.is_alive(), "time 4 is complete and expired"
    orders.append([row(1, "new")], at=6)
    reader.join(60)
    assert not reader.is_alive()
    assert found == [READS[read](orders, 0)]


def test_a_feed_begins_once_a_time_after_the_expired_ones_is_complete(expired_ahead):
    orders, calls = expired_ahead
    with orders.subscribe(timeout=0) as idle, pytest.raises(NotSealed, match="before 5 is complete"):
        next(idle)
    with orders.subscribe(timeout=60) as closed:
        closed.close()
        assert list(closed) == []
    feed = orders.subscribe(timeout=60)
    before = calls["compare_and_set"]
    assert feed.poll() == []
    assert calls["compare_and_set"] == before
    orders.append([row(50)], at=6)
    first = next(feed)
    assert (first.kind, first.through) == ("snapshot", 6)
    assert first.rows.num_rows == orders.count()
    orders.append([row(51)], at=7)
    assert [(event.kind, event.through) for event in feed.poll()] == [("changes", 7), ("progress", 7)]
    feed.close()
    with pytest.raises(SinceError):
        orders.subscribe(as_of=2)


def test_a_feed_without_a_snapshot_begins_after_the_expired_times_too(expired_ahead):
    orders, _ = expired_ahead
    with orders.subscribe(snapshot=False, timeout=60) as feed:
        orders.append([row(50)], at=6)
        assert feed.poll() == []
        orders.append([row(51)], at=7)
        assert [(event.kind, event.through) for event in feed.poll()] == [("changes", 7), ("progress", 7)]


def test_a_feed_of_an_empty_collection_begins_after_what_was_expired_ahead(store):
    orders = orders_of(store)
    orders.expire(before=5, ahead=True)
    with orders.subscribe() as feed:
        orders.append([row(1)], at=2)
        assert feed.poll() == []
        orders.append([row(2)], at=5)
        (event,) = feed.poll()
        assert (event.kind, event.through, event.rows.num_rows) == ("snapshot", 5, 2)
