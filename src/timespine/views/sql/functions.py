"""The closed list of functions: the types that they take and give, as in Spark with ANSI rules.

A function that is not here, or arguments of other types, are refused: then Spark computes the view, as a whole.
tests/spark/test_view_expressions.py asks Spark for the type and the values of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa

from timespine.views.plan.expressions import DIGITS, FIELD, Call, Expression, Literal

INT, BIGINT, DOUBLE, TEXT, DATE, BOOL = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.bool_()
LOCAL, INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_INT_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


class NotListed(Exception):
    """No function of the list takes these arguments; the message says why."""


def is_number(given: pa.DataType) -> bool:
    """Return whether a type is one of numbers that this list calculates with."""
    return given in _INTS or given == DOUBLE or pa.types.is_decimal128(given)


def cast(expression: Expression, to: pa.DataType) -> Expression:
    """Cast implicitly: to a type that holds every value."""
    if expression.type == to:
        return expression
    if isinstance(expression, Literal) and expression.value is None:
        return Literal(None, to)
    if isinstance(expression, Literal) and pa.types.is_decimal(to) and isinstance(expression.value, int | Decimal):
        value = Decimal(expression.value)
        if -int(value.as_tuple().exponent) > to.scale:
            value = value.quantize(Decimal(1).scaleb(-to.scale), ROUND_HALF_UP)
        return Literal(value, to)
    if isinstance(expression, Literal) and to == DOUBLE and isinstance(expression.value, int | Decimal):
        return Literal(float(expression.value), to)
    return Call("cast", (expression,), to)


def as_decimal(expression: Expression) -> tuple[int, int]:
    """Return the precision and scale of a number as a decimal; a constant has as many digits as it needs."""
    if isinstance(expression, Literal) and isinstance(expression.value, int) and expression.type in _INTS:
        return max(len(str(abs(expression.value))), 1), 0
    return _digits_of(expression.type)


def _digits_of(given: pa.DataType) -> tuple[int, int]:
    return (_INT_DIGITS[given], 0) if given in _INT_DIGITS else (given.precision, given.scale)


def adjusted(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type, with its scale cut as Spark cuts it if there are too many digits."""
    if precision <= DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal128(DIGITS, max(DIGITS - (precision - scale), min(scale, 6)))


def common_type(args: Sequence[Expression], *, compared: bool = False) -> pa.DataType:
    """Return the type that values of several types are brought to, for CASE, COALESCE, IN and set operations.

    If they are `compared`, constants have no more digits than they need, and decimals of more than 38 digits lose their
    last decimal places, as in Spark.
    """
    types = [each.type for each in args if not pa.types.is_null(each.type)]
    if not types:
        raise NotListed("NULL alone has no type")
    if all(each == types[0] for each in types):
        return types[0]
    if all(each in (DATE, LOCAL, INSTANT) for each in types):
        return INSTANT if INSTANT in types else LOCAL
    if not all(map(is_number, types)):
        raise NotListed(f"{' and '.join(sorted({str(each) for each in types}))} have no type in common here")
    if DOUBLE in types:
        return DOUBLE
    if all(each in _INTS for each in types):
        return max(types, key=_INTS.index)
    known = [
        as_decimal(each) if compared else _digits_of(each.type) for each in args if not pa.types.is_null(each.type)
    ]
    scale = max(scale for _, scale in known)
    whole = max(precision - scale for precision, scale in known)
    if whole + scale > DIGITS and not compared:
        raise NotListed("decimals of more than 38 digits")
    return pa.decimal128(min(whole + scale, DIGITS), min(scale, DIGITS - whole))


def call(name: str, *args: Expression) -> Expression:
    """Apply a function of the list; raise NotListed if it does not take these arguments."""
    made = _LIST.get(name)
    if made is None:
        raise NotListed(f"{name} is not on the list of functions")
    return made(name, list(args))


MakeExpression = Callable[[str, list[Expression]], Expression]
_LIST: dict[str, MakeExpression] = {}


def _on(*names: str) -> Callable[[MakeExpression], MakeExpression]:
    def register(made: MakeExpression) -> MakeExpression:
        _LIST.update(dict.fromkeys(names, made))
        return made

    return register


def names() -> list[str]:
    """List the names of all functions."""
    return sorted(_LIST)


@_on("and", "or", "not")
def _logic(name: str, args: list[Expression]) -> Expression:
    for each in args:
        if each.type != BOOL and not pa.types.is_null(each.type):
            raise NotListed(f"{name} of {each.type}")
    return Call(name, tuple(cast(each, BOOL) for each in args), BOOL)


@_on("is null")
def _is_null(name: str, args: list[Expression]) -> Expression:
    return Call(name, tuple(args), BOOL)


@_on("=", "<>", "<", "<=", ">", ">=", "<=>")
def _compare(name: str, args: list[Expression]) -> Expression:
    to = common_type(args, compared=True)
    for one, two in (args, args[::-1]):
        # Spark compares a null with a constant beyond the type as if it were not null.
        if one.type in _INTS and isinstance(two, Literal) and _is_beyond(one.type, two.value):
            raise NotListed(f"comparing {one.type} with {two.value}, which is beyond it")
    if not _is_ordered(to):
        raise NotListed(f"comparing {to}")
    return Call(name, tuple(cast(each, to) for each in args), BOOL)


def _is_beyond(whole: pa.DataType, value: object) -> bool:
    """Return whether a constant is a decimal that no whole number of a type reaches."""
    return isinstance(value, Decimal) and abs(value) > (1 << (whole.bit_width - 1)) - 1


@_on("case")
def _case(name: str, args: list[Expression]) -> Expression:
    *pairs, otherwise = args
    to = common_type([*pairs[1::2], otherwise])
    made = [cast(each, BOOL if place % 2 == 0 else to) for place, each in enumerate(pairs)]
    if any(each.type != BOOL for each in made[::2]):
        raise NotListed("CASE WHEN takes a condition")
    return Call(name, (*made, cast(otherwise, to)), to)


@_on("coalesce")
def _coalesce(name: str, args: list[Expression]) -> Expression:
    to = common_type(args)
    return Call(name, tuple(cast(each, to) for each in args), to)


EXTREMES_MAX = 5
"""The most values of `greatest` and `least` in the process: each of them makes its expression three times as large."""


@_on("greatest", "least")
def _extreme(name: str, args: list[Expression]) -> Expression:
    to = common_type(args)
    if not 2 <= len(args) <= EXTREMES_MAX:
        raise NotListed(f"{name} of {len(args)} values")
    if not _is_ordered(to):
        raise NotListed(f"{name} of {to}")
    return Call(name, tuple(cast(each, to) for each in args), to)


def _is_ordered(given: pa.DataType) -> bool:
    """Return whether the values of a type can be compared."""
    return is_number(given) or given in (TEXT, DATE, BOOL) or bool(pa.types.is_timestamp(given))


@_on("array")
def _array(name: str, args: list[Expression]) -> Expression:
    if not args or any(pa.types.is_nested(each.type) for each in args):
        raise NotListed("an array of nothing, or of nested values")
    to = common_type(args)
    return Call(name, tuple(cast(each, to) for each in args), pa.list_(to))


def field_of(value: Expression, name: str) -> Expression:
    """Take a field of a struct."""
    fields = (
        [each for each in value.type if each.name.lower() == name.lower()] if pa.types.is_struct(value.type) else []
    )
    if len(fields) != 1:
        raise NotListed(f"{value.type} has no field {name}")
    return Call(FIELD, (value, Literal(fields[0].name, TEXT)), fields[0].type)


@_on("nullif")
def _nullif(name: str, args: list[Expression]) -> Expression:
    return call("case", call("=", *args), Literal(None, args[0].type), args[0])


@_on("+", "-", "*", "/")
def _arithmetic(name: str, args: list[Expression]) -> Expression:
    one, two = args
    if not is_number(one.type) or not is_number(two.type):
        raise NotListed(f"{one.type} {name} {two.type}")
    if DOUBLE in (one.type, two.type):
        return Call(name, (cast(one, DOUBLE), cast(two, DOUBLE)), DOUBLE)
    if one.type in _INTS and two.type in _INTS:
        if name == "/":
            return Call(name, (cast(one, DOUBLE), cast(two, DOUBLE)), DOUBLE)
        to = max(one.type, two.type, key=_INTS.index)
        if to not in (INT, BIGINT):
            raise NotListed(f"{name} of {to}: cast one side to int")
        return Call(name, (cast(one, to), cast(two, to)), to)
    return _decimals(name, one, two)


def _decimals(name: str, one: Expression, two: Expression) -> Expression:
    """Calculate with decimals: Spark's precision and scale."""
    (p1, s1), (p2, s2) = as_decimal(one), as_decimal(two)
    if name in "+-":
        scale = max(s1, s2)
        to = adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        if to.scale != scale:
            raise NotListed("decimals with more digits than a sum can keep")
        args = tuple(cast(each, pa.decimal128(DIGITS, scale)) for each in (one, two))
        return Call(name, args, to)
    one, two = cast(one, pa.decimal128(p1, s1)), cast(two, pa.decimal128(p2, s2))
    if name == "*":
        to = adjusted(p1 + p2 + 1, s1 + s2)
        if to.scale != s1 + s2:
            raise NotListed("decimals with more digits than a product can keep")
        return Call(name, (one, two), to)
    scale = max(6, s1 + p2 + 1)
    return Call(name, (one, two), adjusted(p1 - s1 + s2 + scale, scale))


@_on("%", "div")
def _remainder(name: str, args: list[Expression]) -> Expression:
    one, two = args
    if one.type not in _INTS or two.type not in _INTS:
        raise NotListed(f"{one.type} {name} {two.type}")
    to = BIGINT if name == "div" else max(one.type, two.type, key=_INTS.index)
    return Call(name, tuple(cast(each, BIGINT) for each in args), to)


@_on("negative", "abs")
def _sign(name: str, args: list[Expression]) -> Expression:
    (one,) = args
    if not (one.type in (INT, BIGINT, DOUBLE) or pa.types.is_decimal(one.type)):
        raise NotListed(f"{name} of {one.type}")
    if isinstance(one, Literal) and name == "negative" and isinstance(one.value, int | Decimal):
        return Literal(-one.value, one.type)
    return Call(name, (one,), one.type)


@_on("like", "starts with", "ends with", "contains", "replace", "substring")
def _with_constants(name: str, args: list[Expression]) -> Expression:
    text, *others = args
    if text.type != TEXT:
        raise NotListed(f"{name} of {text.type}")
    if not all(isinstance(each, Literal) and each.value is not None for each in others):
        raise NotListed(f"{name} with anything but constants")
    values: list[Any] = [each.value for each in others if isinstance(each, Literal)]
    if name == "substring":
        if any(not isinstance(each, int) or each < 0 for each in values):
            raise NotListed("substring from the end, or of a negative length")
    elif not all(isinstance(each, str) and each for each in values[:1]):
        raise NotListed(f"{name} with an empty text")
    return Call(name, tuple(args), TEXT if name in ("replace", "substring") else BOOL)


@_on("upper", "lower", "length", "trim", "ltrim", "rtrim", "concat")
def _texts(name: str, args: list[Expression]) -> Expression:
    if not args or any(each.type != TEXT for each in args):
        raise NotListed(f"{name} of {', '.join(str(each.type) for each in args)}")
    return Call(name, tuple(args), INT if name == "length" else TEXT)


@_on("year", "month", "day", "quarter", "day of year")
def _date_part(name: str, args: list[Expression]) -> Expression:
    return Call(name, (as_date(args[0]),), INT)


@_on("hour", "minute")
def _time_part(name: str, args: list[Expression]) -> Expression:
    if not _is_utc(args[0].type):
        raise NotListed(f"{name} of {args[0].type}")
    return Call(name, tuple(args), INT)


_UNITS = dict.fromkeys(("YEAR", "YYYY", "YY"), "YEAR") | dict.fromkeys(("MONTH", "MM", "MON"), "MONTH")
_UNITS |= {each: each for each in ("QUARTER", "WEEK")}
_SHORT_UNITS = {"DAY": "DAY", "DD": "DAY", "HOUR": "HOUR", "MINUTE": "MINUTE", "SECOND": "SECOND"}


@_on("trunc")
def _start_of_period(name: str, args: list[Expression]) -> Expression:
    date, unit = args
    known = _UNITS.get(str(unit.value).upper()) if isinstance(unit, Literal) else None
    if known is None:
        raise NotListed(f"{name} to this unit")
    return Call(name, (as_date(date), Literal(known, TEXT)), DATE)


@_on("date_trunc")
def _start_of_time(name: str, args: list[Expression]) -> Expression:
    unit, moment = args
    known = {**_UNITS, **_SHORT_UNITS}.get(str(unit.value).upper()) if isinstance(unit, Literal) else None
    if known is None:
        raise NotListed(f"{name} to this unit")
    if moment.type != DATE and moment.type != INSTANT:
        raise NotListed(f"{name} of {moment.type}")
    return Call(name, (Literal(known, TEXT), cast(moment, INSTANT)), INSTANT)


@_on("add days", "add months", "days between")
def _dates(name: str, args: list[Expression]) -> Expression:
    one, two = args
    if name == "days between":
        return Call(name, (as_date(one), as_date(two)), INT)
    if two.type not in (pa.int8(), pa.int16(), INT):
        raise NotListed(f"{name} with {two.type}")
    if name == "add months" and not isinstance(two, Literal):
        raise NotListed("months that are no constant")
    return Call(name, (as_date(one), two), DATE)


def as_date(expression: Expression) -> Expression:
    """Return the date of a date or a timestamp; raise NotListed for others."""
    if expression.type == DATE:
        return expression
    if _is_utc(expression.type):
        return Call("cast", (expression,), DATE)
    raise NotListed(f"the date of {expression.type}")


def _is_utc(given: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(given) and given.tz in (None, "UTC"))


def explicit_cast(expression: Expression, to: pa.DataType) -> Expression:
    """Apply CAST, where the list has it: to wider types, and whole numbers, decimals and dates to text."""
    before = expression.type
    if before == to:
        return expression
    if isinstance(expression, Literal) and expression.value is None:
        return Literal(None, to)
    widens = (
        (before in _INTS and to in _INTS and _INTS.index(before) < _INTS.index(to))
        or (before in _INTS and to == DOUBLE)
        or (pa.types.is_decimal(before) and to == DOUBLE)
        or ((before in _INTS or before == DATE or pa.types.is_decimal(before)) and to == TEXT)
        or (to == DATE and _is_utc(before))
        or (pa.types.is_decimal(to) and (before in _INTS or pa.types.is_decimal(before)) and _fits(expression, to))
    )
    if not widens:
        raise NotListed(f"CAST from {before} to {to}")
    return cast(expression, to)


def _fits(expression: Expression, to: pa.DataType) -> bool:
    precision, scale = as_decimal(expression)
    return bool(scale <= to.scale and precision - scale <= to.precision - to.scale)


def aggregate_type(function: str, argument: pa.DataType | None) -> pa.DataType:
    """Return the type of an aggregate; raise NotListed if the list does not have it."""
    if function in ("count", "count distinct"):
        if function == "count distinct" and argument is not None and pa.types.is_floating(argument):
            raise NotListed("count(DISTINCT ...) of floating-point numbers")
        return BIGINT
    assert argument is not None
    if function in ("min", "max"):
        if not (
            argument in _INTS
            or argument in (TEXT, DATE, BOOL, pa.float32(), DOUBLE)
            or pa.types.is_decimal(argument)
            or pa.types.is_timestamp(argument)
        ):
            raise NotListed(f"{function} of {argument}")
        return argument
    if not is_number(argument):
        raise NotListed(f"{function} of {argument}")
    if function == "sum":
        if pa.types.is_decimal(argument):
            return pa.decimal128(min(DIGITS, argument.precision + 10), argument.scale)
        return DOUBLE if argument == DOUBLE else BIGINT
    assert function == "avg"
    if not pa.types.is_decimal(argument):
        return DOUBLE
    to = adjusted(argument.precision + 4, argument.scale + 4)
    if to.scale != argument.scale + 4 or argument.precision + 15 > DIGITS:
        raise NotListed("avg of decimals with more digits than it can keep")
    return to
