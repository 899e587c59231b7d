"""Scalar expressions of plans: typed as Spark types them, built from a closed list of functions.

An expression names columns of the plan below it. What a function means is Spark's business: `sql.functions` has the
types, `engine.lowering` the values, and tests/spark/test_view_expressions.py compares both with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PlanColumn:
    """A column of the plan below."""

    name: str
    """The name, unique in a whole plan."""
    type: pa.DataType
    """The type of its values."""

    def __str__(self) -> str:
        return shown(self.name)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: object
    """The value; None is NULL."""
    type: pa.DataType
    """Its type."""

    def __str__(self) -> str:
        return "NULL" if self.value is None else f"'{self.value}'" if isinstance(self.value, str) else str(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the closed list, applied to arguments whose types it was checked for."""

    function: str
    """The name of the function in the list."""
    args: tuple[Expression, ...]
    """The arguments, in the types that the function needs."""
    type: pa.DataType
    """The type of the result."""

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


Expression = PlanColumn | Literal | Call


def columns_of(expression: Expression) -> frozenset[str]:
    """Return the names of the columns that an expression needs."""
    if isinstance(expression, PlanColumn):
        return frozenset((expression.name,))
    if isinstance(expression, Literal):
        return frozenset()
    return frozenset().union(*map(columns_of, expression.args))


def replace_columns(expression: Expression, change: Callable[[PlanColumn], Expression]) -> Expression:
    """Return an expression with other expressions in the places of its columns."""
    if isinstance(expression, PlanColumn):
        return change(expression)
    if isinstance(expression, Literal):
        return expression
    return Call(expression.function, tuple(replace_columns(each, change) for each in expression.args), expression.type)


def conjuncts(expression: Expression) -> list[Expression]:
    """Split a condition into those that all must hold."""
    if isinstance(expression, Call) and expression.function == "and":
        return [each for arg in expression.args for each in conjuncts(arg)]
    return [expression]


def conjunction(conditions: list[Expression]) -> Expression | None:
    """Return the condition that all of some conditions hold; None if there are none."""
    if not conditions:
        return None
    whole = conditions[0]
    for each in conditions[1:]:
        whole = Call("and", (whole, each), pa.bool_())
    return whole


def shown(name: str) -> str:
    """Return the name of a column as people wrote it, without the number that makes it unique."""
    return name.partition("#")[0]
