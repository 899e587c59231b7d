"""Asking the Bloom filters of a Parquet file: split blocks of 256 bits, XXH64 with seed 0.

Arrow writes them but cannot be asked. A filter is a header and its bits; the
header has one form, and a filter with another one is simply not used. The answer
"no" is certain, "yes" is not.
"""

from __future__ import annotations

import datetime
import decimal
import re
import struct
from typing import Any

import pyarrow as pa
import xxhash

# The header in Thrift's compact form: the number of bytes, then three unions that each have a single, empty choice
# (split blocks, XXH64, not compressed).
_HEADER = re.compile(rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00")

_BLOCK = struct.Struct("<8I")
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)

_EPOCH = datetime.date(1970, 1, 1)
_START = datetime.datetime(1970, 1, 1)
_START_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def may_hold(filter: bytes, stored: bytes) -> bool:
    """Tell whether a filter may have seen a value, given as `stored_bytes` says. Unknown forms may."""
    header = _HEADER.match(filter)
    if header is None:
        return True
    size = _zigzag(header[1])
    start = header.end()
    if size <= 0 or size % _BLOCK.size or len(filter) != start + size:
        return True
    hashed = xxhash.xxh64_intdigest(stored)
    block = ((hashed >> 32) * (size // _BLOCK.size)) >> 32
    words = _BLOCK.unpack_from(filter, start + block * _BLOCK.size)
    low = hashed & 0xFFFFFFFF
    return all(word >> ((low * salt & 0xFFFFFFFF) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))


def stored_bytes(value: object, type: pa.DataType) -> bytes | None:
    """Return the bytes that Parquet stores for a value; None if it has none here, as null, or one of another type."""
    try:
        if pa.types.is_string(type):
            return value.encode() if isinstance(value, str) else None
        if pa.types.is_binary(type):
            return value if isinstance(value, bytes) else None
        if pa.types.is_decimal(type):
            return _decimal_bytes(value, type) if isinstance(value, decimal.Decimal) else None
        number = _number(value, type)
        if number is None:
            return None
        size = 8 if pa.types.is_timestamp(type) or type.bit_width == 64 else 4
        return (number % (1 << 8 * size)).to_bytes(size, "little")
    except (UnicodeError, OverflowError, ValueError, decimal.DecimalException):
        return None


def _number(value: Any, type: pa.DataType) -> int | None:
    """Return the integer that stands for a value of an integer, date or timestamp column."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime.datetime):
        if pa.types.is_timestamp(type) and (value.tzinfo is None) == (type.tz is None):
            return (value - (_START if value.tzinfo is None else _START_UTC)) // _MICROSECOND
        return None
    if isinstance(value, datetime.date) and pa.types.is_date(type):
        return (value - _EPOCH).days
    return None


def _decimal_bytes(value: decimal.Decimal, type: pa.DataType) -> bytes:
    """Return the unscaled value, most significant byte first, in as many bytes as the precision needs."""
    context = decimal.Context(prec=80, traps=[decimal.Inexact, decimal.InvalidOperation])
    unscaled = int(context.quantize(value, decimal.Decimal(1).scaleb(-type.scale)).scaleb(type.scale, context))
    return unscaled.to_bytes(((10**type.precision).bit_length() + 8) // 8, "big", signed=True)


def _zigzag(varint: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))
    return number >> 1 if not number & 1 else -(number >> 1) - 1
