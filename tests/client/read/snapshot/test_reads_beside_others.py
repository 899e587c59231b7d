"""Reads while other threads and processes write, merge and expire."""

from __future__ import annotations

import datetime
import gc
import threading

import numpy as np
import pyarrow as pa
import pytest
from assertions import until
from memory_store import BLOBS, SMALL
from snapshot_cases import filled, forgetting, orders_of, row

from timespine.errors import CorruptionError, LeaseExpired, SinceError, UsageError
from timespine.model.time import INT64_MAX

# Others at work.


def test_a_snapshot_outlives_expiry_compaction_and_collection_by_another_process(place, store):
    orders = filled(store, commits=8, size=20)
    expected = {time: orders.snapshot(time).to_pylist() for time in (2, 5)}
    held = {time: orders.snapshot(time) for time in (2, 5)}
    for _ in range(3):
        forgetting(place, orders, 7)
        store._cache.clear()
        for time, snapshot in held.items():
            assert snapshot.to_pylist() == expected[time]
            assert snapshot.count() == len(expected[time])
            assert [each for piece in snapshot.split(3) for each in piece.to_pylist()] == expected[time]
    assert orders.since.elements[0][0] <= 2


def test_a_snapshot_that_is_dropped_lets_history_go(place, store):
    orders = filled(store, commits=8, size=20)
    snapshot = orders.snapshot(2)
    del snapshot
    gc.collect()
    assert orders.expire(before=7).since.elements == ((7,),)


def test_a_snapshot_whose_lease_is_gone_says_so_and_gives_no_other_rows(place, store):
    orders = filled(store, commits=8, size=20)
    expected = orders.snapshot(2).to_pylist()
    snapshot = orders.snapshot(2)
    place.clock.advance(3600)  # this process slept, and so did its heartbeat
    forgetting(place, orders, 7)
    assert place.open()["orders"].since.elements == ((7,),)
    assert snapshot.to_pylist() == expected, "what is still in the cache is right"
    store._cache.clear()
    for read in (
        snapshot.to_arrow,
        lambda: list(snapshot.batches()),
        lambda: snapshot.split(2),
        lambda: orders.snapshot(5),
    ):
        with pytest.raises((LeaseExpired, SinceError)):
            read()
    assert orders.snapshot(7).to_pylist() != expected


def test_a_blob_that_is_missing_under_a_live_lease_is_corruption(place, store):
    orders = filled(store, commits=4, size=20)
    snapshot = orders.snapshot()
    store._cache.clear()
    for key in place.blobs():
        place.blob.delete(key)
    for read in (snapshot.to_arrow, lambda: list(snapshot.batches()), lambda: snapshot.split(2)):
        with pytest.raises(CorruptionError, match="missing though a live lease holds it"):
            read()


def test_readers_and_an_eager_maintenance_do_not_disturb_each_other(place):
    store = place.open(config=SMALL)
    orders = orders_of(store)
    other = place.open(config=SMALL)
    stop = threading.Event()
    failures = []

    def maintaining():
        try:
            while not stop.is_set():
                other.maintain()
        except BaseException as error:
            failures.append(error)

    def reading():
        try:
            while not stop.is_set():
                table = orders.snapshot(columns=["id", "total"]).to_arrow()
                # One commit moves all rows from one total to the next.
                assert len(set(table.column("total").to_pylist())) <= 1
                assert len(set(table.column("id").to_pylist())) == table.num_rows
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (maintaining, reading, reading)]
    for thread in threads:
        thread.start()
    try:
        for total in range(12):
            orders.upsert([row(id, "x", float(total)) for id in range(12)])
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert failures == []
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert orders.count() == 12


# What others do meanwhile, and what only makes sense as a whole.


@pytest.mark.parametrize("read", ["snapshot", "changes", "count", "updates"])
def test_a_read_takes_the_newest_time_of_the_state_that_has_its_lease(place, read, monkeypatch):
    store = place.open(config=BLOBS)
    orders = filled(store, commits=3)
    leases = store._leases
    hold, times = leases.hold, []

    def late(state, as_of):
        if not times:
            place.clock.advance(60)
            store._heartbeat_thread.heartbeat_once()  # leases that linger are given back
            with place.open(config=BLOBS) as other:
                other["orders"].append([row(99)])
                other["orders"].expire(before=other["orders"].upper.elements[0][0])
        times.append(as_of)
        return hold(state, as_of)

    monkeypatch.setattr(leases, "hold", late)
    found = getattr(orders, read)()
    assert times == [(2,)], "it was forgotten before it was held, and one lease is enough"
    assert orders.since.elements == ((3,),)
    assert (found if read == "count" else found.count()) == orders.count(as_of=3)


def test_a_time_that_was_asked_for_and_is_forgotten_is_an_error_however_new_it_was(store):
    orders = filled(store, commits=5)
    orders.expire(before=4)
    for wrong in (lambda: orders.snapshot(2), lambda: orders.changes(after=2)):
        with pytest.raises(SinceError):
            wrong()


def same_without_total(store, rows=2000):
    """A collection of one run, in which rows look alike without a column."""
    items = store.create("items", key={"id": "int64"}, value={"group": "int64", "total": "double"}, timeline="counter")
    items.append([{"id": id, "group": id % 3, "total": 1.0} for id in range(rows)])
    items.upsert([{"id": id, "group": id % 3, "total": 2.0} for id in range(rows)])
    return items


def test_changes_of_some_columns_are_net_whatever_else_there_is(store):
    items = same_without_total(store, 300)
    for columns in (["id", "group"], ["group"]):
        assert items.changes(after=0, columns=columns).to_pylist() == []
        assert items.changes(after=0, columns=columns, images=True).to_pylist() == []
    items.append([{"id": -1, "group": 9, "total": 0.0}])
    assert items.changes(after=0, columns=["id", "group"]).to_pylist() == [{"id": -1, "group": 9, "_diff": 1}]
    items.compact(wait=True)
    assert items.changes(after=0, columns=["id", "group"]).to_pylist() == [{"id": -1, "group": 9, "_diff": 1}]


def test_distinct_rows_of_some_columns_are_distinct_before_and_after_compaction(store):
    items = store.create("items", key={"id": "int64"}, value={"total": "double"}, timeline="counter")
    items.append([{"id": id % 5, "total": float(id)} for id in range(100)])
    for _ in range(2):
        distinct = items.snapshot(columns=["id"], multiplicity="column").to_pylist()
        assert sorted((each["id"], each["_diff"]) for each in distinct) == [(id, 20) for id in range(5)]
        items.append([{"id": 1, "total": 100.0, "_diff": 1}, {"id": 1, "total": 101.0, "_diff": -1}])
        items.compact(wait=True)


def test_rows_of_some_columns_are_given_as_often_as_they_count_though_some_counts_are_below_zero(store):
    items = store.create("items", key={"id": "int64"}, value={"total": "double"}, timeline="counter")
    items.append([{"id": 1, "total": 1.0, "_diff": 3}, {"id": 1, "total": 2.0, "_diff": -1}])
    assert items.snapshot(columns=["id"]).to_pylist() == [{"id": 1}] * 2
    with pytest.raises(UsageError, match="negative count"):
        items.snapshot().to_pylist()


def test_what_is_only_right_as_a_whole_is_not_given_in_pieces(store):
    items = same_without_total(store)
    for rows in (
        items.changes(after=0, columns=["group"]),
        items.snapshot(columns=["group"], multiplicity="column"),
    ):
        for pieces in (lambda rows=rows: rows.split(3), lambda rows=rows: list(rows.batches())):
            with pytest.raises(UsageError, match="key columns"):
                pieces()
    assert sum(piece.to_arrow().num_rows for piece in items.snapshot(columns=["group"]).split(3)) == 2000
    clustered = store.create(
        "clustered", key={"id": "int64"}, value={"group": "int64"}, cluster=["group"], timeline="counter"
    )
    clustered.append([{"id": id, "group": id % 2} for id in range(100)])
    clustered.upsert([{"id": id, "group": 1 - id % 2} for id in range(100)])
    with pytest.raises(UsageError, match="clustered"):
        clustered.changes(after=0, images=True).split(2)
    assert len(clustered.changes(after=0, images=True).to_pylist()) == 200


def test_a_count_beyond_64_bits_is_exact_and_updates_are_counted_by_themselves(store):
    items = store.create("items", key={"id": "int64"}, timeline="counter")
    items.append([{"id": 1, "_diff": INT64_MAX}, {"id": 2, "_diff": INT64_MAX}])
    assert items.count() == 2 * INT64_MAX
    assert items.snapshot(where="id > 0").count() == 2 * INT64_MAX
    assert items.updates().count() == 2


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_large_table_after_an_upsert_has_the_same_rows_whole_and_as_a_stream(place, is_compacted):
    store = place.open()
    big = store.create("big", key={"id": "int64"}, value={"total": "int64"}, timeline="counter")
    big.append(pa.table({"id": np.arange(100_000), "total": np.zeros(100_000, np.int64)}))
    some = np.concatenate([np.arange(0, 100_000, 9), np.arange(100_000, 101_000)])
    big.upsert(pa.table({"id": some, "total": np.ones(len(some), np.int64)}))
    big.delete([{"id": id} for id in range(1, 1000, 9)])
    if is_compacted:
        big.compact(wait=True)
    streamed = pa.Table.from_batches(big.snapshot().batches())
    assert streamed.column("id").to_pylist() == sorted(streamed.column("id").to_pylist())
    whole = big.snapshot().to_arrow()
    assert whole.sort_by("id").combine_chunks() == streamed.combine_chunks()
    assert whole.num_rows == 101_000 - 111
    assert pa.compute.sum(whole["total"]).as_py() == len(some)


@pytest.mark.parametrize("wrong", ["x", 0, -1, 1.5])
def test_the_memory_of_a_stream_is_a_number_of_bytes(store, wrong):
    with pytest.raises(UsageError, match="bytes"):
        next(filled(store).snapshot().batches(memory_bytes=wrong))


def test_a_moment_of_the_wall_clock_is_none_of_a_counter(store):
    orders = filled(store)
    moment = datetime.datetime.now(datetime.UTC)
    for wrong in (
        lambda: orders.snapshot(moment),
        lambda: orders.changes(after=moment),
        lambda: orders.writer().builder(moment),
    ):
        with pytest.raises(UsageError, match="counter"):
            wrong()
