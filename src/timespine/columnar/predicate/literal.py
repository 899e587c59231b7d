"""Constants of predicates: their types, their text, and their place among the values of a column.

A constant has no type of its own. Beside a column it is *placed* into the order
of that column's type: as the value it is, or else as the largest value below it.
`total < 5.5` over integers is then `total <= 5`, and `total < 10^30` is true of
every integer, without a cast that could fail or round. Only for floats, whose
values are roundings anyway, is the nearest value the constant itself: 0.1
beside a column of floats means the float that prints as 0.1.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import re
import struct
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from timespine.errors import InvalidCondition, with_article
from timespine.hints import Hint
from timespine.libraries import pl

LiteralValue = bool | int | float | decimal.Decimal | str | bytes | datetime.date | datetime.datetime
"""The types of constants. Null is none of them: `IS NULL` tests for it."""

DIGITS_MAX = 80
"""Digits of a number, before and after the point: twice what any column holds, cheap to compute with, and
far from what a double cannot hold."""

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY_US = 86_400_000_000
_MICROSECOND = datetime.timedelta(microseconds=1)
_FLOAT = struct.Struct("<f")
_FLOAT_MAX: float = float(np.finfo(np.float32).max)
_EXACT = decimal.Context(prec=200, Emin=-400, Emax=400, traps=[decimal.Inexact, decimal.InvalidOperation])
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)


class LiteralPlace(NamedTuple):
    """The place of a constant among the values of a type."""

    value: Any
    """The value itself, or the largest one below it; None if the constant is below all of them.
    Dates and timestamps are days and microseconds since 1970."""
    exact: bool
    """Whether the constant is a value of the type."""


def check_literal(value: object) -> LiteralValue:
    """Return the canonical form of a constant (no -0.0, one NaN, instants in UTC); raise InvalidCondition if none."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        raise InvalidCondition("a comparison with null is never true", hint=Hint("ask-is-null"))
    if isinstance(value, bool | bytes):
        return value
    if isinstance(value, int | decimal.Decimal):
        return _check_number(value)
    if isinstance(value, float):
        return math.nan if value != value else value + 0.0
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidCondition("a text in a predicate is not valid Unicode") from None
        return value
    if isinstance(value, datetime.datetime):
        return _check_timestamp(value)
    if isinstance(value, datetime.date):
        return value
    raise InvalidCondition(f"a column cannot be compared with {with_article(type(value).__name__)}")


def literal_text(value: LiteralValue) -> str:
    """Write the constant in the text of a predicate."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"DOUBLE '{value!r}'"
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    if isinstance(value, decimal.Decimal):
        text = format(value, "f")
        return text if "." in text else f"{text}.0"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    return str(value)


def parse_number(text: str) -> LiteralValue:
    """Parse a number as in SQL: with an exponent a double, with a point a decimal, else an integer."""
    if "e" in text or "E" in text:
        if math.isinf(float(text)):
            raise InvalidCondition("a number is too large for a double; for infinity, write DOUBLE 'inf'")
        return check_literal(float(text))
    if len(text) > 2 * DIGITS_MAX + 2:
        raise InvalidCondition(f"a number has more than {DIGITS_MAX} digits")
    return _check_number(decimal.Decimal(text) if "." in text else int(text))


def parse_typed(word: str, text: str) -> LiteralValue:
    """Parse a constant with its type before it: `DATE '2020-01-31'`, `TIMESTAMP '...'`, `DOUBLE 'NaN'`, `X'00ff'`."""
    try:
        if word == "DATE":
            if len(text) != 10:
                raise ValueError
            return datetime.date.fromisoformat(text)
        if word == "TIMESTAMP":
            # SUBTLE: fromisoformat drops what is below a microsecond, so the form is checked first.
            if _TIMESTAMP.fullmatch(text) is None:
                raise ValueError
            return check_literal(datetime.datetime.fromisoformat(text))
        if word == "X":
            return bytes.fromhex(text)
        return check_literal(float(text))
    except ValueError:
        raise InvalidCondition(f"the text after {word} is not a constant of that type; {_FORMS[word]}") from None


_FORMS = {
    "DATE": "write DATE '2020-01-31'",
    "TIMESTAMP": "write TIMESTAMP '2020-01-31 23:59:59.999999', or with an offset such as +01:00 or Z at the end",
    "X": "write two hexadecimal digits per byte, as in X'00ff'",
    "DOUBLE": "write DOUBLE '1.5', DOUBLE 'NaN' or DOUBLE 'inf'",
    "FLOAT": "write FLOAT '1.5', FLOAT 'NaN' or FLOAT 'inf'",
}

TYPED_WORDS = frozenset(_FORMS)
"""The words before the text of a constant."""


def place_literal(value: LiteralValue, type: pa.DataType) -> LiteralPlace:
    """Place the constant among the values of a type; raise an InvalidCondition if it is of another kind."""
    placed = None
    if pa.types.is_boolean(type):
        placed = LiteralPlace(value, True) if isinstance(value, bool) else None
    elif pa.types.is_string(type):
        placed = LiteralPlace(value, True) if isinstance(value, str) else None
    elif pa.types.is_binary(type):
        placed = LiteralPlace(value, True) if isinstance(value, bytes) else None
    elif isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool):
        if pa.types.is_integer(type):
            signed = pa.types.is_signed_integer(type)
            least = -(1 << (type.bit_width - 1)) if signed else 0
            placed = _place_scaled(value, 0, least, least + (1 << type.bit_width) - 1)
        elif pa.types.is_floating(type):
            placed = _place_float(value, type.bit_width)
        elif pa.types.is_decimal(type):
            most = 10**type.precision - 1
            at = _place_scaled(value, type.scale, -most, most)
            placed = (
                at
                if at.value is None
                else LiteralPlace(_EXACT.scaleb(decimal.Decimal(at.value), -type.scale), at.exact)
            )
    elif isinstance(value, datetime.date):
        placed = _place_instant(value, type)
    if placed is None:
        raise InvalidCondition(f"{with_article(literal_kind(value))} cannot be compared with type {type}")
    return placed


def polars_literal(value: Any, type: pa.DataType) -> pl.Expr:
    """Convert a placed value to a polars literal, of exactly the type of the comparison."""
    return pl.lit(value, dtype=polars_type(type))


def polars_type(type: pa.DataType) -> Any:
    """Return the type in which a column is compared: its own, or the integers of a date or timestamp."""
    if pa.types.is_decimal(type):
        return pl.Decimal(type.precision, type.scale)
    if pa.types.is_timestamp(type):
        return pl.Int64
    return getattr(pl, _POLARS[type])


_POLARS: dict[pa.DataType, str] = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.bool_(): "Boolean",
    pa.string(): "String",
    pa.binary(): "Binary",
    pa.date32(): "Int32",
}


def literal_kind(value: LiteralValue) -> str:
    """Name the kind of a constant, for a message."""
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float | decimal.Decimal):
        return "number"
    kinds = {str: "text", bytes: "binary", datetime.datetime: "timestamp", datetime.date: "date"}
    return next(kind for each, kind in kinds.items() if isinstance(value, each))


def _check_number(value: int | decimal.Decimal) -> int | decimal.Decimal:
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise InvalidCondition("a decimal in a predicate is not a number; for columns of floats, use a float")
        within = -DIGITS_MAX <= value.adjusted() < DIGITS_MAX and int(value.as_tuple().exponent) >= -DIGITS_MAX
    else:
        within = -(10**DIGITS_MAX) < value < 10**DIGITS_MAX
    if not within and value != 0:
        raise InvalidCondition(f"a number has more than {DIGITS_MAX} digits")
    return value if value != 0 else type(value)(0)


def _check_timestamp(value: datetime.datetime) -> datetime.datetime:
    if value != value or getattr(value, "nanosecond", False):
        raise InvalidCondition("a timestamp of pandas is null or finer than a microsecond")
    try:
        # SUBTLE: two moments in different zones can be unequal to Python although they are the same instant.
        moment = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        # Field by field: a timestamp of pandas is a datetime that prints differently.
        return datetime.datetime.combine(datetime.date(moment.year, moment.month, moment.day), moment.timetz())
    except OverflowError:
        raise InvalidCondition("a timestamp lies outside the years 1 to 9999 in UTC") from None


def _place_scaled(value: int | float | decimal.Decimal, scale: int, least: int, most: int) -> LiteralPlace:
    """Place a number among the multiples of 10^-scale from `least` to `most`, as the multiple."""
    if isinstance(value, float):
        if not math.isfinite(value):
            # NaN is the largest of all.
            return LiteralPlace(None if value == -math.inf else most, False)
        value = decimal.Decimal(repr(value))
    above, below = value.as_integer_ratio()
    multiple, rest = divmod(above * 10**scale, below)
    if multiple < least:
        return LiteralPlace(None, False)
    return LiteralPlace(most, False) if multiple > most else LiteralPlace(multiple, rest == 0)


def _place_float(value: int | float | decimal.Decimal, bits: int) -> LiteralPlace:
    """Find the nearest float. A number too large for one is above all finite floats, but below infinity."""
    nearest = float(value)
    if bits == 32 and math.isfinite(nearest):
        try:
            (nearest,) = _FLOAT.unpack(_FLOAT.pack(nearest))
        except OverflowError:
            return LiteralPlace(-math.inf if nearest < 0 else _FLOAT_MAX, False)
    return LiteralPlace(nearest + 0.0, True)


def _place_instant(value: datetime.date, type: pa.DataType) -> LiteralPlace | None:
    """Place a date or timestamp among dates or timestamps. One without a zone is in the zone of the column."""
    moment = value if isinstance(value, datetime.datetime) else datetime.datetime.combine(value, datetime.time())
    if pa.types.is_date(type) and moment.tzinfo is None:
        days, rest = divmod((moment - _EPOCH) // _MICROSECOND, _DAY_US)
        return LiteralPlace(days, rest == 0)
    if not pa.types.is_timestamp(type):
        return None
    if type.tz is None:
        return None if moment.tzinfo is not None else LiteralPlace((moment - _EPOCH) // _MICROSECOND, True)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(type.tz))
    return LiteralPlace((moment - _EPOCH_UTC) // _MICROSECOND, True)


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> datetime.tzinfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise InvalidCondition(f"time zone {name} is not known here: write the timestamp with its offset") from None
