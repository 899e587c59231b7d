"""Changes of a collection without key columns, which is keyed by all of them."""

import decimal
import math

import polars as pl
import pyarrow as pa
import pytest
from change_cases import GROUPS, append, create, now, row
from memory_store import BLOBS, QUICK

from timespine.errors import ClosedError, UsageError

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
        with pytest.raises(UsageError, match="the rows lack the column 'n': without a key, all columns identify a row"):
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
        with pytest.raises(UsageError, match="no key columns, and column 'v' is nested; name the rows with where="):
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
