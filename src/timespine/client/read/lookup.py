"""Lookups: the rows of a key, of some keys, of the first columns of a key, or of a range of keys.

All of them are found by bounds: parts and row groups that cannot hold such a row are
not read.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from itertools import takewhile
from typing import Any

from timespine.client.read.rows import Rows
from timespine.client.row_args import keys_of, names_of
from timespine.columnar.predicate.column import col
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, shown
from timespine.hints import Hint

_SIGNS = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def restrict(rows: Rows, keys: Any, between: Any) -> None:
    """Restrict rows to those of some keys, and to a range of the key columns after those that `keys` names.

    Under the schema that the rows are read with: another process may have renamed the key.
    """
    schema = rows.columns_of
    if keys is None and between is None:
        raise UsageError("this does not say which rows to look up", hint=Hint("give-key-or-range"))
    leading = _leading(keys, schema) if keys is not None else ()
    if keys is not None:
        rows.only(KeySet(keys_of(keys, schema, leading)))
    if between is not None:
        rows.restrict_to(_range(between, schema, schema.key_names[len(leading) :]))


def _leading(keys: Any, schema: Schema) -> tuple[str, ...]:
    """The key columns that keys name: all, or the first ones. The caller is told of the others."""
    if not schema.key:
        return schema.key_names  # a row is known by all of its columns
    named = names_of([keys] if isinstance(keys, Mapping) else keys)
    leading = tuple(takewhile(named.__contains__, schema.key_names))
    if not leading or len(leading) < sum(name in named for name in schema.key_names):
        return schema.key_names  # which says what is missing
    return leading


def _range(between: Any, schema: Schema, left: tuple[str, ...]) -> Predicate:
    """The condition that columns of the key lie between two ends, or at one of them."""
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise UsageError(f"between is a pair (low, high), None for an open end, not {shown(between)}")
    low, high = between
    if low is None and high is None:
        raise UsageError("between=(None, None) is no range: read a snapshot for all rows")
    if not schema.key:
        raise UsageError("this collection has no key columns to take a range of", hint=Hint("range-by-where"))
    if not left:
        raise UsageError("the whole key is given, so no key column is left for a range")
    ends = [_end(end, sign, left) for end, sign in ((low, ">"), (high, "<")) if end is not None]
    found = reduce(lambda one, other: one & other, ends)
    found.check(schema)
    return found


def _end(end: Any, sign: str, left: tuple[str, ...]) -> Predicate:
    """The condition that a row is at one end of a range, or on the side of it that the sign names.

    Columns are compared one after the other, as rows are ordered:
        (a, b) >= (x, y)   iff   a > x  or  a = x and b >= y
    """
    values = dict(end) if isinstance(end, Mapping) else {left[0]: end}
    names = tuple(takewhile(values.__contains__, left))
    if not values or set(names) != set(values):
        raise UsageError(
            f"an end of a range names the key columns {', '.join(left)}, from the first on, not "
            f"{', '.join(map(shown, values)) or 'none'}"
        )
    if any(value is None for value in values.values()):
        raise UsageError("an end of a range has no null: leave that end open, or look up the null as a key")
    *before, last = names
    found = _beside(last, f"{sign}=", values[last])
    for name in reversed(before):
        found = _beside(name, sign, values[name]) | (_beside(name, "=", values[name]) & found)
    return found


def _beside(name: str, sign: str, value: Any) -> Predicate:
    predicate: Predicate = _SIGNS[sign](col(name), value)
    return predicate
