"""Delete, update and replace: the right retractions, by key or by condition."""

import datetime
import decimal
import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from change_cases import BOTH, append, create, now, row, unchanged

from timespine import col
from timespine.errors import DiffOverflow, UsageError

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
