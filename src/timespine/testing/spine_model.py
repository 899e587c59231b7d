"""A spine in plain Python, to compare the real one with: a dictionary of (row, time) to diff.

Nothing here is fast, and nothing is clever: rows are tuples, a read walks over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from timespine.model.frontier import Frontier, advance_by
from timespine.model.time import Time, less_equal

ComparableRow = tuple[Any, ...]
"""The values of a row in the order of the arrangement, each as `comparable` makes it."""


def comparable(value: object) -> tuple[Any, ...]:
    """Make of a value what Python orders and compares as the order of rows does."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, True, 0.0) if math.isnan(value) else (1, False, value + 0.0)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, tuple(map(comparable, value.values())))
    if isinstance(value, list):
        return (1, tuple(map(comparable, value)))
    return (1, value)


def model_rows(table: pa.Table, names: Sequence[str]) -> list[ComparableRow]:
    """Return the rows of a table by some columns. Instants become integers: Python knows no year 10000."""
    columns = [table.column(name) for name in names]
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return [tuple(map(comparable, row)) for row in zip(*(column.to_pylist() for column in plain), strict=True)]


class SpineModel:
    """What all batches of a spine add up to."""

    def __init__(self, order: Sequence[str], depth: int, time_names: Sequence[str]) -> None:
        self.order = tuple(order)
        """The columns of a row; the first `depth` of them are the key of the arrangement."""
        self.depth = depth
        """The number of columns that rows are arranged by."""
        self.time_names = tuple(time_names)
        """The columns of the time."""
        self.updates: dict[tuple[ComparableRow, Time], int] = {}
        """The sum of the diffs of every row at every time, without zeros."""

    def copy(self) -> SpineModel:
        """Return a model of its own with the same updates."""
        other = SpineModel(self.order, self.depth, self.time_names)
        other.updates = dict(self.updates)
        return other

    def insert(self, table: pa.Table) -> None:
        """Add the updates of an update table."""
        times = zip(*(table.column(name).to_pylist() for name in self.time_names), strict=True)
        diffs = table.column("_diff").to_pylist()
        for row, time, diff in zip(model_rows(table, self.order), times, diffs, strict=True):
            self._add(row, time, diff)

    def fold(self, since: Frontier) -> None:
        """Advance all times to a frontier."""
        before, self.updates = self.updates, {}
        for (row, time), diff in before.items():
            self._add(row, advance_by(time, since), diff)

    def as_of(self, time: Time) -> list[tuple[ComparableRow, int]]:
        """Return the rows as of a time in order, with their counts."""
        counts: dict[ComparableRow, int] = {}
        for (row, at), diff in self.updates.items():
            if less_equal(at, time):
                counts[row] = counts.get(row, 0) + diff
        return sorted((row, count) for row, count in counts.items() if count)

    def get(self, key: ComparableRow, time: Time) -> list[tuple[ComparableRow, int]]:
        """Return the rows as of a time that begin with a key."""
        return [(row, count) for row, count in self.as_of(time) if row[: len(key)] == key]

    def fetch(self, keys: Iterable[ComparableRow], time: Time) -> list[tuple[ComparableRow, int]]:
        """Return the rows as of a time that begin with one of some keys of one length."""
        wanted = set(keys)
        return [(row, count) for row, count in self.as_of(time) if any(row[: len(key)] == key for key in wanted)]

    def scan(
        self, lower: ComparableRow | None, upper: ComparableRow | None, time: Time, *, inclusive: bool
    ) -> list[tuple[ComparableRow, int]]:
        """Return the rows as of a time from one key to before another, or through all that begin with it."""
        found = []
        for row, count in self.as_of(time):
            is_from = lower is None or row[: len(lower)] >= lower
            beginning = () if upper is None else row[: len(upper)]
            if is_from and (upper is None or beginning < upper or (inclusive and beginning == upper)):
                found.append((row, count))
        return found

    def keys(self, time: Time) -> list[ComparableRow]:
        """Return the keys that have rows as of a time, in order."""
        return sorted({row[: self.depth] for row, _ in self.as_of(time)})

    def _add(self, row: ComparableRow, time: Time, diff: int) -> None:
        total = self.updates.get((row, time), 0) + diff
        if total:
            self.updates[(row, time)] = total
        else:
            self.updates.pop((row, time), None)
