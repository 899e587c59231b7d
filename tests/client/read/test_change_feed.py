"""A feed tells everything once, in order, whatever compaction does; and holds history only as long as it must."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import pytest
from assertions import until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from timespine.client.read.follow.log_follower import RELEASE_S
from timespine.config import Config
from timespine.errors import HandleExpired, LeaseExpired, NotSealed, SinceError, UsageError
from timespine.model.time import INT64_MAX
from timespine.testing.unreliable import Fault, UnreliableBlob

SMALL = Config(
    part_bytes=600,
    row_group_rows=4,
    inline_part_bytes=100,
    inline_total_bytes=900,
    run_parts=2,
    rollup_seqnos=4,
    storage_attempts=2,
    retry_pause_ms=1,
)


@pytest.fixture
def orders(store):
    return store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


def rows(*ids, name="x"):
    return [{"id": id, "name": name} for id in ids]


def told(events):
    """What a listener that adds everything up has."""
    counts = Counter()
    for event in events:
        if event.rows is not None:
            for row in event.rows.to_pylist():
                counts[row["id"], row["name"]] += row["_diff"]
    return {row: count for row, count in counts.items() if count}


def present(collection, time=None):
    snapshot = collection.snapshot(time, multiplicity="column")
    return {(row["id"], row["name"]): row["_diff"] for row in snapshot.to_pylist()}


def since(place):
    with place.open(read_only=True) as other:
        return other["orders"].since.elements[0][0]


def forgetting(place, before):
    """Another process expires, merges, and deletes whatever it may."""
    with place.open(config=SMALL) as other:
        theirs = other["orders"]
        theirs.expire(before=before)
        theirs.compact(wait=True)
        other.maintain(sweep=True)


def test_a_feed_gives_the_snapshot_then_changes_then_progress(orders):
    orders.append(rows(1, 2))
    with orders.subscribe(timeout=0) as feed:
        first = next(feed)
        assert (first.kind, first.through) == ("snapshot", 0)
        assert first.rows.to_pylist() == [{**row, "_diff": 1} for row in rows(1, 2)]
        orders.append(rows(3))
        orders.delete({"id": 1})
        orders.seal(7)
        events = list(feed)
    assert [(event.kind, event.through) for event in events] == [("changes", 6), ("progress", 6)]
    assert events[0].rows.to_pylist() == [
        {"id": 1, "name": "x", "_time": 2, "_diff": -1},
        {"id": 3, "name": "x", "_time": 1, "_diff": 1},
    ]
    assert events[1].rows is None
    assert feed.through == 6


def test_progress_without_changes_is_told_by_itself(orders):
    orders.append(rows(1))
    feed = orders.subscribe()
    assert [event.kind for event in feed.poll()] == ["snapshot"]
    orders.seal(9)
    assert [(event.kind, event.through) for event in feed.poll()] == [("progress", 8)]
    assert feed.poll() == []


def test_a_feed_of_an_empty_collection_begins_with_nothing(orders):
    feed = orders.subscribe()
    (first,) = feed.poll()
    assert (first.kind, first.through, first.rows.num_rows) == ("snapshot", -1, 0)
    assert first.rows.schema.names == ["id", "name", "_diff"]
    assert feed.poll() == []
    orders.append(rows(1))
    changes, progress = feed.poll()
    assert changes.rows.to_pylist() == [{"id": 1, "name": "x", "_time": 0, "_diff": 1}]
    assert progress.through == 0


def test_a_feed_may_begin_in_the_past_and_without_a_snapshot(orders):
    for id in range(5):
        orders.append(rows(id))
    with orders.subscribe(as_of=2, timeout=0) as feed:
        snapshot, changes, progress = feed
    assert (snapshot.through, snapshot.rows.num_rows) == (2, 3)
    assert [row["_time"] for row in changes.rows.to_pylist()] == [3, 4]
    assert progress.through == 4
    with orders.subscribe(as_of=2, snapshot=False, timeout=0) as feed:
        assert [event.kind for event in feed] == ["changes", "progress"]
    with orders.subscribe(snapshot=False, timeout=0) as feed:
        assert list(feed) == []


def test_a_feed_from_before_since_or_from_the_future_is_refused_and_holds_nothing(place, orders):
    for id in range(5):
        orders.append(rows(id))
    orders.expire(before=3)
    with pytest.raises(SinceError) as caught:
        orders.subscribe(as_of=1)
    assert caught.value.asked == 1
    with pytest.raises(NotSealed):
        orders.subscribe(as_of=9)
    assert orders._handle.state().readers == {}


def test_a_feed_that_cannot_read_its_snapshot_holds_nothing(place):
    broken = []
    blob = UnreliableBlob(
        place.blob, lambda what, key: Fault.DETERMINATE if broken and what == "get_range" else Fault.NONE
    )
    store = place.open(config=SMALL, blob=blob)
    orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    orders.append(rows(*range(50)))
    store._cache.clear()
    broken.append(True)
    with pytest.raises(Exception, match="injected"):
        orders.subscribe()
    broken.clear()
    assert orders._handle.state().readers == {}


def test_a_feed_gives_the_columns_and_rows_that_were_asked_for(orders):
    orders.append(rows(1, 2, 3))
    with orders.subscribe(columns=["id"], where="id >= 2", timeout=0) as feed:
        orders.upsert([{"id": 1, "name": "y"}, {"id": 3, "name": "y"}, {"id": 4, "name": "z"}])
        snapshot, changes, _ = feed
    assert snapshot.rows.to_pylist() == [{"id": 2, "_diff": 1}, {"id": 3, "_diff": 1}]
    assert changes.rows.to_pylist() == [{"id": 4, "_time": 1, "_diff": 1}], "the same in these columns"


def test_a_feed_waits_for_a_commit_of_its_own_process_and_of_another(place, orders):
    feed = orders.subscribe()
    assert next(feed).kind == "snapshot"
    other = place.open()["orders"]
    for number, writer in enumerate((orders, other)):
        found = []
        listener = threading.Thread(target=lambda found=found: found.extend((next(feed), next(feed))))
        listener.start()
        writer.append(rows(number))
        listener.join(60)
        assert [event.kind for event in found] == ["changes", "progress"]
        assert told(found) == {(number, "x"): 1}


def test_a_feed_ends_when_the_collection_is_closed(orders):
    orders.append(rows(1))
    feed = orders.subscribe()
    orders.append(rows(2))
    orders.finish()
    events = list(feed)
    assert told(events) == {(1, "x"): 1, (2, "x"): 1}
    assert events[-1].through == INT64_MAX
    assert feed.poll() == []
    with pytest.raises(StopIteration):
        next(feed)
    again = list(orders.subscribe())
    assert [(event.kind, event.rows.num_rows) for event in again] == [("snapshot", 2)]
    assert orders._handle.state().readers == {}, "a feed that ended holds nothing"


def test_a_feed_that_is_closed_has_nothing_more_to_tell(orders):
    feed = orders.subscribe()
    feed.close()
    feed.close()
    orders.append(rows(1))
    assert feed.poll() == []
    assert [event.kind for event in feed] == ["snapshot"], "what was read before may still be taken"
    assert list(feed) == []


@pytest.mark.parametrize("how", ["next", "poll"])
def test_a_feed_lets_go_of_history_as_it_is_taken(place, store, orders, how):
    orders.append(rows(0))
    feed = orders.subscribe()
    feed._monotonic = place.clock
    take = feed.poll if how == "poll" else lambda: [next(feed), next(feed)]
    assert next(feed).kind == "snapshot"
    for id in range(1, 8):
        orders.append(rows(id))
        orders.expire(before=id)
        place.clock.advance(RELEASE_S)
        before = since(place)
        events = take()
        assert told(events) == {(id, "x"): 1}
        # What was told before is released now; what was told just now is not, until more is asked for.
        assert before <= since(place) <= id - 1
    place.clock.advance(RELEASE_S)
    orders.append(rows(100))
    take()
    assert since(place) == 7
    feed.close()
    orders.expire(before=8)
    assert since(place) == 8


def test_a_busy_feed_releases_history_once_in_a_while_and_not_with_every_event(place, orders):
    feed = orders.subscribe()
    feed._monotonic = place.clock
    feed.poll()
    for id in range(50):
        orders.append(rows(id))
    seqno = orders._handle.state().seqno
    for _ in range(20):
        orders.append(rows(1000))
        feed.poll()
    rollups = len(orders._handle.state().rollups)
    assert orders._handle.state().seqno <= seqno + 21 + rollups


def test_what_was_told_but_not_taken_is_not_let_go_of(place, orders):
    feed = orders.subscribe()
    feed._monotonic = place.clock
    next(feed)
    for id in range(5):
        orders.append(rows(id))
    assert next(feed).kind == "changes"
    held = feed._leased.lease.since.elements[0][0]
    place.clock.advance(10 * RELEASE_S)
    orders.expire(before=4)
    assert since(place) == held
    assert next(feed).kind == "progress"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["append", "upsert", "delete", "advance", "poll", "forget", "wait"]), max_size=25))
def test_a_listener_that_adds_up_what_it_is_told_has_the_collection(steps):
    with MemoryStore() as place:
        store = place.open(config=SMALL)
        orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        orders.append(rows(1, 2, 3))
        feed = orders.subscribe()
        feed._monotonic = place.clock
        events = []
        for number, step in enumerate(steps):
            if step == "append":
                orders.append(rows(number % 7, name=f"a{number}"))
            elif step == "upsert":
                orders.upsert(rows(*range(number % 5, number % 5 + 20), name=f"u{number}"))
            elif step == "delete":
                orders.delete({"id": number % 7})
            elif step == "advance":
                orders.seal(orders.upper.elements[0][0] + 2)
            elif step == "poll":
                events += feed.poll()
                assert told(events) == present(orders)
            elif step == "wait":
                place.clock.advance(RELEASE_S)
            else:
                forgetting(place, orders.upper.elements[0][0])
                store._cache.clear()
        events += feed.poll()
        assert told(events) == present(orders)
        changes = [event for event in events if event.kind == "changes"]
        times = [time for event in changes for time in event.rows.column("_time").to_pylist()]
        assert [event.through for event in changes] == sorted({event.through for event in changes})
        assert all(0 < time < orders.upper.elements[0][0] for time in times)
        feed.close()


def test_times_of_changes_are_those_they_were_written_with_whatever_is_expired(place, store, orders):
    orders.append(rows(0))
    feed = orders.subscribe()
    next(feed)
    for id in range(1, 10):
        orders.append(rows(id))
    forgetting(place, 9)
    store._cache.clear()
    changes, _ = feed.poll()
    assert sorted((row["id"], row["_time"]) for row in changes.rows.to_pylist()) == [(id, id) for id in range(1, 10)]


def test_a_feed_whose_lease_is_gone_says_so_and_tells_nothing_wrong(place, orders):
    orders.append(rows(1))
    feed = orders.subscribe()
    assert next(feed).kind == "snapshot"
    place.clock.advance(3600)
    forgetting(place, 0)
    assert feed.poll() == [], "there is nothing to tell yet"
    orders.append(rows(2))
    for _ in range(2):
        with pytest.raises(LeaseExpired, match="subscribe again"):
            feed.poll()
        with pytest.raises(LeaseExpired, match="subscribe again"):
            next(feed)
    feed.close()
    again = orders.subscribe()
    assert told(again.poll()) == {(1, "x"): 1, (2, "x"): 1}


def test_a_state_that_the_heartbeat_just_let_go_of_is_not_read(place, store, orders):
    """The heartbeat of another thread releases states between the look at one and the reading of it."""
    orders.append(rows(*range(30)))
    feed = orders.subscribe()
    assert next(feed).kind == "snapshot"
    orders.append(rows(*range(100, 130)))
    old = orders._handle.state()
    for _ in range(6):
        orders.append(rows(*range(200, 230)))
    place.clock.advance(400)
    store._leases.heartbeat()
    orders.compact(wait=True)
    store.maintain(sweep=True)
    store._cache.clear()
    feed._look(old)
    early, late = {(id, "x"): 1 for id in range(100, 130)}, {(id, "x"): 6 for id in range(200, 230)}
    assert told(feed._pending) == {**early, **late}


def test_the_snapshot_of_a_feed_is_safe_from_a_heartbeat_meanwhile(place):
    reading, go_on = threading.Event(), threading.Event()

    def decide(what, key):
        if what == "get_range" and threading.current_thread() is feeder:
            reading.set()
            assert go_on.wait(60)
        return Fault.NONE

    store = place.open(config=SMALL, blob=UnreliableBlob(place.blob, decide))
    orders = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    feeder = None
    for name in "abc":
        orders.append(rows(*range(40), name=name))
    store._cache.clear()
    feeds = []
    store._context.pool.submit(int).result()
    feeder = threading.Thread(target=lambda: feeds.append(orders.subscribe()))
    feeder.start()
    assert reading.wait(60)
    with place.open(config=SMALL) as other:
        theirs = other["orders"]
        theirs.append(rows(1000))
        theirs.compact(wait=True)
        other.maintain()
        place.clock.advance(400)
        store._leases.heartbeat()
        other.maintain(sweep=True)
    go_on.set()
    feeder.join(60)
    (feed,) = feeds
    assert told(feed.poll()[:1]) == {(id, name): 1 for id in range(40) for name in "abc"}


@pytest.mark.parametrize("change", [{"drop": ["name"]}, {"widen": {"size": "int64"}}])
def test_a_feed_ends_with_an_error_when_its_rows_would_become_other_rows(store, change):
    orders = store.create("things", key={"id": "int64"}, value={"name": "string", "size": "int32"}, timeline="counter")
    orders.append([{"id": 1, "name": "x", "size": 1}])
    feed = orders.subscribe()
    feed.poll()
    orders.evolve(**change)
    assert feed.poll() == []
    orders.delete({"id": 1})
    with pytest.raises(HandleExpired, match="begin again"):
        feed.poll()


def test_a_feed_goes_on_when_columns_are_added_or_renamed_or_others_are_dropped(store):
    orders = store.create("things", key={"id": "int64"}, value={"name": "string", "size": "int32"}, timeline="counter")
    orders.append([{"id": 1, "name": "x", "size": 1}])
    feed = orders.subscribe(columns=["id", "name"])
    feed.poll()
    orders.evolve(drop=["size"], add={"kind": ("string", "k")}, rename={"name": "title"})
    orders.append([{"id": 2, "title": "y"}])
    changes, _ = feed.poll()
    assert changes.rows.to_pylist() == [{"id": 2, "name": "y", "_time": 1, "_diff": 1}]


def test_a_feed_ends_after_its_timeout(passing_time, orders):
    orders.append(rows(1))
    feed = orders.subscribe(timeout=7200)
    assert [event.kind for event in feed] == ["snapshot"]
    assert passing_time[0] == pytest.approx(7200)
    assert orders._handle.state().readers == {}


def test_an_event_is_told_once_though_several_threads_commit(orders):
    feed = orders.subscribe()
    feed.poll()
    threads = [threading.Thread(target=lambda n=n: [orders.append(rows(n)) for _ in range(10)]) for n in range(4)]
    for thread in threads:
        thread.start()
    events = []
    until(lambda: events.extend(feed.poll()) or sum(told(events).values()) == 40)
    for thread in threads:
        thread.join(60)
    assert feed.poll() == []
    assert told(events) == {(n, "x"): 10 for n in range(4)}


def test_a_feed_that_is_dropped_is_not_kept_alive_by_what_it_registered(orders):
    import weakref

    feed = orders.subscribe()
    gone = weakref.ref(feed)
    del feed
    gc.collect()
    assert gone() is None


def test_a_store_that_is_closed_ends_its_feeds(store, orders):
    feed = orders.subscribe()
    feed.poll()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        feed.poll()
    feed.close()


def test_a_feed_that_another_thread_closes_ends_at_once(orders):
    feed = orders.subscribe(snapshot=False)
    feed.poll()
    ended = []
    thread = threading.Thread(target=lambda: ended.append(next(feed, "the end")))
    thread.start()
    until(lambda: threading.active_count() > 1 and thread.is_alive())
    feed.close()
    thread.join(timeout=20)
    assert ended == ["the end"]
