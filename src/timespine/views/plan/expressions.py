"""Scalar expressions of plans: typed as Spark types them, built from a closed list of functions.

An expression names columns of the plan below it. What a function means is Spark's business: `sql.functions` has the
types, `engine.lowering` the values, and tests/spark/test_view_expressions.py compares both with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

DIGITS = 38
"""The most digits of a decimal, in Spark and in memory."""


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
        if self.function == "cast":
            return str(self.args[0])
        if self.function == FIELD and isinstance(self.args[1], Literal):
            return f"{self.args[0]}.{self.args[1].value}"
        if len(self.args) == 2 and not self.function[0].isalpha():
            one, two = (
                f"({each})" if isinstance(each, Call) and len(each.args) > 1 else str(each) for each in self.args
            )
            return f"{one} {self.function} {two}"
        return f"{self.function}({', '.join(map(str, self.args))})"


Expression = PlanColumn | Literal | Call

TEXT_CALL = "spark"
"""The function of a call that only Spark computes. Its first argument is the text as it was written; in it, the number
of another argument between two zero characters stands for that argument."""


FIELD = "field"
"""The function that takes a field of a struct, by the name that its second argument is."""


def columns_of(expression: Expression) -> frozenset[str]:
    """Return the names of the columns that an expression needs."""
    if isinstance(expression, PlanColumn):
        return frozenset((expression.name,))
    if isinstance(expression, Literal):
        return frozenset()
    return frozenset().union(*map(columns_of, expression.args))


def widened_column(expression: Expression) -> PlanColumn | None:
    """Return the column that an expression has its values from, or None: the same ones, or wider whole numbers."""
    if isinstance(expression, Call) and expression.function == "cast" and isinstance(expression.args[0], PlanColumn):
        before, after = expression.args[0].type, expression.type
        if (
            pa.types.is_signed_integer(before)
            and pa.types.is_signed_integer(after)
            and before.bit_width < after.bit_width
        ):
            return expression.args[0]
    return expression if isinstance(expression, PlanColumn) else None


def replace_columns(expression: Expression, change: Callable[[PlanColumn], Expression]) -> Expression:
    """Return an expression with other expressions in the places of its columns."""
    if isinstance(expression, PlanColumn):
        return change(expression)
    if isinstance(expression, Literal):
        return expression
    return Call(expression.function, tuple(replace_columns(each, change) for each in expression.args), expression.type)


def conjuncts(expression: Expression) -> list[Expression]:
    """Split a condition into those that all must hold; what all sides of an OR have in common is one of them.

    (a AND b) OR (a AND c) = a AND (b OR c) holds with nulls too. So a join whose keys stand in each side has keys.
    """
    if isinstance(expression, Call) and expression.function == "and":
        return [each for arg in expression.args for each in conjuncts(arg)]
    if isinstance(expression, Call) and expression.function == "or":
        return _factored(expression)
    return [expression]


def _factored(expression: Call) -> list[Expression]:
    """Take out what all sides of an OR have in common."""
    sides = [conjuncts(side) for side in _disjuncts(expression)]
    common = [each for each in sides[0] if all(each in side for side in sides[1:])]
    if not common:
        return [expression]
    rests = [conjunction([each for each in side if each not in common]) for side in sides]
    if any(rest is None for rest in rests):
        return common  # one side asks for nothing else
    either = rests[0]
    for rest in rests[1:]:
        either = Call("or", (either, rest), expression.type)  # type: ignore[arg-type]
    return [*common, either]  # type: ignore[list-item]


def _disjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, Call) and expression.function == "or":
        return [each for arg in expression.args for each in _disjuncts(arg)]
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
