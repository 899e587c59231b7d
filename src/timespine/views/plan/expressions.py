"""Scalar expressions of plans: typed as Spark types them, built from a closed list of functions.

An expression names columns of the plan below it. What a function means is Spark's business: `sql.functions` has the
types, `engine.lowering` the values, and tests/spark/test_view_expressions.py compares both with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

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
    """The arguments, in the types that the function needs. AND, OR and IN take any number."""
    type: pa.DataType
    """The type of the result."""

    def __repr__(self) -> str:
        return fold_calls(self, repr, _repr_of_call)

    def __str__(self) -> str:
        return fold_calls(self, str, _text_of_call)


Expression = PlanColumn | Literal | Call

CHAINS = ("and", "or")
"""Functions of any number of conditions, from left to right: how deep a condition nests does not follow from how many
it has."""

SHOWN_VALUES_MAX = 10
"""Most values of an IN list that `explain` shows."""


def fold_calls(expression: Expression, leaf: Callable[[Expression], T], join: Callable[[Call, list[T]], T]) -> T:
    """Work out a value of an expression from those of its parts, without a frame for each level of it."""
    done: dict[int, T] = {}
    waiting = [expression]
    while waiting:
        each = waiting[-1]
        parts = [part for part in each.args if id(part) not in done] if isinstance(each, Call) else []
        if parts:
            waiting.extend(reversed(parts))
            continue
        waiting.pop()
        done[id(each)] = join(each, [done[id(part)] for part in each.args]) if isinstance(each, Call) else leaf(each)
    return done[id(expression)]


def _repr_of_call(call: Call, args: list[str]) -> str:
    """Write a call as the dataclass does; AND, OR and IN as calls of two arguments each.

    SUBTLE: the digests of stored plans are made of this text. Chains were calls of two arguments when the first of them
    were stored, and IN an OR of comparisons: another text asks for a rebuild (test_deep_queries.py).
    """
    function = call.function
    if function == "in":
        tested, *values = args
        end = f"), type={call.type!r})"
        function, args = "or", [f"Call(function='=', args=({tested}, {value}{end}" for value in values]
    if function not in CHAINS:
        return (
            f"Call(function={function!r}, args=({', '.join(args)}{',' if len(args) == 1 else ''}), type={call.type!r})"
        )
    begin, end = f"Call(function={function!r}, args=(", f"), type={call.type!r})"
    return begin * (len(args) - 1) + args[0] + "".join(f", {each}{end}" for each in args[1:])


def _text_of_call(call: Call, args: list[str]) -> str:
    """Write a call for people."""
    if call.function == "cast":
        return args[0]
    if call.function == FIELD and isinstance(call.args[1], Literal):
        return f"{args[0]}.{call.args[1].value}"
    if call.function == "in":
        tested, *values = args
        more = [f"... {len(values)} values"] if len(values) > SHOWN_VALUES_MAX else []
        return f"{tested} in ({', '.join([*values[:SHOWN_VALUES_MAX], *more])})"
    if len(args) == 2 and not call.function[0].isalpha():
        one, two = (
            f"({text})" if isinstance(each, Call) and len(each.args) > 1 else text
            for each, text in zip(call.args, args, strict=True)
        )
        return f"{one} {call.function} {two}"
    return f"{call.function}({', '.join(args)})"


def chain(function: str, conditions: Sequence[Expression]) -> Expression:
    """Apply AND or OR to some conditions, from left to right."""
    first, *others = conditions
    if not others:
        return first
    begun = first.args if isinstance(first, Call) and first.function == function else (first,)
    return Call(function, (*begun, *others), pa.bool_())


TEXT_CALL = "spark"
"""The function of a call that only Spark computes. Its first argument is the text as it was written; in it, the number
of another argument between two zero characters stands for that argument."""


FIELD = "field"
"""The function that takes a field of a struct, by the name that its second argument is."""


def columns_of(expression: Expression) -> frozenset[str]:
    """Return the names of the columns that an expression needs."""
    found: set[str] = set()
    waiting: list[Expression] = [expression]
    while waiting:
        each = waiting.pop()
        if isinstance(each, PlanColumn):
            found.add(each.name)
        elif isinstance(each, Call):
            waiting.extend(each.args)
    return frozenset(found)


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
    if isinstance(expression, Call) and expression.function == "in" and len(set(expression.args[1:])) == 1:
        return [Call("=", expression.args[:2], expression.type)]
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
    return [*common, chain("or", [rest for rest in rests if rest is not None])]


def _disjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, Call) and expression.function == "or":
        return [each for arg in expression.args for each in _disjuncts(arg)]
    return [expression]


def conjunction(conditions: list[Expression]) -> Expression | None:
    """Return the condition that all of some conditions hold; None if there are none."""
    return chain("and", conditions) if conditions else None


def shown(name: str) -> str:
    """Return the name of a column as people wrote it, without the number that makes it unique."""
    return name.partition("#")[0]
