"""Commit streams of stores that only read, changes of schema, and random histories against a model."""

from __future__ import annotations

from collections import Counter

import pytest
from assertions import until
from commit_stream_cases import commit, counted, forget, made, rows, seal, told, up, updates, write, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, SMALL, MemoryStore, Script

from timespine.client.read.follow.log_follower import RELEASE_S
from timespine.config import Config
from timespine.core.transitions import Drain, Evict, Seal, Trim
from timespine.errors import HandleExpired, LeaseExpired
from timespine.model import Frontier
from timespine.testing.unreliable import Fault

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
