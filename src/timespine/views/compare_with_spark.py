"""Compare the first build of a view with Spark's own answer to the text of the user.

Both are compared as multisets (EXCEPT ALL both ways). Doubles may differ in their last digits, because sums of doubles
are rounded once here, and by the order of rows in Spark: rows that are left over are paired within a tolerance. A text
whose order leaves ties open has several right answers, so only what the order decides is compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.spark.quoted_names import quoted
from timespine.views.engine.lowering import WEIGHT
from timespine.views.plan.algebra import Aggregate, AggregateCall, PlanNode, Project, Top, WindowNode, nodes_of
from timespine.views.spark_engine.frames import consolidate_frame, negated, union_frames
from timespine.views.spark_engine.scalar_text import spark_type

TOLERANCE = 1e-9
"""How far doubles may differ, relative to their size."""

PAIRED_MAX = 100_000
"""Most rows that are paired within the tolerance; more than these surely differ."""


Near = Callable[[tuple[Any, ...], tuple[Any, ...]], bool]


def plan_difference(plan: PlanNode | None, query: Any, view: Any, schema: pa.Schema) -> str:
    """Say how the rows of a first build differ from what Spark answers; no text if they do not."""
    told, made, ours, theirs = compare_answers(plan, query, view, schema)
    if not (ours or theirs):
        return ""
    return (
        f"its plan gives {made} rows, and Spark {told}; {ours} rows are only in the first, {theirs} only in the second"
    )


def compare_answers(plan: PlanNode | None, query: Any, view: Any, schema: pa.Schema) -> tuple[int, int, int, int]:
    """Compare what the text decides: return the rows of Spark and ours, and how many are only here, only there."""
    names = list(schema.names)
    if plan is not None and _leaves_ties(plan):
        names = _decided(plan, schema)
    is_near = _is_near
    if plan is not None and _sums_doubles(plan):
        is_near = _are_doubles  # what order Spark added them in is not known, nor what it lost by that
    return differences(query, view, schema, names, is_near)


def decides_all(plan: PlanNode | None) -> bool:
    """Return whether Spark's answer to a text is the only right one, to the last digit that is compared."""
    return plan is None or not (_leaves_ties(plan) or _sums_doubles(plan))


def differences(query: Any, view: Any, schema: pa.Schema, names: list[str], is_near: Near) -> tuple[int, int, int, int]:
    """Compare some columns: return the rows of Spark and ours, and how many are only here, only there."""
    spark = query.sparkSession
    fields = [schema.field(name) for name in names]
    casts = [f"CAST({quoted(each.name)} AS {spark_type(each.type)}) AS {quoted(each.name)}" for each in fields]
    told = query.selectExpr(*casts, f"1L AS {quoted(WEIGHT)}") if names else query.selectExpr(f"1L AS {quoted(WEIGHT)}")
    if isinstance(view, pl.DataFrame):
        wanted = pa.schema([*fields, pa.field(WEIGHT, pa.int64())])
        table = view.select([*names, WEIGHT]).to_arrow().cast(wanted)
        frame = spark.createDataFrame(table) if table.num_rows else told.limit(0)
    else:
        frame = view.frame.selectExpr(*casts, quoted(WEIGHT))
    told, frame = told.persist(), frame.persist()
    try:
        off = consolidate_frame(union_frames([frame, negated(told, names)]), names)
        numbers = [each.groupBy().sum(WEIGHT).toArrow().column(0)[0].as_py() or 0 for each in (told, frame)]
        left = off.limit(PAIRED_MAX + 1).toArrow()
    finally:
        told.unpersist()
        frame.unpersist()
    ours, theirs = _unpaired(left, [each.name for each in fields if pa.types.is_floating(each.type)], is_near)
    return numbers[0], numbers[1], ours, theirs


def _unpaired(left: pa.Table, floats: list[str], is_near: Near) -> tuple[int, int]:
    """Count the rows of each side that have no partner within the tolerance."""
    rows = left.to_pylist()
    if not floats or len(rows) > PAIRED_MAX:
        return _count(rows, 1), _count(rows, -1)
    groups: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for row in rows:
        weight = row.pop(WEIGHT)
        values = tuple(row.pop(name) for name in floats)
        side = groups[repr(sorted(row.items(), key=lambda pair: pair[0]))][weight < 0]
        side.extend([values] * abs(weight))
    ours = theirs = 0
    for here, there in groups.values():
        for values in sorted(here, key=repr):
            partner = next((other for other in there if is_near(values, other)), None)
            if partner is None:
                ours += 1
            else:
                there.remove(partner)
        theirs += len(there)
    return ours, theirs


def _count(rows: list[Any], sign: int) -> int:
    return sum(abs(row[WEIGHT]) for row in rows if row[WEIGHT] * sign > 0)


def _is_near(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif math.isnan(a) or math.isnan(b):
            if math.isnan(a) != math.isnan(b):
                return False
        elif not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return False
    return True


def _are_doubles(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all((a is None) == (b is None) for a, b in zip(one, other, strict=True))


def _sums_doubles(plan: PlanNode) -> bool:
    """Return whether a plan adds doubles up, which Spark does in no fixed order."""
    calls = [call for node in nodes_of(plan) if isinstance(node, Aggregate) for _, call in node.calls]
    return any(
        call.argument is not None
        and pa.types.is_floating(call.argument.type)
        and call.function not in ("count", "min", "max")
        for call in calls
    )


def _leaves_ties(plan: PlanNode) -> bool:
    """Return whether the text leaves open which rows come first."""
    for node in nodes_of(plan):
        if isinstance(node, Top) and {each.column.name for each in node.order} < {each.name for each in node.columns}:
            return True
        if isinstance(node, WindowNode) and any(call.is_placed for _, call in node.calls):
            return True
        if isinstance(node, Aggregate) and any(_picks(call) for _, call in node.calls):
            return True
    return False


def _picks(call: AggregateCall) -> bool:
    return "_by" in call.function


def _decided(plan: PlanNode, schema: pa.Schema) -> list[str]:
    """Return the columns of a result that its order decides; the number of rows is always decided."""
    node, renamed = plan, {}
    while isinstance(node, Project):
        renamed = {column.name: getattr(each, "name", None) for column, each in node.outputs}
        node = node.child
    if not isinstance(node, Top) or renamed:
        return []
    ties = {each.column.name.partition("#")[0].lower() for each in node.order}
    return [name for name in schema.names if name.lower() in ties]
