"""SQL: views, rows as of a time, and changes, for all collections of a store."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

import timespine as ts
from timespine.spark import register


@pytest.fixture
def store(tmp_path, spark):
    with ts.open(tmp_path / "store", maintenance=False) as opened:
        orders = opened.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        orders.append([{"id": id, "name": "a"} for id in range(10)])
        orders.upsert([{"id": id, "name": "b"} for id in range(5, 15)])
        orders.append([{"id": 0, "name": "a"}])
        opened.create("un-usual.name", key={"id": "int64"}).append([{"id": 1}])
        opened.create("empty", key={"id": "int64"})
        opened.create("grid", key={"id": "int64"}, arity=2)
        assert register(opened, spark) == ["empty", "orders", "un_usual_name"]
        yield opened


def test_views_functions_and_changes(store, spark):
    def count(text):
        return spark.sql(f"SELECT count(*) FROM {text}").collect()[0][0]

    assert count("orders") == 16
    assert count("orders WHERE name = 'b'") == 10
    assert count("un_usual_name") == 1
    assert count("empty") == 0
    assert [count(f"orders_asof({time})") for time in range(3)] == [10, 15, 16]
    assert count("orders_asof(1) WHERE name = 'b'") == 10
    assert count("orders_updates") == 10 + 15 + 1
    changes = spark.sql("SELECT * FROM timespine_changes('orders', 1, 1)").collect()
    assert sorted((json.loads(each["row"])["id"], each["_diff"]) for each in changes) == sorted(
        [*((id, -1) for id in range(5, 10)), *((id, 1) for id in range(5, 15))]
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orders_asof(9)", "not complete yet"),
        ("timespine_changes('orders', 1, 9)", "register again"),
        ("timespine_changes('orders', 2, 1)", "the earlier one first"),
        ("timespine_changes('nobody', 1, 1)", "no collection nobody"),
    ],
)
def test_what_cannot_be_answered_is_an_error(store, spark, text, says):
    with pytest.raises(PySparkException, match=says):
        spark.sql(f"SELECT * FROM {text}").collect()


def test_history_that_is_gone_is_an_error_and_never_an_empty_answer(tmp_path, spark):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        orders = store.create("orders", key={"id": "int64"}, timeline="counter")
        for id in range(3):
            orders.append([{"id": id}])
        orders.expire(before=2)
        assert register(store) == ["orders"]
        assert spark.sql("SELECT * FROM orders_asof(2)").count() == 3
        for text in ("orders_asof(0)", "timespine_changes('orders', 1, 2)"):
            with pytest.raises(PySparkException, match="cannot be read any more"):
                spark.sql(f"SELECT * FROM {text}").collect()
