"""Where to look in a part: bounds of its row groups, from the footer alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from timespine.columnar.kernels.key_encoding import encode_scalar, truncate_lower, truncate_upper
from timespine.columnar.parts.part_stats import Range
from timespine.errors import UsageError
from timespine.libraries import pq


class KeyIndex:
    """Which row groups of a sorted part may hold rows between two bounds."""

    __slots__ = ("_bytes", "lowers")

    def __init__(self, lowers: tuple[bytes, ...]) -> None:
        self.lowers = lowers
        """At or before the first row of each row group, encoded by the order of columns, and cut."""
        self._bytes = max(map(len, lowers), default=0)

    def find(self, lower: bytes | None, upper: bytes | None) -> range:
        """Return the row groups that may have a row at or after `lower`, and at, before, or beginning with `upper`.

        Bounds are encoded by the first columns of the order, as many as wanted: with
        the same key as both, these are the row groups that may have rows of that key.

        SUBTLE: lowers are cut, and the row that one was cut from may be above `lower`
        while what is left of it is below. So what is looked for is cut to the same
        length, and compared with the row group after it
        (test_every_row_group_that_has_a_key_is_found_by_it).
        """
        first, stop = 0, len(self.lowers)
        if lower is not None and stop:
            first = bisect_left(self.lowers, lower[: self._bytes], lo=1) - 1
        if upper is not None:
            size = len(upper)
            stop = bisect_right(self.lowers, upper, key=lambda each: each[:size])
        return range(first, max(first, stop))

    def find_each(self, keys: Sequence[bytes]) -> list[int]:
        """Return the row groups that `find(key, key)` gives for some of these keys, which ascend.

        No key may begin with another one. So for each row group there are two searches among the keys, however many
        these are (test_row_groups_of_many_keys_are_those_of_each).
        """
        found = []
        for group, lower in enumerate(self.lowers):
            first = first_from(keys, lower)
            if first < len(keys) and (
                group + 1 == len(self.lowers) or keys[first][: self._bytes] <= self.lowers[group + 1]
            ):
                found.append(group)
        return found


def first_from(keys: Sequence[bytes], lower: bytes) -> int:
    """Return the place of the first of ascending keys that a row at or after a bound may begin with."""
    return bisect_left(keys, True, key=lambda key: lower[: len(key)] <= key)


class GroupRanges(Mapping[str, Range]):
    """What is known of the columns of one row group, by name. Sound, never exact.

    From the statistics of the file, each worked out when it is asked for: a part has
    thousands, and a query needs those of one or two columns.
    """

    __slots__ = ("_group", "_known", "_leaves", "_nans", "_types", "bound_bytes")

    def __init__(
        self,
        group: pq.RowGroupMetaData,
        types: Mapping[str, pa.DataType],
        leaves: Mapping[str, range],
        nans: frozenset[str],
        bound_bytes: int,
    ) -> None:
        self._group = group
        self._types = types
        self._leaves = leaves
        self._nans = nans
        self._known: dict[str, Range] = {}
        self.bound_bytes = bound_bytes
        """The most bytes of a bound; longer ones are cut."""

    def __getitem__(self, name: str) -> Range:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._range(name)
        return known

    def __iter__(self) -> Iterator[str]:
        return (name for name, type in self._types.items() if not pa.types.is_nested(type))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _range(self, name: str) -> Range:
        type = self._types[name]
        if pa.types.is_nested(type):
            raise KeyError(name)
        statistics = self._group.column(self._leaves[name].start).statistics
        if statistics is None or not statistics.has_null_count:
            # Not Range(None, None, 0): that would say that no value is null.
            raise KeyError(name)
        if not statistics.has_min_max:
            return Range(None, None, statistics.null_count)
        try:
            lower = truncate_lower(_encode_bound(statistics, type, "min"), self.bound_bytes)
            upper = truncate_upper(_encode_bound(statistics, type, "max"), self.bound_bytes)
        except (UsageError, ValueError, OverflowError):
            return Range(None, None, statistics.null_count)
        # SUBTLE: a NaN is left out of the statistics, and to us it is the largest value
        # (test_the_ranges_of_a_row_group_hold_every_value).
        return Range(lower, None if name in self._nans else upper, statistics.null_count)


def _encode_bound(statistics: pq.Statistics, type: pa.DataType, which: str) -> bytes:
    """Return one end of the values in a column chunk, as bounds are encoded."""
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return encode_scalar(getattr(statistics, f"{which}_raw"), pa.binary())
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        return encode_scalar(getattr(statistics, f"{which}_raw"), pa.int64())
    return encode_scalar(getattr(statistics, which), type)
