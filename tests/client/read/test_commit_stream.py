"""A listener hears every commit once, in order, from its snapshot on; and nobody who commits waits for it."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections import Counter

import pytest
from assertions import until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, SMALL, Gate, MemoryStore, Script, together

import timespine as ts
from timespine.client.read.commit_stream import AHEAD
from timespine.client.read.leases import LINGER_S
from timespine.client.read.log_follower import RELEASE_S
from timespine.client.write import prepare, stage
from timespine.config import Config
from timespine.core.transitions import Drain, Evict, ExpireReader, RegisterReader, Seal, Trim, Write
from timespine.errors import ClosedError, HandleExpired, LeaseExpired, Unavailable, UsageError
from timespine.location.unreliable import Fault
from timespine.model import CLOSED, Frontier

KEY, VALUE = {"id": "int64"}, {"name": "string"}


@pytest.fixture(params=[QUICK, BLOBS, SMALL], ids=["inline", "blobs", "small"])
def config(request):
    return request.param


@pytest.fixture
def store(place, config):
    return place.open(config=config)


@pytest.fixture
def orders(store):
    return made(store)


def made(store, name="orders", **options):
    return store.create(name, **{"key": KEY, "value": VALUE, "timeline": "counter", **options})


def rows(*ids, name="x"):
    return [{"id": id, "name": name} for id in ids]


def up(id, time, diff=1, name="x"):
    return {"id": id, "name": name, "_time": time, "_diff": diff}


def written(collection, *updates, blob=False):
    """The command that writes updates ahead of the seal."""
    handle = collection._handle
    updates = prepare.prepare_rows(handle, list(updates), None)
    runs, _ = stage.make_runs(handle, updates.id, updates.schema, updates.table, inline=not blob)
    parts = tuple(part for run in runs for part in run.parts)
    return Write(updates.lower, updates.latest, parts, updates.id)


def write(collection, *updates):
    commit(collection, written(collection, *updates))


def seal(collection, upper):
    commit(collection, Seal(Frontier.at(upper)))


def commit(collection, *commands):
    collection._handle.committer.commit(*((collection.id, each) for each in commands))


def counted(table):
    """Updates as a multiset."""
    total = Counter()
    for row in table.to_pylist():
        total[row["id"], row["name"], row["_time"]] += row["_diff"]
    return {update: count for update, count in total.items() if count}


def told(events):
    """Events in short: what is in them, in their order."""
    return [
        (event.kind, counted(event.rows)) if event.rows is not None else (event.kind, *event.upper.elements)
        for event in events
    ]


def updates(*each):
    return "updates", {(id, name, time): diff for id, name, time, diff in each}


def forget(place, config=SMALL, before=None):
    """Another process expires, merges, rolls up and deletes whatever it may."""
    with place.open(config=config) as other:
        theirs = other["orders"]
        if before is not None:
            theirs.expire(before=before)
        theirs.compact(wait=True)
        other.maintain(sweep=True)
        other.maintain(sweep=True)


# What is heard.


def test_every_update_and_every_seal_is_heard_once_and_in_order(orders):
    listener = orders.listen()
    assert told(listener.poll()) == [("snapshot", {})]
    orders.append(rows(1, 2))
    write(orders, up(7, 5), up(8, 3))
    seal(orders, 4)
    orders.delete({"id": 1})
    orders.seal(9)
    assert told(listener.poll()) == [
        updates((1, "x", 0, 1), (2, "x", 0, 1)),
        ("sealed", (1,)),
        updates((7, "x", 5, 1), (8, "x", 3, 1)),
        ("sealed", (4,)),
        updates((1, "x", 4, -1)),
        ("sealed", (5,)),
        ("sealed", (9,)),
    ]
    assert listener.poll() == []


def test_an_event_says_what_was_told_by_then_and_which_commit_it_is_of(orders):
    orders.append(rows(1))
    listener = orders.listen()
    (snapshot,) = listener.poll()
    assert snapshot.upper == Frontier.at(1)
    orders.append(rows(2))
    found, sealed = listener.poll()
    assert (found.upper, sealed.upper) == (Frontier.at(1), Frontier.at(2))
    assert snapshot.seqno < found.seqno == sealed.seqno == orders._handle.state().seqno
    assert found.rows.column_names == ["id", "name", "_time", "_diff"]


def test_the_snapshot_is_the_moment_sealed_and_unsealed_together(orders):
    orders.append(rows(1))
    write(orders, up(2, 8), up(3, 2))
    seal(orders, 4)
    orders.append(rows(4))
    orders.expire(before=3)
    listener = orders.listen()
    write(orders, up(5, 6))
    (first, *rest) = listener.poll()
    everything = {(1, "x", 3): 1, (2, "x", 8): 1, (3, "x", 3): 1, (4, "x", 4): 1}
    assert told([first]) == [("snapshot", everything)], "times are advanced to since"
    assert told(rest) == [updates((5, "x", 6, 1))]
    assert told(orders.listen(snapshot=False).poll()) == []


def test_one_stream_from_the_first_write_to_the_last_seal(store, orders):
    """Whatever happens to what was written, listeners hear it when it is written and never again."""
    both = {(1, "x", 1): 1, (2, "x", 2): 1}
    early = orders.listen()
    assert told(early.poll()) == [("snapshot", {})], "empty things are empty"
    write(orders, up(1, 1), up(2, 2))
    assert told(early.poll()) == [("updates", both)]
    store.maintain()
    assert early.poll() == [], "nothing is sealed: all of it stays where it is"
    for upper in (2, 3):
        seal(orders, upper)
        commit(orders, Drain(), Evict())
        store.maintain()
        assert told(early.poll()) == [("sealed", (upper,))]
        assert told(orders.listen().poll()) == [("snapshot", both)], "the same before, during and after"
    assert orders.snapshot(2).count() == 2
    orders.expire(before=2)
    assert early.poll() == []


def test_write_then_seal_then_drain_trim_and_evict_announces_nothing_twice(orders):
    listener = orders.listen(snapshot=False)
    write(orders, up(1, 1), up(2, 5), up(3, 9))
    seal(orders, 3)
    assert [event.kind for event in listener.poll()] == ["updates", "sealed"]
    commit(orders, Drain())
    commit(orders, Trim(0))
    seal(orders, 12)
    commit(orders, Drain())
    commit(orders, Evict())
    assert told(listener.poll()) == [("sealed", (12,))]


def test_an_append_whose_range_contains_unsealed_updates_announces_only_its_own(orders):
    listener = orders.listen(snapshot=False)
    write(orders, up(1, 1), up(2, 7))
    listener.poll()
    orders.append([up(3, 2)], upper=5)
    orders.append([up(1, 7), up(2, 7)], upper=9)
    assert told(listener.poll()) == [
        updates((3, "x", 2, 1)),
        ("sealed", (5,)),
        updates((1, "x", 7, 1), (2, "x", 7, 1)),
        ("sealed", (9,)),
    ]


def test_what_was_trimmed_anew_and_appended_over_in_one_commit_is_taken_off(orders):
    write(orders, up(1, 1), up(2, 5), up(3, 9))
    seal(orders, 3)
    commit(orders, Drain())
    listener = orders.listen(snapshot=False, columns=["name", "id"], where="id < 7")
    kept = written(orders, up(2, 5), up(3, 9))
    fresh = written(orders, up(4, 4), up(2, 4), up(9, 4))
    commit(orders, Trim(0, kept.parts, Frontier.at(3)), fresh, Seal(Frontier.at(8)), Drain())
    assert told(listener.poll()) == [updates((2, "x", 4, 1), (4, "x", 4, 1)), ("sealed", (8,))]


def test_several_transactions_in_one_group_are_one_commit_to_a_listener(place, config):
    gate = Gate(place.consensus)
    store = place.open(config=config, consensus=gate)
    orders = made(store)
    orders.append(rows(0))
    listener = orders.listen(snapshot=False)
    commands = (
        (written(orders, up(1, 1), up(2, 8)),),
        (Seal(Frontier.at(3)),),
        (written(orders, up(3, 4)), Seal(Frontier.at(6)), Drain(), Evict()),
        (written(orders, up(4, 6), up(0, 9)), Seal(Frontier.at(7))),
    )
    before = orders._handle.state().seqno
    alone = (RegisterReader("r1", None, 1000),)
    together(gate, store, [lambda each=each: commit(orders, *each) for each in (alone, *commands)])
    assert orders._handle.state().seqno == before + 2, "the first one was alone, the others waited for it"
    heard = listener.poll()
    assert told(heard) == [
        updates((1, "x", 1, 1), (2, "x", 8, 1), (3, "x", 4, 1), (4, "x", 6, 1), (0, "x", 9, 1)),
        ("sealed", (7,)),
    ]
    assert heard[0].seqno == heard[1].seqno


def test_updates_that_cancel_out_in_one_commit_are_not_told(orders):
    listener = orders.listen(snapshot=False)
    commit(orders, written(orders, up(1, 3)), written(orders, up(1, 3, -1)), Seal(Frontier.at(2)))
    assert told(listener.poll()) == [("sealed", (2,))]
    commit(orders, written(orders, up(1, 3)), written(orders, up(1, 3)))
    assert told(listener.poll()) == [updates((1, "x", 3, 2))]


def test_columns_and_conditions_are_those_of_a_read(orders):
    orders.append([*rows(1, 2, name="a"), *rows(3, name="b")])
    with orders.listen(columns=["name"], where="id > 1", timeout=0) as listener:
        orders.append(rows(1))
        orders.append(rows(4, 5, name="a"))
        found = [event for event in listener if event.rows is not None]
    assert [sorted(event.rows.to_pylist(), key=str) for event in found] == [
        [{"name": "a", "_time": 0, "_diff": 1}, {"name": "b", "_time": 0, "_diff": 1}],
        [{"name": "a", "_time": 2, "_diff": 2}],
    ]
    with pytest.raises(UsageError):
        orders.listen(where="nothing = 1")
    with pytest.raises(UsageError):
        orders.listen(columns=["nothing"])
    with pytest.raises(UsageError, match="callback"):
        orders.listen(callback="print")
    with pytest.raises(UsageError, match="limit"):
        orders.listen().poll(0)
    assert len(orders._handle.state().readers) == 1


def test_times_of_several_coordinates_are_heard_too(store):
    pairs = made(store, "pairs", time_coordinates=2)
    listener = pairs.listen()
    assert [event.kind for event in listener.poll()] == ["snapshot"]
    pairs.append([{"id": 1, "name": "x", "_time_0": 0, "_time_1": 3}], upper=(2, 0))
    found, sealed = listener.poll()
    assert found.rows.to_pylist() == [{"id": 1, "name": "x", "_time_0": 0, "_time_1": 3, "_diff": 1}]
    assert sealed.upper == Frontier(((2, 0),))


def test_a_listener_ends_when_the_collection_is_closed(orders):
    orders.append(rows(1))
    listener = orders.listen()
    polled = orders.listen()
    orders.append(rows(2))
    orders.finish()
    events = list(listener)
    assert told(events)[1:] == [updates((2, "x", 1, 1)), ("sealed", (2,)), ("sealed",)]
    assert events[-1].upper == CLOSED
    assert told(polled.poll()) == told(events)
    assert listener.poll() == polled.poll() == []
    assert orders._handle.state().readers == {}, "one that ended holds nothing"
    assert [event.kind for event in orders.listen()] == ["snapshot"]


def test_a_collection_that_was_dropped_ends_its_listeners_and_has_no_new_ones(store, orders):
    orders.append(rows(1))
    listener = orders.listen(snapshot=False)
    store.drop("orders")
    assert told(listener) == [("sealed",)]
    store.maintain()
    with pytest.raises(ClosedError):
        orders.listen()


# Whatever happens meanwhile.


def test_merges_compaction_rollups_and_garbage_collection_between_polls_lose_nothing(place, config):
    store = place.open(config=config)
    orders = made(store)
    listener = orders.listen()
    (first,) = listener.poll()
    expected = []
    for id in range(1, 25):
        write(orders, up(id, id + 3))
        orders.append(rows(id, name=f"a{id}"), at=id)
        expected += [updates((id, "x", id + 3, 1)), updates((id, f"a{id}", id, 1)), ("sealed", (id + 1,))]
        if id % 8 == 0:
            forget(place, config, before=id)
            store._cache.clear()
    assert told([first, *listener.poll()]) == [("snapshot", {}), *expected]


def test_what_is_polled_in_pieces_is_the_same(place, config):
    orders = made(place.open(config=config))
    listener = orders.listen()
    for id in range(3 * AHEAD):
        orders.append(rows(id))
    found = []
    while piece := listener.poll(5):
        assert len(piece) <= 5
        assert len(listener._pending) <= 1
        found += piece
        forget(place, config)
    ids = [row["id"] for event in found if event.rows is not None for row in event.rows.to_pylist()]
    assert ids == list(range(3 * AHEAD))


def test_two_listeners_hear_the_same_each_at_its_own_pace(place, orders):
    first, late = orders.listen(), orders.listen()
    heard = []
    for id in range(12):
        orders.append(rows(id))
        heard += first.poll()
    first.close()
    forget(place)
    assert told(late.poll()) == told(heard)


def test_commits_of_another_store_are_heard(place, config):
    store, other = place.open(config=config), place.open(config=config)
    orders = made(store)
    listener = orders.listen(snapshot=False)
    theirs = other["orders"]
    theirs.append(rows(1))
    write(theirs, up(2, 4))
    assert told(listener.poll()) == [updates((1, "x", 0, 1)), ("sealed", (1,)), updates((2, "x", 4, 1))]
    found = []
    waiting = threading.Thread(target=lambda: found.append(next(listener)))
    waiting.start()
    theirs.append(rows(3))
    waiting.join(60)
    assert told(found) == [updates((3, "x", 1, 1))]


IN_ANOTHER_PROCESS = """
import sys
import timespine as ts
with ts.open(sys.argv[1]) as store:
    for id in range(5):
        store["orders"].append([{"id": id, "name": "x"}])
"""


def test_commits_of_another_process_are_heard_also_by_those_who_only_read(tmp_path):
    with ts.open(tmp_path / "store") as store, ts.open(tmp_path / "store", read_only=True) as reading:
        listeners = [made(store).listen(), reading["orders"].listen()]
        subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS, tmp_path / "store"], check=True)
        for listener in listeners:
            found = told(listener.poll())
            assert found[0] == ("snapshot", {})
            assert found[1::2] == [updates((id, "x", id, 1)) for id in range(5)]
            assert found[2::2] == [("sealed", (id + 1,)) for id in range(5)]


def test_when_reading_fails_nothing_is_skipped(place):
    made(place.open(config=BLOBS))
    script = Script()
    store = place.open(config=BLOBS, script=script)
    orders = store["orders"]
    listener = orders.listen(snapshot=False)
    for id in range(3):
        orders.append(rows(id))
    store._cache.clear()
    for operation, times in (("scan", BLOBS.storage_attempts), ("get_range", 1)):
        script.add(operation, Fault.DETERMINATE, times=times)
        with pytest.raises(Unavailable):
            listener.poll()
    heard = told(listener.poll())
    assert heard[::2] == [updates((id, "x", id, 1)) for id in range(3)]
    assert heard[1::2] == [("sealed", (id + 1,)) for id in range(3)]


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
    commit(orders, ExpireReader(listener.leased.lease.reader))
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
        with pytest.raises(UsageError, match="the callback of this listener gets its events"):
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
    assert [record.getMessage() for record in caplog.records] == [f"a listener of orders ended: {type(error).__name__}"]
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


def test_a_listener_ends_after_its_timeout(store, orders):
    clock = [0.0]
    context = store._context
    context.monotonic = lambda: clock[0]

    class Quick(type(context.committed)):
        def wait(self, heard, timeout):
            clock[0] += timeout
            return False

    context.committed = Quick()
    listener = orders.listen(timeout=5)
    assert [event.kind for event in listener] == ["snapshot"]
    assert clock[0] == pytest.approx(5)
    assert listener.is_closed


# For those who only read.


def test_a_store_that_is_open_for_reading_only_can_be_listened_to_and_is_not_written_to(place, config):
    orders = made(place.open(config=config))
    orders.append(rows(1))
    reading = place.open(config=config, read_only=True)
    before = place.consensus.scan(orders.id)
    listener = reading["orders"].listen()
    calls = []
    called = reading["orders"].listen(snapshot=False, callback=calls.append)
    assert told(listener.poll()) == [("snapshot", {(1, "x", 0): 1})]
    assert place.consensus.scan(orders.id) == before
    write(orders, up(2, 5))
    orders.append(rows(3))
    expected = [updates((2, "x", 5, 1)), updates((3, "x", 1, 1)), ("sealed", (2,))]
    assert told(listener.poll()) == expected
    until(lambda: len(calls) == 3)
    assert told(calls) == expected
    committed = place.consensus.scan(orders.id)
    reading.close()
    called._thread.join(60)
    assert place.consensus.scan(orders.id) == committed


@pytest.mark.parametrize("gone", ["log", "blob"])
def test_a_read_only_listener_that_falls_behind_gets_an_error_and_no_gap(place, gone):
    store = place.open(config=BLOBS)
    orders = made(store)
    reading = place.open(config=BLOBS, read_only=True)
    listener = reading["orders"].listen(snapshot=False)
    orders.append(rows(1))
    assert len(listener.poll()) == 2
    orders.append(rows(2))
    if gone == "log":
        config = Config(inline_part_bytes=1, rollup_seqnos=1, storage_attempts=2, retry_pause_ms=1)
        forget(place, config)
        assert place.consensus.scan(orders.id)[0].seqno > listener._cursor.seqno + 1
    else:
        for key in place.blobs(f"{orders.id}/"):
            place.blob.delete(key)
    for _ in range(2):
        with pytest.raises(LeaseExpired, match=r"fell behind.*reading only.*listen again"):
            listener.poll()
        with pytest.raises(HandleExpired):
            next(listener)
    if gone == "log":
        again = reading["orders"].listen()
        assert told(again.poll()) == [("snapshot", {(1, "x", 0): 1, (2, "x", 1): 1})]


def test_the_snapshot_of_a_read_only_listener_is_of_a_newer_state_if_the_first_is_merged_away(place):
    store = place.open(config=BLOBS)
    orders = made(store)
    for id in range(3):
        orders.append(rows(id))
    script = Script()
    reading = place.open(config=BLOBS, read_only=True, script=script)
    theirs = reading["orders"]
    config = Config(inline_part_bytes=1, rollup_seqnos=1, storage_attempts=2, retry_pause_ms=1)

    def meanwhile():
        orders.append(rows(9))
        forget(place, config)

    script.add("get_range", Fault.NONE, hook=meanwhile)
    script.add("size", Fault.NONE, hook=meanwhile)
    (snapshot,) = theirs.listen().poll()
    assert counted(snapshot.rows) == {(0, "x", 0): 1, (1, "x", 1): 1, (2, "x", 2): 1, (9, "x", 3): 1}


# Schemas.


@pytest.mark.parametrize("change", [{"drop": ["name"]}, {"widen": {"size": "int64"}}])
def test_a_listener_ends_with_an_error_when_its_rows_would_become_other_rows(store, change):
    things = made(store, "things", value={"name": "string", "size": "int32"})
    listener = things.listen()
    listener.poll()
    things.evolve(**change)
    things.seal(5)
    assert told(listener.poll()) == [("sealed", (5,))]
    things.append([{"id": 1}])
    with pytest.raises(HandleExpired, match="begin again"):
        listener.poll()


def test_a_listener_goes_on_when_columns_are_added_or_renamed_or_others_are_dropped(store):
    things = made(store, "things", value={"name": "string", "size": "int32"})
    listener = things.listen(columns=["id", "name"], snapshot=False)
    things.evolve(drop=["size"], add={"kind": ("string", "k")}, rename={"name": "title"})
    things.append([{"id": 2, "title": "y"}])
    assert told(listener.poll())[0] == updates((2, "y", 0, 1))


# Everything at once.

STEPS = ("append", "upsert", "delete", "write", "seal", "group", "drain", "evict", "trim", "forget", "poll", "wait")


class Model:
    """What a listener must hear, commit by commit."""

    def __init__(self):
        self.updates = Counter()
        self.upper = 0
        self.expected = []

    def commit(self, gained, upper):
        gained = {update: count for update, count in gained.items() if count}
        self.updates.update(gained)
        if gained:
            self.expected.append(("updates", gained))
        if upper > self.upper:
            self.upper = upper
            self.expected.append(("sealed", (upper,)))

    def present(self, time):
        """The rows as of a time."""
        counts = Counter()
        for (id, name, when), count in self.updates.items():
            if when <= time:
                counts[id, name] += count
        return {row: count for row, count in counts.items() if count}


def take(step, number, place, store, orders, model):
    """Do one thing, and say what must be heard of it. What is written ahead has keys of its own."""
    upper = model.upper
    id, name = number % 5, f"{step}{number}"
    if step == "append":
        orders.append(rows(id, id + 1, name=name))
        model.commit(Counter({(id, name, upper): 1, (id + 1, name, upper): 1}), upper + 1)
    elif step in ("upsert", "delete"):
        gone = {row: count for row, count in model.present(upper).items() if row[0] == id}
        gained = Counter({(*row, upper): -count for row, count in gone.items()})
        if step == "upsert":
            gained[id, name, upper] += 1
            orders.upsert(rows(id, name=name))
        else:
            orders.delete({"id": id})
        if gained:
            model.commit(gained, upper + 1)
    elif step == "write":
        write(orders, up(7, upper + number % 4, name=name), up(7, upper + 5, 2, name=name))
        model.commit(Counter({(7, name, upper + number % 4): 1, (7, name, upper + 5): 2}), upper)
    elif step == "seal":
        seal(orders, upper + 2)
        model.commit(Counter(), upper + 2)
    elif step == "group":
        first, last = up(8, upper, name=name), up(8, upper + 3, name=name)
        sealed = (written(orders, first, last), Seal(Frontier.at(upper + 1)))
        commit(orders, *sealed, Drain(), Evict(), written(orders, last))
        model.commit(Counter({(8, name, upper): 1, (8, name, upper + 3): 2}), upper + 1)
    elif step == "drain":
        commit(orders, Drain())
    elif step == "evict":
        commit(orders, Evict())
    elif step == "trim":
        for batch in orders._handle.state().unsealed:
            commit(orders, Trim(batch.seqno))
    elif step == "forget":
        forget(place, SMALL, before=max(model.upper - 1, 0))
        store._cache.clear()
    else:
        place.clock.advance(RELEASE_S)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.integers(0, 10))
def test_what_is_heard_is_what_was_committed_whatever_happens(steps, begin):
    with MemoryStore() as place:
        store = place.open(config=SMALL)
        store._context.monotonic = place.clock
        orders = made(store)
        model = Model()
        for number, step in enumerate(steps[:begin]):
            take(step, number, place, store, orders, model)
        before, since = dict(model.updates), orders.since.elements[0][0]
        model.expected.clear()
        listener = orders.listen()
        events = []
        for number, step in enumerate(steps[begin:], begin):
            if step == "poll":
                events += listener.poll()
            else:
                take(step, number, place, store, orders, model)
        events += listener.poll()
        first = Counter()
        for (id, name, time), count in before.items():
            first[id, name, max(time, since)] += count
        snapshot = {update: count for update, count in first.items() if count}
        assert told(events) == [("snapshot", snapshot), *model.expected]
        numbers = [event.seqno for event in events]
        assert numbers == sorted(numbers)
        listener.close()
