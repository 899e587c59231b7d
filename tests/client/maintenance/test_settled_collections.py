"""An idle store looks at the heads of its logs, all at once, and at nothing else until something is due."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from broken_objects import BrokenObjects

from timespine.client.maintenance.maintenance import EXPIRE_S, REST_S, SWEEP_S
from timespine.client.store import Store
from timespine.config import REMOTE
from timespine.errors import Determinate
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.memory import MemoryBlob, MemoryConsensus


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class CountedLogs(MemoryConsensus):
    """Logs in memory that count calls, and give all heads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.fails = False

    def scan(self, key, from_seqno=0, limit=None):
        self.calls["scan"] += 1
        return super().scan(key, from_seqno, limit)

    def heads(self, keys):
        self.calls["heads"] += 1
        if self.fails:
            raise Determinate("away")
        newest = {key: self.head(key) for key in keys}
        return {key: None if entry is None else entry.seqno for key, entry in newest.items()}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logs() -> CountedLogs:
    return CountedLogs()


@pytest.fixture(autouse=True)
def closed_at_the_end(monkeypatch):
    """Close all stores: a thread of an open one would run beside later tests."""
    stores: list[Store] = []
    real = Store.__init__

    def made(store, *arguments, **options):
        real(store, *arguments, **options)
        stores.append(store)

    monkeypatch.setattr(Store, "__init__", made)
    yield
    for store in stores:
        store.close()


def opened(logs, clock: Clock, blob: MemoryBlob | None = None, **options) -> Store:
    options = {"config": REMOTE, **options}
    return Store(blob or MemoryBlob(), logs, maintenance=False, clock=clock, monotonic=clock, **options)


def idle(store: Store, clock: Clock, seconds: float) -> None:
    """Let maintenance run while no process writes, as its thread does."""
    end = clock.now + seconds
    while clock.now < end:
        while store._maintenance.round():
            pass
        clock.now += REST_S


def filled(store: Store, collections: int) -> None:
    for number in range(collections):
        store.create(f"c{number}", key={"k": "int64"}, timeline="counter").append([{"k": 1}])


def runs(store: Store, name: str) -> int:
    return sum(len(batch.runs) for batch in store[name]._handle.state().hollow_batches())


def test_an_idle_store_costs_the_same_with_few_and_with_many_collections(clock: Clock) -> None:
    calls = []
    for collections in (2, 20):
        logs = CountedLogs()
        with opened(logs, clock) as store:
            filled(store, collections)
            idle(store, clock, 5 * EXPIRE_S)
            logs.calls.clear()
            idle(store, clock, 10 * EXPIRE_S)
            calls.append(dict(logs.calls))
    assert calls[0] == calls[1]
    assert calls[1]["heads"] <= 30
    assert calls[1]["scan"] <= 10  # of the catalog


def test_collections_that_are_not_open_cost_no_look_either(clock: Clock, logs: CountedLogs) -> None:
    blob = MemoryBlob()
    filled(opened(logs, clock, blob), 12)
    with opened(logs, clock, blob) as store:
        idle(store, clock, 5 * EXPIRE_S)
        logs.calls.clear()
        idle(store, clock, 10 * EXPIRE_S)
    assert logs.calls["scan"] <= 10


def test_an_idle_hour_on_a_bucket_is_a_few_hundred_requests(clock: Clock) -> None:
    objects = BrokenObjects()
    with opened(BucketConsensus(objects), clock) as store:
        filled(store, 10)
        idle(store, clock, 5 * EXPIRE_S)
        objects.calls.clear()
        idle(store, clock, 3600.0 - SWEEP_S / 2)
        requests = objects.calls["get in one go"] + objects.calls["get"]
        assert objects.calls["put"] == 0
        assert requests <= 2 * 30 * 4  # in half an hour: heads twice, heads of others and the catalog once a minute


def test_what_another_process_commits_is_looked_at(clock: Clock, logs: CountedLogs) -> None:
    blob = MemoryBlob()
    store, other = opened(logs, clock, blob), opened(logs, clock, blob)
    filled(store, 2)
    idle(store, clock, 5 * EXPIRE_S)
    for number in range(40):
        other["c1"].append([{"k": number}])
    assert runs(store, "c1") > 8
    idle(store, clock, 2 * EXPIRE_S)
    assert runs(store, "c1") <= 2


def test_leases_that_lapse_are_expired_though_nothing_is_committed(clock: Clock, logs: CountedLogs) -> None:
    blob, config = MemoryBlob(), replace(REMOTE, inline_part_bytes=1)  # rows in the state need no lease
    gone, store = opened(logs, clock, blob, config=config), opened(logs, clock, blob, config=config)
    filled(store, 1)
    reading = gone["c0"].snapshot()
    idle(store, clock, 5 * EXPIRE_S)
    assert store["c0"]._handle.state().readers
    idle(store, clock, REMOTE.reader_lease_ms / 1000 + EXPIRE_S)
    assert not store["c0"]._handle.state().readers
    reading.close()


def test_retention_moves_though_nothing_is_committed(clock: Clock, logs: CountedLogs) -> None:
    with opened(logs, clock) as store:
        orders = store.create("orders", key={"k": "int64"}, retain="1 hour")
        orders.append([{"k": 1}])
        clock.now += 60
        orders.append([{"k": 2}])
        idle(store, clock, 5 * EXPIRE_S)
        before = orders.since
        idle(store, clock, 3600 + 2 * EXPIRE_S)
        assert orders.since != before


def test_heads_that_cannot_be_read_leave_the_looks_as_they_were(clock: Clock, logs: CountedLogs) -> None:
    with opened(logs, clock) as store:
        filled(store, 3)
        idle(store, clock, 5 * EXPIRE_S)
        logs.fails = True
        logs.calls.clear()
        idle(store, clock, EXPIRE_S)
        assert logs.calls["scan"] > 3
