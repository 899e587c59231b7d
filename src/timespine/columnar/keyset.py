"""A set of keys, to find the rows of just those keys: for lookups, upserts and deletes.

Membership is a hash join, so it costs the same for one key and a million. Row
groups are passed over by their bounds: with few keys, by looking each up; with
many, by the range that they span and, for integers, by what lies between.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from timespine.columnar.bounds import encode_row
from timespine.columnar.stats import Range

FEW = 512
"""So many keys are looked up one by one in the bounds of a row group."""

_INT_OFFSET = 1 << 63


class KeySet:
    """Distinct keys. Nulls are equal to each other, as everywhere in Timespine."""

    def __init__(self, keys: pa.Table) -> None:
        self.names: tuple[str, ...] = tuple(keys.column_names)
        """The key columns."""
        self._frame = pl.DataFrame(pl.from_arrow(keys)).unique(maintain_order=False)
        self._keys = keys

    def __len__(self) -> int:
        return len(self._frame)

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows of a table have one of these keys."""
        single = self._integers
        if single is not None:
            column = table.column(self.names[0])
            if column.null_count == 0:
                return pa.array(_members(column.to_numpy(), single))
        frame = pl.DataFrame(pl.from_arrow(table.select(list(self.names))))
        found = frame.with_row_index("#").join(self._frame, on=list(self.names), how="semi", nulls_equal=True)["#"]
        mask = np.zeros(len(frame), dtype=np.bool_)
        mask[found.to_numpy()] = True
        return pa.array(mask)

    def may_match(self, ranges: dict[str, Range]) -> bool:
        """Whether one of these keys may lie within bounds of the first key column."""
        known = ranges.get(self.names[0])
        if known is None or known.lower is None or known.upper is None or known.nulls != 0:
            return True
        if self._integers is not None and len(known.lower) == 10 == len(known.upper):
            low = int.from_bytes(known.lower[1:], "big") - _INT_OFFSET
            high = int.from_bytes(known.upper[1:], "big") - _INT_OFFSET
            index = int(np.searchsorted(self._integers, low))
            return index < len(self._integers) and int(self._integers[index]) <= high
        index = bisect_left(self._encoded, known.lower)
        if index < len(self._encoded) and self._encoded[index] <= known.upper:
            return True
        return len(self) > FEW and self._encoded[0] <= known.upper and known.lower <= self._encoded[-1]

    @cached_property
    def _integers(self) -> np.ndarray[tuple[int], np.dtype[Any]] | None:
        """The keys in order, if they are one column of integers without nulls."""
        if len(self.names) != 1:
            return None
        column = self._frame[self.names[0]]
        if not column.dtype.is_integer() or column.null_count():
            return None
        return column.sort().to_numpy()

    @cached_property
    def _encoded(self) -> list[bytes]:
        """The first column of the keys, encoded and in order; of many keys only the least and the greatest."""
        first = self._frame.select(self.names[0]).unique().sort(self.names[0])
        if len(first) > FEW:
            first = pl.concat([first.head(1), first.tail(1)])
        table = first.to_arrow().cast(pa.schema([self._keys.schema.field(self.names[0])]))
        return [encode_row(table, index, [self.names[0]]) for index in range(table.num_rows)]


def _members(values: Any, keys: np.ndarray[tuple[int], np.dtype[Any]]) -> Any:
    """Which values are among sorted keys."""
    if len(keys) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    if len(values) and len(keys) > 64:
        # np.isin looks up in a table of the range where that is small, and sorts otherwise.
        return np.isin(values, keys)
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return keys[places] == values
