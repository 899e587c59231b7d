"""Reading runs: parts in order, skipped by statistics, under the schema and through the bounds that are wanted.

A scan turns the runs of a plan into iterators of tables, each ascending in the
row order, and merges them. What is small is gathered into one table first, so
that ten thousand tiny commits are one run and not ten thousand.

Of the memory M of a scan, what is gathered takes a quarter, and so do the chunks of
all that is streamed; as much is read ahead. A chunk is a row group at least, and how
much that takes in memory its footer says. Whoever has more to stream at once than
`fit` allows merges some of it first, if it can write (`columnar.merge_engine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.kway_merge import merge
from timespine.columnar.scan.part_set import ROW_BYTES, Parts, meta_of
from timespine.columnar.scan.request import Wanted, clip, filtered
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import Order, Part, Run
from timespine.model.time import less_equal

SMALL_ROWS = 1 << 17
"""A run of so many rows is not streamed but gathered with others like it."""

WHOLE = Part("", 0)
"""A reference through which everything is seen as it was written."""

WEIGHED_PARTS = 8
"""Parts of a long run whose footers are looked at to know how large its row groups are."""


@dataclass(frozen=True, slots=True)
class Source:
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


def scan(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> Iterator[pa.Table]:
    """All that is wanted of these runs, merged: tables ascending in `wanted.order`, each row once, with `_diff`.

    If they are wanted in any order, only the rows of each table are ascending. If they may repeat, those of a
    plain run do: where some columns are left out, one may come several times.
    """
    found = sources(parts, runs, wanted)
    if len(runs) == 1 and len(found) == 1 and is_plain(parts, runs[0], wanted):
        tables = ahead(_stream(parts, found[0], wanted, max(memory_bytes // 4, 1)), parts.pool)
        return _clipped(tables, wanted)
    return merged(parts, found, wanted, memory_bytes)


def sources(parts: Parts, runs: Iterable[Run], wanted: Wanted) -> list[Source]:
    """What there is to merge, without what statistics rule out."""
    found = []
    for run in runs:
        inside = tuple(parts.matching(run.parts, run, wanted))
        if run.order is Order.SORTED:
            found.extend([source_of(parts, run, inside)] if inside else [])
        else:
            found.extend(unordered(parts, run, inside, wanted))
    return found


def source_of(parts: Parts, run: Run, inside: tuple[Part, ...], *, streams: bool = True) -> Source:
    """Parts of one run that come one after the other."""
    if len(inside) == 1 and inside[0].inline is not None:  # of these there may be thousands
        size = max(inside[0].rows * ROW_BYTES, inside[0].size)
        return Source(run, inside, inside[0].rows, size, size, streams)
    id, schema = parts.schema(run)
    rows = sum(part.rows for part in inside)
    some = inside
    if rows > SMALL_ROWS and len(inside) > WEIGHED_PARTS:
        some = inside[:: -(-len(inside) // WEIGHED_PARTS)]
    weights = [parts.weigh(part, id, schema) for part in some]
    size = sum(whole for whole, _ in weights) * len(inside) // max(len(some), 1)
    return Source(run, inside, rows, size, max((step for _, step in weights), default=0) if streams else size, streams)


def unordered(parts: Parts, run: Run, inside: Iterable[Part], wanted: Wanted) -> Iterator[Source]:
    """Parts of which each is by itself, as those of an unordered run. Most are in order inside all the same."""
    id, schema = parts.schema(run)
    in_order = cut_columns(wanted, [schema]) == cut_columns(wanted, [wanted.schema])
    for part in inside:
        streams = in_order and part.inline is None and parts.open(part, id, schema).key_index is not None
        yield source_of(parts, run, (part,), streams=streams)


def together(found: Iterable[Source], memory_bytes: int) -> tuple[list[Source], list[Source]]:
    """What is small enough to be gathered into one table, and the rest."""
    left = memory_bytes // 4
    small: list[Source] = []
    large: list[Source] = []
    for source in sorted(found, key=lambda source: source.size):
        if source.rows <= SMALL_ROWS and source.size <= left:
            small.append(source)
            left -= source.size
        else:
            large.append(source)
    return small, large


def fit(found: Iterable[Source], memory_bytes: int) -> bool:
    """Whether all of this can be merged at once within the memory."""
    return sum(source.step for source in together(found, memory_bytes)[1]) <= memory_bytes // 4


def merged(
    parts: Parts, found: Sequence[Source], wanted: Wanted, memory_bytes: int, rows: pa.Table | None = None
) -> Iterator[pa.Table]:
    """All that is wanted of some sources: tables ascending in `wanted.order`, each row once, with `_diff`.

    With them come `rows` that are in memory already, as `gather` gives them.
    """
    small, large = together(found, memory_bytes)
    written = {source.run.schema: source.run for source in found if source.streams}
    cut = cut_columns(wanted, [parts.schema(run)[1] for run in written.values()])
    chunk_bytes = max(memory_bytes // 4 // max(len(large), 1), 1)
    # What does not fit is not read ahead on top of it.
    pool = parts.pool if sum(source.step for source in large) <= memory_bytes // 4 else None
    opened = [ahead(_stream(parts, source, wanted, chunk_bytes), pool) for source in large]
    is_alone = len(small) == 1 and small[0].streams and rows is None
    if is_alone:
        opened.append(_stream(parts, small[0], wanted, chunk_bytes))
    elif small or rows is not None:
        opened.append(gather(parts, small, wanted, rows))
    is_streamed = large[0].streams if large else is_alone
    if len(opened) == 1 and not is_streamed:
        return _clipped(opened[0], wanted)  # gathered into one table, and consolidated with it
    # SUBTLE: where a run is not in the order of all columns of the cut, because one of them was dropped or added
    # later, nothing can be cut off before all is put in order (test_scan.py).
    is_cut_first = len(cut) >= len(wanted.cut_names)
    if is_cut_first:
        opened = [_clipped(tables, wanted) for tables in opened]
    keys = {*wanted.schema.cluster_names, *wanted.schema.key_names}
    apart = sum(1 for _ in takewhile(keys.__contains__, cut)) if wanted.loose else 0
    tables: Iterator[pa.Table] = merge(opened, wanted.order, cut, chunk_bytes=memory_bytes, apart=apart)
    return tables if is_cut_first else _clipped(tables, wanted)


def is_plain(parts: Parts, run: Run, wanted: Wanted) -> bool:
    """Whether there is nothing to sum: every row of a run is surely there only once, at one time, all of it.

    Without some of the columns, different rows look the same. They may come as they are if they may repeat,
    unless some count less than zero: then only sums tell.
    """
    if run.order is not Order.SORTED or parts.schema(run)[1] != wanted.schema:
        return False
    is_narrow = len(wanted.read) < len(wanted.schema.names)
    if is_narrow and not wanted.repeats:
        return False
    times = set()
    for part in run.parts:
        meta = meta_of(part)
        if meta is None or meta.min_time != meta.max_time or part.rewrite is not None:
            return False
        if is_narrow and meta.min_diff < 0:
            return False
        times.add(meta.min_time)
    return len(times) <= 1


def untouched_parts(parts: Parts, runs: Sequence[Run], wanted: Wanted) -> list[Part] | None:
    """The parts whose rows are exactly what is wanted, as they stand in their files; None if something is to be done.

    That is so for one run of rows that are there once each, at one time that counts, and all of which are wanted.
    """
    if len(runs) != 1 or wanted.timed or wanted.window.after is not None or wanted.window.until is None:
        return None
    if wanted.where is not None or wanted.keys is not None or wanted.lower is not None or wanted.upper is not None:
        return None
    (run,) = runs
    found = list(parts.leaves(run.parts))
    if not is_plain(parts, Run(tuple(found), run.order, run.schema), replace(wanted, columns=wanted.schema.names)):
        return None
    for part in found:
        meta = meta_of(part)
        if part.inline is not None or part.is_truncated or meta is None or not meta.min_diff == meta.max_diff == 1:
            return None
        if not less_equal(meta.min_time, wanted.window.until):
            return None
    return found


def cut_columns(wanted: Wanted, schemas: Iterable[Schema]) -> tuple[str, ...]:
    """The leading columns of the order in which runs of all these schemas are ascending, as they are seen.

    Columns that are not read, or that were dropped since a run was written, end it; so do times of
    several coordinates, whose order advancing does not keep.
    """
    order = wanted.order
    names = set(wanted.schema.names)
    kept = 0
    written = [schema.order_ids for schema in dict.fromkeys(schemas)]
    full = wanted.schema.order_ids
    read_ids = [wanted.schema.field(name).id for name in order if name in names]
    for position, id in enumerate(read_ids):
        in_place = position < len(full) and full[position] == id
        # Past the end of what was written, later columns are constant.
        if not in_place or any(position < len(ids) and ids[position] != id for ids in written):
            return order[:kept]
        kept += 1
    if wanted.timed and wanted.schema.arity == 1 and len(read_ids) == len(full):
        return order if all(len(ids) <= len(full) for ids in written) else order[:kept]
    return order[:kept]


def _clipped(tables: Iterator[pa.Table], wanted: Wanted) -> Iterator[pa.Table]:
    """The rows of ascending tables that lie in the wanted range."""
    if wanted.lower is None and wanted.upper is None:
        return tables
    names = wanted.cut_names
    return (clip(table, names, wanted.lower, wanted.upper) for table in tables)


def _stream(parts: Parts, source: Source, wanted: Wanted, chunk_bytes: int) -> Iterator[pa.Table]:
    """One source in order. What is not is put in order first, whole."""
    if not source.streams:
        yield from gather(parts, [source], wanted)
        return
    id, schema = parts.schema(source.run)
    for part in source.parts:
        for table in parts.tables(part, id, schema, wanted, chunk_bytes):
            yield filtered(table, wanted)


def gather(parts: Parts, found: Sequence[Source], wanted: Wanted, rows: pa.Table | None = None) -> Iterator[pa.Table]:
    """Sources that fit the memory, and `rows` that were gathered before, as one table in order.

    Parts that are seen whole and as they were written are put together first: the window and the
    schema are then applied once, and not to each of a thousand small parts.
    """
    tables: list[pa.Table] = []
    plain: dict[int, list[pa.Table]] = {}
    for source in found:
        id, schema = parts.schema(source.run)
        for part in source.parts:
            if part.is_truncated or part.rewrite is not None:
                tables.extend(parts.tables(part, id, schema, wanted, 1 << 62))
            else:
                plain.setdefault(id, []).extend(parts.written(part, id, schema, wanted, 1 << 62))
    columns = {id: parts.columns(id, wanted) for id in plain}
    for id, written in plain.items():
        if written:
            whole = pa.concat_tables([table.select(columns[id]) for table in written])
            tables.append(parts.shown(whole, WHOLE, parts.schema_of(id), wanted))
    if tables and rows is not None:
        tables.append(rows.select(tables[0].column_names))
    if tables:
        yield consolidate(filtered(pa.concat_tables(tables), wanted), wanted.order)
    elif rows is not None:
        yield rows


def ahead(tables: Iterator[pa.Table], pool: Executor | None) -> Iterator[pa.Table]:
    """The same tables, the next one being read while the caller is at work on the last."""
    if pool is None:
        yield from tables
        return
    coming = pool.submit(next, tables, None)
    while (table := coming.result()) is not None:
        coming = pool.submit(next, tables, None)
        yield table
