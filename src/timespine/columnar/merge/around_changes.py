"""Plan a merge of a long run with few changes: what no change touches is passed by reference, or copied.

The long run has each row once, and its parts do not overlap. The changes are in memory, in order. Where a row group
begins is in the footer of its part, so a binary search tells which changes lie in a row group:

    a part without a change            is passed by reference
    row groups without a change        are copied, bytes as they are (`copied_groups`)
    row groups with changes            are decoded, merged with them, and encoded

So a merge decodes and encodes what is touched, and little more: a few row groups between two touched ones, which
would cost more by themselves, and row groups and parts so small that they would slow down reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import pyarrow as pa

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.kernels.kway_merge import kway_merge
from timespine.columnar.merge.merge_plan import SMALL, InputPart
from timespine.columnar.parts.copied_groups import RowGroups, row_groups
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.parts.part_stats import BOUND_BYTES_MAX
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.row_group_blocks import BLOCK_GROUPS
from timespine.columnar.scan.scan import cut_columns
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.config import Config

COPIED_GROUPS_MIN = 4
"""Row groups in a row that are worth a copy: a merge on both sides of them costs as much as to encode two or three."""

UNTOUCHED_SHARE = 4
"""The divisor of the rows of the long run of which at least one share must be untouched, or all of it is merged."""


@dataclass(frozen=True, slots=True)
class PassedPart:
    """A part that no change touches."""

    piece: InputPart
    """The part."""


@dataclass(frozen=True, slots=True)
class TouchedGroups:
    """Adjacent row groups of a part, and the changes in their range."""

    piece: InputPart
    """The part."""
    groups: range
    """The places of the row groups."""
    changes: pa.Table
    """The changes, in order."""


PlanItem = PassedPart | RowGroups | TouchedGroups


def is_cut_by_bounds(pieces: Sequence[InputPart]) -> bool:
    """Tell whether each part of a run has each row once, and ends before the next one begins, by their bounds."""
    metas = [meta_of(piece.part) for piece in pieces]
    return all(meta is not None and meta.repeats == 0 for meta in metas) and all(
        piece.upper is not None and piece.upper < after.lower for piece, after in pairwise(pieces)
    )


def plan_around(
    pieces: Sequence[InputPart],
    changes: pa.Table,
    order: Sequence[str],
    open_piece: Callable[[InputPart], PartReader],
    config: Config,
) -> list[PlanItem] | None:
    """Return what becomes of the parts of the long run, in order; None if most of it is touched."""
    rows = _Changes(changes, order)
    starts = [0, *(rows.first_from(piece.lower, 0, changes.num_rows) for piece in pieces[1:]), changes.num_rows]
    touched = [stop > start for start, stop in pairwise(starts)]
    small = [piece.row_bytes * SMALL < config.part_bytes for piece in pieces]
    items: list[PlanItem] = []
    for place, (piece, (start, stop)) in enumerate(zip(pieces, pairwise(starts), strict=True)):
        beside = {place - 1, place + 1} & set(range(len(pieces)))
        if not touched[place] and not (small[place] and any(touched[each] or small[each] for each in beside)):
            items.append(PassedPart(piece))
            continue
        reader = open_piece(piece)
        whole = None if small[place] else _copyable(piece, reader, config)
        if whole is None:
            items.append(TouchedGroups(piece, range(reader.groups), changes.slice(start, stop - start)))
        else:
            items += _cut_part(piece, whole, rows, start, stop, config.row_group_rows)
    untouched = sum(_rows_untouched(item) for item in items)
    return items if untouched * UNTOUCHED_SHARE >= sum(piece.part.rows for piece in pieces) else None


def merge_groups(
    parts: Parts, item: TouchedGroups, schema_id: int, request: ScanRequest, memory_bytes: int
) -> Iterator[pa.Table]:
    """Yield the rows of some row groups, merged with the changes to them. The part has the schema of the request."""
    schema, part = request.schema, item.piece.part
    columns, names = tuple(parts.columns(schema_id, request)), item.changes.column_names

    def rows() -> Iterator[pa.Table]:
        for start in range(item.groups.start, item.groups.stop, BLOCK_GROUPS):
            block = tuple(range(start, min(start + BLOCK_GROUPS, item.groups.stop)))
            for table in parts.row_groups(part, schema_id, schema, block, columns, request.hint):
                yield parts.project_chunk(table, part, schema, request).select(names)

    cut = cut_columns(request, [schema])
    return kway_merge([rows(), iter((item.changes,))], request.order, cut, chunk_bytes=memory_bytes)


def _copyable(piece: InputPart, reader: PartReader, config: Config) -> RowGroups | None:
    """Return the row groups of a part, if they can be told apart by where they begin."""
    meta, index = meta_of(piece.part), reader.key_index
    if meta is None or index is None or reader.groups <= COPIED_GROUPS_MIN:
        return None
    if any(len(lower) >= BOUND_BYTES_MAX for lower in index.lowers):
        return None
    return row_groups(reader, meta, config)


def _cut_part(
    piece: InputPart, whole: RowGroups, rows: _Changes, start: int, stop: int, group_rows: int
) -> Iterator[PlanItem]:
    """Yield the row groups of a part, those that are copied apart from those that changes touch."""
    reader = whole.reader
    lowers = reader.footer.lowers
    starts = [start, *(rows.first_from(lower, start, stop) for lower in lowers[1:]), stop]
    touched = [last > first for first, last in pairwise(starts)]
    for group in range(reader.groups - 1):
        if 2 * reader.group_rows(group) < group_rows:  # a small one is put together with the next one
            touched[group] = touched[group + 1] = True
    spans = [list(span) for _, span in groupby(range(reader.groups), key=touched.__getitem__)]
    for span in spans:
        if len(span) < COPIED_GROUPS_MIN:
            touched[span[0] : span[-1] + 1] = [True] * len(span)
    for is_touched, places in groupby(range(reader.groups), key=touched.__getitem__):
        inside = list(places)
        groups = range(inside[0], inside[-1] + 1)
        if is_touched:
            first, last = starts[groups.start], starts[groups.stop]
            yield TouchedGroups(piece, groups, rows.table.slice(first, last - first))
        else:
            yield whole.take(groups)


def _rows_untouched(item: PlanItem) -> int:
    if isinstance(item, PassedPart):
        return item.piece.part.rows
    return item.rows if isinstance(item, RowGroups) else 0


class _Changes:
    """Rows in order, to be searched."""

    def __init__(self, table: pa.Table, order: Sequence[str]) -> None:
        self.table = table
        self._order = order

    def first_from(self, bound: bytes, start: int, stop: int) -> int:
        """Return the place of the first row at or after a bound."""
        size = len(bound)

        def beginning(row: int) -> bytes:
            return encode_row(self.table, row, self._order, size)

        return bisect_left(range(stop), bound, lo=start, key=beginning)
