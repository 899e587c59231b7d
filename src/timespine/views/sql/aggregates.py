"""Aggregate functions of SQL: those of the list, and those that only Spark computes, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.views.plan.algebra import AggregateCall
from timespine.views.plan.expressions import Call, Expression, Literal
from timespine.views.sql.functions import BIGINT, BOOL, DOUBLE, NotListed, aggregate_type, call, cast, is_number
from timespine.views.sql.refusal_reasons import NoRule, check_args, refuse, written_name
from timespine.views.sql.spark_types import SparkTypes

SIMPLE: dict[type, str] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Count: "count",
    exp.LogicalAnd: "min",
    exp.LogicalOr: "max",
}
"""Aggregates of one argument; all of some truths are true if the least of them is."""

_SPREADS: dict[type, str] = {
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
}
_PAIRED: dict[type, str] = {exp.CovarSamp: "covar_samp", exp.CovarPop: "covar_pop", exp.Corr: "corr"}
_PICKING: dict[type, str] = {exp.ArgMin: "min_by", exp.ArgMax: "max_by"}

_INSTEAD = "use sum, count, avg, min, max, or give a session of Spark"


def is_aggregate(node: Any) -> bool:
    """Return whether a node is an aggregate, or one in an order that makes it definite."""
    if isinstance(node, exp.ArraySort):
        return isinstance(node.this, exp.ArrayAgg | exp.ArrayUniqueAgg)
    return isinstance(node, exp.AggFunc)


class Aggregates:
    """The translation of aggregates over the columns of one relation."""

    def __init__(self, scalar: Callable[[Any], Expression], types: SparkTypes | None) -> None:
        self._scalar = scalar
        self._types = types

    def translate(self, node: Any) -> AggregateCall:
        """Translate an aggregate; FILTER becomes a CASE inside of it."""
        condition = None
        inner = node
        if isinstance(node, exp.Filter):
            inner, condition = node.this, self._scalar(node.expression.this)
        try:
            found = self._listed(inner, condition)
        except (NotListed, NoRule) as error:
            on_spark = self._as_text(inner, condition)
            if on_spark is not None:
                return on_spark
            if isinstance(error, NoRule):
                raise
            raise refuse(node, str(error), "this process cannot compute it as Spark does; Spark has to") from None
        if found is not None:
            return found
        on_spark = self._as_text(inner, condition)
        if on_spark is None:
            raise refuse(node, f"the aggregate {written_name(inner)} has no rule", _INSTEAD)
        return on_spark

    def _listed(self, inner: Any, condition: Expression | None) -> AggregateCall | None:
        """Translate an aggregate of the list; None for others."""
        if isinstance(inner, exp.CountIf):
            tested = self._scalar(inner.this)
            tested = tested if condition is None else call("and", tested, condition)
            one, none = Literal(1, pa.int32()), Literal(None, pa.int32())
            return AggregateCall("count", call("case", tested, one, none), BIGINT)
        if type(inner) in _SPREADS:
            return AggregateCall(_SPREADS[type(inner)], self._number(inner.this, condition), DOUBLE)
        if type(inner) in _PAIRED:
            pair = [self._number(each, condition) for each in (inner.this, inner.expression)]
            return AggregateCall(_PAIRED[type(inner)], _struct(pair), DOUBLE)
        if type(inner) in _PICKING:
            check_args(inner, {"this", "expression"})
            value, order = self._scalar(inner.this), _only_if(condition, self._scalar(inner.expression))
            for each in (value, order):
                if pa.types.is_floating(each.type) or pa.types.is_nested(each.type):
                    raise NotListed(f"{_PICKING[type(inner)]} of {each.type}")
            return AggregateCall(_PICKING[type(inner)], _struct([value, order]), value.type)
        function = SIMPLE.get(type(inner))
        if function is None:
            return None
        return self._simple(inner, function, condition)

    def _simple(self, inner: Any, function: str, condition: Expression | None) -> AggregateCall:
        check_args(inner, {"this", "expressions", "big_int"})
        argument = inner.this
        if isinstance(argument, exp.Distinct):
            check_args(argument, {"expressions"})
            if len(argument.expressions) != 1 or function not in ("count", "sum", "min", "max"):
                raise refuse(
                    inner, f"{function}(DISTINCT ...) of this form has no rule", "aggregate over a SELECT DISTINCT"
                )
            argument = argument.expressions[0]
            function = f"{function} distinct" if function in ("count", "sum") else function
        elif inner.expressions:
            raise refuse(inner, f"{function} of several columns has no rule", "count them one by one")
        value = None if argument is None or isinstance(argument, exp.Star) else self._scalar(argument)
        if function == "count" and isinstance(value, Literal) and value.value is not None:
            value = None
        if isinstance(inner, exp.LogicalAnd | exp.LogicalOr) and (value is None or value.type != BOOL):
            raise refuse(inner, "all or any of what is no truth has no rule", "compare it with something")
        if condition is not None:
            value = _only_if(condition, Literal(1, pa.int32()) if value is None else value)
        return AggregateCall(function, value, _type_of(function, value))

    def _number(self, node: Any, condition: Expression | None) -> Expression:
        value = _only_if(condition, self._scalar(node))
        if not is_number(value.type):
            raise NotListed(f"this aggregate of {value.type}")
        return cast(value, DOUBLE)

    def _as_text(self, inner: Any, condition: Expression | None) -> AggregateCall | None:
        """Translate an aggregate to text that Spark computes; None if it has none, or there is no session."""
        if self._types is None:
            return None
        copied = inner.copy()
        parts: list[Expression] = []
        try:
            for each in arguments_of(copied):
                parts.append(self._scalar(each))
                each.replace(exp.Var(this=f"\0{len(parts) - 1}\0"))
            if not parts:
                return None
            text = copied.sql("spark", comments=False)
            kind = self._types.type_of(text, parts, is_aggregate=True)
        except (NotListed, NoRule):
            return None
        if len(parts) == 1:
            return AggregateCall(text.replace("\0000\0", "\0"), _only_if(condition, parts[0]), kind)
        for place in range(len(parts)):
            text = text.replace(f"\0{place}\0", f"\1.a{place}")
        return AggregateCall(text.replace("\1", "\0"), _only_if(condition, _struct(parts)), kind)


def arguments_of(node: Any) -> list[Any]:
    """List the arguments of an aggregate that have columns."""
    if isinstance(node, exp.ArraySort):
        return arguments_of(node.this)
    found = []
    for each in list(node.iter_expressions()):
        if isinstance(each, exp.Distinct):
            found.extend(each.expressions)
        elif each.find(exp.Column) is not None:
            found.append(each)
    return found


def _only_if(condition: Expression | None, value: Expression) -> Expression:
    return value if condition is None else call("case", condition, value, Literal(None, value.type))


def _struct(parts: list[Expression]) -> Expression:
    kind = pa.struct([(f"a{place}", each.type) for place, each in enumerate(parts)])
    return Call("struct", tuple(parts), kind)


def _type_of(function: str, value: Expression | None) -> pa.DataType:
    if function == "sum distinct":
        assert value is not None
        if pa.types.is_floating(value.type):
            raise NotListed("sum(DISTINCT ...) of floating-point numbers")
        return aggregate_type("sum", value.type)
    return aggregate_type(function, value.type if value is not None else None)
