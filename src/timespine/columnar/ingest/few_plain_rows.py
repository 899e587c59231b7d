"""Convert a few dictionaries of plain Python values to an update table, by one call of Arrow.

    for all rows:   convert_few_rows(rows, schema, at) is None
                    or equal to update_table(require_key_columns(rows, schema), schema, at)

`to_arrow` and `update_table` look at each column several times: for one row that costs several times as much as the
conversion. This module looks at each column once: all its values must be of exact Python types that need no check
beside those of `pa.array`. It finds these types once per schema.

SUBTLE: the general conversion alone decides what is right, and makes every error. This one returns None for whatever
is not surely plain: a subclass, a NumPy scalar, a value that does not fit, a row that lacks a column or has a time or
a diff (test_few_plain_rows.py compares the two).
"""

from __future__ import annotations

import datetime
import zoneinfo
from functools import lru_cache
from itertools import chain
from operator import ne
from typing import Any, NamedTuple

import pyarrow as pa

from timespine.columnar.ingest.cast import canonical_floats
from timespine.columnar.schema.schema import DIFF, Schema

FEW_ROWS_MAX = 64
"""Most rows that are converted here: this module loops over them in Python, which the general conversion never does."""

_FAILURES = (pa.ArrowException, LookupError, TypeError, ValueError, ArithmeticError)
_NONE = type(None)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_PLAIN: dict[pa.DataType, set[type]] = {
    **{each: {int} for each in _INTEGERS},
    pa.bool_(): {bool},
    pa.float64(): {float, int},
    pa.string(): {str},
    pa.binary(): {bytes},
    pa.date32(): {datetime.date},
}
"""The plain Python types of a column, besides None. Float32 is not here, since it rounds; nor are decimals and nested
types, whose values have to be looked at one by one."""


def convert_few_rows(rows: object, schema: Schema, at: tuple[int, ...] | None) -> pa.Table | None:
    """Convert rows to an update table at a time of the schema; return None unless they are few and plain."""
    if at is None or type(rows) is not list or not 0 < len(rows) <= FEW_ROWS_MAX:
        return None
    try:
        converter = _converter(schema)
        return converter.convert(rows, at) if converter is not None else None
    except _FAILURES:
        return None


class _Column(NamedTuple):
    """A column of the schema."""

    name: str
    plain: frozenset[type]
    """The plain types of its values."""
    zones: frozenset[type]
    """The plain types of the time zones of its values; empty if they have none to look at."""
    is_float: bool


class _Converter(NamedTuple):
    """The conversion of plain rows to the update table of one schema."""

    columns: tuple[_Column, ...]
    time_names: tuple[str, ...]
    row: pa.StructType
    """A row of the update table."""

    def convert(self, rows: list[Any], at: tuple[int, ...]) -> pa.Table | None:
        """Convert rows; return None, or raise one of `_FAILURES`, if they are not plain."""
        if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(self.columns)}:
            return None
        if set(map(type, chain.from_iterable(rows))) != {str}:  # a key of another type may be equal to a name
            return None
        unsure = []
        for place, (name, plain, zones, is_float) in enumerate(self.columns):
            values = [row[name] for row in rows]
            if not plain.issuperset(map(type, values)):
                return None
            if zones and not zones.issuperset(type(value.tzinfo) for value in values if value is not None):
                return None
            if is_float and (not all(values) or any(map(ne, values, values))):  # a zero, None or NaN
                unsure.append(place)
        system = {**dict(zip(self.time_names, at, strict=True)), DIFF: 1}
        array = pa.array([row | system for row in rows], self.row, from_pandas=False)
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(array)])
        for place in unsure:
            floats = canonical_floats(table.column(place).chunk(0))
            table = table.set_column(place, table.field(place), floats)
        return table


@lru_cache(maxsize=256)
def _converter(schema: Schema) -> _Converter | None:
    """Make the conversion to a schema; None if a column has a type without plain values."""
    columns = []
    for name, wanted in schema.types.items():
        plain, zones = _PLAIN.get(wanted), set[type]()
        if pa.types.is_timestamp(wanted):
            plain = {datetime.datetime}
            zones = {_NONE} if wanted.tz is None else {datetime.timezone, zoneinfo.ZoneInfo}
        if plain is None:
            return None
        columns.append(_Column(name, frozenset({*plain, _NONE}), frozenset(zones), pa.types.is_floating(wanted)))
    return _Converter(tuple(columns), schema.time_names, pa.struct(list(schema.update_arrow)))
