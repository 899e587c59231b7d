"""Leases: few, shared, kept alive by their term and not by every tick, and given back when nobody needs them."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest
from memory_store import BLOBS, MemoryStore, in_threads

from timespine.client.read.leases import BEATS, LINGER_S, ROTATE_S
from timespine.config import Config
from timespine.errors import LeaseExpired, TimespineError, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault, UnreliableConsensus

TERM_S = Config().reader_lease_ms / 1000
SMALL = Config(
    inline_part_bytes=1, row_group_rows=4, part_bytes=600, rollup_seqnos=4, storage_attempts=2, retry_pause_ms=1
)


@pytest.fixture
def place():
    """Storage whose stores put every row into a blob: a read of rows that are in the state takes no lease."""
    with MemoryStore(BLOBS) as made:
        yield made


def orders_of(store, commits=5):
    orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    for time in range(commits):
        orders.append([{"id": time, "name": "x"}])
    return orders


def readers(place, name="orders"):
    """The leases that the newest state knows of."""
    with place.open(read_only=True) as other:
        return other[name]._handle.state().readers


def seqno(place):
    with place.open(read_only=True) as other:
        return other["orders"]._handle.state().seqno


def test_many_reads_take_one_lease(place):
    store = place.open()
    orders = orders_of(store)
    before = seqno(place)
    snapshots = [orders.snapshot(as_of=time) for time in (1, 2, 3, 4, 1) for _ in range(10)]
    assert len(readers(place)) == 1
    assert seqno(place) == before + 1, "one commit for fifty reads"
    assert {snapshot.count() for snapshot in snapshots} == {2, 3, 4, 5}
    for snapshot in snapshots:
        snapshot.close()
        snapshot.close()
    (lease,) = store._leases._leases[orders.id]
    assert not lease.users
    for _ in range(10):
        orders.snapshot().close()
    assert seqno(place) == before + 1, "it lingers for the next reader"


def test_a_read_of_an_earlier_time_takes_a_lease_of_its_own(place):
    store = place.open()
    orders = orders_of(store)
    late, early = orders.snapshot(as_of=4), orders.snapshot(as_of=1)
    assert sorted(reader.since.elements[0][0] for reader in readers(place).values()) == [1, 4]
    assert (late.count(), early.count()) == (5, 2)


def test_a_lease_without_reads_is_given_back_after_a_while(place):
    store = place.open()
    orders = orders_of(store)
    orders.snapshot().close()
    place.clock.advance(LINGER_S - 1)
    assert store._leases.heartbeat() == 0
    assert len(readers(place)) == 1
    place.clock.advance(1)
    assert store._leases.heartbeat() == 1
    assert readers(place) == {}
    assert store._leases.heartbeat() == 0, "there is nothing left to look after"


def test_a_lease_that_is_used_is_not_given_back(place):
    store = place.open()
    orders = orders_of(store)
    snapshot = orders.snapshot()
    for _ in range(100):
        place.clock.advance(TERM_S / 20)
        store._leases.heartbeat()
        with place.open() as other:
            other.maintain()
    assert len(readers(place)) == 1
    assert snapshot.count() == 5


def test_an_old_lease_takes_no_new_readers_so_that_since_can_follow(place):
    store = place.open()
    orders = orders_of(store)
    first = orders.snapshot(as_of=0)
    place.clock.advance(ROTATE_S + 1)
    second = orders.snapshot(as_of=4)
    assert len(readers(place)) == 2, "though the first one would do"
    first.close()
    place.clock.advance(LINGER_S)
    store._leases.heartbeat()
    assert [reader.since.elements for reader in readers(place).values()] == [((4,),)]
    assert second.count() == 5


def test_expire_gives_back_leases_without_reads_along_with_it(place):
    store = place.open()
    orders = orders_of(store)
    orders.snapshot(as_of=1).close()
    before = seqno(place)
    assert orders.expire(before=3).since.elements == ((3,),)
    assert seqno(place) == before + 1
    held = orders.snapshot(as_of=3)
    reply = orders.expire(before=4)
    assert reply.since.elements == ((3,),)
    assert [who.split()[0] for who in reply.held_by] == ["reader"]
    held.close()
    orders.expire(before=4)
    assert orders.since.elements == ((4,),)


@pytest.mark.parametrize("number", [1, 20])
def test_leases_are_heard_of_once_in_a_quarter_of_their_term(place, number):
    store = place.open()
    orders = orders_of(store)
    snapshots = [orders.snapshot(as_of=time % 5) for time in range(number)]
    feeds = [orders.subscribe(as_of=4) for _ in range(number)]
    before = seqno(place)
    commits = 0
    for _ in range(int(3600 / 2)):
        place.clock.advance(2)
        commits += store._leases.heartbeat()
    assert commits == seqno(place) - before
    assert commits == pytest.approx(3600 / (TERM_S / BEATS), abs=1), "one for all leases of a collection"
    assert all(reader.until_ms > place.clock.ms + 1000 * TERM_S / 2 for reader in readers(place).values())
    assert snapshots[0].count() == 1
    for feed in feeds:
        feed.close()


class Counting(UnreliableConsensus):
    """Consensus that counts what is asked of it."""

    def __init__(self, inner):
        self.calls = {}
        super().__init__(inner, self.count)

    def count(self, operation, key):
        self.calls[operation] = self.calls.get(operation, 0) + 1
        return Fault.NONE


HOUR_READS = 15_200
"""Looks at the log in an idle hour of a process with a feed: four a second of the feed, the rest is maintenance."""

HOUR_COMMITS = 16
"""Commits in such an hour: one per quarter of a lease."""


@pytest.mark.parametrize("published", [f"at most {HOUR_READS} reads and {HOUR_COMMITS} commits"])
def test_an_idle_hour_of_a_process_with_a_feed_costs(place, published):
    """The figure of docs/guide.md."""
    consensus = Counting(place.consensus)
    store = place.open(consensus=consensus)
    orders = orders_of(store)
    feed = orders.subscribe(timeout=3600)
    assert next(feed).kind == "snapshot"
    context, maintenance = store._context, store._maintenance
    context.monotonic = place.clock
    store.maintain()
    schedule = {"beat": place.clock.now + 2, "round": place.clock.now, "pause": 0.5}

    class Idle(type(context.committed)):
        """Waiting takes no time but that of the clock; meanwhile the other threads of the process do what they do."""

        def wait(self, heard, timeout):
            place.clock.advance(timeout)
            if place.clock.now >= schedule["beat"]:
                schedule["beat"] += 2
                store._leases.heartbeat()
            if maintenance._thread._wake.is_set() or place.clock.now >= schedule["round"]:
                schedule["pause"] = 0.5 if maintenance._thread._wake.is_set() else min(schedule["pause"] * 2, 30)
                maintenance._thread._wake.clear()
                busy = maintenance.round()
                schedule["round"] = place.clock.now + (0 if busy else schedule["pause"])
            return False

    context.committed = Idle()
    consensus.calls.clear()
    before = seqno(place)
    assert list(feed) == [], "nothing came for an hour"
    commits = seqno(place) - before
    assert commits <= HOUR_COMMITS + 1, "and the one that gives back the lease at the end"
    assert 4 * 3600 - 100 < consensus.calls["scan"] <= HOUR_READS
    assert readers(place) == {}


def test_a_lease_that_others_expired_is_found_to_be_lost(place):
    store = place.open()
    orders = orders_of(store)
    snapshot = orders.snapshot(as_of=1)
    place.clock.advance(TERM_S + 1)
    with place.open() as other:
        assert other.maintain().leases >= 1
        other["orders"].expire(before=4)
    assert readers(place) == {}
    with pytest.raises(LeaseExpired, match="read again"):
        snapshot._leased.check()
    assert orders.id not in store._leases._leases, "it is not looked after any more"
    assert store._leases.heartbeat() == 0
    fresh = orders.snapshot(as_of=4)
    assert fresh.count() == 5
    fresh._leased.check()


def test_a_heartbeat_drops_what_is_lost_and_keeps_the_rest(place):
    store = place.open()
    orders = orders_of(store)
    lost = orders.snapshot(as_of=1)
    place.clock.advance(TERM_S - 10)
    kept = orders.hold(as_of=2)
    place.clock.advance(20)
    with place.open() as other:
        other.maintain()
    assert store._leases.heartbeat() in (0, 1)
    assert [lease.since.elements for lease in store._leases._leases[orders.id]] == [((2,),)]
    assert lost._leased.lease.lost
    assert list(readers(place)) == [kept._leased.lease.reader]


def test_a_process_that_slept_past_its_term_and_beats_first_keeps_its_lease(place):
    store = place.open()
    orders = orders_of(store)
    snapshot = orders.snapshot(as_of=1)
    place.clock.advance(10 * TERM_S)
    assert store._leases.heartbeat() == 1
    with place.open() as other:
        other.maintain()
        assert other["orders"].expire(before=4).since.elements == ((1,),)
    assert snapshot.count() == 2


def test_storage_that_is_away_at_two_beats_costs_nothing(place):
    away = []
    consensus = UnreliableConsensus(
        place.consensus, lambda what, key: Fault.DETERMINATE if away and what == "compare_and_set" else Fault.NONE
    )
    store = place.open(consensus=consensus)
    orders = orders_of(store)
    snapshot = orders.snapshot(as_of=1)
    for heartbeat_once in range(3):
        place.clock.advance(TERM_S / BEATS)
        away[:] = [True] if heartbeat_once < 2 else []
        if away:
            with pytest.raises(Exception, match="injected"):
                store._leases.heartbeat()
        else:
            assert store._leases.heartbeat() == 1
    with place.open() as other:
        other.maintain()
    assert len(readers(place)) == 1
    assert snapshot.count() == 2


def test_one_collection_that_cannot_be_reached_does_not_keep_others_from_being_heard_of(place):
    broken = []
    consensus = UnreliableConsensus(
        place.consensus, lambda what, key: Fault.DETERMINATE if any(name in key for name in broken) else Fault.NONE
    )
    store = place.open(consensus=consensus)
    first = store.create("aaa", key={"id": "int64"}, timeline="counter")
    second = store.create("bbb", key={"id": "int64"}, timeline="counter")
    for collection in (first, second):
        collection.append([{"id": 1}])
    held = [first.snapshot(), second.snapshot()]
    broken.append("aaa-")
    place.clock.advance(TERM_S / 2)
    for _ in range(2):  # as the thread that beats does, every two seconds
        place.clock.advance(2)
        with contextlib.suppress(TimespineError):
            store._leases.heartbeat()
    broken.clear()
    assert all(reader.until_ms > place.clock.ms + 1000 * TERM_S * 0.9 for reader in readers(place, "bbb").values())
    assert len(held) == 2


def test_an_own_lease_moves_with_its_owner_and_never_back(place):
    store = place.open()
    orders = orders_of(store)
    leases = store._leases
    held = leases.take(orders.id, Frontier.at(1), own=True)
    leases.advance(held.lease, (3,))
    assert held.lease.since == Frontier.at(3)
    leases.advance(held.lease, (2,))
    assert held.lease.since == Frontier.at(3), "what was let go of is gone"
    assert orders.snapshot(as_of=4)._leased.lease is not held.lease, "nobody else counts on it"
    held.close()
    assert held.lease.reader not in readers(place), "and it is given back at once"
    with pytest.raises(LeaseExpired):
        leases.advance(held.lease, (4,))


def test_an_idle_feed_lets_go_of_old_states_so_that_garbage_can_be_collected(place):
    store = place.open(config=SMALL)
    orders = orders_of(store)
    held = store._leases.take(orders.id, Frontier.at(0), own=True)
    first = held.lease.seqno
    orders.append([{"id": 100, "name": "x"}])
    place.clock.advance(TERM_S / BEATS)
    store._leases.heartbeat()
    assert held.lease.seqno > first
    assert readers(place)[held.lease.reader].seqno == held.lease.seqno


def test_a_state_that_is_pinned_is_not_let_go_of(place):
    store = place.open(config=SMALL)
    orders = orders_of(store)
    leases = store._leases
    held = leases.take(orders.id, Frontier.at(0), own=True)
    state = store._committer.known(orders.id)
    pinned = state.seqno
    with leases.pinned(held.lease, state) as covered:
        assert covered is state
        for time in range(5):
            orders.append([{"id": 100 + time, "name": "x"}])
            place.clock.advance(TERM_S / BEATS)
            leases.heartbeat()
        assert readers(place)[held.lease.reader].seqno <= pinned
    place.clock.advance(TERM_S / BEATS)
    leases.heartbeat()
    assert readers(place)[held.lease.reader].seqno > pinned
    with leases.pinned(held.lease, state) as covered:
        assert covered.seqno > pinned, "too late: what it refers to may be gone"


def test_a_shared_lease_is_never_let_go_of_by_a_beat(place):
    store = place.open(config=SMALL)
    orders = orders_of(store)
    snapshot = orders.snapshot()
    (reader,) = readers(place).values()
    for time in range(5):
        orders.append([{"id": 100 + time, "name": "x"}])
        place.clock.advance(TERM_S / BEATS)
        store._leases.heartbeat()
    assert [each.seqno for each in readers(place).values()] == [reader.seqno], "somebody reads what it refers to"
    assert snapshot.count() == 5


def test_what_is_abandoned_is_given_back_by_the_next_beat(place):
    store = place.open()
    orders = orders_of(store)
    feed = orders.subscribe()
    before = seqno(place)
    del feed
    gc.collect()
    assert seqno(place) == before, "nothing is written by the garbage collector"
    assert len(readers(place)) == 1
    place.clock.advance(LINGER_S)
    store._leases.heartbeat()
    assert readers(place) == {}


def test_closing_a_store_gives_all_leases_back(place):
    store = place.open()
    orders = orders_of(store)
    held, hold = [orders.snapshot(as_of=1), orders.subscribe(as_of=3)], orders.hold(as_of=2)
    assert len(readers(place)) == 3
    store.close()
    assert readers(place) == {}
    for give_back in (hold.release, *(each.close for each in held)):
        give_back()
        give_back()


def test_a_store_that_is_closed_gives_no_leases(place):
    store = place.open()
    orders = orders_of(store)
    store.close()
    for take in (orders.snapshot, orders.hold, orders.subscribe):
        with pytest.raises(UsageError, match="closed"):
            take()


def test_a_store_that_is_open_for_reading_takes_no_lease(place):
    orders_of(place.open())
    other = place.open(read_only=True)
    snapshot = other["orders"].snapshot()
    assert not snapshot._leased.is_leased
    assert readers(place) == {}
    assert other._leases.heartbeat() == 0
    for take in (other["orders"].hold, other["orders"].subscribe):
        with pytest.raises(UsageError, match="reading only"):
            take()
    with pytest.raises(LeaseExpired, match="takes no lease"):
        snapshot._leased.check()
    snapshot._leased.share().close()


def test_threads_share_leases_and_count_themselves_out(place):
    store = place.open()
    orders = orders_of(store)
    gate = threading.Barrier(8)

    def reading():
        gate.wait(60)
        for time in range(20):
            with orders.snapshot(as_of=time % 5) as snapshot:
                assert snapshot.count() == time % 5 + 1

    in_threads(*[reading] * 8)
    assert all(not lease.users for lease in store._leases._leases[orders.id])
    assert len(readers(place)) <= 5 * 8
    place.clock.advance(LINGER_S)
    store._leases.heartbeat()
    assert readers(place) == {}


def test_the_states_of_a_listener_are_not_let_go_before_it_has_begun(place):
    """The heartbeat of another thread comes by when a lease is granted and nobody listens yet."""
    store, other = place.open(config=SMALL), place.open(config=SMALL)
    orders = orders_of(store)
    listen, busy = store._leases.listen, []

    def meanwhile(state):
        leased = listen(state)
        busy.append(leased)
        for id in range(5):
            other["orders"].append([{"id": id, "name": "y"}])
        place.clock.advance(TERM_S / BEATS)
        store._leases.heartbeat()
        return leased

    store._leases.listen = meanwhile
    listener = orders.listen(snapshot=False)
    (reader,) = readers(place).values()
    assert busy
    assert reader.seqno <= listener._cursor.seqno
    assert len(listener.poll()) == 10


def test_the_lease_of_a_listener_holds_no_history_and_is_kept_alive_like_any_other(place):
    store = place.open()
    orders = orders_of(store)
    listener = orders.listen(snapshot=False)
    assert orders.expire(before=4).held_by == ()
    for _ in range(BEATS * 3):
        place.clock.advance(TERM_S / BEATS)
        store._leases.heartbeat()
        with place.open() as other:
            other.maintain()
    assert listener.poll() == []
    orders.append([{"id": 9, "name": "x"}])
    assert [event.kind for event in listener.poll()] == ["updates", "sealed"]
