"""Scalar expressions of SQL as typed expressions of the closed list."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from timespine.columnar.schema.types import parse_type
from timespine.errors import UnsupportedType
from timespine.views.engine.lowering import Declined, fold_constant
from timespine.views.plan.expressions import DIGITS, TEXT_CALL, Call, Expression, Literal, chain, columns_of
from timespine.views.sql.functions import (
    BIGINT,
    DATE,
    DOUBLE,
    INSTANT,
    INT,
    TEXT,
    NotListed,
    as_date,
    call,
    cast,
    common_type,
    explicit_cast,
    field_of,
)
from timespine.views.sql.refusal_reasons import FollowsRefusal, NoRule, Reason, check_args, refuse, written_name
from timespine.views.sql.spark_types import SparkTypes

Resolve = Callable[[Any], Expression | None]
"""A function that gives the expression of a node which the caller knows: a column, an aggregate; None for others."""

_BINARY: dict[type, str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Like: "like",
    exp.StartsWith: "starts with",
    exp.EndsWith: "ends with",
    exp.Contains: "contains",
    exp.Nullif: "nullif",
    exp.DateDiff: "days between",
}
_UNARY: dict[type, str] = {
    exp.Not: "not",
    exp.Neg: "negative",
    exp.Abs: "abs",
    exp.Upper: "upper",
    exp.Lower: "lower",
    exp.Length: "length",
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.Quarter: "quarter",
    exp.DayOfYear: "day of year",
    exp.Hour: "hour",
    exp.Minute: "minute",
}
_ARGS = {
    exp.Case: {"ifs", "default"},
    exp.If: {"true", "false"},
    exp.Between: {"low", "high"},
    exp.Cast: {"to", "_type"},
    exp.TryCast: {"to", "_type", "requires_string"},
    exp.Substring: {"start", "length"},
    exp.Trim: {"position"},
    exp.TsOrDsAdd: {"unit"},
    exp.TsOrDsToDate: {"safe"},  # texts that are no constant are Spark's
    exp.Concat: {"safe"},
    exp.DPipe: {"safe"},
    exp.Replace: {"replacement"},
    exp.Greatest: {"ignore_nulls"},
    exp.Least: {"ignore_nulls"},
    exp.Left: set(),
    exp.DateTrunc: {"unit"},
    exp.TimestampTrunc: {"unit"},
    exp.Like: {"negate"},
    exp.Literal: {"is_string"},
    exp.Div: {"safe", "typed"},  # a division by zero is declined, so whether it is null does not matter
}
"""The parts of nodes that are translated, or mean nothing here, beside their operands."""

_KNOWN = {
    *_BINARY,
    *_UNARY,
    *_ARGS,
    exp.And,
    exp.Or,
    exp.Array,
    exp.In,
    exp.Is,
    exp.Coalesce,
    exp.Paren,
    exp.Extract,
    exp.TsOrDsToDate,
}

_PARTS = {"YEAR": "year", "MONTH": "month", "DAY": "day", "QUARTER": "quarter", "DOY": "day of year"}


NESTED_TEXTS_MAX = 32
"""Most texts that `||` joins two by two; longer chains are one call."""

KNOWN_CHAIN_MAX = 32
"""Most conditions of a chain whose first ones are looked for among the keys of GROUP BY."""


class Scalars:
    """The translation of scalar expressions, with the columns that a caller resolves."""

    def __init__(self, resolve: Resolve, types: SparkTypes | None = None) -> None:
        self._resolve = resolve
        self._types = types
        """The types of what only Spark computes; None if there is no session that could."""

    def translate(self, node: Any) -> Expression:
        """Return the typed expression of a node; raise NoRule, with the place, if the list does not have it."""
        known = self._resolve(node)
        if known is not None:
            return known
        try:
            if type(node) in _KNOWN:
                check_args(node, {"this", "expression", "expressions", *_ARGS.get(type(node), ())})
            made = self._made(node)
            if isinstance(made, Call) and not columns_of(made) and made.type in (DATE, INT, BIGINT, TEXT):
                return fold_constant(made)
            return made
        except (NotListed, Declined) as error:
            found = self._on_spark(node)
            if found is None:
                raise refuse(node, str(error), "this process cannot compute it as Spark does; Spark has to") from None
            return found
        except NoRule as refused:
            found = None if refused.reason.forbidden else self._on_spark(node)
            if found is None:
                raise
            return found

    def reasons(self, node: Any) -> list[Reason]:
        """List all reasons why a node has no translation, those of its parts included; none if it has one."""
        try:
            if self._resolve(node) is not None:
                return []
        except NoRule as refused:
            return [] if isinstance(refused, FollowsRefusal) else [refused.reason]
        try:
            self.translate(node)
        except NoRule as refused:
            found = [] if isinstance(refused, FollowsRefusal) else [refused.reason]
        else:
            return []
        for part in self._chained(node) if isinstance(node, exp.And | exp.Or) else node.iter_expressions():
            # The branches of a CASE are no conditions of their own; types, intervals and names are no values.
            values = part.iter_expressions() if isinstance(part, exp.If) and isinstance(node, exp.Case) else [part]
            found += [each for value in values if isinstance(value, exp.Condition) for each in self.reasons(value)]
        return list(dict.fromkeys(found))

    def _on_spark(self, node: Any) -> Expression | None:
        """Return a node as text that Spark computes; None if there is no session, or Spark has no answer either."""
        if self._types is None or isinstance(node, exp.Literal | exp.Null):
            return None
        moment = next((each for each in node.walk() if _follows_clock(each, is_compared=each is node)), None)
        if moment is not None:
            said = "a time that follows the clock, and not the rows of the inputs"
            raise refuse(moment, f"{moment.sql('spark')} has {said}", "write the date itself", forbidden=True)
        args: list[Expression] = []

        def argument(each: Any) -> Any:
            found = self._resolve(each)
            if found is None:
                return each
            args.append(found)
            return exp.Var(this=f"\0{len(args) - 1}\0")

        try:
            text = node.copy().transform(argument).sql("spark", comments=False)
            kind = self._types.type_of(text, args)
        except (NoRule, NotListed):
            return None
        return Call(TEXT_CALL, (Literal(text, TEXT), *args), kind)

    def _made(self, node: Any) -> Expression:
        go = self.translate
        if isinstance(node, exp.Paren | exp.TsOrDsToDate):
            inner = go(node.this)
            return as_date(_date_of(inner)) if isinstance(node, exp.TsOrDsToDate) else inner
        if isinstance(node, exp.Literal | exp.Boolean | exp.Null):
            return literal(node)
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return literal(node.this, sign="-")
        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            return _plus_interval(go(node.this), node.expression, -1 if isinstance(node, exp.Sub) else 1)
        if isinstance(node, exp.And | exp.Or):
            return call("and" if isinstance(node, exp.And) else "or", *map(go, self._chained(node)))
        if type(node) in _BINARY:
            one, two = go(node.this), go(node.expression)
            _check_constants(node, one, two)
            made = call(_BINARY[type(node)], *_dates_of_texts(one, two))
            return call("not", made) if node.args.get("negate") else made
        if type(node) in _UNARY:
            return call(_UNARY[type(node)], go(node.this))
        if isinstance(node, exp.Array):
            return call("array", *map(go, node.expressions))
        if isinstance(node, exp.Dot):
            return field_of(go(node.this), node.expression.name)
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In) and node.expressions:
            return self._in(node)
        if isinstance(node, exp.Between):
            low, high = (_dates_of_texts(go(node.this), go(node.args[end])) for end in ("low", "high"))
            return call("and", call(">=", *low), call("<=", *high))
        if isinstance(node, exp.Case):
            return self._case(node)
        if isinstance(node, exp.If):
            otherwise = go(node.args["false"]) if node.args.get("false") else Literal(None, pa.null())
            return call("case", go(node.this), go(node.args["true"]), otherwise)
        if isinstance(node, exp.Coalesce):
            return call("coalesce", go(node.this), *map(go, node.expressions))
        if isinstance(node, exp.Cast | exp.TryCast):
            return self._cast(node)
        return self._function(node)

    def _function(self, node: Any) -> Expression:
        go = self.translate
        if isinstance(node, exp.Concat):
            return call("concat", *map(go, node.expressions))
        if isinstance(node, exp.DPipe):
            parts = joined_by(node)
            # SUBTLE: short chains stay calls of two, of which digests of stored plans are made.
            return call("concat", *map(go, parts if len(parts) > NESTED_TEXTS_MAX else (node.this, node.expression)))
        if isinstance(node, exp.Substring):
            bounds = [node.args[each] for each in ("start", "length") if node.args.get(each) is not None]
            return call("substring", go(node.this), *map(go, bounds))
        if isinstance(node, exp.Left):
            return call("substring", go(node.this), Literal(1, INT), go(node.expression))
        if isinstance(node, exp.Greatest | exp.Least):
            return call(node.key, go(node.this), *map(go, node.expressions))
        if isinstance(node, exp.DateTrunc):
            return call("trunc", go(node.this), _unit(node))
        if isinstance(node, exp.TimestampTrunc):
            return call("date_trunc", _unit(node), go(node.this))
        if isinstance(node, exp.Trim) and node.expression is None:
            side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
            return call(side, go(node.this))
        if isinstance(node, exp.Replace) and node.args.get("replacement") is not None:
            return call("replace", go(node.this), go(node.expression), go(node.args["replacement"]))
        if isinstance(node, exp.Extract) and str(node.this).upper() in _PARTS:
            return call(_PARTS[str(node.this).upper()], go(node.expression))
        if isinstance(node, exp.TsOrDsAdd) and str(node.args.get("unit")).upper() == "DAY":
            return call("add days", _date_of(go(node.this)), go(node.expression))
        written = written_name(node) if isinstance(node, exp.Func) else node.key
        raise NotListed(f"{written} is not on the list of this process")

    def _is(self, node: Any) -> Expression:
        if isinstance(node.expression, exp.Null):
            return call("is null", self.translate(node.this))
        return call("<=>", self.translate(node.this), self.translate(node.expression))

    def _in(self, node: Any) -> Expression:
        """Compare with each of some values, all in one type."""
        tested = self.translate(node.this)
        values = [_dates_of_texts(tested, self.translate(each))[1] for each in node.expressions]
        to = common_type([tested, *values])
        tested, values = cast(tested, to), [cast(each, to) for each in values]
        first = call("=", tested, values[0])
        if len(values) > 1 and all(isinstance(each, Literal) for each in values):
            return Call("in", (tested, *values), first.type)
        return chain("or", [first, *(call("=", tested, each) for each in values[1:])])

    def _chained(self, node: Any) -> list[Any]:
        """List the conditions that AND, or OR, joins from left to right; a part that the caller knows is one of them.

        Of long chains, parts are not looked up: the caller compares texts, which would take a time with the square.
        """
        found = joined_by(node)
        if len(found) > KNOWN_CHAIN_MAX:
            return found
        found, left = [node.expression], node.this
        while isinstance(left, type(node)) and self._resolve(left) is None:
            found.append(left.expression)
            left = left.this
        return [left, *reversed(found)]

    def _case(self, node: Any) -> Expression:
        go = self.translate
        args: list[Expression] = []
        for each in node.args["ifs"]:
            tested = go(each.this) if node.this is None else call("=", *_dates_of_texts(go(node.this), go(each.this)))
            args += [tested, go(each.args["true"])]
        default = node.args.get("default")
        return call("case", *args, go(default) if default is not None else Literal(None, pa.null()))

    def _cast(self, node: Any) -> Expression:
        inner = self.translate(node.this)
        try:
            to = parse_type(node.to.sql("spark").lower())
        except UnsupportedType:
            raise NotListed(f"CAST to {node.to.sql('spark')}") from None
        if node.to.is_type("timestamptz", "timestampltz"):
            to = INSTANT  # TIMESTAMP is a moment in Spark
        if pa.types.is_timestamp(to) and isinstance(inner, Literal) and inner.type == TEXT:
            return _timestamp_of(str(inner.value), to)
        if pa.types.is_timestamp(to):
            raise NotListed("CAST to a timestamp")
        if isinstance(inner, Literal) and inner.type == TEXT and to == DATE:
            if type(node) is exp.Cast and _is_no_day(str(inner.value)):
                what = f"there is no day {str(inner.value).strip()}"
                raise refuse(node, what, "write another date", forbidden=True)
            return _date_of(inner)
        return explicit_cast(inner, to)


def literal(node: Any, sign: str = "") -> Expression:
    """Return a constant, with the type that Spark gives it; a sign right before it is part of it."""
    if isinstance(node, exp.Null):
        return Literal(None, pa.null())
    if isinstance(node, exp.Boolean):
        return Literal(bool(node.this), pa.bool_())
    if node.is_string:
        return Literal(node.this, TEXT)
    text = sign + str(node.this)
    if "e" in text.lower():
        return Literal(float(text), DOUBLE)
    if "." in text:
        value = Decimal(text)
        digits = value.as_tuple()
        scale = -int(digits.exponent)
        return Literal(value, pa.decimal128(_few(node, max(len(digits.digits), scale)), scale))
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        return Literal(Decimal(number), pa.decimal128(_few(node, len(text.lstrip("-"))), 0))
    return Literal(number, INT if -(1 << 31) <= number < 1 << 31 else BIGINT)


def _few(node: Any, digits: int) -> int:
    """Return a number of digits; refuse more than decimals have, as Spark does."""
    if digits > DIGITS:
        what = f"a number of {digits} digits, and a decimal has {DIGITS} at most"
        raise refuse(node, what, "write it as a double, with an exponent such as E0", forbidden=True)
    return digits


def _check_constants(node: Any, one: Expression, two: Expression) -> None:
    """Refuse a constant expression beside a decimal: Spark counts the digits of constants only as they are written.

    In a comparison they do not matter, unless both sides together have more digits than a decimal.
    """
    for part, made, other in ((node.this, one, two), (node.expression, two, one)):
        if not isinstance(made, Literal) or not isinstance(made.value, int) or not pa.types.is_decimal(other.type):
            continue
        inner = part.unnest()
        if isinstance(inner.this if isinstance(inner, exp.Neg) else inner, exp.Literal):
            continue
        if isinstance(node, exp.Predicate) and other.type.scale + 20 <= DIGITS:
            continue
        raise NotListed(f"a constant expression beside a decimal: write {made.value}")


_MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Texts that Spark reads as a time of its clock, where it expects a date or a timestamp."""


def _follows_clock(node: Any, *, is_compared: bool) -> bool:
    """Return whether a node makes a date or a timestamp of such a text; a comparison may, with a date."""
    kinds: tuple[Any, ...] = (exp.TsOrDsToDate, exp.StrToTime, exp.StrToDate, exp.TsOrDsToTimestamp)
    if isinstance(node, exp.Cast):
        is_meant = node.is_type("date", "timestamp", "timestamptz", "timestampltz", "timestampntz")
    else:
        is_meant = isinstance(node, kinds) or (is_compared and isinstance(node, exp.Predicate))
    texts = [each for each in node.iter_expressions() if isinstance(each, exp.Literal) and each.is_string]
    return is_meant and any(_MOMENT.match(str(each.this)) for each in texts)


def _date_of(expression: Expression) -> Expression:
    """Return a text constant as a date; others unchanged."""
    if isinstance(expression, Literal) and isinstance(expression.value, str):
        try:
            return Literal(datetime.date.fromisoformat(expression.value.strip()), DATE)
        except ValueError:
            raise NotListed(f"{expression.value!r} as a date") from None
    return expression


def _is_no_day(text: str) -> bool:
    """Return whether a text is written as a date, and is none. Spark knows the year 0, and Python does not."""
    written = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text.strip())
    if written is None:
        return False
    try:
        datetime.date(int(written[1]) or 4, int(written[2]), int(written[3]))
    except ValueError:
        return True
    return False


_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?")


def _timestamp_of(text: str, to: pa.DataType) -> Expression:
    """Return a text constant as a timestamp; those with zones, and with fewer parts, are Spark's."""
    try:
        if not _TIMESTAMP.fullmatch(text.strip()):
            raise ValueError
        value = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise NotListed(f"{text!r} as a timestamp") from None
    return Literal(value.replace(tzinfo=datetime.UTC) if to.tz is not None else value, to)


def _unit(node: Any) -> Expression:
    """Return the unit of a function that truncates times, as a text; others are no constants."""
    unit = node.args.get("unit")
    if not isinstance(unit, exp.Var | exp.Literal):
        raise NotListed("a unit that is no constant")
    return Literal(unit.name, TEXT)


def _dates_of_texts(one: Expression, two: Expression) -> tuple[Expression, Expression]:
    """Read a text constant beside a date as a date, as Spark does."""
    if one.type == DATE and two.type == TEXT:
        return one, _date_of(two)
    if two.type == DATE and one.type == TEXT:
        return _date_of(one), two
    return one, two


def _plus_interval(date: Expression, interval: Any, sign: int) -> Expression:
    """Add a constant interval to a date."""
    if date.type != DATE:
        raise NotListed(f"{date.type} plus an interval")
    unit = str(interval.args.get("unit") or "").upper().removesuffix("S")
    if not isinstance(interval.this, exp.Literal) or not str(interval.this.this).lstrip("-").isdigit():
        raise NotListed("an interval that is no whole constant")
    number = sign * int(interval.this.this)
    if unit in ("DAY", "WEEK"):
        return call("add days", date, Literal(number * (7 if unit == "WEEK" else 1), INT))
    if unit in ("MONTH", "YEAR"):
        return call("add months", date, Literal(number * {"MONTH": 1, "YEAR": 12}[unit], INT))
    raise NotListed(f"an interval of {unit.lower() or 'no unit'}")


def and_parts(node: Any) -> list[Any]:
    """Split a condition of the syntax tree into those that all must hold."""
    if node is None:
        return []
    if isinstance(node, exp.Paren):
        return and_parts(node.this)
    if isinstance(node, exp.And):
        return [part for each in joined_by(node) for part in and_parts(each)]
    return [node]


def joined_by(node: Any) -> list[Any]:
    """List the operands of a chain of one operator, from left to right."""
    found, left = [], node
    while isinstance(left, type(node)):
        found.append(left.expression)
        left = left.this
    return [left, *reversed(found)]
