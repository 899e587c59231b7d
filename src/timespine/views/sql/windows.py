"""Window functions of SQL: ranks, neighbours, and aggregates over partitions and frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import SortKey, WindowCall
from timespine.views.plan.expressions import Expression, Literal
from timespine.views.sql.aggregates import SIMPLE
from timespine.views.sql.functions import BIGINT, BOOL, NotListed, aggregate_type
from timespine.views.sql.refusal_reasons import check_args, refuse
from timespine.views.sql.spark_types import SparkTypes

_RANKS: dict[type, str] = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
_SHARES: dict[type, str] = {exp.PercentRank: "percent_rank", exp.CumeDist: "cume_dist"}
_NEIGHBOURS: dict[type, str] = {exp.Lag: "lag", exp.Lead: "lead"}
_EDGES: dict[type, str] = {exp.FirstValue: "first_value", exp.LastValue: "last_value", exp.NthValue: "nth_value"}


def window_call(
    node: Any, order: tuple[SortKey, ...], scalar: Callable[[Any], Expression], types: SparkTypes | None
) -> WindowCall:
    """Translate the function of a window; the caller has its order."""
    inner = node.this
    frame = frame_text(node)
    kind = type(inner)
    is_ordered = kind in _RANKS or kind in _SHARES or kind in _NEIGHBOURS or kind in _EDGES or kind is exp.Ntile
    if is_ordered and not order:
        raise refuse(node, f"{inner.key} needs an order", "add ORDER BY to the window")
    if kind in _RANKS:
        return WindowCall(_RANKS[kind], None, order, pa.int32(), frame)
    if types is not None and kind in _SHARES:
        return WindowCall(_SHARES[kind], None, order, pa.float64(), frame)
    if types is not None and kind is exp.Ntile:
        return WindowCall("ntile", None, order, pa.int32(), frame, _constant(node, inner.this, scalar))
    if kind in _NEIGHBOURS:
        return _neighbour(node, order, scalar, frame)
    if types is not None and kind in _EDGES:
        check_args(inner, {"this", "offset"})
        value = scalar(inner.this)
        offset = inner.args.get("offset")
        extra = _constant(node, offset, scalar) if offset is not None else ""
        return WindowCall(_EDGES[kind], value, order, value.type, frame, extra)
    return _aggregate(node, order, scalar, types, frame)


def _neighbour(node: Any, order: tuple[SortKey, ...], scalar: Callable[[Any], Expression], frame: str) -> WindowCall:
    inner = node.this
    check_args(inner, {"this", "offset"})
    value = scalar(inner.this)
    offset = inner.args.get("offset")
    extra = _constant(node, offset, scalar) if offset is not None else ""
    return WindowCall(_NEIGHBOURS[type(inner)], value, order, value.type, frame, extra)


def _aggregate(
    node: Any, order: tuple[SortKey, ...], scalar: Callable[[Any], Expression], types: SparkTypes | None, frame: str
) -> WindowCall:
    inner = node.this
    function = SIMPLE.get(type(inner))
    if function is None or isinstance(inner.this, exp.Distinct) or (function == "avg" and types is None):
        raise refuse(node, "this window function has no rule", "use a rank, or an aggregate of the partition")
    check_args(inner, {"this", "expressions", "big_int"})
    value = None if inner.this is None or isinstance(inner.this, exp.Star) else scalar(inner.this)
    if isinstance(inner, exp.LogicalAnd | exp.LogicalOr) and (value is None or value.type != BOOL):
        raise refuse(node, "all or any of what is no truth has no rule", "compare it with something")
    if isinstance(value, Literal) and function == "count" and value.value is not None:
        value = None
    if value is not None and pa.types.is_floating(value.type):
        raise refuse(node, "an aggregate of doubles over a window has no rule", "store them as decimals")
    try:
        kind = aggregate_type(function, value.type) if value is not None else BIGINT
    except NotListed as error:
        raise refuse(node, str(error), "use policy 'full'") from None
    return WindowCall(function, value, order, kind, frame)


def _constant(node: Any, given: Any, scalar: Callable[[Any], Expression]) -> str:
    value = scalar(given)
    if not isinstance(value, Literal) or not isinstance(value.value, int) or value.value < 0:
        raise refuse(node, "the offset of a window function is a whole constant", "write one")
    return str(value.value)


def frame_text(node: Any) -> str:
    """Return the frame of a window in Spark SQL; empty if it has none."""
    spec = node.args.get("spec")
    if spec is None:
        return ""
    check_args(spec, {"kind", "start", "start_side", "end", "end_side"})
    bounds = []
    for side in ("start", "end"):
        value = spec.args.get(side)
        if value is None:
            bounds.append("CURRENT ROW")
            continue
        text = value if isinstance(value, str) else value.sql("spark")
        direction = str(spec.args.get(f"{side}_side") or "").upper()
        if not isinstance(value, str) and not isinstance(value, exp.Literal):
            raise refuse(node, "a frame has constants as bounds", "write whole numbers")
        bounds.append(f"{text.upper()} {direction}".strip())
    return f"{str(spec.args['kind']).upper()} BETWEEN {bounds[0]} AND {bounds[1]}"
