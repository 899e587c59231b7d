"""Refusals that programs react to have classes of their own, inside of UsageError."""

import pytest

import timespine as ts
from timespine.errors import (
    CollectionExists,
    CollectionInUse,
    InvalidRows,
    LateRows,
    NameBlocked,
    ReadOnlyStore,
    SchemaConflict,
    StoreClosed,
    UsageError,
)

KEY = {"id": "int64"}


@pytest.fixture
def store(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


@pytest.fixture
def orders(store):
    return store.create("orders", key=KEY, value={"total": "int32"}, timeline="counter")


def test_a_name_that_a_collection_has(store, orders):
    with pytest.raises(CollectionExists) as raised:
        store.create("orders", key=KEY)
    assert raised.value.name == "orders"
    with pytest.raises(CollectionExists, match="another schema"):
        store.create("orders", key=KEY, if_exists="open")
    store.create("others", key=KEY)
    with pytest.raises(CollectionExists, match="already"):
        store.rename("orders", "others")


def test_a_name_that_a_dropped_collection_had(store, orders):
    store.drop("orders")
    with pytest.raises(NameBlocked) as raised:
        store.create("orders", key=KEY)
    assert raised.value.name == "orders"


def test_a_collection_under_a_critical_hold(store, orders):
    orders.append([{"id": 1}])
    orders.critical_hold("backup")
    with pytest.raises(CollectionInUse, match="backup"):
        store.drop("orders")


def test_a_store_that_is_closed_or_for_reading_only(tmp_path, store, orders):
    with ts.open(tmp_path / "store", read_only=True) as reading, pytest.raises(ReadOnlyStore):
        reading["orders"].append([{"id": 1}])
    store.close()
    with pytest.raises(StoreClosed):
        orders.append([{"id": 1}])


def test_rows_that_do_not_fit_say_which_row(orders):
    with pytest.raises(InvalidRows) as raised:
        orders.append([{"id": 1, "total": 1}, {"id": 2, "total": 1 << 40}])
    assert raised.value.row == 1
    with pytest.raises(InvalidRows) as raised:
        orders.append([{"id": 1, "price": 1}])
    assert raised.value.row is None


def test_rows_at_sealed_times_say_which_times(orders):
    orders.seal(5)
    for write in (lambda: orders.write([{"id": 1}], at=3), lambda: orders.append([{"id": 1}], at=3)):
        with pytest.raises(LateRows) as raised:
            write()
        assert raised.value.earliest.time == 3
        assert raised.value.upper.time == 5


def test_a_schema_that_was_changed_first(store, orders):
    orders.evolve(add={"note": "string"}, expected=0)
    with pytest.raises(SchemaConflict) as raised:
        orders.evolve(add={"more": "string"}, expected=0)
    assert (raised.value.expected, raised.value.actual) == (0, 1)
    assert not isinstance(raised.value, UsageError)
