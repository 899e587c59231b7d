"""Defaults of columns: the values of rows that were written without the column.

A caller gives a default as a Python value. A schema stores it as a plain one, so that it
stays small, comparable and free of Arrow:

    bool, integers, string   as they are
    binary                   a text of lower-case hexadecimal digits
    float32, float64         a float, never -0.0; NaN is the text "nan", since NaN is not equal to itself
    decimal(p,s)             a text with exactly s decimals
    date                     days since 1970-01-01
    timestamp                microseconds since 1970-01-01, in UTC if the column has a zone

There is exactly one stored form per value, so equal defaults are equal schemas.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import struct

import pyarrow as pa

from timespine.columnar.schema.types import is_nested, type_name
from timespine.errors import UsageError, short_repr

Default = None | bool | int | float | str
"""The types of stored defaults. No bytes: a decoder could not distinguish them from a text."""

NAN = "nan"
"""The stored form of NaN."""

_HEX = re.compile("([0-9a-f]{2})*")
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.UTC)
_DAY = datetime.date(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)


def from_python(value: object, type: pa.DataType) -> Default:
    """Convert a default of a caller to its stored form; raise a UsageError if it does not fit the type."""
    types = pa.types
    stored: Default = None
    if value is None:
        return None
    if types.is_floating(type):
        stored = _float(value, type)
    elif types.is_decimal(type):
        stored = _decimal(value, type)
    elif types.is_date(type):
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            stored = (value - _DAY).days
    elif types.is_timestamp(type):
        stored = _microseconds(value, type)
    elif types.is_binary(type):
        stored = value.hex() if isinstance(value, bytes) else None
    elif isinstance(value, bool | int | str):
        stored = value
    if stored is None or not _is_stored(stored, type):
        raise _default_error(value, type)
    return stored


def check_stored(stored: object, type: pa.DataType) -> None:
    """Refuse a value that is not the stored form of a value of the type."""
    if stored is not None and not _is_stored(stored, type):
        raise _default_error(stored, type)


def widen_default(stored: Default, type: pa.DataType) -> Default:
    """Convert a stored default to a wider type of its column."""
    return float(stored) if isinstance(stored, int) and pa.types.is_floating(type) else stored


def to_scalar(stored: Default, type: pa.DataType) -> pa.Scalar:
    """Convert a stored default to an Arrow scalar."""
    if pa.types.is_decimal(type) and isinstance(stored, str):
        return pa.scalar(decimal.Decimal(stored), type)
    if pa.types.is_floating(type) and stored == NAN:
        return pa.scalar(math.nan, type)
    if pa.types.is_binary(type) and isinstance(stored, str):
        return pa.scalar(bytes.fromhex(stored), type)
    return pa.scalar(stored, type)


def _is_stored(stored: object, type_: pa.DataType) -> bool:
    types, kind = pa.types, type(stored)
    if is_nested(type_):
        return False
    if types.is_boolean(type_):
        return kind is bool
    if types.is_floating(type_):
        return stored == NAN or (isinstance(stored, float) and _is_canonical(stored, type_))
    if types.is_decimal(type_):
        return isinstance(stored, str) and _decimal_text(stored, type_) == stored
    if types.is_string(type_):
        return isinstance(stored, str) and kind is str and _is_unicode(stored)
    if types.is_binary(type_):
        return isinstance(stored, str) and _HEX.fullmatch(stored) is not None
    # The remaining types are integers, and dates and timestamps as integers.
    bits = type_.bit_width - (not types.is_unsigned_integer(type_))
    lowest = 0 if types.is_unsigned_integer(type_) else -(1 << bits)
    return isinstance(stored, int) and kind is int and lowest <= stored < 1 << bits


def _float(value: object, type_: pa.DataType) -> float | str | None:
    if type(value) is int and abs(value) > 1 << (24 if pa.types.is_float32(type_) else 53):
        return None  # as with rows: beyond these, not every integer is a float
    if type(value) is not int and not isinstance(value, float):
        return None
    given = float(value)
    if math.isnan(given):
        return NAN
    if pa.types.is_float32(type_):
        try:
            (given,) = struct.unpack("<f", struct.pack("<f", given))
        except OverflowError:
            return None
    return given + 0.0  # -0.0 becomes 0.0


def _is_canonical(stored: float, type_: pa.DataType) -> bool:
    return repr(_float(stored, type_)) == repr(stored)  # repr tells -0.0 from 0.0


def _microseconds(value: object, type: pa.DataType) -> int | None:
    """Convert a datetime to microseconds since the epoch; it needs a zone if and only if the column has one."""
    # Timestamps of pandas may have nanoseconds; those of its NaT, which is a datetime too, are NaN.
    if not isinstance(value, datetime.datetime) or getattr(value, "nanosecond", False):
        return None
    if (value.utcoffset() is None) is not (type.tz is None):
        return None
    return (value - (_EPOCH if type.tz is None else _EPOCH_UTC)) // _MICROSECOND


def _decimal(value: object, type_: pa.DataType) -> str | None:
    if isinstance(value, decimal.Decimal) or type(value) is int:
        return _decimal_text(value, type_)
    return None


def _decimal_text(value: object, type_: pa.DataType) -> str | None:
    """Write exactly the digits of the type; None if the value does not fit.

    SUBTLE: plain integers, because arithmetic of decimals rounds to whatever the caller's context says.
    Caught by test_a_decimal_default_does_not_depend_on_the_context.
    """
    try:
        with decimal.localcontext(decimal.Context()):
            given = decimal.Decimal(value)  # type: ignore[arg-type]
    except (decimal.InvalidOperation, ValueError):
        return None
    if not given.is_finite() or given.adjusted() > type_.precision:
        return None
    sign, digits, exponent = given.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    shift = int(exponent) + len(digits) - len(significant) + type_.scale
    if not significant:
        sign, shift = 0, 0
    if shift < 0 or len(significant) + shift > type_.precision:
        return None
    unscaled = int(significant or "0") * 10**shift
    text = str(unscaled).zfill(type_.scale + 1)
    whole, decimals = (text[: -type_.scale], f".{text[-type_.scale :]}") if type_.scale else (text, "")
    return ("-" if sign else "") + whole + decimals


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _default_error(value: object, type: pa.DataType) -> UsageError:
    if is_nested(type):
        return UsageError(f"a column of type {type_name(type)} can have no default but null")
    return UsageError(
        f"{short_repr(value)} is not a default of type {type_name(type)}: give a value that the column holds"
    )
