"""Queries of many parts: lists, chains and unions of any length; and a limit on what nests, on any stack.

Every answer is compared with the same condition in Python over the rows.
"""

import itertools
from decimal import Decimal

import pyarrow as pa
import pytest

import timespine as ts
from timespine.views import compute_changes
from timespine.views.plan.expressions import Call, Literal, PlanColumn, chain, conjuncts
from timespine.views.spark_engine.scalar_text import expression_text
from timespine.views.sql import parse
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.functions import BIGINT, BOOL, call

DEEP = 500
"""Frames of the caller, as in a notebook or a web server; half of what Python allows."""

ROWS = [
    {"id": id, "v": None if id % 7 == 0 else id % 50, "d": Decimal(id) / 10, "x": None if id % 5 == 0 else id / 4}
    for id in range(300)
]


def filled(place):
    store = place.open()
    value = {"v": "int64", "d": "decimal(10,2)", "x": "double"}
    store.create("a", key={"id": "int64"}, value=value, timeline="counter")
    store["a"].append(ROWS)
    return store


def deeper(frames, work):
    return work() if frames == 0 else deeper(frames - 1, work)


def forget():
    """Forget what was parsed, as a new process has."""
    compute_changes.compile_definition.cache_clear()
    parse._parsed.cache_clear()


def null_in(value, values):
    """Say whether a value is in a list, by the rules of SQL."""
    if value is None:
        return None
    return True if value in [each for each in values if each is not None] else None if None in values else False


LONG = list(range(3, 20_003, 2))
LISTS = {
    "long": (f"id IN ({', '.join(map(str, LONG))})", lambda row: null_in(row["id"], LONG)),
    "long, negated": (f"v NOT IN ({', '.join(map(str, LONG))})", lambda row: null_in(row["v"], LONG) is False),
    "null": ("v IN (1, NULL, 8)", lambda row: null_in(row["v"], [1, None, 8])),
    "null, negated": ("v NOT IN (1, NULL, 8)", lambda row: null_in(row["v"], [1, None, 8]) is False),
    "unknown": ("(v IN (1, NULL, 8)) IS NULL", lambda row: null_in(row["v"], [1, None, 8]) is None),
    "decimals": ("d IN (1, 2.5, 7.25)", lambda row: row["d"] in (1, Decimal("2.5"), Decimal("7.25"))),
    "doubles": ("x IN (0.25, 1.5, 3)", lambda row: row["x"] in (0.25, 1.5, 3.0)),
    "once": ("v IN (4, 4) AND id > 9", lambda row: row["v"] == 4 and row["id"] > 9),
    "of columns": ("v IN (id, 3, 7)", lambda row: null_in(row["v"], [row["id"], 3, 7])),
    "or": (" OR ".join(f"id = {each}" for each in LONG[:1000]), lambda row: row["id"] in LONG[:1000]),
    "and": (" AND ".join(f"id <> {each}" for each in LONG[:1000]), lambda row: row["id"] not in LONG[:1000]),
    "both": (
        f"({' OR '.join(f'v = {each}' for each in range(40))}) AND ({' AND '.join(f'id <> {n}' for n in range(200))})",
        lambda row: row["v"] is not None and row["v"] < 40 and row["id"] >= 200,
    ),
    "unions": (None, lambda row: True),
    "texts": (f"length({' || '.join(['CAST(v AS string)'] * 400)}) > 400", lambda row: (row["v"] or 0) > 9),
    "sum": (f"{' + '.join(['d'] * 90)} > 100", lambda row: row["d"] * 90 > 100),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_long_list_or_chain_is_exact_when_it_is_created_and_refreshed_from_a_deep_stack(place, name):
    store = filled(place)
    condition, meant = LISTS[name]
    times = 1
    sql = f"SELECT id FROM a WHERE {condition}"
    if condition is None:
        times, sql = 200, " UNION ALL ".join(["SELECT id FROM a"] * 200)
    view = deeper(DEEP, lambda: store.view("w", sql=sql))
    store["a"].upsert([{**ROWS[5], "v": 3}, {**ROWS[9], "v": None}, {**ROWS[11], "x": 0.25, "d": Decimal("7.25")}])
    store["a"].delete({"id": 3})
    store["a"].append([{"id": 1001, "v": 1001, "d": Decimal(2), "x": None}, {"id": 5000, "v": 2, "d": None, "x": 1.5}])
    forget()
    deeper(DEEP, lambda: (store.refresh(), view.explain()))
    rows = store["a"].snapshot().to_pylist()
    wanted = [row["id"] for row in rows if meant({**row, "d": row["d"] or Decimal(0)})] * times
    assert sorted(row["id"] for row in view.snapshot().to_pylist()) == sorted(wanted)
    assert view.status().mode == "incremental"
    assert deeper(DEEP, view.verify).is_exact


def test_chains_beside_keys_of_groups_are_exact(place):
    store = filled(place)
    many = " OR ".join(f"v = {each}" for each in range(100, 400))
    sql = "SELECT (v = 1 OR v = 2) AS x, v = 1 OR v = 2 OR count(*) > 5 AS y FROM a"
    view = store.view("w", sql=f"{sql} WHERE NOT ({many}) GROUP BY v = 1 OR v = 2")
    assert sorted(map(tuple, (row.values() for row in view.snapshot().to_pylist()))) == [(False, True), (True, True)]


@pytest.mark.parametrize(
    ("expression", "place_of"),
    [
        (" + ".join(["id"] * 300), "line 1, column "),
        ("(" * 90 + "id" + ")" * 90, "line 1, column 97: this is nested 90 parentheses deep"),
        ("CASE WHEN id > 3 THEN " * 80 + "id" + " END" * 80, "CASE or NOT"),
        ("- " * 300 + "id", "more than 128 levels deep"),
    ],
    ids=["sum", "parentheses", "case", "signs"],
)
def test_what_nests_too_deeply_is_refused_with_the_place(place, expression, place_of):
    store = filled(place)
    with pytest.raises(ts.UnsupportedView) as refused:
        store.view("w", sql=f"SELECT {expression} AS x, id FROM a")
    assert place_of in str(refused.value)
    assert "store a part of it as a view" in str(refused.value)
    assert store.views() == []


def derived(levels):
    query = "SELECT id FROM a"
    for level in range(levels):
        query = f"SELECT id FROM ({query}) t{level} WHERE id > {level}"
    return query


def test_a_plan_of_too_many_levels_is_refused_and_one_just_below_refreshes_from_a_deep_stack(place):
    store = filled(place)
    with pytest.raises(ts.UnsupportedView, match="64 are the most: store a part of it as a view"):
        store.view("w", sql=derived(30))
    view = store.view("w", sql=derived(20))
    store["a"].append([{"id": 1001, "v": 1, "d": None, "x": None}])
    forget()
    deeper(DEEP, store.refresh)
    assert len(view.snapshot().to_pylist()) == 281


def test_the_text_that_digests_are_made_of_has_calls_of_two_arguments():
    """Plans were stored when chains were made of these, and IN of comparisons: their digests are still those."""
    column = PlanColumn("k#1", BIGINT)
    tests = [Call("=", (column, Literal(each, BIGINT)), BOOL) for each in range(3)]
    nested = f"Call(function='or', args=({tests[0]!r}, {tests[1]!r}), type={BOOL!r})"
    nested = f"Call(function='or', args=({nested}, {tests[2]!r}), type={BOOL!r})"
    assert repr(chain("or", tests)) == nested
    assert repr(Call("in", (column, *(Literal(each, BIGINT) for each in range(3))), BOOL)) == nested
    assert "PlanColumn(name='k#1', type=DataType(int64)), Literal(value=0" in nested
    assert repr(Call("not", (column,), BOOL)) == f"Call(function='not', args=({column!r},), type={BOOL!r})"


def test_explain_shows_the_first_values_of_a_list():
    listed = Call("in", (PlanColumn("k#1", BIGINT), *(Literal(each, BIGINT) for each in range(12))), BOOL)
    assert str(listed) == "k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... 12 values)"
    once = Call("in", listed.args[:1] + (Literal(4, BIGINT),) * 2, BOOL)
    assert list(map(str, conjuncts(once))) == ["k = 4"]


def test_sums_with_decimals_are_written_for_spark_in_a_time_that_is_no_power():
    made = PlanColumn("d", pa.decimal128(10, 2))
    for _ in itertools.repeat(None, 100):
        made = call("+", made, PlanColumn("d", pa.decimal128(10, 2)))
    assert expression_text(made).count("`d`") == 101


class Asking:
    """A session of Spark, which is asked on the stack of the caller."""

    asks = True

    def type_of(self, text, args):
        return BOOL


def test_a_stack_that_is_too_deep_for_a_translation_with_spark_is_no_recursion_error():
    query = parse.parse_query(f"SELECT {'abs(' * 40}id{')' * 40} AS x FROM a")
    columns = {"a": pa.schema([("id", BIGINT)])}
    assert plan_of(query, columns, Asking())
    with pytest.raises(ts.UnsupportedView, match="there are too many levels: store a part of it as a view"):
        deeper(880, lambda: plan_of(query, columns, Asking()))
