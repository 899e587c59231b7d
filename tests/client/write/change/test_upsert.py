"""Upsert: the right retractions, by key."""

import datetime
import decimal
import math
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from change_cases import BOTH, GROUPS, append, create, now, row, unchanged
from memory_store import QUICK, counted

from timespine.errors import UsageError
from timespine.model.frontier import Frontier


@BOTH
def test_upsert_takes_the_place_of_rows_with_the_same_key_and_adds_the_others(place, config):
    orders = create(place.open(config=config))
    orders.append([row(1, "old"), row(2, "kept")])
    done = orders.upsert([row(1, "new"), row(3, "added")])
    assert (done.time, done.upper, done.rows) == (1, Frontier.at(2), 3)
    assert now(orders) == {(1, "new", 0): 1, (2, "kept", 0): 1, (3, "added", 0): 1}
    assert counted(orders.changes(after=0).to_pylist(), "k", "v") == {(1, "old"): -1, (1, "new"): 1, (3, "added"): 1}
    assert orders.history()[-1].operation == "upsert"


@BOTH
def test_an_upsert_into_nothing_inserts(place, config):
    orders = create(place.open(config=config))
    assert orders.upsert([row(1), row(2)]).time == 0
    assert now(orders) == {(1, "a", 0): 1, (2, "a", 0): 1}


def test_columns_that_an_upsert_does_not_name_get_their_default(place):
    orders = create(place.open())
    orders.append([row(1, "a", 7)])
    orders.upsert([{"k": 1, "v": "b"}])
    assert now(orders) == {(1, "b", None): 1}


@BOTH
def test_changes_that_change_nothing_write_nothing(place, config):
    orders = create(place.open(config=config))
    orders.append([row(1, "a"), row(2, "b"), row(3, None, None)])
    before, blobs = unchanged(orders), place.blobs()
    for change in (
        lambda: orders.upsert([row(1, "a"), row(3, None, None)]),
        lambda: orders.upsert([]),
        lambda: orders.upsert(pa.table({"k": pa.array([], pa.int64())})),
        lambda: orders.delete({"k": 9}),
        lambda: orders.delete([]),
        lambda: orders.delete(where="k > 100"),
        lambda: orders.update(where="k > 100", set={"v": "z"}),
        lambda: orders.update(set={}),
        lambda: orders.update(set={"v": pl.col("v")}),
        lambda: orders.replace([row(1, "a"), row(2, "b"), row(3, None, None)]),
        lambda: orders.replace([], where="k > 100"),
        lambda: orders.merge([row(1, "a")]).when_matched_update().execute(),
    ):
        done = change()
        assert (done.time, done.rows, done.upper) == (None, 0, Frontier.at(1))
    assert unchanged(orders) == before
    assert place.blobs() == blobs


def test_only_rows_that_differ_are_written(place):
    orders = create(place.open())
    orders.append([row(k) for k in range(100)])
    assert orders.upsert([row(k, "b" if k == 7 else "a") for k in range(100)]).rows == 2
    assert orders.replace([row(k, "c" if k == 7 else "a") for k in range(100)]).rows == 2


def test_a_key_that_comes_twice_is_refused(place):
    orders = create(place.open())
    orders.append([row(1)])
    before = unchanged(orders)
    for rows in (
        [row(1, "b"), row(1, "c")],
        [row(1, "b"), row(1, "b")],
        [row(None, "b"), row(None, "c")],
        [row(k % 3) for k in range(9)],
    ):
        with pytest.raises(UsageError, match="repeat the key"):
            orders.upsert(rows)
    assert unchanged(orders) == before


def test_floats_that_are_the_same_key_are_refused_twice_and_found_again(place):
    points = place.open(config=GROUPS).create("points", key={"x": "double"}, value={"v": "string"}, timeline="counter")
    with pytest.raises(UsageError, match="repeat the key"):
        points.upsert([{"x": 0.0, "v": "a"}, {"x": -0.0, "v": "b"}])
    with pytest.raises(UsageError, match="repeat the key"):
        points.upsert([{"x": math.nan, "v": "a"}, {"x": float("-nan"), "v": "b"}])
    keys = [math.nan, -0.0, math.inf, -math.inf, None, 5e-324, 1.5]
    points.upsert([{"x": x, "v": "old"} for x in keys])
    points.upsert([{"x": float("-nan"), "v": "new"}, {"x": 0.0, "v": "new"}, {"x": None, "v": "new"}])
    rows = points.snapshot().to_pylist()
    assert len(rows) == len(keys)
    assert Counter(each["v"] for each in rows) == {"old": 4, "new": 3}
    points.delete([{"x": -math.nan}, {"x": 0.0}, {"x": None}])
    assert {each["v"] for each in points.snapshot().to_pylist()} == {"old"}
    assert points.count() == 4


KEYS = {
    "bool": [None, False, True],
    "int8": [None, -128, -1, 0, 1, 127],
    "uint8": [None, 0, 1, 127, 128, 255],
    "int64": [None, -(1 << 63), -1, 0, 1, (1 << 63) - 1],
    "uint64": [None, 0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    "float": [None, -1.5, 0.0, 1.5, math.inf],
    "double": [None, -1e300, 0.0, 1e-300, math.inf],
    "decimal(38,4)": [None, *(decimal.Decimal(text) for text in ("-1", "0", "0.0001", "9" * 30))],
    "string": [None, "", "a", "aa", "\x00", "é", "\U0001f600", "z" * 200],
    "binary": [None, b"", b"a", b"\x00", b"\xff" * 100],
    "date": [None, datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    "timestamp": [None, datetime.datetime(1, 1, 1), datetime.datetime(1970, 1, 1), datetime.datetime(9999, 1, 1)],
    "timestamp[UTC]": [None, *(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1, 1970, 9999))],
}


@pytest.mark.parametrize("type", KEYS)
@pytest.mark.parametrize("config", [QUICK, GROUPS], ids=["inline", "groups"])
def test_keys_of_every_type_are_found_whatever_else_is_there(place, config, type):
    collection = place.open(config=config, audit=1.0).create(
        "any", key={"k": type}, value={"v": "int64"}, timeline="counter"
    )
    keys = KEYS[type]
    collection.append([{"k": key, "v": 0} for key in keys])
    for number, key in enumerate(keys, 1):
        assert collection.upsert([{"k": key, "v": number}]).rows == 2
    assert now(collection, "k", "v") == {(key, number): 1 for number, key in enumerate(keys, 1)}
    collection.compact(wait=True)
    collection.upsert([{"k": key, "v": -1} for key in keys])
    assert now(collection, "k", "v") == {(key, -1): 1 for key in keys}
    for key in keys[::2]:
        assert collection.delete({"k": key}).rows == 1
    assert now(collection, "k", "v") == {(key, -1): 1 for key in keys[1::2]}


def test_keys_of_several_columns_are_matched_as_a_whole(place):
    store = place.open(config=GROUPS)
    collection = store.create("pairs", key={"a": "int64", "b": "string"}, value={"v": "int64"}, timeline="counter")
    keys = [(a, b) for a in (None, 1, 2) for b in (None, "", "x")]
    collection.upsert([{"a": a, "b": b, "v": 0} for a, b in keys])
    collection.upsert([{"a": 1, "b": None, "v": 1}, {"a": None, "b": "x", "v": 2}])
    expected = {(a, b, 0): 1 for a, b in keys}
    del expected[1, None, 0], expected[None, "x", 0]
    expected.update({(1, None, 1): 1, (None, "x", 2): 1})
    assert now(collection, "a", "b", "v") == expected
    with pytest.raises(UsageError, match="the rows lack the key column 'b'"):
        collection.delete({"a": 1})
    collection.delete({"a": [1, None], "b": [None, "x"]})
    assert collection.count() == 7


@BOTH
def test_all_rows_of_a_key_go_however_often_they_count(place, config):
    orders = create(place.open(config=config))
    append(orders, [row(1, "a", _diff=3), row(1, "b", _diff=2), row(2, "c")])
    assert orders.upsert([row(1, "b")]).rows == 2  # of the three a, and one b too many
    assert now(orders) == {(1, "b", 0): 1, (2, "c", 0): 1}
    append(orders, [row(3, "below", _diff=-2)])
    orders.upsert([row(3, "now")])
    assert now(orders)[3, "now", 0] == 1
    assert orders.count() == 3


@pytest.mark.parametrize(
    "rows",
    [
        [{"v": "a"}, 7],
        [{"k": 1, "_diff": 1}],
        [{"k": 1, "_time": 9}],
        [{"k": 1, "w": 1}],
        [{"k": "x"}],
        7,
        None,
        "text",
    ],
    ids=repr,
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_changed(place, rows):
    orders = create(place.open())
    orders.append([row(1)])
    before = unchanged(orders)
    with pytest.raises(UsageError):
        orders.upsert(rows)
    with pytest.raises(UsageError):
        orders.replace(rows)
    assert unchanged(orders) == before
