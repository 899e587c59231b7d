"""Translate filters that Spark pushes to conditions, where both mean the same for every row.

Integers, truth values, dates and texts have the same order and equality in Spark and here. Floats do not (NaN),
and a timestamp of Spark may be a rounded one. Filters on those columns stay with Spark, and so do all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import datasource as pushed
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from timespine.columnar.predicate.predicate import Predicate, all_of
from timespine.columnar.predicate.where import col
from timespine.columnar.schema.schema import is_reserved
from timespine.errors import InvalidCondition
from timespine.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EXACT = (BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), DateType(), StringType())
"""The types of Spark whose values are those of the collection, in the same order. `StringType()` has no collation."""

TEXT_MAX = 1 << 16
"""The most characters of the conditions that one read takes, since each of its slices carries them."""


def split_filters(
    filters: Iterable[pushed.Filter], options: Options, promised: StructType
) -> tuple[Predicate | None, list[pushed.Filter]]:
    """Return the condition of the filters that the read applies exactly, None without any; and the other filters.

    A change feed takes none: it pairs the images of an update, of which a filter may keep one.
    """
    if options.is_feed:
        return None, list(filters)
    fields = promised.fields[:-2] if options.flag("readUpdates") else promised.fields
    types = {field.name: field.dataType for field in fields if not is_reserved(field.name)}
    taken: list[Predicate] = []
    others: list[pushed.Filter] = []
    left = TEXT_MAX
    for each in filters:
        found = _translate(each, types)
        if found is not None and len(str(found)) <= left:
            left -= len(str(found))
            taken.append(found)
        else:
            others.append(each)
    return (all_of(taken) if taken else None), others


def _translate(given: pushed.Filter, types: dict[str, DataType]) -> Predicate | None:
    """Return the condition that is true for the same rows; None if there is none, or the language refuses it."""
    if isinstance(given, pushed.Not):
        # SUBTLE: `<=>` is false for null where `=` is unknown: only its negation tells them apart
        # (test_pushed_filters.py).
        if isinstance(given.child, pushed.EqualNullSafe):
            return None
        found = _translate(given.child, types)
        return None if found is None else ~found
    path: tuple[str, ...] = getattr(given, "attribute", ())
    kind = types.get(path[0]) if len(path) == 1 else None
    if kind not in EXACT:
        return None
    try:
        return next(_conditions(given, path[0]), None)
    except InvalidCondition:  # a value that is too long, or null
        return None


def _conditions(given: pushed.Filter, name: str) -> Iterator[Predicate]:
    """Yield the condition that a filter on this column means, if it has one."""
    column = col(name)
    match given:
        case pushed.IsNull():
            yield column.is_null()
        case pushed.IsNotNull():
            yield column.is_not_null()
        case pushed.EqualTo(_, value) | pushed.EqualNullSafe(_, value):
            yield column == value
        case pushed.GreaterThan(_, value):
            yield column > value
        case pushed.GreaterThanOrEqual(_, value):
            yield column >= value
        case pushed.LessThan(_, value):
            yield column < value
        case pushed.LessThanOrEqual(_, value):
            yield column <= value
        case pushed.In(_, values) if values:
            yield column.is_in(values)
        case pushed.StringStartsWith(_, text):
            yield column.starts_with(text)
