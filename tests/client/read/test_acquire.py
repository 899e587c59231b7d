"""Rows as a user reads them: whole or as a stream, in every form, and never others than there were."""

from __future__ import annotations

import datetime
import gc
import threading
from collections import Counter

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from assertions import check, until
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import SMALL, Script, counted

import timespine as ts
from timespine.client.read import rows as rows_module
from timespine.client.read.rows import BATCH_ROWS, repeat_by_diff
from timespine.config import Config
from timespine.errors import CorruptionError, LeaseExpired, NotSealed, SinceError, UsageError
from timespine.model.time import INT64_MAX


@pytest.fixture
def store(place):
    return place.open(config=SMALL)


def orders_of(store, **options):
    options = {"timeline": "counter", **options}
    return store.create("orders", key={"id": "int64"}, value={"name": "string", "total": "double"}, **options)


def row(id, name="x", total=1.0):
    return {"id": id, "name": name, "total": total}


def filled(store, commits=5, size=6):
    """A collection of some commits, each of which updates some rows and adds others."""
    orders = orders_of(store)
    for time in range(commits):
        orders.upsert([row(id, f"v{time}", float(time)) for id in range(time * 2, time * 2 + size)])
    return orders


# Times.


def test_a_snapshot_is_that_of_its_time(store):
    orders = orders_of(store)
    for time in range(3):
        orders.append([row(time)])
    assert [len(orders.snapshot(as_of=time).to_pylist()) for time in range(3)] == [1, 2, 3]
    assert orders.snapshot().to_pylist() == orders.snapshot(as_of=2).to_pylist()
    snapshot = orders.snapshot(as_of=1)
    assert (snapshot.as_of, snapshot.since.elements, snapshot.upper.elements) == (1, ((0,),), ((3,),))
    assert snapshot.seqno is not None
    assert repr(snapshot) == f"<snapshot of orders as of 1, state {snapshot.seqno}>"


def test_a_snapshot_may_be_as_of_a_datetime(place, store):
    orders = orders_of(store, timeline="clock")
    first = orders.append([row(1)])
    place.clock.advance(60)
    orders.append([row(2)])
    begun = datetime.datetime.fromtimestamp(first.time / 1000, datetime.UTC)
    assert [each["id"] for each in orders.snapshot(begun).to_pylist()] == [1]
    assert [each["id"] for each in orders.snapshot(begun + datetime.timedelta(seconds=60)).to_pylist()] == [1, 2]
    assert orders.snapshot(np.int64(first.time)).as_of == first.time
    with pytest.raises(UsageError, match="zone"):
        orders.snapshot(begun.replace(tzinfo=None))
    with pytest.raises(UsageError, match="not a time"):
        orders.snapshot("yesterday")


def test_with_two_coordinates_the_time_is_a_tuple(store):
    pairs = store.create("pairs", key={"id": "int64"}, time_coordinates=2)
    rows = [{"id": 10 * a + b, "_time_0": a, "_time_1": b, "_diff": 1} for a in range(3) for b in range(3)]
    pairs.append(rows, upper=(3, 0))
    assert [each["id"] for each in pairs.snapshot((1, 1)).to_pylist()] == [0, 1, 10, 11]
    assert [each["id"] for each in pairs.changes((0, 1), (1, 1)).to_pylist()] == [10, 11]
    assert pairs.snapshot((2, 0)).as_of == (2, 0)
    assert pairs.count((2, 2)) == 9
    assert pairs.updates(until=(0, 2)).to_arrow().num_rows == 3
    for read in (pairs.snapshot, pairs.changes, pairs.updates, pairs.count):
        with pytest.raises(UsageError, match="no newest time"):
            read()
    with pytest.raises(UsageError, match="totally ordered"):
        pairs.subscribe()
    with pytest.raises(UsageError, match="coordinates"):
        pairs.snapshot(1)
    with pytest.raises(NotSealed):
        pairs.snapshot((3, 1), timeout=0)


def test_an_empty_collection_has_no_rows_in_any_form(store):
    orders = orders_of(store)
    snapshot = orders.snapshot()
    assert (snapshot.as_of, snapshot.seqno, snapshot.since, snapshot.upper) == (None, None, None, None)
    assert snapshot.to_pylist() == []
    assert snapshot.count() == orders.count() == 0
    assert list(snapshot.batches()) == []
    assert snapshot.split(4) == [snapshot]
    assert snapshot.to_reader().read_all().num_rows == 0
    assert snapshot.schema.names == ["id", "name", "total"]
    assert orders.changes().to_pylist() == orders.updates().to_pylist() == []
    assert orders.changes().schema.names == ["id", "name", "total", "_diff"]
    assert orders.updates().schema.names == ["id", "name", "total", "_time", "_diff"]
    assert orders.lookup({"id": 1}).to_pylist() == []
    with pytest.raises(NotSealed):
        orders.snapshot(as_of=0, timeout=0)
    snapshot.close()


def test_a_closed_collection_is_read_at_its_end(store):
    orders = filled(store)
    expected = orders.snapshot().to_pylist()
    orders.finish()
    assert orders.snapshot().to_pylist() == expected
    assert orders.snapshot().as_of == INT64_MAX
    assert orders.snapshot(as_of=10**9).to_pylist() == expected
    assert orders.count() == len(expected)


def test_history_before_since_is_an_error_that_says_since(store):
    orders = filled(store)
    orders.expire(before=3)
    for read in (
        lambda: orders.snapshot(as_of=2),
        lambda: orders.changes(after=2),
        lambda: orders.count(2),
        lambda: orders.lookup({"id": 1}, as_of=2),
        lambda: orders.updates(until=2),
    ):
        with pytest.raises(SinceError) as caught:
            read()
        assert caught.value.asked == 2
        assert caught.value.since.elements == ((3,),)
    assert orders.snapshot(as_of=3).to_pylist()
    store._leases.heartbeat()
    assert store._leases._leases == {} or all(
        not lease.users for leases in store._leases._leases.values() for lease in leases
    ), "a read that fails counts itself out"


# Waiting.


def test_a_read_waits_for_a_commit_of_its_own_process(store):
    orders = orders_of(store)
    orders.append([row(1)])
    found = []
    reader = threading.Thread(target=lambda: found.extend(orders.snapshot(as_of=1, timeout=60).to_pylist()))
    reader.start()
    orders.append([row(2)])
    reader.join(60)
    assert [each["id"] for each in found] == [1, 2]


def test_a_read_waits_for_a_commit_of_another_process(place, store):
    orders = orders_of(store)
    orders.append([row(1)])
    found = []
    reader = threading.Thread(target=lambda: found.extend(orders.snapshot(as_of=1, timeout=60).to_pylist()))
    reader.start()
    place.open()["orders"].append([row(2)])
    reader.join(60)
    assert [each["id"] for each in found] == [1, 2]


def test_a_commit_between_the_look_and_the_wait_is_not_missed(store):
    orders = orders_of(store)
    context = store._context
    waits = []

    class Deaf(type(context.committed)):
        def wait(self, heard, timeout):
            waits.append(timeout)
            return super().wait(heard, 0)

    context.committed = Deaf()
    looks = []

    def is_there(state):
        looks.append(state.seqno)
        if len(looks) == 1:
            orders.append([row(1)])  # after the state was read, before anybody waits
            return False
        return not state.upper.less_equal((0,))

    assert orders._handle.wait(is_there, 60) is not None
    assert waits == [], "it looked again at once"


def test_no_commit_waits_for_a_reader_that_looks_at_the_log(store):
    orders = orders_of(store)
    looking, go_on = threading.Event(), threading.Event()

    def slow(state):
        looking.set()
        assert go_on.wait(60)
        return True

    reader = threading.Thread(target=lambda: orders._handle.wait(slow, 60))
    reader.start()
    assert looking.wait(60)
    orders.append([row(1)])
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()


def test_a_read_that_waited_in_vain_says_how_far_the_collection_is_now(place, store):
    orders = orders_of(store)
    orders.append([row(1)])
    other = place.open()["orders"]
    context = store._context
    context.monotonic = iter([0.0, *([1.0] * 3), 100.0]).__next__
    looks = []

    class Busy(type(context.committed)):
        def wait(self, heard, timeout):
            looks.append(other.append([row(len(looks) + 2)]))
            return True

    context.committed = Busy()
    with pytest.raises(NotSealed) as caught:
        orders.snapshot(as_of=9, timeout=50)
    assert (caught.value.asked, caught.value.upper.elements) == (9, ((4,),))
    assert len(looks) == 3


@pytest.mark.parametrize("timeout", ["5", True, float("nan"), object()])
def test_a_timeout_is_a_number_of_seconds(store, timeout):
    orders = orders_of(store)
    orders.append([row(1)])
    for read in (lambda: orders.snapshot(as_of=7, timeout=timeout), lambda: orders.subscribe(timeout=timeout)):
        with pytest.raises(UsageError, match="number of seconds"):
            read()
    leases = [lease for leases in store._leases._leases.values() for lease in leases]
    assert all(not lease.users for lease in leases)


def test_without_a_timeout_a_read_waits_until_it_is_there(store):
    orders = orders_of(store)
    found = []
    reader = threading.Thread(target=lambda: found.append(orders.snapshot(as_of=0, timeout=None).count()))
    reader.start()
    orders.append([row(1)])
    reader.join(60)
    assert found == [1]


# Forms.


def test_every_form_gives_the_same_rows(store):
    orders = filled(store)
    snapshot = orders.snapshot()
    rows = snapshot.to_pylist()
    table = snapshot.to_arrow()
    assert table.to_pylist() == rows
    assert snapshot.to_polars().to_dicts() == rows
    assert snapshot.to_pandas().to_dict("records") == rows
    assert pa.Table.from_batches(snapshot.batches(), snapshot.schema).to_pylist() == rows
    assert snapshot.to_reader().read_all().to_pylist() == rows
    assert pl.DataFrame(snapshot).to_dicts() == rows
    assert pa.table(snapshot).to_pylist() == rows
    reader = snapshot.to_reader()  # noqa: F841  (DuckDB finds it by its name)
    assert duckdb.sql("SELECT count(*), sum(total) FROM reader").fetchall() == [
        (len(rows), sum(each["total"] for each in rows))
    ]
    assert snapshot.count() == len(rows)
    assert [each for piece in snapshot.split(3) for each in piece.to_pylist()] == rows


def test_reading_twice_gives_the_same(store):
    orders = filled(store)
    snapshot = orders.snapshot(as_of=3)
    first = snapshot.to_arrow()
    orders.delete(where="id >= 0")
    orders.compact(wait=True)
    assert snapshot.to_arrow() == first
    assert pa.Table.from_batches(snapshot.batches()) == first
    assert orders.snapshot(as_of=3).to_arrow() == first


@pytest.mark.parametrize("multiplicity", ["rows", "column"])
@pytest.mark.parametrize("columns", [None, ["total"], ["name", "id"]])
def test_the_schema_is_that_of_the_rows(store, multiplicity, columns):
    orders = filled(store)
    for read in (
        orders.snapshot(columns=columns, multiplicity=multiplicity),
        orders.changes(columns=columns),
        orders.updates(columns=columns),
    ):
        table = read.to_arrow()
        assert read.schema.equals(table.schema, check_metadata=True)
        assert table.num_rows
        if columns is not None:
            assert table.column_names[: len(columns)] == columns


def test_rows_of_every_type_come_back_as_they_were(store):
    import decimal

    types = {
        "b": pa.bool_(),
        "i": pa.int8(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.decimal128(20, 3),
        "s": pa.string(),
        "y": pa.binary(),
        "t": pa.timestamp("us", "Europe/Berlin"),
        "w": pa.date32(),
        "l": pa.list_(pa.int64()),
        "r": pa.struct([("a", pa.string()), ("c", pa.list_(pa.float64()))]),
    }
    values = {
        "b": [True, None, False],
        "i": [-128, 127, None],
        "u": [(1 << 64) - 1, 0, None],
        "f": [float("inf"), None, -1.5],
        "d": [decimal.Decimal("-1.001"), None, decimal.Decimal("9" * 17 + ".123")],
        "s": ["", None, "\U0001f600"],
        "y": [b"\x00", b"", None],
        "t": [datetime.datetime(2024, 10, 27, 2, 30, tzinfo=datetime.UTC), None, None],
        "w": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
        "l": [[1, None], [], None],
        "r": [{"a": None, "c": [1.0]}, None, {"a": "x", "c": None}],
    }
    everything = store.create("everything", key={"k": "int64"}, value=types, timeline="counter")
    table = pa.table({"k": pa.array([1, 2, 3]), **{name: pa.array(values[name], types[name]) for name in types}})
    for time in range(2):
        everything.append(table.slice(time, 2) if time else table.slice(0, 1))
    assert everything.snapshot().to_arrow().cast(table.schema) == table
    everything.compact(wait=True)
    assert everything.snapshot().to_arrow().cast(table.schema) == table
    assert pa.table(everything.snapshot()).cast(table.schema) == table


# Multiplicity.


def test_a_row_is_given_as_often_as_it_counts(store):
    tags = store.create("tags", value={"tag": "string"}, timeline="counter")
    tags.append([{"tag": "a", "_time": 0, "_diff": 3}, {"tag": "b", "_time": 0, "_diff": 1}])
    tags.append([{"tag": "a", "_time": 1, "_diff": -1}])
    assert [each["tag"] for each in tags.snapshot(0).to_pylist()] == ["a", "a", "a", "b"]
    assert [each["tag"] for each in tags.snapshot().to_pylist()] == ["a", "a", "b"]
    assert tags.snapshot(multiplicity="column").to_pylist() == [{"tag": "a", "_diff": 2}, {"tag": "b", "_diff": 1}]
    assert tags.count() == 3
    with pytest.raises(UsageError, match="'rows' or 'column'"):
        tags.snapshot(multiplicity="both")


def test_rows_below_zero_are_an_error_unless_they_are_asked_for_with_their_counts(store):
    tags = store.create("tags", value={"tag": "string"}, timeline="counter")
    tags.append([{"tag": "a", "_time": 0, "_diff": -1}, {"tag": "b", "_time": 0, "_diff": 2}])
    for read in (
        tags.snapshot().to_arrow,
        tags.snapshot().to_polars,
        lambda: list(tags.snapshot().batches()),
        lambda: tags.snapshot().to_reader().read_all(),
    ):
        with pytest.raises((UsageError, pa.ArrowException), match="multiplicity"):
            read()
    assert tags.snapshot(where="tag = 'b'").count() == 2
    assert tags.snapshot(where="tag = 'b'").to_arrow().num_rows == 2
    assert counted(tags.snapshot(multiplicity="column").to_pylist(), "tag") == {("a",): -1, ("b",): 2}


def test_distinct_rows_of_some_columns_are_distinct(store):
    orders = orders_of(store)
    orders.append([row(id, f"n{id % 2}", float(id % 3)) for id in range(12)])
    orders.append([row(id, f"n{id % 2}", float(id % 3)) for id in range(12, 20)])
    given_rows = orders.snapshot(columns=["name"], multiplicity="column").to_pylist()
    assert given_rows == [{"name": "n0", "_diff": 10}, {"name": "n1", "_diff": 10}]
    assert Counter(each["name"] for each in orders.snapshot(columns=["name"]).to_pylist()) == {"n0": 10, "n1": 10}
    with pytest.raises(UsageError, match="read it whole"):
        next(orders.snapshot(columns=["name"], multiplicity="column").batches())


def test_rows_that_cancel_in_some_columns_are_not_among_them(store):
    orders = orders_of(store)
    orders.append([row(1, "a")])
    orders.append([{**row(2, "a"), "_time": 1, "_diff": -1}])
    assert orders.snapshot(columns=["name"], multiplicity="column").to_pylist() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_rows_are_repeated_in_pieces_of_bounded_size(counts, size):
    table = pa.table({"a": list(range(len(counts))), "_diff": pa.array(counts, pa.int64())})
    before, rows_module.BATCH_ROWS = rows_module.BATCH_ROWS, size
    try:
        pieces = list(repeat_by_diff(table, "_diff"))
    finally:
        rows_module.BATCH_ROWS = before
    flat = [value for piece in pieces for value in piece.column("a").to_pylist()]
    assert flat == [place for place, count in enumerate(counts) for _ in range(count)]
    if any(count != 1 for count in counts):
        assert all(piece.num_rows <= size for piece in pieces)


def test_a_row_that_counts_a_billion_times_streams_in_bounded_memory(store):
    tags = store.create("tags", value={"tag": "string"}, timeline="counter")
    tags.append([{"tag": "a", "_time": 0, "_diff": 1 << 40}])
    assert tags.count() == 1 << 40
    stream = tags.snapshot().batches()
    assert [next(stream).num_rows for _ in range(3)] == [BATCH_ROWS] * 3
    with pytest.raises(UsageError, match="piece by piece"):
        tags.snapshot().to_arrow()
    tags.append([{"tag": f"b{n}", "_time": 1, "_diff": INT64_MAX} for n in range(2)])
    with pytest.raises(UsageError, match="too often"):
        next(tags.snapshot(where="tag <> 'a'").batches())


# Columns and conditions.


@pytest.mark.parametrize("columns", ["id", [], ["id", "id"], ["nope"], [1], [["id"]], 5, b"id"])
def test_columns_are_a_list_of_names_each_once(store, columns):
    orders = filled(store)
    for read in (orders.snapshot, orders.changes, orders.updates, orders.subscribe):
        with pytest.raises(UsageError):
            read(columns=columns)
    with pytest.raises(UsageError):
        orders.lookup({"id": 1}, columns=columns)


def test_columns_come_in_the_order_asked_for(store):
    orders = orders_of(store)
    orders.append([row(1, "a", 2.5)])
    assert list(orders.snapshot(columns=("total", "id")).to_pylist()[0].items()) == [("total", 2.5), ("id", 1)]
    assert orders.snapshot(columns=iter(["name"])).to_pylist() == [{"name": "a"}]
    assert orders.lookup({"id": 1}, columns=["name"]).to_pylist() == [{"name": "a"}]


@pytest.mark.parametrize(
    "where",
    [
        "total >= 3 AND name LIKE 'v%'",
        (ts.col("total") >= 3) & ts.col("name").starts_with("v"),
        (pl.col("total") >= 3) & pl.col("name").str.starts_with("v"),
        ts.col("total").is_in([3.0, 4.0]),
        "NOT (total < 3)",
    ],
    ids=["text", "built", "polars", "list", "negated"],
)
def test_a_condition_may_be_given_in_every_form(store, where):
    orders = filled(store)
    expected = [each for each in orders.snapshot().to_pylist() if each["total"] >= 3]
    assert orders.snapshot(where=where).to_pylist() == expected
    assert orders.snapshot(where=where, columns=["id"]).to_pylist() == [{"id": each["id"]} for each in expected]
    assert orders.count(where=where) == len(expected)
    assert [each for piece in orders.snapshot(where=where).split(3) for each in piece.to_pylist()] == expected


@pytest.mark.parametrize("where", ["nope = 1", "total >", 5, "id = 'x'", pl.col("total").sum() > 3, "_time = 1"])
def test_a_condition_that_makes_no_sense_is_an_error_at_once(store, where):
    orders = filled(store)
    for read in (orders.snapshot, orders.changes, orders.updates, orders.subscribe, orders.count):
        with pytest.raises(UsageError):
            read(where=where)


def test_a_condition_reads_what_it_needs_and_skips_the_rest(place):
    store = place.open(config=Config(row_group_rows=10, part_bytes=2000, inline_part_bytes=1))
    orders = orders_of(store)
    orders.append([row(id, f"n{id}", float(id)) for id in range(500)])
    snapshot = orders.snapshot(where="id BETWEEN 200 AND 203")
    assert [each["id"] for each in snapshot.to_pylist()] == [200, 201, 202, 203]
    assert snapshot._tally.groups <= 2
    assert snapshot._tally.parts <= 2
    assert snapshot._tally.parts_skipped > 3


def test_a_count_of_everything_costs_no_reading(place):
    store = place.open(config=Config(row_group_rows=10, part_bytes=2000, inline_part_bytes=1))
    orders = orders_of(store)
    for time in range(3):
        orders.append([row(time * 100 + n) for n in range(100)])
    for as_of, expected in ((0, 100), (1, 200), (2, 300)):
        snapshot = orders.snapshot(as_of)
        assert snapshot.count() == expected
        assert (snapshot._tally.parts, snapshot._tally.bytes) == (0, 0)


# Streams.


def test_a_stream_comes_in_batches_in_the_order_of_rows(place):
    store = place.open(config=Config(row_group_rows=50, part_bytes=4000, inline_part_bytes=1))
    orders = orders_of(store)
    for time in range(4):
        orders.append([row(4 * n + time, "x" * 20) for n in range(500)])
    whole = orders.snapshot().to_arrow()
    for memory in (1, 20_000, None):
        batches = list(orders.snapshot().batches(memory))
        assert pa.Table.from_batches(batches) == whole.combine_chunks() or pa.Table.from_batches(batches) == whole
        ids = [id for batch in batches for id in batch.column("id").to_pylist()]
        assert ids == list(range(2000))
    small = [batch.num_rows for batch in orders.snapshot().batches(20_000)]
    assert len(small) > 4, "a little at a time"


def test_a_stream_that_is_left_in_the_middle_leaves_nothing_hanging(store):
    orders = filled(store, commits=8, size=20)
    stream = orders.snapshot().batches(200)
    next(stream)
    del stream
    gc.collect()
    assert orders.snapshot().count() > 0
    store.close()


# Pieces.


@pytest.mark.parametrize("n", range(1, 9))
def test_pieces_have_each_row_once(place, n):
    store = place.open(config=SMALL)
    orders = filled(store, commits=6, size=30)
    whole = orders.snapshot(multiplicity="column")
    pieces = whole.split(n)
    assert len(pieces) <= n
    assert [each for piece in pieces for each in piece.to_pylist()] == whole.to_pylist()
    assert sum(piece.count() for piece in pieces) == whole.count()
    again = [smaller for piece in pieces for smaller in piece.split(2)]
    assert [each for piece in again for each in piece.to_pylist()] == whole.to_pylist()
    assert isinstance(pieces[0], type(whole))
    assert pieces[-1].as_of == whole.as_of


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_pieces_are_counted_in_whole_numbers(store, n):
    orders = filled(store)
    with pytest.raises(UsageError, match="1 or more pieces"):
        orders.snapshot().split(n)


def test_a_piece_holds_history_by_itself(place, store):
    orders = filled(store, commits=4, size=20)
    expected = orders.snapshot(1).to_pylist()
    with orders.snapshot(1) as whole:
        pieces = whole.split(3)
    assert len(pieces) > 1
    pieces[0].close()
    del whole
    gc.collect()
    forgetting(place, orders, 3)
    assert orders.since.elements[0][0] <= 1, "what is left of it still holds history"
    assert [each for piece in pieces[1:] for each in piece.to_pylist()] == expected[len(pieces[0].to_pylist()) :]
    del pieces
    gc.collect()
    orders.expire(before=3)
    assert orders.since.elements == ((3,),)


# Others at work.


def forgetting(place, orders, before):
    """Another process expires, merges, and deletes whatever it may."""
    other = place.open(config=SMALL)
    theirs = other["orders"]
    theirs.expire(before=before)
    theirs.compact(wait=True)
    other.maintain(sweep=True)
    theirs.append([row(10_000)])
    other.maintain(sweep=True)
    other.close()


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


# Times that were expired ahead of the seal.


READS = {
    "snapshot": lambda orders, timeout: orders.snapshot(timeout=timeout).to_pylist(),
    "contents": lambda orders, timeout: orders.contents(timeout=timeout).sealed.to_pylist(),
    "count": lambda orders, timeout: orders.count(timeout=timeout),
    "lookup": lambda orders, timeout: orders.lookup({"id": 1}, timeout=timeout),
    "changes": lambda orders, timeout: orders.changes(timeout=timeout).to_pylist(),
    "updates": lambda orders, timeout: orders.updates(timeout=timeout).to_pylist(),
}


class Limited(Script):
    """Storage that is called so often and not more: a read that spins fails instead of going on for ever."""

    def __call__(self, operation, key):
        check(self.calls.total() < 500, "the read calls storage again and again")
        return super().__call__(operation, key)


def passing(place, collection, monkeypatch):
    """Let time pass while a collection waits, and only then; how often it has waited."""
    waits = []

    def wait(heard, seconds):
        waits.append(seconds)
        place.clock.advance(seconds)

    monkeypatch.setattr(collection._handle.context.committed, "wait", wait)
    return waits


@pytest.fixture
def expired_ahead(place):
    """A collection that is sealed up to 3 and expired up to 5, and what counts its compare-and-sets."""
    script = Limited()
    store = place.open(script=script)
    orders = filled(store, commits=3)
    orders.expire(before=5, ahead=True)
    return orders, script.calls


@pytest.mark.parametrize("read", READS)
def test_a_read_after_expire_ahead_waits_for_its_timeout_and_writes_no_more_than_a_lease(
    place, expired_ahead, read, monkeypatch
):
    orders, calls = expired_ahead
    waits = passing(place, orders, monkeypatch)
    before = calls["compare_and_set"]
    for timeout in (0, 3.0, 0):
        with pytest.raises(NotSealed, match="nothing can be read before 5 is complete") as caught:
            READS[read](orders, timeout)
        assert (caught.value.asked, caught.value.upper.elements) == (5, ((3,),))
    assert calls["compare_and_set"] - before <= 1, "the lease is shared by all of these reads"
    assert sum(waits) == pytest.approx(3.0)
    assert len(waits) > 10, "it looked many times"


@pytest.mark.parametrize("read", READS)
def test_a_read_only_read_after_expire_ahead_waits_for_its_timeout_and_writes_nothing(
    place, expired_ahead, read, monkeypatch
):
    script = Limited()
    orders = place.open(script=script, read_only=True)["orders"]
    waits = passing(place, orders, monkeypatch)
    with pytest.raises(NotSealed, match="nothing can be read before 5 is complete"):
        READS[read](orders, 3.0)
    assert sum(waits) == pytest.approx(3.0)
    assert script.calls["compare_and_set"] == 0


@pytest.mark.parametrize("read", READS)
def test_a_read_that_waits_after_expire_ahead_answers_when_the_time_is_sealed(place, expired_ahead, read):
    orders, _ = expired_ahead
    found = []
    reader = threading.Thread(target=lambda: found.append(READS[read](orders, None)))
    reader.start()
    until(lambda: orders._handle.state().readers)
    place.open()["orders"].seal(5)
    assert reader.is_alive(), "time 4 is complete and expired"
    orders.append([row(1, "new")], at=6)
    reader.join(60)
    assert not reader.is_alive()
    assert found == [READS[read](orders, 0)]


def test_a_feed_begins_once_a_time_after_the_expired_ones_is_complete(expired_ahead):
    orders, calls = expired_ahead
    with orders.subscribe(timeout=0) as idle, pytest.raises(NotSealed, match="before 5 is complete"):
        next(idle)
    with orders.subscribe(timeout=60) as closed:
        closed.close()
        assert list(closed) == []
    feed = orders.subscribe(timeout=60)
    before = calls["compare_and_set"]
    assert feed.poll() == []
    assert calls["compare_and_set"] == before
    orders.append([row(50)], at=6)
    first = next(feed)
    assert (first.kind, first.through) == ("snapshot", 6)
    assert first.rows.num_rows == orders.count()
    orders.append([row(51)], at=7)
    assert [(event.kind, event.through) for event in feed.poll()] == [("changes", 7), ("progress", 7)]
    feed.close()
    with pytest.raises(SinceError):
        orders.subscribe(as_of=2)


def test_a_feed_without_a_snapshot_begins_after_the_expired_times_too(expired_ahead):
    orders, _ = expired_ahead
    with orders.subscribe(snapshot=False, timeout=60) as feed:
        orders.append([row(50)], at=6)
        assert feed.poll() == []
        orders.append([row(51)], at=7)
        assert [(event.kind, event.through) for event in feed.poll()] == [("changes", 7), ("progress", 7)]


def test_a_feed_of_an_empty_collection_begins_after_what_was_expired_ahead(store):
    orders = orders_of(store)
    orders.expire(before=5, ahead=True)
    with orders.subscribe() as feed:
        orders.append([row(1)], at=2)
        assert feed.poll() == []
        orders.append([row(2)], at=5)
        (event,) = feed.poll()
        assert (event.kind, event.through, event.rows.num_rows) == ("snapshot", 5, 2)


# What others do meanwhile, and what only makes sense as a whole.


@pytest.mark.parametrize("read", ["snapshot", "changes", "count", "updates"])
def test_a_read_takes_the_newest_time_of_the_state_that_has_its_lease(place, store, read, monkeypatch):
    orders = filled(store, commits=3)
    leases = store._leases
    hold, times = leases.hold, []

    def late(state, as_of):
        if not times:
            place.clock.advance(60)
            store._heartbeat_thread.heartbeat_once()  # leases that linger are given back
            with place.open(config=SMALL) as other:
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
