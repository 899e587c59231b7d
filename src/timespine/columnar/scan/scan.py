"""Read runs: skip parts by statistics, convert them to the schema, apply the bounds, merge in row order.

A scan turns the runs of a plan into iterators of tables, each ascending in the
row order, and merges them. It gathers small runs into one table first, so
that ten thousand tiny commits are one run and not ten thousand.

A scan splits its memory M: a quarter for gathered small runs, a quarter for chunks of streamed runs, a quarter for
read-ahead. A chunk is at least one row group; its size comes from the footer. A merge that has more to stream at once
than `fits_in_memory` allows merges some of it first (`columnar.merge.merge_engine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise, takewhile

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.kway_merge import kway_merge
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.scan.fetch_ahead import FOOTERS_AHEAD, STREAMED_AHEAD
from timespine.columnar.scan.part_access import ROW_BYTES, Parts, meta_of
from timespine.columnar.scan.scan_request import ScanRequest, clip, filter_rows
from timespine.columnar.scan.visibility import is_seen_as_written
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Order, Part, Run
from timespine.model.time import less_equal
from timespine.pool import outcome

SMALL_ROWS = 1 << 17
"""The most rows of a run that the reader gathers with others instead of streaming it."""

TINY_ROWS = 1 << 14
"""Rows of inline parts that are one source, about."""

WHOLE = Part("", 0)
"""A reference through which everything is seen as it was written."""

WEIGHED_PARTS = 8
"""Parts of a long run whose footers are looked at to know how large its row groups are."""


@dataclass(frozen=True, slots=True)
class ScanSource:
    """Something that is merged as one ascending stream: a sorted run, or a part that is put in order first."""

    run: Run
    """Where it comes from."""
    parts: tuple[Part, ...]
    """Its parts, as they are seen."""
    rows: int
    """Rows in them, at most."""
    size: int
    """About how many bytes they take in memory."""
    step: int
    """Bytes of them that are in memory at once, at least."""
    streams: bool
    """Whether the parts are in order already."""


def scan(parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int) -> Iterator[pa.Table]:
    """Yield all that is wanted of these runs, merged: tables ascending in `request.order`, each row once, with `_diff`.

    If they are wanted in any order, only the rows of each table are ascending. If they may repeat, those of a
    plain run do: where some columns are left out, one may come several times.
    """
    found = scan_sources(parts, runs, request)
    if len(runs) == 1 and len(found) == 1 and needs_no_merge(parts, runs[0], request):
        tables = prefetch(_stream(parts, found[0], request, max(memory_bytes // 4, 1)), parts.pool)
        return _clip_tables(tables, request)
    return merge_sources(parts, found, request, memory_bytes)


def scan_sources(parts: Parts, runs: Iterable[Run], request: ScanRequest) -> list[ScanSource]:
    """Return what there is to merge, without what statistics rule out."""
    found = []
    tiny: dict[int | None, list[tuple[Run, Part]]] = {}
    for run, inside in matching_parts(parts, list(runs), request):
        if len(inside) == 1 and inside[0].inline is not None:
            tiny.setdefault(run.schema, []).append((run, inside[0]))
        elif run.order is Order.SORTED:
            found.extend([source_of_parts(parts, run, inside)] if inside else [])
        else:
            found.extend(unordered_sources(parts, run, inside, request))
    return [*found, *(source for each in tiny.values() for source in tiny_sources(each))]


def matching_parts(parts: Parts, runs: Sequence[Run], request: ScanRequest) -> list[tuple[Run, tuple[Part, ...]]]:
    """Return the parts of each run without what statistics rule out. What a remote place has of them is being
    fetched."""
    parts.fetch_lists(part for run in runs for part in run.parts)
    found = []
    for run in runs:
        inside = run.parts
        # SUBTLE: of these there may be thousands. Without statistics, there is nothing to rule one out by.
        if len(inside) != 1 or inside[0].inline is None or inside[0].meta:
            inside = tuple(parts.matching(run.parts, run, request))
        found.append((run, inside))
    parts.fetch_footers(part for _, inside in found for part in inside[:FOOTERS_AHEAD])
    return found


def tiny_sources(inline: Sequence[tuple[Run, Part]]) -> Iterator[ScanSource]:
    """Group inline parts of runs of one schema into few sources, which are decoded and put in order together."""
    for _, together in groupby(
        zip(inline, accumulate(part.rows for _, part in inline), strict=True), key=lambda each: each[1] // TINY_ROWS
    ):
        (run, _), *_ = pairs = [pair for pair, _ in together]
        inside = tuple(part for _, part in pairs)
        size = sum(inline_memory_bytes(part) for part in inside)
        yield ScanSource(run, inside, sum(part.rows for part in inside), size, size, False)


def inline_memory_bytes(part: Part) -> int:
    """Estimate how many bytes the rows of an inline part take in memory."""
    return max(part.rows * ROW_BYTES, part.size)


def source_of_parts(parts: Parts, run: Run, inside: tuple[Part, ...], *, streams: bool = True) -> ScanSource:
    """Return parts of one run that come one after the other."""
    id, schema = parts.schema(run)
    rows = sum(part.rows for part in inside)
    some = inside
    if rows > SMALL_ROWS and len(inside) > WEIGHED_PARTS:
        some = inside[:: -(-len(inside) // WEIGHED_PARTS)]
    weights = [parts.weigh(part, id, schema) for part in some]
    size = sum(whole for whole, _ in weights) * len(inside) // max(len(some), 1)
    return ScanSource(
        run, inside, rows, size, max((step for _, step in weights), default=0) if streams else size, streams
    )


def unordered_sources(parts: Parts, run: Run, inside: Iterable[Part], request: ScanRequest) -> Iterator[ScanSource]:
    """Yield parts in no order, as those of an unordered run. Inside, most of them are in order."""
    id, schema = parts.schema(run)
    in_order = cut_columns(request, [schema]) == cut_columns(request, [request.schema])
    for part in inside:
        streams = in_order and part.inline is None and parts.open(part, id, schema).key_index is not None
        yield source_of_parts(parts, run, (part,), streams=streams)


def partition_by_size(found: Iterable[ScanSource], memory_bytes: int) -> tuple[list[ScanSource], list[ScanSource]]:
    """Return what is small enough to be gathered into one table, and the rest."""
    left = memory_bytes // 4
    small: list[ScanSource] = []
    large: list[ScanSource] = []
    for source in sorted(found, key=lambda source: source.size):
        if source.rows <= SMALL_ROWS and source.size <= left:
            small.append(source)
            left -= source.size
        else:
            large.append(source)
    return small, large


def fits_in_memory(found: Iterable[ScanSource], memory_bytes: int) -> bool:
    """Tell whether all of this can be merged at once within the memory."""
    return sum(source.step for source in partition_by_size(found, memory_bytes)[1]) <= memory_bytes // 4


def merge_sources(
    parts: Parts, found: Sequence[ScanSource], request: ScanRequest, memory_bytes: int, rows: pa.Table | None = None
) -> Iterator[pa.Table]:
    """Yield all that is wanted of some sources: tables ascending in `request.order`, each row once, with `_diff`.

    With them come `rows` that are in memory already, as `gather` gives them.
    """
    small, large = partition_by_size(found, memory_bytes)
    written = {source.run.schema: source.run for source in found if source.streams}
    cut = cut_columns(request, [parts.schema(run)[1] for run in written.values()])
    chunk_bytes = max(memory_bytes // 4 // max(len(large), 1), 1)
    # What does not fit is not read ahead on top of it.
    pool = parts.pool if sum(source.step for source in large) <= memory_bytes // 4 else None
    opened = [prefetch(_stream(parts, source, request, chunk_bytes), pool) for source in large]
    is_alone = len(small) == 1 and small[0].streams and rows is None
    if is_alone:
        opened.append(_stream(parts, small[0], request, chunk_bytes))
    elif small or rows is not None:
        opened.append(gather(parts, small, request, rows))
    is_streamed = large[0].streams if large else is_alone
    if len(opened) == 1 and not is_streamed:
        return _clip_tables(opened[0], request)  # gathered into one table, and consolidated with it
    # SUBTLE: where a run is not in the order of all columns of the cut, because one of them was dropped or added
    # later, nothing can be cut off before all is put in order (test_scan.py).
    is_cut_first = len(cut) >= len(request.cut_names)
    if is_cut_first:
        opened = [_clip_tables(tables, request) for tables in opened]
    keys = {*request.schema.cluster_names, *request.schema.key_names}
    apart = sum(1 for _ in takewhile(keys.__contains__, cut)) if request.any_order else 0
    tables: Iterator[pa.Table] = kway_merge(
        opened,
        request.order,
        cut,
        chunk_bytes=memory_bytes,
        apart=apart,
        any_order_rows=parts.config.any_order_rows,
    )
    return tables if is_cut_first else _clip_tables(tables, request)


def needs_no_merge(parts: Parts, run: Run, request: ScanRequest) -> bool:
    """Tell whether there is nothing to sum: every row of a run is surely there only once, with one update.

    Without some of the columns, different rows look the same. They may come as they are if they may repeat,
    unless some count less than zero: then only sums tell.
    """
    if run.order is not Order.SORTED or parts.schema(run)[1] != request.schema:
        return False
    is_narrow = len(request.read) < len(request.schema.names)
    if is_narrow and not request.allow_duplicates:
        return False
    metas: list[PartMeta] = []
    for part in run.parts:
        meta = meta_of(part)
        if meta is None or part.rewrite is not None or (is_narrow and meta.min_diff < 0):
            return False
        metas.append(meta)
    if len({time for meta in metas for time in (meta.min_time, meta.max_time)}) <= 1:
        return True  # consolidated: a row has one update at each time
    if any(meta.repeats != 0 for meta in metas):
        return False
    if any(part.hollow for part in run.parts):
        metas = [meta for part in parts.leaves(run.parts) if (meta := meta_of(part)) is not None]
    # SUBTLE: the last row of a part may go on in the next one (test_settled_run.py).
    return all(_is_before(meta.upper, after.lower) for meta, after in pairwise(metas))


def _is_before(upper: bytes | None, lower: bytes | None) -> bool:
    """Tell whether a bound is known to be before another one."""
    return upper is not None and lower is not None and upper < lower


def parts_readable_as_is(parts: Parts, runs: Sequence[Run], request: ScanRequest) -> list[Part] | None:
    """Return the parts whose rows are exactly what is wanted, as they stand in their files; None if something is to be
    done.

    That is so for one run of rows that are there once each, at times that count, and all of which are wanted.
    """
    if len(runs) != 1 or request.keep_times or request.window.after is not None or request.window.until is None:
        return None
    if request.where is not None or request.keys is not None or request.lower is not None or request.upper is not None:
        return None
    (run,) = runs
    found = list(parts.leaves(run.parts))
    if not needs_no_merge(
        parts, Run(tuple(found), run.order, run.schema), replace(request, columns=request.schema.names)
    ):
        return None
    for part in found:
        meta = meta_of(part)
        if part.inline is not None or part.is_truncated or meta is None or not meta.min_diff == meta.max_diff == 1:
            return None
        if not less_equal(meta.max_time, request.window.until):
            return None
    return found


def cut_columns(request: ScanRequest, schemas: Iterable[Schema]) -> tuple[str, ...]:
    """Return the leading columns of the order in which runs of all these schemas are ascending, as they are seen.

    Columns that are not read, or that were dropped since a run was written, end it; so do times of
    several coordinates, whose order advancing does not keep.
    """
    order = request.order
    names = set(request.schema.names)
    kept = 0
    written = [schema.order_ids for schema in dict.fromkeys(schemas)]
    full = request.schema.order_ids
    read_ids = [request.schema.field(name).id for name in order if name in names]
    for position, id in enumerate(read_ids):
        in_place = position < len(full) and full[position] == id
        # Past the end of what was written, later columns are constant.
        if not in_place or any(position < len(ids) and ids[position] != id for ids in written):
            return order[:kept]
        kept += 1
    if request.keep_times and request.schema.arity == 1 and len(read_ids) == len(full):
        return order if all(len(ids) <= len(full) for ids in written) else order[:kept]
    return order[:kept]


def _clip_tables(tables: Iterator[pa.Table], request: ScanRequest) -> Iterator[pa.Table]:
    """Yield the rows of ascending tables that lie in the wanted range."""
    if request.lower is None and request.upper is None:
        return tables
    names = request.cut_names
    return (clip(table, names, request.lower, request.upper) for table in tables)


def _stream(parts: Parts, source: ScanSource, request: ScanRequest, chunk_bytes: int) -> Iterator[pa.Table]:
    """Yield one source in order. What is not is put in order first, whole."""
    if not source.streams:
        yield from gather(parts, [source], request)
        return
    id, schema = parts.schema(source.run)
    for place, part in enumerate(source.parts):
        parts.fetch_footers(source.parts[place + 1 : place + 1 + STREAMED_AHEAD])
        for table in parts.tables(part, id, schema, request, chunk_bytes):
            yield filter_rows(table, request)


def gather(
    parts: Parts, found: Sequence[ScanSource], request: ScanRequest, rows: pa.Table | None = None
) -> Iterator[pa.Table]:
    """Read sources that fit the memory, and yield them with the `rows` gathered before as one table in order.

    Parts that are seen whole and as they were written are put together first: the window and the
    schema are then applied once, and not to each of a thousand small parts.
    """
    parts.fetch_groups(
        [(part, source.run) for source in found for part in source.parts if part.inline is None], request
    )
    tables: list[pa.Table] = []
    plain: dict[int, list[pa.Table]] = {}
    inline: dict[int, list[Part]] = {}
    for source in found:
        id, schema = parts.schema(source.run)
        for part in source.parts:
            if not is_seen_as_written(part):
                tables.extend(parts.tables(part, id, schema, request, 1 << 62))
            elif part.inline is not None:
                inline.setdefault(id, []).append(part)
            else:
                plain.setdefault(id, []).extend(parts.written(part, id, schema, request, 1 << 62))
    for id, inside in inline.items():
        parts.scan_stats.parts += len(inside)
        plain.setdefault(id, []).append(parts.decoded(inside, id, parts.schema_of(id), request.hint))
    columns = {id: parts.columns(id, request) for id in plain}
    for id, written in plain.items():
        if written:
            whole = pa.concat_tables([table.select(columns[id]) for table in written])
            tables.append(parts.project_chunk(whole, WHOLE, parts.schema_of(id), request))
    if tables and rows is not None:
        tables.append(rows.select(tables[0].column_names))
    if tables:
        yield consolidate(filter_rows(pa.concat_tables(tables), request), request.order)
    elif rows is not None:
        yield rows


def prefetch(tables: Iterator[pa.Table], pool: Executor | None) -> Iterator[pa.Table]:
    """Yield the same tables, from the third on the next one being read while the caller is at work on the last.

    Most reads of few rows end before: to hand them to another thread takes longer than to do them.
    """
    if pool is None:
        yield from tables
        return
    for _ in range(2):
        first = next(tables, None)
        if first is None:
            return
        yield first
    coming = pool.submit(next, tables, None)
    while (table := outcome(coming)) is not None:
        coming = pool.submit(next, tables, None)
        yield table
