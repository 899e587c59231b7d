"""Commit streams whose callers are slow, dead, or callbacks."""

from __future__ import annotations

import gc
import logging
import threading

import pytest
from assertions import until
from commit_stream_cases import commit, forget, made, rows, told, up, updates, write
from memory_store import QUICK, SMALL, Script

from timespine.client.read.follow.commit_stream import AHEAD
from timespine.client.read.follow.log_follower import RELEASE_S
from timespine.client.read.leases import LINGER_S
from timespine.config import Config
from timespine.core.transitions import ExpireReader
from timespine.errors import LeaseExpired, Unavailable, UsageError
from timespine.model import Frontier
from timespine.testing.unreliable import Fault

# Slow and dead listeners.


def test_a_slow_listener_neither_blocks_commits_nor_keeps_them_in_memory(place, config):
    store = place.open(config=config)
    orders = made(store)
    calls, go_on = [], threading.Event()

    def slow(event):
        calls.append(event)
        assert go_on.wait(60)

    listener = orders.listen(callback=slow)
    until(lambda: calls)
    for id in range(200):
        orders.append(rows(id))
    assert len(calls) == 1
    assert (len(listener._pending), len(listener._coming)) == (0, 0), "nobody asked for more"
    go_on.set()
    most = []

    def heard():
        most.append((len(listener._pending), len(listener._coming)))
        return len(calls) == 401

    until(heard)
    assert max(pending for pending, _ in most) <= 2
    assert max(coming for _, coming in most) <= AHEAD
    assert told(calls[1::2]) == [updates((id, "x", id, 1)) for id in range(200)]
    listener.close()
    listener._thread.join(60)
    assert not listener._thread.is_alive()


def test_a_listener_that_is_too_far_behind_is_given_up_and_told_so(place):
    config = Config(retry_pause_ms=1, storage_attempts=2, listener_seqnos=20, rollup_seqnos=4)
    store = place.open(config=config)
    store._context.monotonic = place.clock
    orders = made(store)
    forgotten, live = orders.listen(snapshot=False), orders.listen(snapshot=False)
    for id in range(30):
        orders.append(rows(id))
        store._leases.heartbeat()
        live.poll()
        place.clock.advance(RELEASE_S)
    assert len(orders._handle.state().readers) == 1
    forget(place, config)
    assert len(place.consensus.scan(orders.id)) < 25, "nothing is kept for whoever does not listen"
    for _ in range(2):
        with pytest.raises(LeaseExpired, match="listen again"):
            forgotten.poll()
        with pytest.raises(LeaseExpired, match="listen again"):
            next(forgotten)
    forgotten.close()
    orders.append(rows(99))
    assert told(live.poll()) == [updates((99, "x", 30, 1)), ("sealed", (31,))]


def test_the_lease_of_a_dead_listener_expires_and_nothing_is_kept_for_it(place):
    dead = place.open(config=SMALL)
    orders = made(dead)
    listener = orders.listen(snapshot=False)
    place.clock.advance(SMALL.reader_lease_ms / 1000 + 1)
    alive = place.open(config=SMALL)
    for id in range(40):
        alive["orders"].append(rows(id))
    forget(place)
    assert orders._handle.state().readers == {}
    assert len(place.consensus.scan(orders.id)) < 40
    with pytest.raises(LeaseExpired, match="listen again"):
        listener.poll()
    listener.close()
    assert told(orders.listen().poll())[0][0] == "snapshot"


def test_a_listener_whose_lease_is_gone_says_so_at_once_and_not_when_it_is_too_late(orders):
    listener = orders.listen(snapshot=False)
    orders.append(rows(1))
    commit(orders, ExpireReader(listener._leased.lease.reader))
    assert told(listener.poll(2)) == [updates((1, "x", 0, 1)), ("sealed", (1,))]
    with pytest.raises(LeaseExpired, match="listen again"):
        listener.poll()
    listener.close()


def test_a_listener_that_is_dropped_and_never_closed_gives_its_lease_back(place, store, orders):
    listener = orders.listen()
    assert len(orders._handle.state().readers) == 1
    del listener
    gc.collect()
    place.clock.advance(LINGER_S)
    store._leases.heartbeat()
    assert orders._handle.state().readers == {}


def test_a_listener_holds_states_and_not_history(orders):
    for id in range(6):
        orders.append(rows(id))
    listener = orders.listen()
    reply = orders.expire(before=5)
    assert (reply.since, reply.held_by) == (Frontier.at(5), ())
    orders.append(rows(7))
    assert told(listener.poll())[1] == updates((7, "x", 6, 1))


def test_a_listener_lets_go_of_states_as_it_hears_them_and_is_quiet_when_nothing_happens(place, store, orders):
    clock = store._context.monotonic = place.clock
    listener = orders.listen(snapshot=False)

    def pinned():
        (reader,) = orders._handle.state().readers.values()
        return reader.seqno

    for id in range(3):
        orders.append(rows(id))
        heard = listener.poll()[-1].seqno
        assert pinned() < heard
        clock.advance(RELEASE_S)
        assert listener.poll() == []
        assert pinned() == heard
    quiet = orders._handle.state().seqno
    for _ in range(20):
        clock.advance(RELEASE_S)
        assert listener.poll() == []
    assert orders._handle.state().seqno == quiet
    for id in range(20):
        orders.append(rows(id))
        listener.poll()
    assert orders._handle.state().seqno <= quiet + 21, "not with every event"


def test_the_heartbeat_does_not_let_go_of_what_was_not_heard_yet(place, store, orders):
    listener = orders.listen()
    for id in range(30):
        orders.append(rows(id))
    place.clock.advance(SMALL.reader_lease_ms / 2000)
    assert store._leases.heartbeat() == 1
    forget(place, store._context.config)
    store._cache.clear()
    assert len(told(listener.poll())) == 61


# Callbacks.


def test_a_callback_is_called_with_every_event_in_order_by_a_thread_of_its_own(orders):
    calls = []
    listener = orders.listen(callback=lambda event: calls.append((event, threading.current_thread())))
    orders.append(rows(1))
    write(orders, up(2, 5))
    orders.append(rows(3))
    until(lambda: len(calls) == 6)
    assert told([event for event, _ in calls]) == [
        ("snapshot", {}),
        updates((1, "x", 0, 1)),
        ("sealed", (1,)),
        updates((2, "x", 5, 1)),
        updates((3, "x", 1, 1)),
        ("sealed", (2,)),
    ]
    assert {thread for _, thread in calls} == {listener._thread}
    for take_one in (listener.poll, lambda: next(listener)):
        with pytest.raises(UsageError, match="this commit stream delivers to its callback"):
            take_one()
    assert listener._thread.daemon
    listener.close()
    listener._thread.join(60)
    orders.append(rows(4))
    assert (len(calls), listener.error) == (6, None)


@pytest.mark.parametrize("error", [ValueError("no"), Unavailable("also no")], ids=["value", "unavailable"])
def test_a_callback_that_raises_ends_its_listener_and_disturbs_no_other(store, orders, caplog, error):
    calls, others = [], []

    def raising(event):
        calls.append(event)
        if event.kind == "updates":
            raise error

    with caplog.at_level(logging.ERROR, "timespine"):
        listener = orders.listen(callback=raising)
        other = orders.listen(callback=others.append)
        orders.append(rows(1))
        listener._thread.join(60)
    assert listener.error is error
    assert listener.is_closed
    assert [record.getMessage() for record in caplog.records] == [
        f"a commit stream of orders ended: {type(error).__name__}"
    ]
    assert store.metrics()["listeners failed"] == 1
    orders.append(rows(2))
    until(lambda: len(others) == 5)
    assert len(calls) == 2
    assert other.error is None
    until(lambda: len(orders._handle.state().readers) == 1)


def test_a_listener_with_a_callback_that_lost_its_lease_keeps_the_error(place):
    store = place.open(config=SMALL)
    orders = made(store)
    calls = []
    listener = orders.listen(callback=calls.append)
    until(lambda: calls)
    place.clock.advance(SMALL.reader_lease_ms / 1000 + 1)
    forget(place)
    orders.append(rows(1))
    listener._thread.join(60)
    assert isinstance(listener.error, LeaseExpired)


def test_a_listener_with_a_callback_waits_while_storage_is_away(place, caplog):
    made(place.open())
    script = Script()
    store = place.open(script=script)
    orders = store["orders"]
    calls = []
    with caplog.at_level(logging.WARNING, "timespine"):
        listener = orders.listen(callback=calls.append)
        until(lambda: calls)
        script.add("scan", Fault.DETERMINATE, key=orders.id, times=4 * QUICK.storage_attempts)
        until(lambda: script.is_done)
    orders.append(rows(1))
    until(lambda: len(calls) == 3)
    assert listener.error is None
    assert "storage is unavailable" in caplog.text


def test_closing_the_store_ends_all_listeners(place):
    store = place.open()
    orders = made(store)
    calls, ended = [], []
    called = orders.listen(callback=calls.append)
    iterated = orders.listen(snapshot=False)
    waiting = threading.Thread(target=lambda: ended.append(list(iterated)))
    waiting.start()
    until(lambda: calls)
    store.close()
    for thread in (called._thread, waiting):
        thread.join(60)
        assert not thread.is_alive()
    assert (ended, called.error, len(calls)) == ([[]], None, 1)
    assert list(iterated) == []
    with place.open(read_only=True) as other:
        assert other["orders"]._handle.state().readers == {}
    with pytest.raises(UsageError, match="closed"):
        orders.listen()


def test_a_callback_may_close_its_listener_and_its_store(place):
    store = place.open()
    orders = made(store)
    calls = []

    def closing(event):
        calls.append(event)
        listener.close()
        store.close()

    ready = threading.Event()
    listener = orders.listen(snapshot=False, callback=lambda event: ready.wait(60) and closing(event))
    orders.append(rows(1))
    ready.set()
    listener._thread.join(60)
    assert (len(calls), listener.error) == (1, None)


def test_a_listener_ends_after_its_timeout(passing_time, orders):
    listener = orders.listen(timeout=5)
    assert [event.kind for event in listener] == ["snapshot"]
    assert passing_time[0] == pytest.approx(5)
    assert listener.is_closed
