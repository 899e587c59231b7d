"""The way of every read: one look at the log, one lease at most, no writer, and no lease that is left for ever."""

from __future__ import annotations

import contextlib
import gc
import random
from collections import Counter

import pytest
from interrupts import Bytecodes
from memory_store import BLOBS, MemoryStore, Script

from timespine.client.read import acquire, leases, open_read, rows
from timespine.client.read.follow import change_feed, commit_stream, log_follower
from timespine.client.read.leases import LINGER_S, ROTATE_S
from timespine.config import Config
from timespine.errors import Unavailable
from timespine.testing.unreliable import Fault

TERM_S = Config().reader_lease_ms / 1000
ONE_LOOK = {"scan": 1}
LOOK_AND_LEASE = {"scan": 1, "compare_and_set": 1}

READS = {
    "snapshot": lambda orders: orders.snapshot().to_arrow(),
    "snapshot of a time": lambda orders: orders.snapshot(1).to_arrow(),
    "lookup": lambda orders: orders.lookup({"id": 1}),
    "count": lambda orders: orders.count(),
    "changes": lambda orders: orders.changes(after=1).to_arrow(),
    "updates": lambda orders: orders.updates().to_arrow(),
    "unsealed": lambda orders: orders.unsealed().to_arrow(),
    "contents": lambda orders: orders.contents().sealed.to_arrow(),
}

FOLLOWERS = {
    "hold": lambda orders: orders.hold(1),
    "subscribe": lambda orders: orders.subscribe(),
    "listen": lambda orders: orders.listen(),
}


@pytest.fixture
def place():
    """Storage whose stores put every row into a blob: a read of rows that are in the state takes no lease."""
    with MemoryStore(BLOBS) as made:
        yield made


@pytest.fixture
def filled(place):
    """A collection with a few commits, of a process that is gone."""
    with place.open() as store:
        orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        for time in range(3):
            orders.append([{"id": time, "name": "x"}])
        orders.write([{"id": 9, "name": "ahead"}], at=9)
    return place


def state_of(place):
    with place.open(read_only=True) as other:
        return other["orders"]._handle.state()


def cost(script, call):
    """What a call asks of the log, and what it gives."""
    before = Counter(script.calls)
    given = call()
    calls = Counter(script.calls) - before
    return {each: calls[each] for each in ("head", "scan", "compare_and_set") if calls[each]}, given


@pytest.mark.parametrize("name", READS)
def test_a_read_looks_at_the_log_once_and_registers_one_lease_at_most(filled, name):
    script = Script()
    orders = filled.open(script=script)["orders"]
    assert cost(script, lambda: READS[name](orders))[0] == LOOK_AND_LEASE
    for _ in range(3):
        assert cost(script, lambda: READS[name](orders))[0] == ONE_LOOK


@pytest.mark.parametrize("name", ["snapshot", "lookup", "count", "updates"])
def test_a_read_of_nothing_looks_once_and_registers_nothing(place, name):
    script = Script()
    with place.open() as store:
        store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    orders = place.open(script=script)["orders"]
    assert cost(script, lambda: READS[name](orders))[0] == ONE_LOOK


@pytest.mark.parametrize("name", FOLLOWERS)
def test_what_holds_a_lease_of_its_own_registers_that_and_nothing_else(filled, name):
    script = Script()
    orders = filled.open(script=script)["orders"]
    spent, held = cost(script, lambda: FOLLOWERS[name](orders))
    assert spent == LOOK_AND_LEASE
    with held:
        assert len(state_of(filled).readers) == 1


@pytest.mark.parametrize("name", ["subscribe", "listen"])
def test_a_poll_looks_at_the_log_once(filled, name):
    script = Script()
    with FOLLOWERS[name](filled.open(script=script)["orders"]) as feed:
        feed.poll()
        assert cost(script, feed.poll) == (ONE_LOOK, [])
        with filled.open() as other:
            other["orders"].append([{"id": 5, "name": "y"}])
        spent, events = cost(script, feed.poll)
        assert events
        assert spent["scan"] <= 2, "a commit stream asks whether there is more"
        assert "compare_and_set" not in spent


@pytest.mark.parametrize("name", [*READS, *FOLLOWERS])
def test_a_process_that_only_reads_registers_no_writer(filled, name):
    store = filled.open()
    held = {**READS, **FOLLOWERS}[name](store["orders"])
    state = state_of(filled)
    assert (len(state.readers), state.writers, state.committers) == (1, {}, {})
    filled.clock.advance(TERM_S / 4)
    store._leases.heartbeat()
    state = state_of(filled)
    assert (state.writers, state.committers) == ({}, {}), "keeping a lease alive needs none either"
    del held
    store.close()
    state = state_of(filled)
    assert (state.readers, state.writers, state.committers) == ({}, {}, {})


def test_a_process_that_reads_and_then_writes_registers_its_ids_and_removes_them(filled):
    store = filled.open()
    orders = store["orders"]
    snapshot = orders.snapshot()
    orders.append([{"id": 7, "name": "y"}])
    state = state_of(filled)
    assert (len(state.readers), len(state.writers), len(state.committers)) == (1, 1, 1)
    assert snapshot.count() == 3
    store.close()
    state = state_of(filled)
    assert (state.readers, state.writers, state.committers) == ({}, {}, {})


@pytest.mark.parametrize(
    "fault", [Fault.DETERMINATE, Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE, Fault.CONFLICT_DONE]
)
def test_a_lease_whose_reply_was_lost_is_registered_once(filled, fault):
    script = Script()
    store = filled.open(script=script)
    script.add("compare_and_set", fault)
    snapshot = store["orders"].snapshot()
    assert script.is_done
    store.ghosts()
    assert snapshot._leased.is_leased
    assert list(state_of(filled).readers) == [snapshot._leased.lease.reader]
    assert snapshot.count() == 3


def test_a_lease_whose_grant_was_never_learned_expires(filled):
    """Storage never told whether the lease is in. It was, and no process keeps it alive."""
    script = Script()
    store = filled.open(script=script)
    script.add("compare_and_set", Fault.INDETERMINATE_DONE)
    script.add("compare_and_set", Fault.DETERMINATE, times=100)
    snapshot = store["orders"].snapshot()
    assert not snapshot._leased.is_leased, "it is read without one"
    assert snapshot.count() == 3
    script.rules.clear()
    assert len(state_of(filled).readers) == 1
    again = store["orders"].snapshot()
    assert len(state_of(filled).readers) == 2
    for _ in range(8):
        filled.clock.advance(TERM_S / 4)
        store._leases.heartbeat()
    with filled.open() as other:
        other.maintain()
    assert list(state_of(filled).readers) == [again._leased.lease.reader]


def test_a_lease_that_expired_before_it_was_judged_again_is_registered_once_more(filled):
    """The reply is lost, and another process expires the lease before this one looks."""
    script = Script()
    store = filled.open(script=script)

    def expire():
        filled.clock.advance(2 * TERM_S)
        with filled.open() as other:
            other.maintain()

    script.add("compare_and_set", Fault.CONFLICT_DONE)
    script.add("scan", Fault.NONE, key=store["orders"].id, hook=expire, skip=1)
    snapshot = store["orders"].snapshot()
    assert script.is_done
    assert list(state_of(filled).readers) == [snapshot._leased.lease.reader]


INTERRUPTED = {
    "snapshot": lambda orders: orders.snapshot().count(),
    "split": lambda orders: [piece.count() for piece in orders.snapshot().split(2)],
    "contents": lambda orders: orders.contents().sealed.count(),
    "hold": lambda orders: orders.hold(1).release(),
    "subscribe": lambda orders: orders.subscribe().poll(),
    "listen": lambda orders: orders.listen().poll(),
}


@pytest.fixture
def young_garbage():
    """A collector that looks only at objects of this test: the others of the process take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", INTERRUPTED)
@pytest.mark.usefixtures("young_garbage")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_bytecode_leaves_no_lease_for_ever(filled, name):
    modules = (acquire, change_feed, commit_stream, log_follower, open_read, leases, rows)
    files = frozenset(module.__file__ for module in modules)
    store = filled.open()
    orders = store["orders"]
    with Bytecodes(files) as counted:
        INTERRUPTED[name](orders)
    for moment in random.Random(3).sample(range(1, counted.seen + 1), min(60, counted.seen)):
        with Bytecodes(files, moment), contextlib.suppress(KeyboardInterrupt, Unavailable):
            INTERRUPTED[name](orders)
        # A call that was interrupted with a lock is known by its frame until the next call takes the lock.
        store._leases.heartbeat()
        gc.collect()
        assert not any(lease.users for lease in store._leases._leases.get(orders.id, ())), moment
        filled.clock.advance(ROTATE_S + LINGER_S)
        store._leases.heartbeat()
        assert not store._leases._leases.get(orders.id), "given back, or left to expire"
    filled.clock.advance(TERM_S + 1)
    with filled.open() as other:
        other.maintain()
    assert state_of(filled).readers == {}


def test_a_snapshot_of_several_collections_looks_at_each_log_once(filled):
    script = Script()
    with filled.open() as store:
        store.create("other", key={"id": "int64"}, timeline="counter").append([{"id": 1}])
    store = filled.open(script=script)
    found = [store["orders"], store["other"]]
    store.snapshot(found).close()
    assert cost(script, lambda: store.snapshot(found).close())[0] == {"scan": 3}, "the names, and each log"
