"""A whole read of a settled run: its row groups are handed on as they are decoded, in any order.

A run is settled if every row of it is there once, at a time that counts, and all of them are wanted
(`scan.parts_readable_as_is`). So there is nothing to merge, sum, mask or cut: each task decodes a stretch of row
groups. Every diff is 1, and all times count; neither column is decoded where nothing is kept.

What fits the cache goes through it, row group by row group, so that a second read decodes nothing. What does not would
only push out what others come back to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.scan.fetch_ahead import announce_groups
from timespine.columnar.scan.part_access import Parts, ScanStats
from timespine.columnar.scan.row_group_blocks import constant_column
from timespine.columnar.scan.scan import parts_readable_as_is
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.schema.schema import DIFF
from timespine.core.batch import Part, Run
from timespine.pool import outcome

T = TypeVar("T")

TASK_GROUPS = 8
"""Row groups that one task decodes."""

ONES_ROWS = 1 << 17
"""Rows of a column of ones that all tables share: as many as the row groups of a task have by default."""


def settled_parts(parts: Parts, runs: Sequence[Run], request: ScanRequest) -> list[Part] | None:
    """Return the parts to read if all that is wanted is one settled run; None if rows have to be looked at.

    Without some of its columns, a row may come several times, which not every reader allows.
    """
    if len(runs) != 1 or (len(request.read) < len(request.schema.names) and not request.allow_duplicates):
        return None
    return parts_readable_as_is(parts, runs, request)


def scan_settled(
    parts: Parts, run: Run, inside: Sequence[Part], request: ScanRequest, pool: Executor
) -> Iterator[pa.Table]:
    """Yield all rows of the parts of a settled run, with their diffs, decoded by the threads of a pool."""
    return decode_settled(parts, run, inside, request, pool, lambda _, table: with_diffs_of_one(table, request))


def decode_settled(
    parts: Parts,
    run: Run,
    inside: Sequence[Part],
    request: ScanRequest,
    pool: Executor,
    then: Callable[[int, pa.Table], T],
) -> Iterator[T]:
    """Yield what a function makes of the rows of a settled run, table by table: it runs in the threads that decode
    them.

    It is given the number of the table, which has the same rows in every read of the run, and the columns to read,
    without diffs.
    """
    id, schema = parts.schema(run)
    parts.fetch_footers(inside)
    keeps = request.hint is CacheHint.MAY_ADD and run_bytes(parts, run, inside) <= parts.cache.limit_bytes
    tasks: list[Future[tuple[T, ScanStats]]] = []
    columns = tuple(parts.columns(id, request)) if keeps else request.read or (DIFF,)
    for part in inside:
        parts.scan_stats.parts += 1
        reader = parts.open(part, id, schema)
        for first in range(0, reader.groups, TASK_GROUPS):
            block = tuple(range(first, min(first + TASK_GROUPS, reader.groups)))
            announce_groups(parts.blob, reader, block, columns)
            number = partial(then, len(tasks))
            tasks.append(pool.submit(_decode_then, number, parts, run, part, block, request, keeps))
    try:
        for task in tasks:
            made, scan_stats = outcome(task)
            parts.scan_stats.groups += scan_stats.groups
            parts.scan_stats.bytes += scan_stats.bytes
            yield made
    finally:
        for task in tasks:
            task.cancel()


def _decode_then(
    then: Callable[[pa.Table], T],
    parts: Parts,
    run: Run,
    part: Part,
    block: tuple[int, ...],
    request: ScanRequest,
    keeps: bool,
) -> tuple[T, ScanStats]:
    table, scan_stats = _decode(parts, run, part, block, request, keeps)
    return then(table), scan_stats


def _decode(
    parts: Parts, run: Run, part: Part, block: tuple[int, ...], request: ScanRequest, keeps: bool
) -> tuple[pa.Table, ScanStats]:
    """Decode some row groups of a part; return them, and what was read for them."""
    own = replace(parts, pool=None, scan_stats=ScanStats(groups=len(block)), _pruners={})
    id, schema = own.schema(run)
    if keeps:
        columns = tuple(own.columns(id, request))
        table = pa.concat_tables(own.row_groups(part, id, schema, block, columns, request.hint))
        return table.select(list(request.read or (DIFF,))), own.scan_stats
    names = request.read or (DIFF,)
    (table,) = own.row_groups(part, id, schema, block, names, CacheHint.NEVER_ADD, apart=False)
    return table, own.scan_stats


def run_bytes(parts: Parts, run: Run, inside: Sequence[Part]) -> int:
    """Estimate how many bytes the rows of the parts of a run take in memory."""
    id, schema = parts.schema(run)
    parts.fetch_footers(inside)
    return sum(parts.weigh(part, id, schema)[0] for part in inside)


def with_diffs_of_one(table: pa.Table, request: ScanRequest) -> pa.Table:
    """Return rows of a settled run with their diffs. All tables share the memory of these."""
    if DIFF in table.column_names:
        return table
    (ones,), (whole, rest) = constant_column(1, ONES_ROWS).chunks, divmod(table.num_rows, ONES_ROWS)
    diffs = pa.chunked_array([*[ones] * whole, *([ones.slice(0, rest)] if rest else [])], ones.type)
    return table.append_column(request.schema.update_arrow.field(DIFF), diffs)
