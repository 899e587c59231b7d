"""An encoding of values and rows whose bytes compare as the rows do.

Bounds of parts and of columns are kept as bytes, so that a comparison needs
no type, and so that long ones can be cut. For values a, b of one type

    encode(a) < encode(b)  iff  a comes before b in the row order

and no encoding is a prefix of another one of the same type, so that the
encodings of several columns, one after the other, compare as the row does.

    null               00
    anything else      01, then
      bool             one byte
      integers         value + 2^63, 9 bytes, most significant first
      date, timestamp  the same, of the days or microseconds since 1970
      float, double    8 bytes of the double: all bits flipped if negative, else the sign bit; one NaN, the largest
      decimal          unscaled value + 2^127, 17 bytes
      string, binary   the bytes with 00 written as 00 FF, then 00 00
      struct           its fields
      list             01 before each element, 00 at the end

All integers share one encoding (9 bytes hold both int64 and uint64), and so do
float and double, and decimals of one scale: widening a column changes nothing,
except from an integer to a double. Bounds carry no type. They are those of the
schema that the part was written with; `recode` carries a bound over to the type
that a reader sees, or says that it does not know.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from timespine.errors import InvalidRows, UsageError, with_article

NULL = b"\x00"
"""The encoding of null, of any type: before everything else."""

_SOME = b"\x01"
_INT_OFFSET = 1 << 63
_INT_BYTES = 9
_DECIMAL_OFFSET = 1 << 127
_DECIMAL_BYTES = 17
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_NAN = _SOME + b"\xff\xf8\x00\x00\x00\x00\x00\x00"
_INT64, _STRING = pa.int64(), pa.string()
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SOME_BITS = struct.Struct(">BQ")

# SUBTLE: the default context rounds to 28 digits, and a decimal here has up to 38.
_EXACT = decimal.Context(prec=80, Emin=-200, Emax=200, traps=[decimal.Inexact, decimal.InvalidOperation])


def encode_row(table: pa.Table, index: int, columns: Sequence[str], limit: int | None = None) -> bytes:
    """Encode one row by these columns. Made for binary searches: it reads only that row.

    With a limit, the encoding may end after that number of bytes, and long values are read only as far as needed.
    """
    encoders = _ENCODERS
    pieces = []
    left = limit
    for name in columns:
        scalar = table.column(name)[index]
        if left is not None:
            pieces.append(encode_arrow_scalar(scalar, left))
            left -= len(pieces[-1])
            if left <= 0:
                break
            continue
        encoder = encoders.get(type(scalar))
        pieces.append(encode_arrow_scalar(scalar) if encoder is None else encoder(scalar))
    return b"".join(pieces)


def encode_arrow_scalar(scalar: pa.Scalar, limit: int | None = None) -> bytes:
    """Encode an Arrow scalar of any class. With a limit, the encoding may end after that number of bytes."""
    encoder = _ENCODERS.get(type(scalar))
    if encoder is None:
        raise UsageError(f"values of type {scalar.type} cannot be sorted, so no column may have it")
    if limit is not None and encoder in (_string, _binary) and scalar.is_valid:
        buffer = scalar.as_buffer()
        if buffer.size > limit:
            beginning: bytes = buffer.slice(0, limit).to_pybytes()
            return b"\x01" + beginning.replace(b"\x00", b"\x00\xff")
    return encoder(scalar)


def encode_scalar(value: object, type: pa.DataType) -> bytes:
    """Return the encoding of one value of that type, null included; raise an InvalidRows if it is not of the type.

    Takes an Arrow scalar, or what Python has for the type. A timestamp may also
    be an integer (microseconds), so that every one that Arrow holds can be given.
    """
    kind = value.__class__
    # The usual keys, without a detour by Arrow.
    if kind is int and type == _INT64 and -_INT_OFFSET <= value < _INT_OFFSET:  # type: ignore[operator]
        return _SOME + (value + _INT_OFFSET).to_bytes(_INT_BYTES, "big")  # type: ignore[operator]
    if kind is str and type == _STRING and value.isascii():  # type: ignore[attr-defined]
        return _bytes(value.encode())  # type: ignore[attr-defined]
    if isinstance(value, pa.Scalar):
        if value.type != type:
            raise InvalidRows(f"a value of type {value.type} was given for type {type}")
        return encode_arrow_scalar(value)
    return encode_arrow_scalar(_scalar(value, type))


def decode_integer(encoded: bytes) -> int:
    """Return the integer that an encoding of one value is of, null excluded."""
    return int.from_bytes(encoded[1:], "big") - _INT_OFFSET


def truncate_lower(encoded: bytes, bytes_max: int) -> bytes:
    """Return a lower bound of at most that many bytes: a prefix comes before everything that begins with it."""
    return encoded[: _at_least_one(bytes_max)]


def truncate_upper(encoded: bytes, bytes_max: int) -> bytes | None:
    """Return an upper bound of at most that many bytes; None if there is none.

    SUBTLE: a prefix is below what it was cut from. Its last byte that can be raised
    is raised, and what follows it is dropped, which puts it above.
    """
    if len(encoded) <= _at_least_one(bytes_max):
        return encoded
    prefix = encoded[:bytes_max].rstrip(b"\xff")
    return prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else None


def leading(encoded: bytes, types: Sequence[pa.DataType]) -> bytes:
    """Return the part of the encoding of a row, which may be cut, that belongs to its first columns, of these types."""
    place = 0
    for type in types:
        if place >= len(encoded):
            break
        place = _end(encoded, place, type)
    return encoded[:place]


def _end(encoded: bytes, place: int, type: pa.DataType) -> int:
    """Return where the encoding of a value ends that begins at a place; at or beyond the end if it is cut."""
    if place >= len(encoded) or encoded[place] == NULL[0]:
        return place + 1
    place += 1
    if pa.types.is_string(type) or pa.types.is_binary(type):
        # A zero inside of the text is followed by 255, so two zeros are its end, wherever they are.
        found = encoded.find(b"\x00\x00", place)
        return len(encoded) if found < 0 else found + 2
    if pa.types.is_struct(type):
        for field in type:
            place = _end(encoded, place, field.type)
        return place
    if pa.types.is_list(type):
        while encoded[place : place + 1] == _SOME:
            place = _end(encoded, place + 1, type.value_type)
        return place + 1
    return place + _WIDTHS.get(type.id, _INT_BYTES)


def recode(encoded: bytes, old_type: pa.DataType, new_type: pa.DataType) -> bytes | None:
    """Convert a bound of a column of `old_type` to `new_type`.

    None means unknown: the bound no longer limits the values. That is also the answer
    for a bound of an integer that was cut, since only a whole one can be converted.
    """
    if old_type == new_type or encoded == NULL:
        return encoded
    if pa.types.is_integer(old_type):
        if pa.types.is_integer(new_type):
            return encoded
        # Only those integers are widened to double that a double holds exactly.
        if pa.types.is_floating(new_type) and old_type.bit_width <= 32 and len(encoded) == 1 + _INT_BYTES:
            return _double(float(decode_integer(encoded)))
        return None
    if pa.types.is_floating(old_type) and pa.types.is_floating(new_type):
        return encoded
    if pa.types.is_decimal(old_type) and pa.types.is_decimal(new_type) and old_type.scale == new_type.scale:
        return encoded
    return None


def _at_least_one(bytes_max: int) -> int:
    if bytes_max < 1:
        raise UsageError(f"a bound needs at least one byte, not {bytes_max}")
    return bytes_max


def _scalar(value: object, type: pa.DataType) -> pa.Scalar:
    """Return the Arrow scalar of a Python value, without the conversions of Arrow that lose something."""
    wrong = (
        (pa.types.is_integer(type) and not isinstance(value, int))
        or (pa.types.is_floating(type) and isinstance(value, bool))
        or (pa.types.is_date(type) and isinstance(value, datetime.datetime))
        or (pa.types.is_string(type) and isinstance(value, bytes))
        or (pa.types.is_binary(type) and isinstance(value, str))
        or (isinstance(value, datetime.datetime) and (value.tzinfo is None) != (getattr(type, "tz", None) is None))
    )
    if wrong and value is not None:
        raise InvalidRows(f"{with_article(_kind(value))} is not of type {type}")
    try:
        if pa.types.is_floating(type) and isinstance(value, int):
            value = float(value)
        return pa.scalar(value, type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        # Not chained in words: what Arrow says repeats the value.
        raise InvalidRows(f"{with_article(_kind(value))} was given that type {type} cannot hold") from error


def _kind(value: object) -> str:
    return value.__class__.__name__


def _integer(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    return NULL if value is None else _SOME + (value + _INT_OFFSET).to_bytes(_INT_BYTES, "big")


def _instant(scalar: pa.Scalar) -> bytes:
    # SUBTLE: not as_py(): Python knows no year 10000, and looking up a zone takes microseconds.
    value = scalar.value
    return NULL if value is None else _SOME + (value + _INT_OFFSET).to_bytes(_INT_BYTES, "big")


def _floating(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    return NULL if value is None else _double(value)


def _double(value: float) -> bytes:
    if value != value:
        return _NAN
    (bits,) = _BITS.unpack(_DOUBLE.pack(value + 0.0))  # -0.0 + 0.0 is 0.0
    return _SOME_BITS.pack(1, bits ^ (_ALL if bits & _SIGN else _SIGN))


def _boolean(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    return NULL if value is None else (b"\x01\x01" if value else b"\x01\x00")


def _decimal(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    if value is None:
        return NULL
    unscaled = int(_EXACT.scaleb(value, scalar.type.scale))
    return _SOME + (unscaled + _DECIMAL_OFFSET).to_bytes(_DECIMAL_BYTES, "big")


def _string(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    return NULL if value is None else _bytes(value.encode())


def _binary(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    return NULL if value is None else _bytes(value)


def _bytes(value: bytes) -> bytes:
    if b"\x00" in value:
        value = value.replace(b"\x00", b"\x00\xff")
    return b"\x01" + value + b"\x00\x00"


def _struct(scalar: pa.Scalar) -> bytes:
    if not scalar.is_valid:
        return NULL
    return _SOME + b"".join(encode_arrow_scalar(scalar[place]) for place in range(len(scalar)))


def _list(scalar: pa.Scalar) -> bytes:
    if not scalar.is_valid:
        return NULL
    return _SOME + b"".join(b"\x01" + encode_arrow_scalar(element) for element in scalar.values) + b"\x00"


_WIDTHS = {
    pa.bool_().id: 1,
    pa.float32().id: _DOUBLE.size,
    pa.float64().id: _DOUBLE.size,
    pa.decimal128(1).id: _DECIMAL_BYTES,
}
"""Bytes after the first one of the types that always take the same, if that is not what integers take."""

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    **dict.fromkeys((pa.Int8Scalar, pa.Int16Scalar, pa.Int32Scalar, pa.Int64Scalar), _integer),
    **dict.fromkeys((pa.UInt8Scalar, pa.UInt16Scalar, pa.UInt32Scalar, pa.UInt64Scalar), _integer),
    **dict.fromkeys((pa.Date32Scalar, pa.TimestampScalar), _instant),
    **dict.fromkeys((pa.FloatScalar, pa.DoubleScalar), _floating),
    pa.BooleanScalar: _boolean,
    pa.Decimal128Scalar: _decimal,
    **dict.fromkeys((pa.StringScalar, pa.LargeStringScalar, pa.StringViewScalar), _string),
    **dict.fromkeys((pa.BinaryScalar, pa.LargeBinaryScalar, pa.BinaryViewScalar), _binary),
    pa.StructScalar: _struct,
    **dict.fromkeys((pa.ListScalar, pa.LargeListScalar), _list),
}
"""By the class of the scalar: looking that up is ten times faster than asking for the type."""
