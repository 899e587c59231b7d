"""What a reader asks for, and what of a table that is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import Predicate
from timespine.columnar.scan.visibility import ALL_TIMES, Window
from timespine.columnar.schema.schema import DIFF, Schema, time_names


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What a reader asks for."""

    schema: Schema
    """Rows are seen under this schema."""
    columns: tuple[str, ...]
    """The user's columns to give, by their names in it."""
    window: Window = ALL_TIMES
    """Which times count."""
    keep_times: bool = False
    """Whether updates keep their times; otherwise diffs are summed over all of them."""
    where: Predicate | None = None
    """Only rows for which this holds."""
    lower: bytes | None = None
    """Only rows whose columns of the cut, encoded, are at or after this."""
    upper: bytes | None = None
    """Only rows whose columns of the cut, encoded, are before this."""
    keys: KeySet | None = None
    """Only rows with one of these keys."""
    allow_duplicates: bool = False
    """Whether a row may come several times with a part of its count each, because the caller sums them."""
    any_order: bool = False
    """Whether rows may come in any order."""
    keys_only: bool = False
    """Whether only what filters need is read: for counting, where rows need not be told apart."""
    views: bool = False
    """Whether the caller takes views of text (Arrow's `string_view`), which no filter copies. Not all tables have
    them."""
    hint: CacheHint = CacheHint.MAY_ADD
    """Whether what is decoded may be kept for the next reader."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns of the result in the order of its rows: what is asked for, in row order, and perhaps times."""
        read = set(self.read)
        ordered = tuple(name for name in self.schema.order_names if name in read)
        return (*ordered, *time_names(self.schema.arity)) if self.keep_times else ordered

    @property
    def cut_names(self) -> tuple[str, ...]:
        """The columns by which ranges of rows are cut (`Schema.cut_ids`). They are read whatever is asked for."""
        return self.schema.order_names[: len(self.schema.cut_ids)]

    @property
    def read(self) -> tuple[str, ...]:
        """The columns to read: what is asked for, and the ones that rows are ordered and filtered by."""
        needed = set(self.columns)
        if not self.keys_only:
            needed |= {*self.schema.cluster_names, *self.schema.key_names}
        if self.keys is not None:
            needed |= set(self.keys.names)
        if self.where is not None:
            needed |= set(self.where.columns)
        return tuple(name for name in self.schema.names if name in needed)

    @property
    def is_narrow(self) -> bool:
        """Whether the caller gets fewer columns than the read needs to consolidate rows."""
        return set(self.read) != set(self.columns)


def filter_rows(table: pa.Table, request: ScanRequest) -> pa.Table:
    """Return the rows that are wanted. Rows that are equal are wanted or not together, so this may come before they
    meet."""
    if request.where is not None and table.num_rows:
        table = table.filter(request.where.mask(table))
    if request.keys is not None and table.num_rows:
        table = table.filter(request.keys.mask(table))
    return table


def clip(table: pa.Table, columns: Sequence[str], lower: bytes | None, upper: bytes | None) -> pa.Table:
    """Return the rows of an ascending table whose encoding by these columns lies in [lower, upper)."""
    start = 0 if lower is None else _first_at_or_after(table, columns, lower)
    stop = table.num_rows if upper is None else _first_at_or_after(table, columns, upper)
    return table if (start, stop) == (0, table.num_rows) else table.slice(start, max(stop - start, 0))


def _first_at_or_after(table: pa.Table, columns: Sequence[str], bound: bytes) -> int:
    """Return the first row that is at or after a bound: a binary search that looks at a handful of rows."""
    return bisect_left(range(table.num_rows), bound, key=lambda index: encode_row(table, index, columns))


def empty_table(request: ScanRequest) -> pa.Table:
    """Return no rows, with the columns that a scan gives."""
    fields = [request.schema.update_arrow.field(name) for name in (*request.order, DIFF)]
    return pa.schema(fields).empty_table()
