"""Upsert, delete, update, replace: the right retractions, exactly once, whoever else is at work."""

import datetime
import decimal
import math
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore, Script, counted, in_threads

from timespine import col
from timespine.client.commit.retry_policy import RetryPolicy
from timespine.client.write import step_commit
from timespine.config import Config
from timespine.errors import ClosedError, Contention, Determinate, DiffOverflow, Indeterminate, UsageError
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
GROUPS = Config(part_bytes=600, row_group_rows=4, inline_part_bytes=1, run_parts=2, retry_pause_ms=1)
"""A handful of rows is several parts of several row groups, which can be skipped, wrongly too."""


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string", "n": "int64"}, "timeline": "counter", **options}
    return store.create(name, **options)


def now(collection, *names):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), *(names or ("k", "v", "n")))


def row(k, v="a", n=0, **more):
    return {"k": k, "v": v, "n": n, **more}


def append(collection, rows):
    """Append rows, some of which say how often they count."""
    return collection.append([{"_diff": 1, **each} for each in rows])


def unchanged(collection):
    """What a change that writes nothing leaves as it is."""
    return collection.upper, len(collection.history()), now(collection)


# Upsert.


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
    with pytest.raises(UsageError, match="b is not there"):
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


# Delete.


@pytest.mark.parametrize(
    "keys",
    [
        {"k": 1},
        [{"k": 1}],
        ({"k": 1},),
        {"k": [1]},
        {"k": (1,)},
        {"k": np.array([1])},
        {"k": pa.array([1])},
        {"k": pa.chunked_array([[1]])},
        {"k": pl.Series([1])},
        pa.table({"k": [1]}),
        pa.table({"k": [1], "v": ["whatever"]}),
        pl.DataFrame({"k": [1, 1]}),
        pa.table({"k": [1]}).to_reader(),
        [row(1, "x", 9)],
        [{"k": 1}, {"k": 77}],
    ],
    ids=lambda keys: f"{type(keys).__name__} {keys!r:.20}",
)
def test_keys_are_taken_in_every_form(place, keys):
    orders = create(place.open())
    orders.append([row(1), row(2)])
    assert orders.delete(keys).rows == 1
    assert now(orders) == {(2, "a", 0): 1}


@pytest.mark.parametrize("keys", [7, "k", [1, 2], [None], [{"k": 1}, 2], {}, {"v": "a"}, {"k": "x"}, {"k": 1.5}, [{}]])
def test_what_is_no_key_is_refused_and_nothing_goes(place, keys):
    orders = create(place.open())
    orders.append([row(1), row(2)])
    with pytest.raises(UsageError):
        orders.delete(keys)
    assert orders.count() == 2


def test_delete_needs_keys_or_a_condition_and_not_both(place):
    orders = create(place.open())
    for wrong in ({}, {"keys": {"k": 1}, "where": "k = 1"}, {"where": "k ="}, {"where": "w = 1"}, {"where": 7}):
        with pytest.raises(UsageError):
            orders.delete(**wrong)


@pytest.mark.parametrize("where", ["n >= 2", col("n") >= 2, pl.col("n") >= 2], ids=["text", "col", "polars"])
@BOTH
def test_rows_for_which_a_condition_holds_go(place, config, where):
    orders = create(place.open(config=config))
    append(orders, [row(1, n=1), row(2, n=2), row(3, n=None), row(4, n=4, _diff=2), row(5, n=9, _diff=-1)])
    assert orders.delete(where=where).rows == 3
    assert now(orders) == {(1, "a", 1): 1, (3, "a", None): 1}


# Update.


def test_update_sets_columns_to_values_and_expressions_of_the_old_row(place):
    orders = create(place.open())
    orders.append([row(k, "x", k) for k in range(4)])
    orders.update(where="k > 0", set={"n": pl.col("n") + 1, "v": "y"})
    assert now(orders) == {(0, "x", 0): 1, **{(k, "y", k + 1): 1 for k in (1, 2, 3)}}
    orders.update(set={"n": None})
    assert {n for _, _, n in now(orders)} == {None}
    orders.update(set={"n": pl.col("k") * 10, "v": pl.col("v") + pl.col("k").cast(pl.String)})
    assert now(orders) == {(0, "x0", 0): 1, **{(k, f"y{k}", 10 * k): 1 for k in (1, 2, 3)}}
    orders.update(where="k = 1", set={"n": pl.sql_expr("n * 2")})
    assert now(orders)[1, "y1", 20] == 1


def test_update_sees_old_values_on_every_right_hand_side(place):
    swap = place.open().create("swap", key={"k": "int64"}, value={"a": "int64", "b": "int64"}, timeline="counter")
    swap.append([{"k": 1, "a": 10, "b": 20}])
    swap.update(set={"a": pl.col("b"), "b": pl.col("a")})
    assert now(swap, "k", "a", "b") == {(1, 20, 10): 1}


def test_update_keeps_how_often_rows_count(place):
    orders = create(place.open())
    append(orders, [row(1, "a", _diff=3), row(1, "b", _diff=2), row(2, "c")])
    orders.update(where="k = 1", set={"v": "same"})
    assert now(orders) == {(1, "same", 0): 5, (2, "c", 0): 1}


def test_update_refuses_rows_that_count_less_than_zero(place):
    orders = create(place.open())
    append(orders, [row(1), row(2, _diff=-1)])
    before = unchanged(orders)
    with pytest.raises(UsageError, match="negative count"):
        orders.update(set={"v": "b"})
    assert unchanged(orders) == before
    orders.update(where="k = 1", set={"v": "b"})
    assert now(orders)[1, "b", 0] == 1


def test_counts_too_large_to_be_taken_apart_are_refused_in_bounded_memory(place):
    orders = create(place.open())
    append(orders, [row(1, _diff=1 << 40), row(2, _diff=(1 << 63) - 1), row(3, _diff=-(1 << 63))])
    for refused in (
        lambda: orders.update(where="k = 1", set={"v": "b"}),
        lambda: orders.update(where="k < 3", set={"v": "b"}),
        lambda: orders.merge([row(1, "b")]).when_matched_update().execute(),
    ):
        with pytest.raises(UsageError, match="too often"):
            refused()
    with pytest.raises(DiffOverflow):
        orders.delete({"k": 3})
    orders.delete(where="k < 3")
    assert now(orders) == {(3, "a", 0): -(1 << 63)}


@pytest.mark.parametrize(
    "set",
    [
        {"k": 2},
        {"w": 1},
        {"n": "text"},
        {"n": 1.5},
        {"n": 1 << 70},
        {"v": 7},
        {"v": object()},
        {"v": ["a"]},
        {"n": pl.col("nothing")},
        {"n": pl.col("v") + 1},
        {"n": pl.col("n").append(pl.col("n"))},
        None,
        ["v"],
        "v",
    ],
    ids=lambda set: str(set)[:14],
)
def test_values_that_do_not_fit_are_refused_and_nothing_is_changed(place, set):
    orders = create(place.open())
    orders.append([row(1), row(2)])
    before = unchanged(orders)
    with pytest.raises(UsageError):
        orders.update(set=set)
    assert unchanged(orders) == before


VALUES = {
    "bool": (True, False),
    "int8": (1, -128),
    "uint64": (1, (1 << 64) - 1),
    "float": (1.5, math.inf),
    "double": (0.1, 1e300),
    "decimal(38,4)": (decimal.Decimal("1.5"), decimal.Decimal("12345678901234567890.0001")),
    "string": ("a", "\U0001f600"),
    "binary": (b"a", b"\x00\xff"),
    "date": (datetime.date(2024, 2, 29), datetime.date(1, 1, 1)),
    "timestamp": (datetime.datetime(2024, 1, 1, 0, 0, 0, 1), datetime.datetime(9999, 12, 31)),
    "timestamp[UTC]": (
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC),
    ),
    "list<int64>": ([1, None, 3], []),
    "struct<a:int64,b:string>": ({"a": 1, "b": "x"}, {"a": None, "b": None}),
}


@pytest.mark.parametrize("type", VALUES)
def test_values_of_every_type_can_be_set_and_others_stay_exactly_as_they_are(place, type):
    old, new = VALUES[type]
    collection = place.open().create(
        "any", key={"k": "int64"}, value={"v": type, "w": type, "n": "int64"}, timeline="counter"
    )
    rows = [{"k": 1, "v": old, "w": new, "n": 1}, {"k": 2, "v": None, "w": None, "n": 2}]
    collection.append(rows)
    assert collection.update(set={"n": pl.col("n") + 10}).rows == 4
    assert collection.snapshot().to_pylist() == [{**each, "n": each["n"] + 10} for each in rows]
    collection.update(set={"v": new})
    assert [each["v"] for each in collection.snapshot().to_pylist()] == [new, new]
    collection.update(where="k = 1", set={"v": None, "w": pl.col("v")})
    assert collection.snapshot().to_pylist()[0] == {"k": 1, "v": None, "w": new, "n": 11}
    assert collection.upsert(rows).rows == 4
    assert collection.snapshot().to_pylist() == rows


def test_columns_may_be_called_anything(place):
    names = ["self", "#", "my column", "exprs", "é", "source", "a.b", '"q"']
    odd = place.open().create("odd", key={"k": "int64"}, value=dict.fromkeys(names, "int64"), timeline="counter")
    odd.append([{"k": 1, **dict.fromkeys(names, 0)}])
    for number, name in enumerate(names, 1):
        odd.update(set={name: number})
    assert odd.snapshot().to_pylist() == [{"k": 1, **{name: n for n, name in enumerate(names, 1)}}]


# Replace.


def test_replace_lets_rows_of_a_condition_go_and_others_come(place):
    orders = create(place.open())
    append(orders, [row(1, "a"), row(2, "b", _diff=2), row(3, "c")])
    orders.replace([row(2, "x"), row(2, "y")], where="k = 2")
    assert now(orders) == {(1, "a", 0): 1, (2, "x", 0): 1, (2, "y", 0): 1, (3, "c", 0): 1}
    before = unchanged(orders)
    for rows in ([row(3, "z")], [row(2), row(3)], [row(None)]):
        with pytest.raises(UsageError, match="condition"):
            orders.replace(rows, where="k = 2")
    assert unchanged(orders) == before
    orders.replace([], where="k = 2")
    assert now(orders) == {(1, "a", 0): 1, (3, "c", 0): 1}
    orders.replace([row(9, "z")])
    assert now(orders) == {(9, "z", 0): 1}
    orders.replace([])
    assert now(orders) == {}


# Where there is nothing to change by.


KEYLESS = pytest.mark.parametrize("config", [QUICK, BLOBS, GROUPS], ids=["inline", "blobs", "groups"])


def keyless(place, config=QUICK):
    events = place.open(config=config).create("events", value={"v": "string", "n": "double"}, timeline="counter")
    append(events, [{"v": "a", "n": 1.0, "_diff": 2}, {"v": "b", "n": 2.0}, {"v": None, "n": math.inf}])
    append(events, [{"v": f"more {n}", "n": float(n)} for n in range(30)])
    events.delete(where="v LIKE 'more%' AND n >= 5")
    return events


@KEYLESS
def test_a_collection_without_key_columns_is_keyed_by_all_of_them(place, config):
    events = keyless(place, config)
    assert events.lookup({"v": "a", "n": 1.0}).to_pylist() == [{"v": "a", "n": 1.0}] * 2
    assert events.lookup({"v": "a", "n": 2.0}).to_pylist() == []
    assert events.lookup([{"v": None, "n": math.inf}, {"v": "more 3", "n": 3.0}]).num_rows == 2
    events.delete([{"v": "a", "n": 1.0}, {"v": "b", "n": 9.0}])
    assert ("a", 1.0) not in now(events, "v", "n")
    assert now(events, "v", "n")["b", 2.0] == 1
    for use in (events.lookup, events.delete):
        with pytest.raises(UsageError, match="keys need the columns v, n: n is not there"):
            use({"v": "b"})


@KEYLESS
def test_an_upsert_without_key_columns_adds_the_rows_that_are_not_there_once(place, config):
    events = keyless(place, config)
    events.append([{"v": "less", "n": 0.0, "_diff": -3}])
    before = now(events, "v", "n")
    del before["less", 0.0]
    rows = [{"v": "a", "n": 1.0}, {"v": "a", "n": 2.0}, {"v": "a", "n": 2.0}, {"v": None, "n": math.inf}]
    done = events.upsert([*rows, {"v": "less", "n": 0.0}])
    assert done.rows == 2
    assert now(events, "v", "n") == {**before, ("a", 2.0): 1, ("less", 0.0): 1}
    assert events.upsert(rows).rows == 0


def test_rows_without_key_columns_that_are_nested_cannot_be_named(place):
    events = place.open().create("events", value={"v": "list<int64>"}, timeline="counter")
    events.append([{"v": [1]}])
    for use in (events.lookup, events.delete, events.upsert):
        with pytest.raises(UsageError, match="rows cannot be found by v, which is nested"):
            use([{"v": [1]}])


@pytest.mark.parametrize(
    "keys",
    [{"k": 1, "x": 2}, [{"k": 1, "_diff": 1}], {"k": [1], "K": [2]}, pa.table({"k": [1], "x": [2]})],
    ids=["dict", "dicts", "columns", "table"],
)
def test_keys_with_unknown_columns_are_refused(place, keys):
    orders = create(place.open())
    orders.append([row(1)])
    for use in (orders.lookup, orders.delete):
        with pytest.raises(UsageError, match=r"a column '.*' that the collection does not have"):
            use(keys)
    assert now(orders) == {(1, "a", 0): 1}


def test_keys_may_be_whole_rows_whatever_their_values(place):
    orders = create(place.open())
    orders.append([row(1, "a"), row(2, "b")])
    assert orders.lookup(row(1, "other")).to_pylist() == [row(1, "a")]
    orders.delete(pa.table({"k": [2], "v": ["other"]}))
    assert now(orders) == {(1, "a", 0): 1}


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_number_that_no_column_can_hold_is_refused(place, value):
    orders = create(place.open(), value={"v": "string", "n": "double"})
    orders.append([row(1)])
    for change in (
        lambda: orders.update(set={"n": value}),
        lambda: orders.merge([{"k": 1}]).when_matched_update({"n": value}).execute(),
        lambda: orders.merge([{"k": 2}]).when_not_matched_insert({"n": value}).execute(),
    ):
        with pytest.raises(UsageError, match="column 'n'"):
            change()


def test_numbers_beyond_64_bits_with_a_sign_are_numbers_where_the_column_holds_them(place):
    orders = create(place.open(), value={"u": "uint64", "d": "decimal(38,0)"})
    orders.append([{"k": 1, "u": 0, "d": decimal.Decimal(0)}])
    orders.update(set={"u": 1 << 63, "d": 10**30})
    assert orders.lookup({"k": 1}).to_pylist() == [{"k": 1, "u": 1 << 63, "d": decimal.Decimal(10**30)}]


def test_a_collection_without_key_columns_is_changed_by_conditions(place):
    events = place.open().create("events", value={"v": "string", "n": "int64"}, timeline="counter")
    append(events, [{"v": "a", "n": 1, "_diff": 2}, {"v": "b", "n": 2}])
    events.update(where="v = 'a'", set={"v": "c", "n": pl.col("n") * 5})
    assert now(events, "v", "n") == {("c", 5): 2, ("b", 2): 1}
    events.delete(where="v = 'c'")
    events.replace([{"v": "d", "n": 2}], where="n = 2")
    assert now(events, "v", "n") == {("d", 2): 1}


def test_changes_need_totally_ordered_times(place):
    plane = create(place.open(), time_coordinates=2)
    for refused in (
        lambda: plane.upsert([row(1)]),
        lambda: plane.delete({"k": 1}),
        lambda: plane.delete(where="k = 1"),
        lambda: plane.update(set={"v": "a"}),
        lambda: plane.replace([]),
    ):
        with pytest.raises(UsageError, match="totally ordered"):
            refused()


def test_a_closed_collection_cannot_be_changed(place):
    orders = create(place.open())
    orders.append([row(1)])
    orders.finish()
    for refused in (lambda: orders.upsert([row(1, "b")]), lambda: orders.delete({"k": 1})):
        with pytest.raises(ClosedError):
            refused()


def test_on_the_clock_changes_stand_at_now(place):
    orders = create(place.open(), timeline="clock")
    assert orders.upsert([row(1, "a")]).time == place.clock.ms
    place.clock.advance(60)
    assert orders.upsert([row(1, "b")]).time == place.clock.ms
    place.clock.advance(-3600)
    assert orders.delete({"k": 1}).time == orders.upper.elements[0][0] - 1
    assert orders.count() == 0


def test_what_was_expired_changes_nothing_about_the_rows_of_now(place):
    orders = create(place.open(config=BLOBS))
    for n in range(5):
        orders.upsert([row(1, "a", n), row(2, "b", -n)])
    orders.expire(before=99)
    orders.compact(wait=True)
    orders.upsert([row(1, "z", 9)])
    orders.delete({"k": 2})
    assert now(orders) == {(1, "z", 9): 1}


def test_rows_are_changed_under_the_newest_schema(place):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append([row(1)])
    other["orders"].evolve(add={"w": ("int64", 5)}, rename={"v": "name"})
    orders.update(set={"w": pl.col("w") + 1})
    assert orders.snapshot().to_pylist() == [{"k": 1, "name": "a", "n": 0, "w": 6}]
    orders.upsert([{"k": 1, "name": "b"}])
    assert orders.snapshot().to_pylist() == [{"k": 1, "name": "b", "n": None, "w": 5}]


# Others at the same time.


def racing(place, script, orders, work):
    """Let another process do something just before the next commit of an append or change."""
    other = place.open()
    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=lambda: work(other["orders"]))


@BOTH
@pytest.mark.parametrize("form", ["dicts", "table", "reader", "exported"])
def test_an_upsert_that_lost_is_patched_by_what_others_committed_and_reads_no_row_again(place, config, form):
    script = Script()
    orders = create(place.open(script=script, config=config))
    orders.append([row(1, "a"), row(2, "b")])
    orders.snapshot().close()  # a lease is there, so that the next commit is that of the upsert
    racing(place, script, orders, lambda theirs: theirs.upsert([row(1, "theirs"), row(3, "theirs")]))
    table = pa.table({"k": [1, 2], "v": ["ours", "ours"], "n": [0, 0]})
    rows = {
        "dicts": table.to_pylist(),
        "table": table,
        "reader": table.to_reader(),
        "exported": type("Exported", (), {"__arrow_c_stream__": table.to_reader().__arrow_c_stream__})(),
    }[form]
    done = orders.upsert(rows)
    assert script.is_done
    assert done.rows == 4
    assert now(orders) == {(1, "ours", 0): 1, (2, "ours", 0): 1, (3, "theirs", 0): 1}
    counters = orders._handle.committer.counters
    assert (counters["changes read"], counters["changes placed again"], counters["changes patched"]) == (1, 1, 1)
    assert "changes started again" not in counters
    assert place.open().vacuum().blobs == []


@pytest.mark.parametrize("change", ["delete", "where", "update", "replace", "merge"])
def test_every_change_that_lost_is_right_for_what_is_there_when_it_is_committed(place, change):
    script = Script()
    orders = create(place.open(script=script, config=BLOBS))
    orders.append([row(1, "a", 1), row(2, "b", 2)])
    orders.snapshot().close()
    racing(place, script, orders, lambda theirs: theirs.upsert([row(1, "theirs", 10)]))
    keys = pa.table({"k": [1]}).to_reader()
    {
        "delete": lambda: orders.delete(keys),
        "where": lambda: orders.delete(where="k = 1"),
        "update": lambda: orders.update(where="k = 1", set={"n": pl.col("n") + 1}),
        "replace": lambda: orders.replace(pa.table({"k": [1], "n": [7]}).to_reader(), where="k = 1"),
        "merge": lambda: orders.merge(keys).when_matched_update({"n": pl.col("n") * 2}).execute(),
    }[change]()
    assert script.is_done
    rest = {
        "delete": {},
        "where": {},
        "update": {(1, "theirs", 11): 1},
        "replace": {(1, None, 7): 1},
        "merge": {(1, "theirs", 20): 1},
    }[change]
    assert now(orders) == {(2, "b", 2): 1, **rest}
    assert orders._handle.committer.counters["changes read"] == 1


def test_a_change_that_always_loses_ends_with_a_retryable_error_that_says_what_was_tried(place, monkeypatch):
    monkeypatch.setattr(step_commit, "RETRY", RetryPolicy(placements=3))
    other = place.open()

    class Busy(Script):
        on = False

        def __call__(self, operation, key):
            if self.on and operation == "compare_and_set":
                self.on = False
                other["orders"].append([row(9)])
                self.on = True
            return Fault.NONE

    script = Busy()
    orders = create(place.open(script=script, config=BLOBS))
    orders.append([row(1)])
    orders.snapshot().close()
    blobs = len(place.blobs())
    script.on = True
    with pytest.raises(Contention, match=r"nothing was changed: .* orders first, 3 times in a row; make the change"):
        orders.upsert([row(1, "ours")])
    script.on = False
    assert issubclass(Contention, Determinate)
    assert now(orders) == {(1, "a", 0): 1, (9, "a", 0): 3}
    assert len(place.blobs()) == blobs, "what was put for it is deleted"
    assert orders._handle.committer.counters["changes read"] == 1
    orders.upsert([row(1, "ours")])
    assert now(orders) == {(1, "ours", 0): 1, (9, "a", 0): 3}


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_a_change_whose_reply_was_lost_is_made_once(place, fault):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    orders = create(store)
    orders.append([row(1, n=1)])
    orders.snapshot().close()
    script.add("compare_and_set", fault, key=orders.id)
    orders.update(set={"n": pl.col("n") + 1})
    store.ghosts()
    assert now(orders) == {(1, "a", 2): 1}
    script.add("compare_and_set", fault, key=orders.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=3)
    with pytest.raises(Indeterminate):
        orders.update(set={"n": pl.col("n") + 1})
    script.rules.clear()
    orders.update(set={"n": pl.col("n") + 1})
    store.ghosts()
    assert now(place.open()["orders"]) == {(1, "a", 4): 1}  # settled before the next: in, and once


@BOTH
def test_a_counter_that_many_threads_of_two_processes_increment_is_exact(place, config):
    stores = [place.open(config=config), place.open(config=config)]
    create(stores[0]).append([row(1, n=0), row(2, n=0)])

    def by_update(store):
        for _ in range(6):
            store["orders"].update(where="k = 1", set={"n": pl.col("n") + 1})

    def by_merge(store):
        for _ in range(6):
            store["orders"].merge([{"k": 2, "by": 3}]).when_matched_update(
                {"n": pl.col("n") + pl.col("source.by")}
            ).execute()

    in_threads(*(lambda work=work, store=store: work(store) for work in (by_update, by_merge) * 2 for store in stores))
    assert now(stores[0]["orders"]) == {(1, "a", 24): 1, (2, "a", 72): 1}


def test_upserts_of_the_same_keys_from_many_threads_leave_one_row_per_key(place):
    stores = [place.open(config=BLOBS), place.open(config=BLOBS)]
    create(stores[0])

    def work(store, who):
        for turn in range(5):
            store["orders"].upsert([row(k, who, turn) for k in range(4)])
            if turn % 2:
                store["orders"].delete({"k": turn})

    in_threads(*(lambda who=who, store=store: work(store, who) for who, store in zip("abcd", stores * 2, strict=True)))
    there = now(stores[1]["orders"], "k")
    assert all(count == 1 for count in there.values())
    assert set(there) <= {(k,) for k in range(4)}


# Against a model.

OPERATIONS = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=4)),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 5), max_size=3)),
    st.tuples(st.just("delete where"), st.integers(0, 3)),
    st.tuples(st.just("update"), st.integers(0, 5)),
    st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=3)),
)


@settings(max_examples=40, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=8), grouped=st.booleans())
def test_every_history_of_changes_is_that_of_a_plain_multiset(operations, grouped):
    with MemoryStore() as place:
        store = place.open(config=GROUPS if grouped else QUICK, audit=1.0)
        table = store.create("t", key={"k": "int64"}, value={"n": "int64"}, timeline="counter")
        model = Counter()
        for operation, given_ in operations:
            if operation == "upsert":
                table.upsert([{"k": k, "n": n} for k, n in given_.items()])
                model = Counter({each: count for each, count in model.items() if each[0] not in given_})
                model.update(given_.items())
            elif operation == "delete":
                table.delete([{"k": k} for k in given_])
                model = Counter({each: count for each, count in model.items() if each[0] not in given_})
            elif operation == "delete where":
                table.delete(where=f"n = {given_}")
                model = Counter({each: count for each, count in model.items() if each[1] != given_})
            elif operation == "update":
                table.update(where=f"k >= {given_}", set={"n": (pl.col("n") + 1) % 4})
                moved = Counter()
                for (k, n), count in model.items():
                    moved[k, (n + 1) % 4 if k >= given_ else n] += count
                model = moved
            else:
                table.append([{"k": k, "n": n} for k, n in given_])
                model.update(given_)
            assert now(table, "k", "n") == model
