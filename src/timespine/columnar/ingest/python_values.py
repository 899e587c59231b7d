"""Convert Python values to Arrow columns, without a silent change of values.

Arrow reads Python values generously: as an integer it takes 1.5 for 1, as a
date it drops the hours of a datetime, as a timestamp it ignores the zone or
assumes one, and it drops dict entries that a struct does not name. So this module
checks the Python types of the values first. There are few types for many values, and
finding them, also inside of lists and dicts, is one pass without a Python loop.

The result may still be wider than the wanted type (float64 for integers that
the caller gave as floats); `cast_column` does the rest.
"""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, compress, repeat
from operator import attrgetter, is_, is_not
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.columnar.schema.types import parse_type, type_name
from timespine.errors import InvalidRows, UsageError, short_repr

_NONE = type(None)
_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)
_FLOATS = (float, np.floating)
_INTEGERS = (int, np.integer)
_given = partial(is_not, None)


def column_of(name: str, values: Sequence[Any], wanted: pa.DataType | None) -> pa.ChunkedArray:
    """Convert Python values to a column that can be cast to the wanted type; without one, to the inferred type."""
    try:
        if wanted is None:
            wanted = pa.infer_type(values)
            if pa.types.is_null(wanted):
                return pa.chunked_array([pa.nulls(len(values))])
            wanted = parse_type(_in_named_zones(wanted))
        built = _build_type(values, wanted)
    except InvalidRows as error:
        raise error.in_context(f"column {short_repr(name)}") from None
    except UsageError as error:
        raise InvalidRows(f"column {short_repr(name)}: {error.message}", hint=error.hint) from None
    except _FAILURES:
        raise InvalidRows(
            f"column {short_repr(name)} holds values of different or unknown types: convert them"
        ) from None
    try:
        array = pa.array(values, built, from_pandas=False)
    except _FAILURES:
        row = _first_failing(values, built)
        raise InvalidRows.of_row(name, row, f"does not fit {type_name(wanted)}") from None
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _in_named_zones(seeming: pa.DataType) -> pa.DataType:
    """Replace fixed offsets such as +02:00 by UTC: the same instants in a zone that can be stored."""
    if pa.types.is_timestamp(seeming) and (seeming.tz or "").startswith(("+", "-")):
        return pa.timestamp(seeming.unit, "UTC")
    if pa.types.is_list(seeming):
        return pa.list_(_in_named_zones(seeming.value_type))
    if pa.types.is_struct(seeming):
        return pa.struct([(field.name, _in_named_zones(field.type)) for field in seeming])
    return seeming


def _build_type(values: Sequence[Any], wanted: pa.DataType) -> pa.DataType:
    """Choose a type that holds the values without loss; raise a UsageError if they are not of the wanted type."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds:
        return wanted
    types = pa.types
    if types.is_list(wanted):
        _check(kinds, wanted, (list, tuple, np.ndarray))
        inside = list(chain.from_iterable(filter(_given, values)))
        return pa.list_(_build_type(inside, wanted.value_type))
    if types.is_struct(wanted):
        _check(kinds, wanted, (dict,))
        return _struct_type(list(filter(_given, values)), wanted)
    if types.is_timestamp(wanted):
        return _timestamp_type(kinds, values, wanted)
    if types.is_integer(wanted) or types.is_floating(wanted):
        _check(kinds, wanted, (*_INTEGERS, *_FLOATS), but=bool)
        return pa.float64() if any(issubclass(kind, _FLOATS) for kind in kinds) else wanted
    if types.is_decimal(wanted):
        _check(kinds, wanted, (decimal.Decimal, *_INTEGERS), but=bool)
    elif types.is_boolean(wanted):
        _check(kinds, wanted, (bool, np.bool_))
    elif types.is_string(wanted):
        _check(kinds, wanted, (str,))
    elif types.is_binary(wanted):
        _check(kinds, wanted, (bytes, bytearray, memoryview))
    else:
        _check(kinds, wanted, (datetime.date,), but=datetime.datetime)
    return wanted


def _struct_type(values: list[dict[str, Any]], wanted: pa.DataType) -> pa.DataType:
    names = {field.name for field in wanted}
    unknown = set(chain.from_iterable(values)) - names
    if unknown:
        raise InvalidRows(
            f"a struct has a field {short_repr(next(iter(unknown)))} that {type_name(wanted)} does not have"
        )
    return pa.struct([(field.name, _build_type(values_of(values, field.name), field.type)) for field in wanted])


def values_of(rows: Iterable[dict[str, Any]], name: str, default: object = None) -> list[Any]:
    """Take one value of each row; the default where a row has none."""
    return list(map(dict.get, rows, repeat(name), repeat(default)))


def _timestamp_type(kinds: set[type], values: Sequence[Any], wanted: pa.DataType) -> pa.DataType:
    if kinds == {np.datetime64}:
        return pa.infer_type(values)  # NumPy values have a unit, and never a zone: the cast decides
    _check(kinds, wanted, (datetime.datetime,))
    zones = set(map(attrgetter("tzinfo"), filter(_given, values)))
    if wanted.tz is None and zones != {None}:
        raise InvalidRows("a time has a zone where wall-clock times are needed: convert it first")
    if wanted.tz is not None and None in zones:
        raise InvalidRows(f"a time has no zone where {type_name(wanted)} is needed: give it its zone first")
    for kind in kinds:
        # Timestamps of pandas have nanoseconds, which Arrow drops when it converts them one by one.
        if hasattr(kind, "nanosecond"):
            some = compress(values, map(partial(is_, kind), map(type, values)))
            if any(map(attrgetter("nanosecond"), some)):
                raise InvalidRows("a timestamp is finer than microseconds: round it first")
    return wanted


def _check(kinds: set[type], wanted: pa.DataType, allowed: tuple[type, ...], but: type | None = None) -> None:
    """Refuse values of a Python type that does not match the wanted one."""
    for kind in kinds:
        is_missing = kind.__name__ in ("NaTType", "NAType")
        if is_missing or not issubclass(kind, allowed) or (but is not None and issubclass(kind, but)):
            instead = "; use None for what is missing" if is_missing else ""
            raise InvalidRows.of_type(kind.__name__, f"where {type_name(wanted)} is needed{instead}")


def _first_failing(values: Sequence[Any], built: pa.DataType) -> int:
    """Find by bisection the first row that cannot be converted."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pa.array(values[low:middle], built, from_pandas=False)
            low = middle
        except _FAILURES:
            high = middle
    return low


def _before_fork() -> None:
    """Wait until no thread imports pandas for Arrow's first conversion: a child would wait for that lock for ever."""
    pa.array([])


os.register_at_fork(before=_before_fork)
