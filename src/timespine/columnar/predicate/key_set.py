"""A set of keys, for finding their rows: for lookups, upserts and deletes.

Membership is a hash join, so it costs the same for one key and a million. Row
groups are skipped by their bounds: with few keys, by a lookup of each; with
many, by their range and, for integers, by the keys within the bounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.key_encoding import decode_integer, encode_row
from timespine.columnar.predicate.predicate import Ranges
from timespine.errors import UsageError
from timespine.libraries import pl

FEW = 512
"""The most keys that are looked up one by one in the bounds of a row group."""


_DENSE = 8
"""The largest ratio of span to number of values for which a table of the whole span is the fastest lookup."""

_SPARSE = 8
"""The least number of rows per key for which a search for each key is faster than a mask of all rows."""

Integers = np.ndarray[tuple[int], np.dtype[Any]]


class KeySet:
    """Distinct keys. Nulls are equal to each other, as everywhere in Timespine."""

    def __init__(self, keys: pa.Table) -> None:
        self.names: tuple[str, ...] = tuple(keys.column_names)
        """The key columns."""
        self._keys = keys

    @staticmethod
    def of_rows(rows: pa.Table, names: Sequence[str]) -> KeySet:
        """Return the keys of rows; raise a UsageError if a key repeats."""
        keys = KeySet(rows.select(list(names)))
        if len(keys) != rows.num_rows:
            raise UsageError(f"{rows.num_rows - len(keys)} rows repeat the key of another one: give each key once")
        return keys

    @property
    def table(self) -> pa.Table:
        """Return the keys as they were given, repeated ones included."""
        return self._keys

    @cached_property
    def _frame(self) -> pl.DataFrame:
        """Return the distinct keys."""
        return pl.DataFrame(pl.from_arrow(self._keys)).unique(maintain_order=False)

    def __len__(self) -> int:
        if self._keys.num_rows <= 1:
            return int(self._keys.num_rows)
        integers = self._integers
        return len(self._frame) if integers is None else len(integers)

    def first(self) -> dict[str, Any]:
        """Return one of the keys, of which there is at least one, as values by column.

        SUBTLE: dates and times as their integers, since Python knows no year 10000 (test_key_set.py).
        """
        scalars = {name: self._keys.column(name)[0] for name in self.names}
        return {name: each.value if pa.types.is_temporal(each.type) else each.as_py() for name, each in scalars.items()}

    def encoded(self, names: tuple[str, ...]) -> list[bytes]:
        """Encode all keys by these columns in this order, ascending. Only for few keys."""
        if self._all is None or self._all[0] != names:
            keys = self._keys
            if keys.num_rows > 1:
                keys = self._frame.to_arrow().cast(self._keys.schema)
            self._all = (names, sorted(encode_row(keys, index, names) for index in range(keys.num_rows)))
        return self._all[1]

    _all: tuple[tuple[str, ...], list[bytes]] | None = None

    def mask(self, table: pa.Table) -> pa.Array:
        """Return which rows of a table have one of these keys."""
        single = self._integers
        if single is not None:
            column = table.column(self.names[0])
            if column.null_count == 0:
                return pa.array(_members(column.to_numpy(), single))
        frame = pl.DataFrame(pl.from_arrow(table.select(list(self.names))))
        keys = self._within(frame)
        place = "_".join(("row", *self.names))  # longer than each of them, so equal to none
        found = frame.with_row_index(place).join(keys, on=list(self.names), how="semi", nulls_equal=True)
        mask = np.zeros(len(frame), dtype=np.bool_)
        mask[found[place].to_numpy()] = True
        return pa.array(mask)

    def ranges_in(self, column: pa.ChunkedArray) -> tuple[Integers, Integers] | None:
        """Return where the first values of these keys begin and end in an ascending column of the same type.

        A search for each key, and not a look at each row. None if all rows should be looked at: these are few for each
        key, or values are no integers.
        """
        wanted = self._first_integers
        if wanted is None or column.null_count or column.type != self._keys.schema.field(self.names[0]).type:
            return None
        values = column.to_numpy()
        if len(values) < _SPARSE:
            return None
        wanted = wanted[np.searchsorted(wanted, values[0]) : np.searchsorted(wanted, values[-1], "right")]
        if len(wanted) * _SPARSE > len(values):
            return None
        starts, stops = np.searchsorted(values, wanted), np.searchsorted(values, wanted, "right")
        found = starts < stops
        return starts[found], stops[found]

    def _within(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return at least the keys in the range of the first column of some rows.

        A scan makes a hash table of them for every chunk, so they must not be all keys each time.
        """
        if len(self) <= FEW or self._sort_keys is None or not len(frame):
            return self._frame
        column = frame[self.names[0]].to_physical()  # Python knows no year 10000
        low: Any = column.min()
        high: Any = column.max()
        if low is None or column.null_count():
            return self._frame
        first = self._sort_keys[self.names[0]].to_physical()
        start, stop = int(first.search_sorted(low, "left")), int(first.search_sorted(high, "right"))
        return self._sort_keys.slice(start, stop - start)

    @cached_property
    def _sort_keys(self) -> pl.DataFrame | None:
        """Sort the keys by their first column; None if it has a null, or no plain order."""
        first = self._frame[self.names[0]]
        if first.null_count() or not (
            first.dtype.is_integer() or first.dtype.is_temporal() or first.dtype in (pl.String, pl.Binary)
        ):
            return None
        return self._frame.sort(self.names[0])

    def may_match(self, ranges: Ranges) -> bool:
        """Return whether one of these keys may lie within bounds of the first key column."""
        known = ranges.get(self.names[0])
        if known is None or known.lower is None or known.upper is None or known.nulls != 0:
            return True
        if self._integers is not None and len(known.lower) == 10 == len(known.upper):
            low, high = decode_integer(known.lower), decode_integer(known.upper)
            index = int(np.searchsorted(self._integers, low))
            return index < len(self._integers) and int(self._integers[index]) <= high
        index = bisect_left(self._encode_first_column, known.lower)
        if index < len(self._encode_first_column) and self._encode_first_column[index] <= known.upper:
            return True
        return (
            len(self) > FEW
            and self._encode_first_column[0] <= known.upper
            and known.lower <= self._encode_first_column[-1]
        )

    @property
    def _integers(self) -> Integers | None:
        """Return the keys in order, if they are one column of integers without nulls."""
        return self._first_integers if len(self.names) == 1 else None

    @cached_property
    def _first_integers(self) -> Integers | None:
        """Return the different values of the first column in order, if they are integers without nulls."""
        if not pa.types.is_integer(self._keys.schema.field(0).type):
            return None
        column = self._keys.column(0)
        if column.null_count:
            return None
        ordered = np.sort(column.to_numpy())
        return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered

    @cached_property
    def _encode_first_column(self) -> list[bytes]:
        """Encode the first column of the keys in order; of many keys only the least and the greatest."""
        first = self._frame.select(self.names[0]).unique().sort(self.names[0])
        if len(first) > FEW:
            first = pl.concat([first.head(1), first.tail(1)])
        table = first.to_arrow().cast(pa.schema([self._keys.schema.field(self.names[0])]))
        return [encode_row(table, index, [self.names[0]]) for index in range(table.num_rows)]


def _members(values: Any, keys: Integers) -> Any:
    """Return which values are among sorted keys. The cost depends only on keys within the range of the values."""
    if len(values) == 0 or len(keys) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    low, high = values.min(), values.max()
    keys = keys[np.searchsorted(keys, low) : np.searchsorted(keys, high, "right")]
    if len(keys) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    span = int(high) - int(low) + 1
    if span <= _DENSE * len(values):
        flags = np.zeros(span, dtype=np.bool_)
        flags[keys - low] = True
        return flags[values - low]
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return keys[places] == values
