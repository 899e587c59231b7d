"""The rows of a snapshot: forms, multiplicity, columns and conditions, streams and pieces."""

from __future__ import annotations

import datetime
import gc
from collections import Counter

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import SMALL, counted
from snapshot_cases import filled, forgetting, orders_of, row

import timespine as ts
from timespine.client.read import rows as rows_module
from timespine.client.read.rows import BATCH_ROWS, repeat_by_diff
from timespine.config import Config
from timespine.errors import UsageError
from timespine.model.time import INT64_MAX

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
