"""Filters that Spark hands down, as a condition of ours.

Only what means the same in both: no comparisons of floats, where they may differ about
NaN, and none of nested values. What is left out here is looked at by Spark alone.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource

from timespine.columnar.predicate import Predicate
from timespine.columnar.schema import Schema
from timespine.columnar.where import Column, col
from timespine.errors import UsageError

COMPARISONS: dict[type, Callable[[Column, Any], Predicate]] = {
    datasource.EqualTo: Column.__eq__,
    datasource.GreaterThan: Column.__gt__,
    datasource.GreaterThanOrEqual: Column.__ge__,
    datasource.LessThan: Column.__lt__,
    datasource.LessThanOrEqual: Column.__le__,
}


def condition_of(filters: Iterable[Any], schema: Schema) -> str | None:
    """The condition that rows must fulfil to pass those of the filters that are understood; None if there are none."""
    found = [each for each in (_predicate(filter, schema) for filter in filters) if each is not None]
    if not found:
        return None
    whole = found[0]
    for each in found[1:]:
        whole = whole & each
    return str(whole)


def _predicate(filter: Any, schema: Schema) -> Predicate | None:
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else None
    if name is None or name not in schema.names or not _is_comparable(schema.types[name]):
        return None
    try:
        return _comparison(filter, name, schema.types[name])
    except UsageError:
        return None  # a value that a column of this type cannot be compared with


def _comparison(filter: Any, name: str, kind: pa.DataType) -> Predicate | None:
    column = col(name)
    if isinstance(filter, datasource.IsNull):
        return column.is_null()
    if isinstance(filter, datasource.IsNotNull):
        return column.is_not_null()
    if isinstance(filter, datasource.In):
        return column.is_in(filter.value) if all(_is_value(each, kind) for each in filter.value) else None
    if isinstance(filter, datasource.StringStartsWith):
        return column.starts_with(filter.value)
    compare = COMPARISONS.get(type(filter))
    return compare(column, filter.value) if compare is not None and _is_value(filter.value, kind) else None


def _is_comparable(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_decimal(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is None)
    )


def _is_value(value: object, kind: pa.DataType) -> bool:
    """Whether a value is one of the type, as Python has it."""
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime.datetime) and value.tzinfo is None
    if pa.types.is_date(kind):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    if pa.types.is_decimal(kind):
        return isinstance(value, decimal.Decimal)
    return isinstance(value, str if pa.types.is_string(kind) else int) and not isinstance(value, bool)
