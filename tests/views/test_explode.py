"""Rows for each element of an array: LATERAL VIEW and explode in SELECT, in the process."""

import decimal

import polars as pl
import pyarrow as pa
import pytest

import timespine as ts
from timespine.views.engine.explode_rows import explode_rows
from timespine.views.engine.lowering import WEIGHT
from timespine.views.plan.algebra import Explode, InputScan
from timespine.views.plan.expressions import PlanColumn

ORDERS = "id bigint, tags array<string>, items array<struct<sku: string, price: decimal(7,2)>>"
FIRST = [
    {"id": 1, "tags": ["new", "big", "new"], "items": [{"sku": "pen", "price": 2}, {"sku": "ink", "price": 5}]},
    {"id": 2, "tags": [], "items": [{"sku": "pen", "price": 3}]},
    {"id": 3, "tags": None, "items": None},
    {"id": 4, "tags": [None, "old"], "items": [None]},
]


def filled(place):
    store = place.open()
    orders = store.create("orders", schema=ORDERS, key=["id"])
    orders.upsert(FIRST)
    store.create("skus", schema="sku string, kind string", key=["sku"])
    store["skus"].upsert([{"sku": "pen", "kind": "paper"}, {"sku": "ink", "kind": "wet"}])
    return store


QUERIES = {
    "lateral view": "SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag",
    "outer": "SELECT id, tag FROM orders LATERAL VIEW OUTER explode(tags) t AS tag",
    "positions": "SELECT id, place, tag FROM orders LATERAL VIEW posexplode(tags) t AS place, tag WHERE place > 0",
    "in select": "SELECT id, explode(tags) AS tag FROM orders WHERE id > 1",
    "outer in select": "SELECT id, posexplode_outer(tags) AS (place, tag) FROM orders",
    "counted": "SELECT tag, count(*) AS n FROM orders LATERAL VIEW explode(tags) t AS tag GROUP BY tag",
    "fields": "SELECT id, item.sku AS sku, item.price * 2 AS price FROM orders LATERAL VIEW explode(items) AS item",
    "joined": """SELECT kind, sum(item.price) AS paid FROM orders JOIN skus s
        LATERAL VIEW explode(items) AS item WHERE s.sku = item.sku AND s.kind <> 'dry' GROUP BY kind""",
    "two": """SELECT id, tag, item.sku AS sku FROM orders LATERAL VIEW explode(tags) AS tag
        LATERAL VIEW OUTER explode(items) AS item""",
    "made": "SELECT id, n FROM orders LATERAL VIEW explode(array(id, 7, id)) AS n",
    "twice of itself": """SELECT a.id, b.tag FROM orders a LEFT JOIN
        (SELECT id, tag FROM orders LATERAL VIEW explode(tags) AS tag) b ON a.id = b.id""",
}
ANSWERS = {
    "lateral view": [(1, "big"), (1, "new"), (1, "new"), (4, None), (4, "old")],
    "outer": [(1, "big"), (1, "new"), (1, "new"), (2, None), (3, None), (4, None), (4, "old")],
    "positions": [(1, 1, "big"), (1, 2, "new"), (4, 1, "old")],
    "in select": [(4, None), (4, "old")],
    "outer in select": [
        *[(1, 0, "new"), (1, 1, "big"), (1, 2, "new"), (2, None, None), (3, None, None)],
        *[(4, 0, None), (4, 1, "old")],
    ],
    "counted": [("big", 1), ("new", 2), ("old", 1), (None, 1)],
    "fields": [(1, "ink", "10.00"), (1, "pen", "4.00"), (2, "pen", "6.00"), (4, None, None)],
    "joined": [("paper", "5.00"), ("wet", "5.00")],
    "two": [
        *[(1, tag, sku) for tag in ("big", "new", "new") for sku in ("ink", "pen")],
        *[(4, None, None), (4, "old", None)],
    ],
    "made": [(each, n) for each in (1, 2, 3, 4) for n in (each, each, 7)],
    "twice of itself": [(1, "big"), (1, "new"), (1, "new"), (2, None), (3, None), (4, None), (4, "old")],
}


def answer(view):
    plain = (
        (str(v) if isinstance(v, decimal.Decimal) else v for v in row.values()) for row in view.snapshot().to_pylist()
    )
    return sorted(map(tuple, plain), key=repr)


@pytest.mark.parametrize("times", ["refresh", "every"])
@pytest.mark.parametrize("name", QUERIES)
def test_a_view_has_a_row_for_each_element_and_follows_changes(place, name, times):
    store = filled(place)
    view = store.view("v", sql=QUERIES[name], policy="incremental_strict", times=times)
    assert answer(view) == sorted(ANSWERS[name], key=repr)
    store["orders"].delete([{"id": 2}])
    with store.transaction() as tx:
        tx.upsert("orders", [{"id": 1, "tags": ["new", "odd"], "items": []}, {**FIRST[2], "tags": ["x", "x"]}])
        tx.upsert("skus", [{"sku": "pen", "kind": "tool"}])
    assert view.refresh().how == "changes"
    assert view.verify().is_exact
    assert answer(view) != sorted(ANSWERS[name], key=repr)
    with store.transaction() as tx:
        tx.upsert("orders", FIRST)
        tx.upsert("skus", [{"sku": "pen", "kind": "paper"}])
    view.refresh()
    assert answer(view) == sorted(ANSWERS[name], key=repr)


def test_explain_says_how_rows_come_from_an_array_and_what_has_to_be_read(place):
    store = filled(place)
    said = store.view("v", sql=QUERIES["joined"]).explain()
    assert "a row for each element of items" in said
    assert "changes of skus -> orders by" in said
    assert "(computed, so all rows are read)" in said, "no key tells which orders have an item"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT id, k FROM orders LATERAL VIEW stack(2, 1, 2) t AS k", "LATERAL VIEW stack has no rule"),
        ("SELECT id, t FROM orders LATERAL VIEW explode(id) AS t", "explode of int64 has no rule: explode an array"),
        ("SELECT id, t FROM orders LATERAL VIEW explode(tags) AS t, u", "2 names for its columns"),
        (
            "SELECT skus.sku, t FROM orders LATERAL VIEW explode(tags) AS t JOIN skus ON length(skus.sku) = orders.id",
            "line 1, column 45: a JOIN after LATERAL VIEW: write the joins first",
        ),
        ("SELECT explode(tags) AS t, count(*) AS n FROM orders GROUP BY ALL", "explode has no rule here"),
        ("SELECT explode(tags) AS t, explode(tags) AS u FROM orders", "without another one"),
        ("SELECT explode(tags) FROM orders", "explode has no rule here: name its columns"),
        ("SELECT id, t FROM orders, LATERAL explode(tags) AS e(t)", "write LATERAL VIEW explode"),
        ("SELECT id, item.weight AS w FROM orders LATERAL VIEW explode(items) AS item", "has no field weight"),
        ("SELECT id, n FROM orders LATERAL VIEW explode(array(tags)) AS n", "an array of nothing, or of nested values"),
    ],
)
def test_what_has_no_rule_is_refused_with_the_reason(place, sql, reason):
    store = filled(place)
    with pytest.raises(ts.UnsupportedView) as refused:
        store.view("v", sql=sql, policy="incremental_strict")
    assert reason in str(refused.value)


def test_a_column_that_nothing_needs_is_not_read(place):
    store = filled(place)
    plan = store.view("v", sql=QUERIES["lateral view"]).explain()
    assert "items" not in plan


@pytest.mark.parametrize("is_outer", [False, True])
def test_arrays_without_elements_give_no_row_or_one_with_nulls(is_outer):
    """Versions of Polars differ in what they make of an empty array."""
    array, place, element = (
        PlanColumn("a", pa.list_(pa.int64())),
        PlanColumn("p", pa.int32()),
        PlanColumn("e", pa.int64()),
    )
    node = Explode(InputScan("", ((array, "a"),)), (), array, element, place, is_outer)
    rows = pl.DataFrame({"a": [[5, None], [], None], WEIGHT: [1, 2, -3]}, schema_overrides={"a": pl.List(pl.Int64)})
    got = explode_rows(node, rows).rows()
    assert got == [(0, 5, 1), (1, None, 1), *([(None, None, 2), (None, None, -3)] if is_outer else [])]
    assert explode_rows(node, rows.clear()).schema == explode_rows(node, rows).schema
