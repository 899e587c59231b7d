"""Typed expressions as text of Spark SQL. What a function means is Spark's business; only the types are fixed here."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

from timespine.spark.quoted_names import quoted
from timespine.spark.type_mapping import ddl_of, struct_type
from timespine.views.plan.expressions import FIELD, TEXT_CALL, Call, Expression, Literal, PlanColumn, fold_calls

_SIMPLE_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.date32(): "DATE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BINARY",
}


def spark_type(given: pa.DataType) -> str:
    """Return the name of a type in Spark SQL."""
    if pa.types.is_decimal(given):
        return f"DECIMAL({given.precision},{given.scale})"
    simple = _SIMPLE_TYPES.get(given)
    if simple is not None:
        return simple
    return ddl_of(struct_type(pa.schema([("x", given)])).fields[0].dataType)


def text_literal(value: str) -> str:
    """Return a text constant, escaped."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def constant_text(literal: Literal) -> str:
    """Return a constant, of exactly its type."""
    value, kind = literal.value, literal.type
    if value is None:
        return "NULL" if pa.types.is_null(kind) else f"CAST(NULL AS {spark_type(kind)})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime.datetime):
        return f"CAST('{value.isoformat(sep=' ')}' AS {spark_type(kind)})"
    if isinstance(value, datetime.date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float) and not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, float):
        return f"{value!r}D"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS {spark_type(kind)})"
    return f"CAST({value} AS {spark_type(kind)})"


def values_text(table: pa.Table) -> str:
    """Return a query that gives the rows of a table."""
    columns = [
        [constant_text(Literal(value, field.type)) for value in column.to_pylist()]
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    rows = ", ".join(f"({', '.join(row)})" for row in zip(*columns, strict=True))
    return f"SELECT * FROM VALUES {rows} AS t({', '.join(map(quoted, table.column_names))})"


def expression_text(expression: Expression) -> str:
    """Return an expression over the columns of a relation as text."""
    return fold_calls(expression, _leaf_text, _call_text)[0]


Texts = tuple[str, str]
"""An expression as text: in its type, and as it was before it was brought to the digits of a sum."""


def _leaf_text(expression: Expression) -> Texts:
    if isinstance(expression, PlanColumn):
        return quoted(expression.name), quoted(expression.name)
    assert isinstance(expression, Literal)
    text = constant_text(expression)
    return text, f"{expression.value:f}BD" if isinstance(expression.value, Decimal) else text


def _call_text(call: Call, parts: list[Texts]) -> Texts:
    args = [text for text, _ in parts]
    if call.function == "cast":
        return f"CAST({args[0]} AS {spark_type(call.type)})", args[0]
    text = _text_of(call, args, [own for _, own in parts])
    return text, text


def _text_of(call: Call, args: list[str], own: list[str]) -> str:
    if call.function == TEXT_CALL:
        return _written(call, args)
    if call.function == FIELD:
        _, field = call.args
        assert isinstance(field, Literal)
        return f"({args[0]}).{quoted(str(field.value))}"
    made = _FUNCTIONS.get(call.function)
    if made is not None:
        return made(args)
    if call.function in _OPERATORS:
        if pa.types.is_decimal(call.type) and call.function in ("+", "-"):
            # SUBTLE: both sides were brought to 38 digits, from which a sum would lose decimal places
            # (test_spark_engine).
            args = own
        return f"CAST(({args[0]} {call.function} {args[1]}) AS {spark_type(call.type)})"
    return f"{_NAMES.get(call.function, call.function)}({', '.join(args)})"


def _written(call: Call, args: list[str]) -> str:
    """Return what the user wrote, with the columns of the plan in it."""
    template, given = call.args[0], args[1:]
    assert isinstance(template, Literal)
    pieces = str(template.value).split("\0")
    filled = (given[int(number)] + text for number, text in zip(pieces[1::2], pieces[2::2], strict=True))
    whole = pieces[0] + "".join(filled)
    return f"CAST(({whole}) AS {spark_type(call.type)})"


_OPERATORS = {"+", "-", "*", "/", "%", "div"}


def _case(args: list[str]) -> str:
    *pairs, otherwise = args
    tests = " ".join(f"WHEN {pairs[place]} THEN {pairs[place + 1]}" for place in range(0, len(pairs), 2))
    return f"CASE {tests} ELSE {otherwise} END"


def _infix(operator: str) -> Callable[[list[str]], str]:
    return lambda args: f"({args[0]} {operator} {args[1]})"


_FUNCTIONS: dict[str, Callable[[list[str]], str]] = {
    "and": lambda args: f"({' AND '.join(args)})",
    "or": lambda args: f"({' OR '.join(args)})",
    "in": lambda args: f"({args[0]} IN ({', '.join(args[1:])}))",
    **{each: _infix(each.upper()) for each in ("=", "<>", "<", "<=", ">", ">=", "<=>", "like")},
    "not": lambda args: f"(NOT {args[0]})",
    "is null": lambda args: f"({args[0]} IS NULL)",
    "negative": lambda args: f"(- {args[0]})",
    "case": _case,
    "struct": lambda args: (
        f"named_struct({', '.join(f'{chr(39)}a{n}{chr(39)}, {each}' for n, each in enumerate(args))})"
    ),
}
_NAMES = {
    "starts with": "startswith",
    "ends with": "endswith",
    "day of year": "dayofyear",
    "day of week": "dayofweek",
    "add days": "date_add",
    "add months": "add_months",
    "days between": "datediff",
    "last day": "last_day",
}
"""Functions that Spark calls otherwise."""
