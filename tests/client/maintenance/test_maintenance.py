"""Maintenance in the background fails no call of a user, and serves many collections."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from key_value_cases import create, fill, now
from maintenance_cases import OFTEN, runs
from memory_store import BLOBS, Clock, in_threads

import timespine as ts
from timespine.client.maintenance.due_merges import GATHER
from timespine.client.maintenance.maintenance import OVERDUE, REST_S
from timespine.client.maintenance.skip_idle_collections import IDLE_S
from timespine.config import Config
from timespine.errors import TimespineError, UsageError

# Nothing that a user does fails because of it.


def test_writers_readers_and_maintenance_do_not_disturb_each_other(place):
    stores = [place.open(config=OFTEN, clock=Clock(), sleep=time.sleep) for _ in range(2)]
    orders = create(stores[0])
    orders.append([{"k": 0, "v": "counter"}])
    stop = threading.Event()
    finished = []

    def append(store, who):
        for n in range(25):
            store["orders"].append([{"k": 1000 * who + n, "v": "x"}])
        finished.append(who)

    def change(store, who):
        for n in range(12):
            store["orders"].upsert([{"k": -who, "v": str(n)}])
            store["orders"].update(where=f"k = {-who}", set={"v": pl.col("v") + "!"})
        finished.append(who)

    def read(store):
        while not stop.is_set():
            with store["orders"].snapshot() as snapshot:
                rows = snapshot.to_pylist()
            assert len({row["k"] for row in rows}) == len(rows)
            store["orders"].lookup({"k": 1001})

    def maintain(store):
        while not stop.is_set():
            store.maintain(sweep=True)
            store["orders"].compact(wait=True)

    writers = [
        lambda: append(stores[0], 1),
        lambda: append(stores[1], 2),
        lambda: change(stores[0], 3),
        lambda: change(stores[1], 4),
    ]

    def all_of_them():
        try:
            in_threads(*writers)
        finally:
            stop.set()

    in_threads(
        all_of_them,
        lambda: read(stores[0]),
        lambda: read(stores[1]),
        lambda: maintain(stores[0]),
        lambda: maintain(stores[1]),
    )
    assert sorted(finished) == [1, 2, 3, 4]
    expected = {(1000 * who + n, "x"): 1 for who in (1, 2) for n in range(25)}
    assert now(orders) == {**expected, (0, "counter"): 1, (-3, "11!"): 1, (-4, "11!"): 1}
    for store in stores:
        store.maintain(sweep=True)
    assert now(orders) == {**expected, (0, "counter"): 1, (-3, "11!"): 1, (-4, "11!"): 1}
    orders.compact(wait=True)
    assert runs(orders) == 1


WORKER = """
import json, sys, threading
import timespine as ts
from timespine.config import Config

root, who, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = Config(inline_part_bytes=200, rollup_seqnos=16)
failures = []
stop = threading.Event()

def guarded(work):
    def run():
        try:
            work()
        except BaseException as error:
            failures.append(f"{work.__name__}: {type(error).__name__}: {error}")
    return run

with ts.open(root, config=config) as store:
    orders = store["orders"]

    def write():
        for n in range(turns):
            orders.append([{"k": 1000 * who + n, "v": "x" * (n % 7)}])
            if n % 5 == 0:
                orders.upsert([{"k": who, "v": str(n)}])

    def read():
        while not stop.is_set():
            rows = orders.snapshot().to_pylist()
            if len({row["k"] for row in rows}) != len(rows):
                failures.append("a key twice")

    def maintain():
        while not stop.is_set():
            store.maintain(sweep=True)
            if who % 2:
                orders.compact(wait=True)

    others = [threading.Thread(target=guarded(work)) for work in (read, maintain)]
    for thread in others:
        thread.start()
    guarded(write)()
    stop.set()
    for thread in others:
        thread.join()
    print(json.dumps({"failures": failures, "background": store._maintenance.report.skipped}))
"""


def test_processes_that_write_read_and_maintain_do_not_disturb_each_other(tmp_path):
    turns = 25
    with ts.open(tmp_path, maintenance=False) as store:
        create(store)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(who), str(turns)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        )
        for who in (1, 2)
    ]
    ended = []
    try:
        for worker in workers:
            ended.append((*worker.communicate(timeout=240), worker.returncode))
    finally:
        for worker in workers:
            with worker:
                worker.kill()
    for out, err, code in ended:
        assert code == 0, err
        assert json.loads(out) == {"failures": [], "background": []}, err
    with ts.open(tmp_path, maintenance=False) as store:
        orders = store["orders"]
        expected = {(1000 * who + n, "x" * (n % 7)): 1 for who in (1, 2) for n in range(turns)}
        assert now(orders) == {**expected, (1, str(turns - 5)): 1, (2, str(turns - 5)): 1}
        store.maintain(sweep=True)
        assert now(orders) == {**expected, (1, str(turns - 5)): 1, (2, str(turns - 5)): 1}
        assert store.vacuum().blobs == []
        state = orders._handle.state()
        assert len(state.writers) <= 2  # those of this store: the others gave up theirs


def test_maintenance_of_a_closed_store_is_refused(place):
    store = place.open()
    create(store)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.maintain()
    with pytest.raises(TimespineError):
        store.vacuum()


def test_processes_that_only_come_by_for_a_moment_do_their_share(place):
    most = 0
    for number in range(100):
        store = place.open(config=BLOBS, maintenance=True)
        numbers = create(store, if_exists="open")
        numbers.append([{"k": number, "v": "x"}])
        store.close()
        with place.open(read_only=True) as other:
            most = max(most, runs(other["orders"]))
    assert most < 40, "as many as a few levels have, not as many as there were processes"
    with place.open() as last:
        assert last["orders"].count() == 100
        assert last["orders"]._handle.state().rollups, "and the next one need not replay everything"


def test_a_store_without_a_background_rolls_up_what_is_long_overdue(place):
    config = Config(rollup_seqnos=4, retry_pause_ms=1)
    orders = create(place.open(config=config))
    fill(orders, 200)
    state = orders._handle.state()
    assert state.rollups
    replayed = state.seqno - max(state.rollups)
    assert replayed <= max(OVERDUE * config.rollup_seqnos, state.trace.hollow_count // 4) + 2
    assert orders.count() == 200
    assert place.open(config=config)["orders"].count() == 200


# Many collections.


def looks(store, monkeypatch):
    """The names of the collections that maintenance looks at, as it does."""
    seen = []
    step = store._maintenance._step
    monkeypatch.setattr(
        store._maintenance, "_step", lambda upkeep, **how: seen.append(upkeep.handle.name) or step(upkeep, **how)
    )
    return seen


def settled(place, store):
    """Rounds until there is nothing to do."""
    while store._maintenance.round():
        pass
    place.clock.advance(REST_S)
    while store._maintenance.round():
        pass


def test_a_round_looks_at_what_was_written_to_however_many_collections_are_open(place, monkeypatch):
    store, other = place.open(), place.open()
    handles = {name: create(store, name) for name in "abc"}
    settled(place, store)
    seen = looks(store, monkeypatch)
    store._maintenance.round()
    assert seen == []
    fill(handles["b"], 1)
    settled(place, store)
    assert set(seen) == {"b"}
    # Whatever others did is found after a while.
    seen.clear()
    fill(other["c"], 2 * GATHER)
    place.clock.advance(IDLE_S)
    settled(place, store)
    assert set(seen) == {"c"}
    assert runs(handles["c"]) == 1


def test_what_is_committed_while_a_collection_is_looked_at_is_looked_at_again(place, monkeypatch):
    store = place.open()
    orders = create(store)
    settled(place, store)
    fill(place.open()["orders"], 1)
    place.clock.advance(IDLE_S)
    step, late = store._maintenance._step, []

    def meanwhile(upkeep, **how):
        did = step(upkeep, **how)
        if not late:
            late.append(orders.append([{"k": 1, "v": "late"}]))
        return did

    monkeypatch.setattr(store._maintenance, "_step", meanwhile)
    store._maintenance.round()
    seen = looks(store, monkeypatch)
    store._maintenance.round()
    assert seen == ["orders"]
