"""Lookups: the rows of a key, of some keys, of the first columns of a key, or of a range of keys.

Bounds find all of them: parts and row groups that cannot hold such a row are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce
from itertools import takewhile

import pyarrow as pa

from timespine.client.arguments.argument_types import RowsLike
from timespine.client.arguments.row_args import column_names_of, parse_keys
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.rows import Rows
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.predicate.where import Column, col
from timespine.columnar.schema.schema import Schema
from timespine.errors import InvalidRows, UsageError, short_repr
from timespine.hints import Hint

_SIGNS: dict[str, Callable[[Column, object], Predicate]] = {
    "=": Column.__eq__,
    ">": Column.__gt__,
    ">=": Column.__ge__,
    "<": Column.__lt__,
    "<=": Column.__le__,
}


def restrict_to_lookup(rows: Rows, keys: RowsLike | None, between: object) -> None:
    """Restrict rows to those of some keys, and to a range of the key columns after those that `keys` names.

    Uses the schema of the read: another process may have renamed the key.
    """
    schema = rows._collection_schema
    if keys is None and between is None:
        raise UsageError("lookup needs a key or a range", hint=Hint("give-key-or-range"))
    leading = _leading_key_columns(keys, schema) if keys is not None else ()
    if keys is not None:
        rows._only(KeySet(parse_keys(keys, schema, leading)))
    if between is not None:
        rows._restrict_to(_range(between, schema, schema.key_names[len(leading) :]))


def from_arrangement(handle: CollectionHandle, keys: RowsLike | None) -> pa.Table | None:
    """Look one key up in an open arrangement; None if there is none that can tell.

    It has looked at the log as a snapshot would, so the answer is as fresh.
    """
    if not isinstance(keys, Mapping):
        return None
    id = len(handle.known().schemas) - 1
    for arrangement in list(handle.context.arrangements):
        if arrangement.collection_id == handle.id:
            with suppress(InvalidRows):  # values of other types: the usual way converts them, or says what is wrong
                found = arrangement.look_up(keys, id)
                if found is not None:
                    return found
    return None


def _leading_key_columns(keys: RowsLike, schema: Schema) -> tuple[str, ...]:
    """Return the key columns that `keys` names: all, or the first ones."""
    if not schema.key:
        return schema.key_names  # all columns identify a row
    named = column_names_of([keys] if isinstance(keys, Mapping) else keys)
    leading = tuple(takewhile(named.__contains__, schema.key_names))
    if not leading or len(leading) < sum(name in named for name in schema.key_names):
        return schema.key_names  # the caller then names the missing column
    return leading


def _range(between: object, schema: Schema, left: tuple[str, ...]) -> Predicate:
    """Build the condition that key columns lie between two ends, both included."""
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise UsageError(f"between is a pair (low, high), None for an open end, not {short_repr(between)}")
    low, high = between
    if low is None and high is None:
        raise UsageError("between has no end on either side, so it is no range: read a snapshot for all rows")
    if not schema.key:
        raise UsageError("this collection has no key columns to take a range of", hint=Hint("range-by-where"))
    if not left:
        raise UsageError("the whole key is given, so no key column is left for a range")
    ends = [_end(end, sign, left) for end, sign in ((low, ">"), (high, "<")) if end is not None]
    found = reduce(lambda one, other: one & other, ends)
    found.check(schema)
    return found


def _end(end: object, sign: str, left: tuple[str, ...]) -> Predicate:
    """Build the condition that a row is at one end of a range, or on the side of it that the sign names.

    Columns are compared one after the other, as rows are ordered:
        (a, b) >= (x, y)   iff   a > x  or  a = x and b >= y
    """
    values = dict(end) if isinstance(end, Mapping) else {left[0]: end}
    names = tuple(takewhile(values.__contains__, left))
    if not values or set(names) != set(values):
        raise UsageError(
            f"an end of a range names the key columns {', '.join(left)}, from the first on, not "
            f"{', '.join(map(short_repr, values)) or 'none'}"
        )
    if any(value is None for value in values.values()):
        raise UsageError("an end of a range has no null: leave that end open, or look up the null as a key")
    *before, last = names
    found = _beside(last, f"{sign}=", values[last])
    for name in reversed(before):
        found = _beside(name, sign, values[name]) | (_beside(name, "=", values[name]) & found)
    return found


def _beside(name: str, sign: str, value: object) -> Predicate:
    return _SIGNS[sign](col(name), value)
