"""A listener hears every commit once, in order, from its snapshot on; and nobody who commits waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from commit_stream_cases import commit, forget, made, rows, seal, told, up, updates, write, written
from memory_store import BLOBS, Gate, Script, together

import timespine as ts
from timespine.client.read.follow.commit_stream import AHEAD
from timespine.core.transitions import Drain, Evict, RegisterReader, Seal, Trim
from timespine.errors import ClosedError, Unavailable, UsageError
from timespine.model import CLOSED, Frontier
from timespine.testing.unreliable import Fault

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
