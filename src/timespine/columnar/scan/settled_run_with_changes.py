"""A whole read of a settled run and of few changes to it: rows of other keys pass, row group by row group.

After an upsert, a collection is a large run of rows that are there once (`settled_run`), and small runs that retract
some of them and add others. Only rows whose key the small runs have can change. So the small runs are merged first, and
each task decodes a stretch of row groups of the large one and splits it by the keys of the changes:

    rows of other keys                  are given out as they are, in any order
    rows of these keys                  are the ones that the changes retract, mostly; if not, both are consolidated

No row of the large run is sorted, compared with a neighbour or moved next to others, and its times are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.consolidate_shared_keys import FEW, LARGE_ROWS
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.part_access import ROW_BYTES, Parts, meta_of
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest, empty_table
from timespine.columnar.scan.settled_run import decode_settled, settled_parts
from timespine.columnar.schema.schema import DIFF
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Part, Run
from timespine.libraries import pc, pl


class ChangedRun(NamedTuple):
    """A settled run, and what changes it."""

    base: Run
    """The settled run."""
    inside: list[Part]
    """Its parts."""
    others: list[Run]
    """The runs with changes."""


def changed_run(parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int) -> ChangedRun | None:
    """Return the runs as a settled run and few changes; None if they are anything else.

    SUBTLE: keys of which two that are equal have other bits (0.0 and -0.0) are left to the merge
    (test_settled_run_with_changes.py).
    """
    types = [request.schema.types[name] for name in request.schema.key_names]
    if len(runs) < 2 or not request.schema.key or any(is_nested(kind) or pa.types.is_floating(kind) for kind in types):
        return None
    sizes = [sum(part.rows for part in run.parts) for run in runs]
    largest = max(range(len(runs)), key=sizes.__getitem__)
    if sizes[largest] < LARGE_ROWS or (sum(sizes) - sizes[largest]) * FEW > sizes[largest]:
        return None
    base, others = runs[largest], [run for place, run in enumerate(runs) if place != largest]
    if sum(_row_bytes(part) for run in others for part in run.parts) > memory_bytes // 4:
        return None
    inside = settled_parts(parts, [base], request)
    return None if inside is None else ChangedRun(base, inside, others)


def scan_changed(
    parts: Parts, found: ChangedRun, request: ScanRequest, memory_bytes: int, pool: Executor
) -> Iterator[pa.Table]:
    """Yield all rows of a settled run and of its changes, with their diffs, in any order."""
    names = [*request.read, DIFF]
    in_order = replace(request, any_order=False)
    tables = [table.select(names) for table in scan(parts, found.others, in_order, memory_bytes)]
    changes = pa.concat_tables(tables) if tables else empty_table(request).select(names)
    keys = KeySet(changes.select(list(request.schema.key_names)))
    touched: list[pa.Table] = []

    def split(table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows of other keys, and those of the keys of the changes."""
        mask = keys.mask(table)
        passed = _filter_views(table, mask) if request.views else table.filter(pc.invert(mask))
        return passed, table.filter(mask)

    for passed, others in decode_settled(parts, found.base, found.inside, request, pool, split):
        yield passed
        touched.append(others)
    yield _changed_rows(pa.concat_tables([changes.slice(0, 0), *touched]), changes, request)


def _filter_views(table: pa.Table, mask: pa.Array) -> pa.Table:
    """Return the rows that a mask leaves out, with views of the text. Arrow has no filter that makes them, Polars
    has."""
    frame = pl.DataFrame(pl.from_arrow(table, rechunk=False))
    return frame.filter(~pl.Series(mask)).to_arrow(compat_level=pl.CompatLevel.newest())


def _changed_rows(touched: pa.Table, changes: pa.Table, request: ScanRequest) -> pa.Table:
    """Return what is left of some rows, each there once, after some changes; both are in order."""
    diffs = changes.column(DIFF)
    retracted = changes.filter(pc.equal(diffs, -1))
    if retracted.num_rows == touched.num_rows:
        added = changes.filter(pc.equal(diffs, 1))
        if added.num_rows + retracted.num_rows == changes.num_rows and _same_rows(touched, retracted):
            return added  # as an upsert leaves it: every row that it met is retracted
    return consolidate(pa.concat_tables([touched, changes]), request.order)


def _same_rows(some: pa.Table, others: pa.Table) -> bool:
    """Tell whether two tables surely have the same rows, whatever their diffs are."""
    return bool(some.drop_columns([DIFF]).equals(others.drop_columns([DIFF])))


def _row_bytes(part: Part) -> int:
    """About how many bytes the rows of a part take in memory."""
    meta = meta_of(part)
    return (meta.row_bytes if meta is not None else 0) or part.rows * ROW_BYTES
