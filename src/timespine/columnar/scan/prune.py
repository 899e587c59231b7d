"""Which parts and row groups need not be read.

A part or row group is skipped only if its statistics prove that no row of it is
asked for. Statistics are those of the schema it was written with; a column that
has another type since is converted or counts as unknown.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.key_encoding import decode_integer, leading, recode
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.parts.part_stats import PartMeta, Range, known_meta
from timespine.columnar.parts.row_group_index import first_from
from timespine.columnar.predicate.key_set import FEW, Integers
from timespine.columnar.predicate.predicate import EncodedRange, Ranges
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.schema.schema import DIFF, Field, Schema, time_names
from timespine.columnar.schema.types import parse_type
from timespine.core.batch import Part

PAGED_GROUPS = 8
"""Row groups that a read without keys may need at most, for it to look at the pages of each."""

NEAR_ROWS = 4096
"""Rows that a search leaves at most, so that the filter is not asked which of them are wanted before they are read."""

FEW_SLICES = 8
"""Ranges of a row group that are cut out of it one by one, rather than picked row by row."""


class Pruner:
    """Decides for parts that were written with one schema, and are wanted under another."""

    def __init__(self, request: ScanRequest, written: Schema) -> None:
        self._wanted = request
        self._written = written
        self._by_id = {field.id: field for field in written.fields}
        self._filtered = _filtered_fields(request)
        self._key_names = _key_names(request)
        key = tuple(request.schema.field(name).id for name in self._key_names)
        self._by_key = bool(key) and key == request.schema.order_ids[: len(key)] and self._has_same(key)
        """Whether rows are ordered by the key first, and bounds compare with those of the wanted schema."""
        self._lower, self._upper, self._is_exact = self._range()
        self._first_range = self._range_of_first_column()

    def _range(self) -> tuple[bytes | None, bytes | None, bool]:
        """Return the wanted range by those columns of the cut that compare, and whether these are all of them.

        SUBTLE: where columns were added, dropped or changed, only those before them compare. By these alone a row
        before the upper end may be equal to it (test_prune.py).
        """
        request = self._wanted
        ids = request.schema.cut_ids
        if request.lower is None and request.upper is None:
            return None, None, True
        same = next((count for count in range(len(ids), 0, -1) if self._has_same(ids[:count])), 0)
        if same == len(ids):
            return request.lower, request.upper, True
        types = [request.schema.by_id(id).arrow_type for id in ids[:same]]
        lower, upper = (None if each is None else leading(each, types) for each in (request.lower, request.upper))
        return (lower, upper, False) if same else (None, None, False)

    def _range_of_first_column(self) -> EncodedRange:
        """Return where the condition puts the first column of the order, if rows are written by it as they are wanted.

        Doubles are left out: their two zeros are equal, and are encoded differently.
        """
        request = self._wanted
        first = request.schema.order_ids[:1]
        if request.where is None or not first or not self._has_same(first):
            return None, None
        field = request.schema.by_id(first[0])
        if field.name not in request.where.columns or pa.types.is_floating(field.arrow_type):
            return None, None
        return request.where.encoded_range(field.name, field.arrow_type)

    def _has_same(self, ids: tuple[int, ...]) -> bool:
        """Tell whether the order of the written schema begins with these columns, with the types they are wanted
        with."""
        schema = self._wanted.schema
        return self._written.order_ids[: len(ids)] == ids and all(
            self._by_id[id].type == schema.by_id(id).type for id in ids
        )

    @property
    def written_columns(self) -> tuple[str, ...]:
        """The names in the file of the columns to read, times and diffs included."""
        schema = self._wanted.schema
        ids = [schema.field(name).id for name in self._wanted.read]
        names = [self._by_id[id].name for id in ids if id in self._by_id]
        return (*names, *time_names(self._written.arity), DIFF)

    @property
    def range(self) -> tuple[bytes | None, bytes | None]:
        """The wanted range, by those columns of the cut that compare with the bounds of a part."""
        return self._lower, self._upper

    def bounds_may_match(self, meta: PartMeta) -> bool:
        """Tell whether a row between the bounds of a part may be in the wanted range.

        A row begins with the bytes of its columns of the cut, so if these are at or after the lower end the
        row is, too. The upper end is exclusive, unless only some of the columns compare.
        """
        if self._lower is not None and meta.upper is not None and meta.upper < self._lower:
            return False
        if self._upper is None or meta.lower is None:
            return True
        return meta.lower < self._upper or (not self._is_exact and meta.lower.startswith(self._upper))

    def part_may_match(self, part: Part) -> bool:
        """Tell whether some row of a part may be asked for."""
        if not part.meta:
            return True
        meta = known_meta(part.meta)
        if not self._times_may_match(part, meta):
            return False
        if not self.bounds_may_match(meta):
            return False
        keys = self._wanted.keys
        if keys is not None and self._by_key and len(keys) <= FEW and not self._has_key(meta.lower, meta.upper):
            return False
        known = {field.name: self._known(field, meta.columns.get(field.id)) for field in self._filtered}
        return self._rows_may_match(known, part.rows)

    def groups(self, reader: PartReader) -> list[int]:
        """Return the row groups of a part that may have a row that is asked for, in order."""
        inside = range(reader.groups)
        if reader.key_index is not None:
            inside = reader.key_index.find(self._lower, self._upper)
            if self._first_range != (None, None):
                near_first = reader.key_index.find(*self._first_range)
                inside = range(max(inside.start, near_first.start), min(inside.stop, near_first.stop))
        if not self._filtered:
            return list(inside)
        keys = self._wanted.keys
        if keys is None or len(keys) > FEW or reader.key_index is None or not self._by_key:
            return [group for group in inside if self.group_may_match(reader, group)]
        encoded = keys.encoded(self._key_names)
        near = reader.key_index.find(encoded[0], encoded[0]) if len(keys) == 1 else reader.key_index.find_each(encoded)
        found = [group for group in near if group in inside]
        if self._wanted.where is not None:
            found = [group for group in found if self.group_may_match(reader, group)]
        # One key is worth a look at the Bloom filter: it is small, and kept.
        return [group for group in found if len(keys) > 1 or self._bloom_may_match(reader, group)]

    @cached_property
    def filter_columns(self) -> tuple[str, ...]:
        """The columns that rows are filtered by."""
        return tuple(field.name for field in self._filtered)

    def may_read_pages(self, reader: PartReader, groups: list[int]) -> bool:
        """Tell whether few rows of these row groups may be asked for, so that their pages are worth a look.

        That is so for few keys, and where bounds leave few row groups. A column that the filter needs and that was
        added or changed since is not in the file as it is wanted: then row groups are read whole.
        """
        request = self._wanted
        if not reader.footer.page_tables or not self._filtered or self._written != request.schema:
            return False
        return len(groups) <= PAGED_GROUPS or (request.keys is not None and len(request.keys) <= FEW)

    @cached_property
    def may_read_keys_first(self) -> bool:
        """Tell whether row groups are asked for by keys and have other columns: without a key, these need no read."""
        request = self._wanted
        return request.keys is not None and self._written == request.schema and len(request.read) > len(self._filtered)

    def rows_to_read(self, reader: PartReader, filtered: pa.Table) -> tuple[int, int]:
        """Return the range of rows of a row group that has all those that are asked for, by the columns of the
        filter."""
        request = self._wanted
        start, stop = self._rows_by_first_column(reader, filtered)
        if stop - start <= NEAR_ROWS:
            return start, stop
        filtered = filtered.slice(start, stop - start)
        mask = np.ones(filtered.num_rows, dtype=np.bool_)
        if request.where is not None:
            mask &= request.where.mask(filtered).to_numpy(zero_copy_only=False)
        if request.keys is not None:
            mask &= request.keys.mask(filtered).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(mask)
        return (start + int(rows[0]), start + int(rows[-1]) + 1) if rows.size else (start, start)

    def _rows_by_first_column(self, reader: PartReader, filtered: pa.Table) -> tuple[int, int]:
        """Return the range of rows that may be asked for, by a search in the first column, by which rows ascend."""
        first = reader.schema.order_names[0]
        if reader.key_index is None or first not in self.filter_columns:
            return 0, filtered.num_rows
        column = filtered.column(first)
        keys = self._wanted.keys
        if keys is not None and self._by_key and self._key_names[0] == keys.names[0]:
            ranges = keys.ranges_in(column)
            if ranges is not None:
                return (int(ranges[0][0]), int(ranges[1][-1])) if len(ranges[0]) else (0, 0)
        lower, upper = self._first_range
        if (lower, upper) == (None, None) or not pa.types.is_integer(column.type) or column.null_count:
            return 0, filtered.num_rows
        values = column.to_numpy()
        # SUBTLE: a bound of the type of the values: beside another one, numpy would compare doubles (test_prune.py).
        as_value = values.dtype.type
        start = 0 if lower is None else int(np.searchsorted(values, as_value(decode_integer(lower))))
        stop = len(values) if upper is None else int(np.searchsorted(values, as_value(decode_integer(upper)), "right"))
        return start, max(start, stop)

    def near_keys(self, reader: PartReader, tables: list[pa.Table]) -> list[pa.Table]:
        """Return the rows of some row groups that may have one of the keys: all, if they are not found by a search.

        Rows of a sorted part ascend by the first column of its key, so that each key is searched in it.
        """
        keys = self._wanted.keys
        if keys is None or reader.key_index is None or not self._by_key or self._key_names[0] != keys.names[0]:
            return tables
        first = reader.schema.order_names[0]
        found: list[pa.Table] = []
        for table in tables:
            ranges = keys.ranges_in(table.column(first))
            if ranges is None:
                found.append(table)
            elif len(ranges[0]) <= FEW_SLICES:
                found += [table.slice(start, stop - start) for start, stop in zip(*ranges, strict=True)]
            else:
                found.append(table.take(pa.array(_places(*ranges))))
        if sum(each.num_rows for each in found) == sum(each.num_rows for each in tables):
            return tables
        return [pa.concat_tables(found).combine_chunks()] if found else []

    def _bloom_may_match(self, reader: PartReader, group: int) -> bool:
        keys = self._wanted.keys
        assert keys is not None
        for name, value in keys.first().items():
            written = self._by_id[self._wanted.schema.field(name).id]
            if value is not None and not reader.may_contain(group, written.name, value):
                return False
        return True

    def group_may_match(self, reader: PartReader, group: int) -> bool:
        """Tell whether some row of a row group may be asked for."""
        if not self._filtered:
            return True
        ranges = reader.group_ranges(group)
        known: dict[str, Range | None] = {}
        for field in self._filtered:
            written = self._by_id.get(field.id)
            known[field.name] = self._known(field, ranges.get(written.name) if written is not None else None)
        return self._rows_may_match(known, reader.group_rows(group))

    def _rows_may_match(self, known: dict[str, Range | None], rows: int) -> bool:
        request = self._wanted
        ranges: Ranges = {name: range for name, range in known.items() if range is not None}
        if request.keys is not None and not request.keys.may_match(ranges):
            return False
        if request.where is None:
            return True
        types = {field.name: parse_type(field.type) for field in self._filtered}
        return request.where.may_match(ranges, types, rows)

    def _known(self, field: Field, range: Range | None) -> Range | None:
        """Return the range of a column under its type in the wanted schema; None if nothing is known."""
        written = self._by_id.get(field.id)
        if range is None or written is None:
            return None
        if written.type == field.type:
            return range
        old, new = parse_type(written.type), parse_type(field.type)
        lower = None if range.lower is None else recode(range.lower, old, new)
        upper = None if range.upper is None else recode(range.upper, old, new)
        return Range(lower, upper, range.nulls)

    def _times_may_match(self, part: Part, meta: PartMeta) -> bool:
        """Tell whether some time may lie in the window. Only the earliest and latest one are known."""
        window = self._wanted.window
        arity = self._written.arity
        if arity != 1 or not meta.min_time:
            return True
        earliest, latest = meta.min_time[0], meta.max_time[0]
        if part.lower is not None and part.lower.elements and latest < part.lower.time:
            return False
        if part.upper is not None and part.upper.elements and earliest >= part.upper.time:
            return False
        if part.rewrite is not None and part.rewrite.elements:
            earliest, latest = max(earliest, part.rewrite.time), max(latest, part.rewrite.time)
        if window.until is not None and earliest > window.until[0]:
            return False
        return window.after is None or latest > window.after[0]

    def _has_key(self, lower: bytes | None, upper: bytes | None) -> bool:
        """Tell whether a row between these bounds may have one of the keys. A row begins with the bytes of its key."""
        keys = self._wanted.keys
        assert keys is not None
        encoded = keys.encoded(self._key_names)
        first = 0 if lower is None else first_from(encoded, lower)
        return first < len(encoded) and (upper is None or encoded[first] <= upper)


def _places(starts: Integers, stops: Integers) -> Integers:
    """Return all places in some ranges that are not empty."""
    counts = stops - starts
    places: Integers = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    return places


def _key_names(request: ScanRequest) -> tuple[str, ...]:
    """Return the key columns that keys are given by: all, or the first ones."""
    given = request.keys.names if request.keys is not None else request.schema.key_names
    return tuple(name for name in request.schema.key_names if name in given)


def _filtered_fields(request: ScanRequest) -> list[Field]:
    """Return the fields that rows are filtered by."""
    names = set(request.where.columns) if request.where is not None else set()
    if request.keys is not None:
        names |= set(request.keys.names)
    return [field for field in request.schema.fields if field.name in names]
