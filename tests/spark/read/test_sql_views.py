"""SQL: views, rows as of a time, and changes, for all collections of a store."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from pyspark.errors import PySparkException

import timespine as ts
from timespine.errors import UsageError
from timespine.spark import register
from timespine.spark.read import sql_views
from timespine.spark.read.sql_views import view_names
from timespine.spark.setup import session as session_setup


@pytest.fixture(scope="module")
def store(tmp_path_factory, spark):
    with ts.open(tmp_path_factory.mktemp("sql") / "store", maintenance=False) as opened:
        orders = opened.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        orders.append([{"id": id, "name": "a"} for id in range(10)])
        orders.upsert([{"id": id, "name": "b"} for id in range(5, 15)])
        orders.append([{"id": 0, "name": "a"}])
        opened.create("un-usual.name", key={"id": "int64"}).append([{"id": 1}])
        opened.create("empty", key={"id": "int64"}, timeline="counter")
        opened.create("grid", key={"id": "int64"}, time_coordinates=2)
        _odd(opened)
        assert register(opened, spark) == ["empty", "negative", "odd", "orders", "un_usual_name"]
        yield opened


def _odd(store):
    """Columns that are called what they like, and rows that count less than zero."""
    value = {
        "t": "int64",
        "a.b": "string",
        "c`d": "int64",
        "_since": "int64",
        "_count": "int64",
        "s": 'struct<"x y":int64>',
    }
    odd = store.create("odd", key={"id": "int64"}, value=value, timeline="counter")
    for id in range(3):
        row = {"id": id, "t": 100 * id, "a.b": "x", "c`d": id, "_since": 7, "_count": 9, "s": {"x y": id}}
        odd.append([row])
    store.create("negative", value={"id": "int64"}, timeline="counter").append([{"id": 1, "_diff": -2}])


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


def test_columns_may_be_called_what_they_like(store, spark):
    odd = store.collection("odd")
    for time in range(3):
        found = spark.sql(f"SELECT * FROM odd_asof({time}) ORDER BY id")
        assert [row.asDict(recursive=True) for row in found.collect()] == odd.snapshot(time).to_pylist()
    assert spark.sql("SELECT `a.b`, `c``d`, s.`x y` FROM odd WHERE id = 2").first()[:] == ("x", 2, 2)
    assert spark.table("odd_updates").columns[-2:] == ["_since_", "_upper"]


def test_a_collection_that_spark_cannot_show_does_not_keep_the_others_from_being_shown(tmp_path, monkeypatch):
    shown = []

    def views(collection, view, spark):
        if view == "b":
            raise PySparkException("what is this")
        shown.append(view)

    monkeypatch.setattr(sql_views, "_views", views)
    monkeypatch.setattr(sql_views, "prepare", lambda spark: spark)
    with ts.open(tmp_path / "store", maintenance=False) as store:
        for name in "abc":
            store.create(name, key={"id": "int64"})
        with pytest.warns(UserWarning, match="b has no views: what is this"):
            assert register(store, mock.MagicMock()) == shown == ["a", "c"]


def test_workers_that_cannot_run_timespine_are_an_error_before_any_view_is_made(tmp_path, monkeypatch):
    def refuse(spark):
        raise UsageError("the Python of Spark's workers, /no/python, cannot import Timespine")

    monkeypatch.setattr(session_setup, "check_workers", refuse)
    unprepared = mock.MagicMock()
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("orders", key={"id": "int64"})
        with pytest.raises(UsageError, match=r"^the Python of Spark's workers, /no/python, cannot import Timespine$"):
            register(store, unprepared)
    assert unprepared.mock_calls == []


def test_changes_are_between_two_versions_the_earlier_one_first():
    known = {"orders": mock.MagicMock()}
    for first, last in ((-1, 1), (2, 1), (None, 1), (0, None), (True, 1)):
        with pytest.raises(UsageError, match="two versions from 0 on, the earlier one first"):
            list(sql_views.changes_between(known, "orders", first, last))


def test_two_collections_with_one_view_are_an_error_before_anything_is_registered():
    assert view_names(["a-b", "c"]) == {"a-b": "a_b", "c": "c"}
    for names in (["a-b", "a_b"], ["orders", "Orders"], ["a", "a_updates"], ["a_updates", "a"]):
        with pytest.raises(UsageError, match=f"collections {names[0]} and {names[1]} would both have the view"):
            view_names(names)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orders_asof(9)", "not complete yet"),
        ("orders_asof(-1)", "cannot be read: history"),
        ("orders_asof(null)", "it is null"),
        ("empty_asof(0)", "not complete yet"),
        ("empty_asof(null)", "it is null"),
        ("negative_asof(0)", "negative count"),
        ("timespine_changes('orders', 1, 9)", "register again"),
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
            with pytest.raises(PySparkException, match="cannot be read: history"):
                spark.sql(f"SELECT * FROM {text}").collect()
