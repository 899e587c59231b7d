"""Encode values of columns in JSON and CSV, and decode them without loss.

dates, timestamps     ISO 8601; instants in UTC, with a Z
decimals              their digits, in JSON as a text, so that no parser rounds them
binary                base64
NaN, infinities       in JSON the texts "NaN", "Infinity", "-Infinity"
lists, structs        JSON; in CSV the text of it
null                  in CSV nothing, while "" in quotes is an empty text
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from timespine.columnar.schema.types import holds_floats, is_nested, type_name
from timespine.errors import UsageError
from timespine.libraries import pc

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TOO_FINE = re.compile(r"[.,]\d{7}")

Convert = Callable[[Any], Any]


# Out.


def simple(array: pa.Array) -> pa.Array:
    """Convert values to booleans, numbers and texts, and lists and structs of these."""
    given, types = array.type, pa.types
    if types.is_timestamp(given):
        instants = array if given.tz is None else array.cast(pa.timestamp("us", "UTC"))
        texts = instants.cast(pa.string())
        return pc.replace_substring_regex(texts, r"^(-?\d+-\d\d-\d\d) ", r"\1T")
    if types.is_date(given) or types.is_decimal(given):
        return array.cast(pa.string())
    if types.is_binary(given):
        return pa.array([None if each is None else base64.b64encode(each).decode() for each in array.to_pylist()])
    if types.is_list(given):
        values = simple(array.flatten())
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=array.is_null())
    if types.is_struct(given):
        children = [simple(child) for child in array.flatten()]
        fields = [pa.field(field.name, child.type) for field, child in zip(given, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    return array


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to values that JSON can hold."""
    columns = [_json_column(batch.column(i)) for i in range(batch.num_columns)]
    names = batch.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def to_flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert columns to types that CSV can hold: lists and structs become text."""
    columns = []
    for i in range(batch.num_columns):
        column = batch.column(i)
        if is_nested(column.type):
            texts = [None if each is None else msgspec.json.encode(each).decode() for each in _json_column(column)]
            columns.append(pa.array(texts, pa.string()))
        else:
            columns.append(simple(column))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _json_column(column: pa.Array) -> list[Any]:
    values: list[Any] = simple(column).to_pylist()
    return [_finite(value) for value in values] if holds_floats(column.type) else values


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return value


# In.


def from_json(wanted: pa.DataType) -> Convert:
    """Make the function that converts JSON values to values of a column.

    The function leaves values of a wrong type unchanged: the check of the rows refuses them.
    """
    types = pa.types
    if types.is_floating(wanted):
        return _float
    if types.is_date(wanted):
        return _reader_of(datetime.date.fromisoformat, "a date such as 2024-01-31")
    if types.is_timestamp(wanted):
        return _reader_of(_timestamp, "a time such as 2024-01-31T12:00:00.5" + ("Z" if wanted.tz else ""))
    if types.is_decimal(wanted):
        return _reader_of(Decimal, f"a number of {type_name(wanted)}")
    if types.is_binary(wanted):
        return _reader_of(lambda text: base64.b64decode(text, validate=True), "base64")
    if types.is_list(wanted):
        inside = from_json(wanted.value_type)
        return lambda value: [inside(each) for each in value] if isinstance(value, list) else value
    if types.is_struct(wanted):
        by_name = {field.name: from_json(field.type) for field in wanted}
        return lambda value: (
            {name: by_name.get(name, _number)(each) for name, each in value.items()}
            if isinstance(value, dict)
            else value
        )
    return _number


decode_json = msgspec.json.Decoder(float_hook=Decimal).decode
"""A decoder of any JSON, with fractions as decimals: no digit is lost before the type is known."""


def from_text(text: str, wanted: pa.DataType) -> Any:
    """Parse an argument as a value of a column; raise a UsageError if it is none."""
    try:
        if is_nested(wanted):
            return from_json(wanted)(decode_json(text))
        if pa.types.is_binary(wanted):
            return base64.b64decode(text, validate=True)
        return pa.scalar(text).cast(wanted).as_py()
    except (pa.ArrowException, msgspec.MsgspecError, binascii.Error, ValueError):
        raise UsageError(f"{text[:40]!r} is not a value of {type_name(wanted)}") from None


def _reader_of(read: Callable[[str], Any], what: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read(value)
        except (ValueError, InvalidOperation, binascii.Error, OverflowError):
            raise UsageError(f"is not {what}") from None

    return convert


def _timestamp(text: str) -> datetime.datetime:
    if _TOO_FINE.search(text):
        raise ValueError("finer than microseconds")
    return datetime.datetime.fromisoformat(text)


def _float(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    return _number(value)


def _number(value: Any) -> Any:
    """Convert a decimal to a float: the decoder reads fractions as decimals, for columns of decimals."""
    if not isinstance(value, Decimal):
        return value
    number = float(value)
    return value if math.isinf(number) else number
