"""The process against Spark: each aggregate and window function with each type, on groups of edge values.

As in test_view_expression_pairs.py, the process says first which groups it answers, and Spark answers these, in a few
jobs. Types and values have to be the same, to the last bit; only spreads of doubles, which Spark sums in an order of
its own, may differ in their last digits.
"""

import math
import random

import polars as pl
import pyarrow as pa
from expression_pairs import AGGREGATES, COUNTED, DISTINCTS, ORDERED, ORDERS, TYPES, WINDOWS, member_table
from test_view_expression_pairs import FAST, plain
from test_views_on_spark import stage_rows

import timespine as ts
from timespine.spark.type_mapping import arrow_columns
from timespine.views.engine.accumulators import FUNCTIONS, Grouping
from timespine.views.engine.lowering import WEIGHT, Declined, to_memory
from timespine.views.engine.windows import computes, window_rows
from timespine.views.plan.algebra import Aggregate, InputScan, PlanNode, WindowNode, nodes_of
from timespine.views.spark_engine.session import borrowed
from timespine.views.sql.from_sql import Builder
from timespine.views.sql.parse import parse_query, qualified
from timespine.views.sql.refusal_reasons import NoRule

MEMBERS = member_table()
GROUPS = max(MEMBERS["g"].to_pylist())
"""The group of all values of a type; those before it are pairs."""

ROWS = to_memory(pl.DataFrame(pl.from_arrow(MEMBERS))).with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
ROUNDED = ("stddev", "variance", "var_pop", "covar", "corr", "sum", "avg")
"""Aggregates that are doubles, and sums of several."""

IN_ORDER = ("long", "wide", "deep")
"""Types of which a sum of many values fails on Spark or not as their order has it."""


def planned(texts, tail):
    """Return the plans of those texts that the lists of functions have, by place."""
    found = {}
    inputs = {"members": MEMBERS.schema}
    for place, text in enumerate(texts):
        sql = f"SELECT g, m, {text} AS v FROM members" if not tail else f"SELECT g, {text} AS v FROM members {tail}"
        try:
            plan, named = Builder(inputs).query(qualified(parse_query(sql), inputs), {}, None)
        except NoRule:
            continue
        if "v" in dict(named):
            found[place] = plan, dict(named)["v"].type
    return found


def node_of(plan: PlanNode, kind: type) -> PlanNode | None:
    """Return the only node of a kind, if the process computes its function."""
    (node,) = [each for each in nodes_of(plan) if isinstance(each, kind)]
    ((_, call),) = node.calls
    return node if (call.function in FUNCTIONS if kind is Aggregate else computes(call)) else None


def named_rows(node, groups):
    """Return the rows of some groups under the names of the plan."""
    (scan,) = [each for each in nodes_of(node) if isinstance(each, InputScan)]
    return groups.select([*(pl.col(source).alias(column.name) for column, source in scan.outputs), WEIGHT])


def evaluated(node, rows, groups):
    """Return the values of a node over some rows: by group, or by member."""
    if isinstance(node, Aggregate):
        grouping = Grouping(node)
        shown = grouping.show(grouping.accumulate(rows))
        return dict(zip(shown[node.keys[0].name].to_list(), said_as(shown, node), strict=True))
    shown = window_rows(node, rows)
    (member,) = [column.name for column, source in node.child.outputs if source == "m"]
    return dict(zip(shown[member].to_list(), said_as(shown, node), strict=True))


def said_as(shown, node):
    ((column, call),) = node.calls
    return plain(shown[column.name].to_arrow(), call.type)


def answered(node, groups):
    """Return what is not declined, found by halving the groups."""
    try:
        return evaluated(node, named_rows(node, groups), groups)
    except (Declined, pl.exceptions.PolarsError):  # as `compute_changes` takes it
        if groups["g"].n_unique() == 1:
            return {}
        middle = groups["g"].unique().sort()[groups["g"].n_unique() // 2]
        low, high = groups.filter(pl.col("g") < middle), groups.filter(pl.col("g") >= middle)
        return {**answered(node, low), **answered(node, high)}


def tied(name):
    """Return the groups whose least or greatest value several members have: Spark picks any of these."""
    template, kind = name
    if "m, {x}" not in template:
        return pl.DataFrame(schema={"g": pl.Int32})
    x = pl.col(f"x_{kind}").drop_nulls()
    return ROWS.group_by("g").agg((x.n_unique() < x.len()).alias("t")).filter("t").select("g")


def ours(templates, kind, types):
    """What the process says: by text the values of groups or members, and their type."""
    said = {}
    names = [(each, name) for name in types for each in templates]
    texts = [each.format(x=f"x_{name}", y=f"y_{name}") for each, name in names]
    for place, (plan, type) in planned(texts, "GROUP BY g" if kind is Aggregate else "").items():
        node = node_of(plan, kind)
        if node is not None:
            rows = ROWS.filter(pl.col("g") < GROUPS) if "sum" in texts[place] and names[place][1] in IN_ORDER else ROWS
            said[names[place]] = answered(node, rows.join(tied(names[place]), on="g", how="anti")), type
    return said


def theirs(spark, said, by, tail):
    """What Spark says about what the process answers; where that declines, all values are null."""
    bits = [
        "".join("1" if key in known else "0" for known, _ in said.values())
        for key in MEMBERS["g" if by == "g" else "m"].to_pylist()
    ]
    frame = spark.createDataFrame(MEMBERS.append_column("_bits", pa.array(bits))).coalesce(1)
    for name in ("x_local", "y_local"):  # times without a zone come as times in the zone of the session
        frame = frame.withColumn(name, frame[name].cast("timestamp_ntz"))
    frame.createOrReplaceTempView("members")
    chosen = []
    for place, (template, name) in enumerate(said, 1):
        x, y = (f"if(substr(_bits, {place}, 1) = '1', {side}_{name}, null)" for side in "xy")
        chosen.append(f"{template.format(x=x, y=y)} AS c{place}")
    frame = spark.sql(f"SELECT {by} AS _by, {', '.join(chosen)} FROM members {tail}")
    schema, table = arrow_columns(frame.schema), frame.toArrow()
    kinds = [field.type for field in schema][1:]
    places = table.column(0).to_pylist()
    return [
        (kind, dict(zip(places, plain(column.combine_chunks(), kind), strict=True)))
        for kind, column in zip(kinds, table.columns[1:], strict=True)
    ]


def is_same(text, one, other, size):
    """Whether two values are equal. Sums of doubles may differ in their last digits: Spark adds them in some order."""
    if one == other:
        return True
    if one is None or other is None or not isinstance(one, str):
        return False
    if text.startswith(("min(", "max(")):
        return {one, other} == {"0.0", "-0.0"}  # both zeros are equal: Spark shows any of them
    if not text.startswith(ROUNDED):
        return False
    return math.isclose(float(one), float(other), rel_tol=1e-12, abs_tol=1e-12 * size)


def sizes(name):
    """The sum of sizes of the values of each group, and of their squares."""
    if not (pa.types.is_floating(TYPES[name][0]) or pa.types.is_integer(TYPES[name][0])):
        return {}
    x = pl.col(f"x_{name}").cast(pl.Float64).abs()
    x = pl.when(x.is_finite()).then(x).otherwise(0.0)
    return dict(ROWS.group_by("g").agg((x.sum() + 1).alias("s")).iter_rows())


def compared(spark, templates, kind, types=TYPES):
    """Return what differs, and how many texts were compared."""
    said = ours(templates, kind, types)
    by, tail = ("g", "GROUP BY g") if kind is Aggregate else ("m", "")
    with borrowed(spark) as inner:
        before = {key: inner.conf.get(key) for key in FAST}
        for key, value in FAST.items():
            inner.conf.set(key, value)
        try:
            told = theirs(inner, said, by, tail)
        finally:
            for key, value in before.items():
                inner.conf.set(key, value)
    wrong = []
    for ((template, name), (known, type)), (their_type, values) in zip(said.items(), told, strict=True):
        if their_type != type:
            wrong.append((template, name, "type", str(their_type), str(type)))
            continue
        scale = sizes(name)
        differ = [
            (key, values[key], value)
            for key, value in known.items()
            if not is_same(template, values[key], value, scale.get(key, 0))
        ]
        if differ:
            wrong.append((template, name, f"{len(differ)} of {len(known)}", *differ[:3]))
    unanswered = [each for each, (known, _) in said.items() if not known]
    assert not unanswered, unanswered
    return wrong, len(said)


def test_aggregates_of_the_process_are_those_of_spark_on_groups_of_edge_values(spark):
    wrong, count = compared(spark, AGGREGATES, Aggregate)
    assert not wrong, "\n".join(map(str, wrong))
    assert count > 220


def test_aggregates_of_different_values_are_those_of_spark(spark):
    wrong, count = compared(spark, DISTINCTS, Aggregate, COUNTED)
    assert not wrong, "\n".join(map(str, wrong))
    assert count > 15


def test_windows_of_the_process_are_those_of_spark_on_groups_of_edge_values(spark):
    wrong, count = compared(spark, WINDOWS, WindowNode)
    assert not wrong, "\n".join(map(str, wrong))
    assert count > 120


def test_orders_of_windows_of_the_process_are_those_of_spark(spark):
    wrong, count = compared(spark, ORDERS, WindowNode, ORDERED)
    assert not wrong, "\n".join(map(str, wrong))
    assert count > 50


def test_spreads_are_the_same_on_both_engines(spark, tmp_path):
    calls = ["stddev(x)", "var_pop(x)", "covar_samp(x, y)", "corr(x, y)", "stddev(k) FILTER (WHERE y > 0)"]
    made = ", ".join(f"{call} AS c{place}" for place, call in enumerate(calls))
    values = [0.1, 0.2, 1 / 3, 1e16, 5e-324, -0.0, None]
    rng = random.Random(31)
    with ts.open(tmp_path / "store") as store:
        columns = {"g": "int64", "x": "double", "y": "double"}
        rows = store.create("a", key={"k": "int64"}, value=columns, timeline="counter")

        def row(k):
            return {"k": k, "g": rng.randrange(4) or None, "x": rng.choice(values), "y": rng.choice(values)}

        rows.append([row(k) for k in range(30)])
        for place, sql in enumerate((f"SELECT g, {made} FROM a GROUP BY g", f"SELECT {made} FROM a")):
            one, two = (store.view(f"{name}{place}", sql=sql) for name in ("one", "two"))
            rows.upsert([row(rng.randrange(32)) for _ in range(3)])
            assert one.refresh(engine="spark", spark=spark).how == "changes"
            time = two.refresh(engine="process").time
            assert sorted(map(repr, stage_rows(store, one, time))) == sorted(map(repr, stage_rows(store, two, time)))
            assert sorted(map(repr, one.snapshot().to_pylist())) == sorted(map(repr, two.snapshot().to_pylist()))
            assert one.verify().is_exact
