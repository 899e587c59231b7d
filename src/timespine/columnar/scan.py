"""Reading runs: parts in order, skipped by statistics, under the schema and through the bounds that are wanted.

A scan turns the runs of a plan into iterators of tables, each ascending in the
row order, and merges them. What is small is gathered into one table first, so
that ten thousand tiny commits are one run and not ten thousand.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from timespine.columnar.bounds import encode_row
from timespine.columnar.cache import Hint, PartCache
from timespine.columnar.consolidate import consolidate
from timespine.columnar.inline import decode_inline
from timespine.columnar.keyset import KeySet
from timespine.columnar.merge import merge
from timespine.columnar.part_reader import MissingBlob, PartReader, open_part
from timespine.columnar.prune import Pruner
from timespine.columnar.rows import project
from timespine.columnar.runs import read_run
from timespine.columnar.schema import DIFF, Schema, time_names
from timespine.columnar.stats import PartMeta
from timespine.columnar.visible import ALL_TIMES, Window, seen
from timespine.columnar.where import Predicate
from timespine.config import Config
from timespine.core.hollow import Order, Part, Run
from timespine.core.plan import seen_through
from timespine.errors import CorruptionError
from timespine.location.blob import Blob

BLOCK_GROUPS = 8
"""Row groups that are read, decoded and kept together: large enough for several threads."""

SMALL_ROWS = 1 << 17
"""A run of so many rows is not streamed but gathered with others like it."""

WHOLE = Part("", 0)
"""A reference through which everything is seen as it was written."""

ROW_BYTES = 64
"""What a row takes in memory, when nothing is known of it yet."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for."""

    schema: Schema
    """Rows are seen under this schema."""
    columns: tuple[str, ...]
    """The user's columns to give, by their names in it."""
    window: Window = ALL_TIMES
    """Which times count."""
    timed: bool = False
    """Whether updates keep their times; otherwise diffs are summed over all of them."""
    where: Predicate | None = None
    """Only rows for which this holds."""
    lower: bytes | None = None
    """Only rows whose first ordered column, encoded, is at or after this."""
    upper: bytes | None = None
    """Only rows whose first ordered column, encoded, is before this."""
    keys: KeySet | None = None
    """Only rows with one of these keys."""
    bare: bool = False
    """Whether only what filters need is read: for counting, where rows need not be told apart."""
    hint: Hint = Hint.MAY_ADD
    """Whether what is decoded may be kept for the next reader."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns of the result in the order of its rows: what is asked for, in row order, and perhaps times."""
        read = set(self.read)
        ordered = tuple(name for name in self.schema.order_names if name in read)
        return (*ordered, *time_names(self.schema.arity)) if self.timed else ordered

    @property
    def read(self) -> tuple[str, ...]:
        """The columns to read: what is asked for, and the ones that rows are ordered and filtered by."""
        needed = set(self.columns)
        if not self.bare:
            needed |= {*self.schema.cluster_names, *self.schema.key_names}
        if self.keys is not None:
            needed |= set(self.keys.names)
        if self.where is not None:
            needed |= set(self.where.columns)
        return tuple(name for name in self.schema.names if name in needed)


@dataclass(slots=True)
class Tally:
    """What a scan did, for metrics and for people."""

    parts: int = 0
    parts_skipped: int = 0
    groups: int = 0
    groups_skipped: int = 0
    bytes: int = 0
    audited: int = 0
    """Parts that were skipped and read all the same, to see that skipping them was right."""


@dataclass(slots=True)
class Parts:
    """The parts of one collection, and how to get at them."""

    blob: Blob
    collection: str
    schema_of: Callable[[int], Schema]
    config: Config
    cache: PartCache
    pool: Executor | None = None
    """Where chunks are read ahead."""
    tally: Tally = field(default_factory=Tally)
    audit: float = 0.0
    """The share of skipped parts that is read all the same, to see that skipping them was right."""
    _pruners: dict[int, tuple[Wanted, Pruner]] = field(default_factory=dict)

    def schema(self, run: Run) -> tuple[int, Schema]:
        """The schema that a run was written with."""
        if run.schema is None:
            raise CorruptionError(f"a run of {self.collection} names no schema")
        return run.schema, self.schema_of(run.schema)

    def open(self, part: Part, id: int, schema: Schema) -> PartReader:
        """The footer of a part, parsed once per process."""

        def load() -> tuple[PartReader, int]:
            fetch = self._fetcher(part.key)
            reader = open_part(part, self.collection, schema, id, fetch, self.config)
            return reader, 4096 + 512 * reader.groups

        reader: PartReader = self.cache.get_or_load(("footer", part.key), load, Hint.MAY_ADD)
        return reader

    def leaves(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts with rows, those inside hollow runs included, as they are seen through their runs."""
        for part in parts:
            if part.hollow:
                yield from self.leaves(seen_through(part, child) for child in self._children(part))
            else:
                yield part

    def _children(self, part: Part) -> tuple[Part, ...]:
        def load() -> tuple[tuple[Part, ...], int]:
            children = read_run(part, self.blob)
            if children is None:
                raise MissingBlob(part.key)
            return children, 8 * part.size

        children: tuple[Part, ...] = self.cache.get_or_load(("run", part.key), load, Hint.MAY_ADD)
        return children

    def _fetcher(self, key: str) -> Callable[[int, int], bytes | None]:
        def fetch(start: int, stop: int) -> bytes | None:
            self.tally.bytes += stop - start
            return self.blob.get_range(key, start, stop)

        return fetch

    def tables(self, part: Part, id: int, schema: Schema, wanted: Wanted, chunk_rows: int) -> Iterator[pa.Table]:
        """The rows of one part that count, in chunks of about so many, in the order they were written in."""
        for table in self.written(part, id, schema, wanted, chunk_rows):
            yield self.shown(table, part, schema, wanted)

    def written(self, part: Part, id: int, schema: Schema, wanted: Wanted, chunk_rows: int) -> Iterator[pa.Table]:
        """The rows of one part that may count, as they were written, skipped ones left out."""
        pruner = self._pruner(id, schema, wanted)
        if not pruner.part_may_match(part):
            self.tally.parts_skipped += 1
            if self.audit and random.random() < self.audit:
                self._audit(part, id, schema, wanted)
            return
        self.tally.parts += 1
        if part.inline is not None:
            yield self._inline(part, id, schema, wanted.hint)
            return
        reader = self.open(part, id, schema)
        groups = pruner.groups(reader)
        self.tally.groups += len(groups)
        self.tally.groups_skipped += reader.groups - len(groups)
        columns = pruner.written_columns
        gathered: list[pa.Table] = []
        rows = 0
        for block in _blocks(groups):
            gathered.append(self._read(reader, part, block, columns, wanted.hint))
            rows += gathered[-1].num_rows
            if rows >= chunk_rows:
                yield pa.concat_tables(gathered)
                gathered, rows = [], 0
        if gathered:
            yield pa.concat_tables(gathered)

    def columns(self, id: int, wanted: Wanted) -> list[str]:
        """The columns of a part written with one schema that have to be read."""
        return list(self._pruner(id, self.schema_of(id), wanted).written_columns)

    def _pruner(self, id: int, schema: Schema, wanted: Wanted) -> Pruner:
        """What decides for parts of one schema. There may be thousands of them in a scan."""
        known = self._pruners.get(id)
        if known is None or known[0] is not wanted:
            known = self._pruners[id] = (wanted, Pruner(wanted, schema))
        return known[1]

    def _audit(self, part: Part, id: int, schema: Schema, wanted: Wanted) -> None:
        """Read a part that was skipped; a CorruptionError if it has a row that is wanted."""
        self.tally.audited += 1
        if part.inline is not None:
            table = decode_inline(part.inline, schema, part.rows, self.config)
        else:
            columns = self._pruner(id, schema, wanted).written_columns
            table = self.open(part, id, schema).read(None, columns)
        table = filtered(self.shown(table, part, schema, wanted), wanted)
        if (wanted.lower is not None or wanted.upper is not None) and table.num_rows:
            table = clip(consolidate(table, wanted.order), wanted.schema.order_names[:1], wanted.lower, wanted.upper)
        if table.num_rows:
            raise CorruptionError(
                f"part {part.key or '(inline)'} was skipped by its statistics and has rows all the same"
            )

    def _inline(self, part: Part, id: int, schema: Schema, hint: Hint) -> pa.Table:
        """The rows of an inline part. A second reader of the same bytes finds them decoded."""
        data = part.inline
        assert data is not None

        def load() -> tuple[pa.Table, int]:
            table = decode_inline(data, schema, part.rows, self.config)
            return table, table.nbytes + len(data)

        table: pa.Table = self.cache.get_or_load((data, id), load, hint)
        return table

    def _read(
        self, reader: PartReader, part: Part, groups: tuple[int, ...], columns: tuple[str, ...], hint: Hint
    ) -> pa.Table:
        def load() -> tuple[pa.Table, int]:
            table = reader.read(groups, columns)
            return table, table.nbytes

        table: pa.Table = self.cache.get_or_load((part.key, groups, columns), load, hint)
        return table

    def shown(self, table: pa.Table, part: Part, schema: Schema, wanted: Wanted) -> pa.Table:
        """A chunk through the part's bounds and the window, under the wanted schema. Not filtered yet."""
        table = seen(table, part, wanted.window, schema.arity)
        table = project(table, schema, wanted.schema, columns=wanted.read)
        return table if wanted.timed else table.drop_columns(list(time_names(schema.arity)))


def filtered(table: pa.Table, wanted: Wanted) -> pa.Table:
    """The rows that are wanted. Rows that are equal are wanted or not together, so this may come before they meet."""
    if wanted.where is not None and table.num_rows:
        table = table.filter(wanted.where.mask(table))
    if wanted.keys is not None and table.num_rows:
        table = table.filter(wanted.keys.mask(table))
    return table


def _blocks(groups: list[int]) -> Iterator[tuple[int, ...]]:
    """Row groups that are read together. Always cut at the same places, so that the next reader finds them decoded."""
    for _, block in groupby(groups, key=lambda group: group // BLOCK_GROUPS):
        yield tuple(block)


def scan(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> Iterator[pa.Table]:
    """All that is wanted of these runs, merged: tables ascending in `wanted.order`, each row once, with `_diff`."""
    opened = open_runs(parts, runs, wanted, memory_bytes)
    if len(opened) == 1 and all(run.order is not Order.SORTED or len(runs) > 1 for run in runs):
        return opened[0]  # gathered into one table, and consolidated with it
    if len(runs) == 1 and is_plain(parts, runs[0], wanted):
        return opened[0]
    merged: Iterator[pa.Table] = merge(opened, wanted.order, cut_columns(parts, runs, wanted), chunk_bytes=memory_bytes)
    return merged


def is_plain(parts: Parts, run: Run, wanted: Wanted) -> bool:
    """Whether every row of a run is surely there only once, so that there is nothing to sum: at one time, all of it."""
    if run.order is not Order.SORTED or parts.schema(run)[1] != wanted.schema:
        return False
    times = set()
    for part in run.parts:
        meta = meta_of(part)
        if meta is None or meta.min_time != meta.max_time or part.rewrite is not None:
            return False
        times.add(meta.min_time)
    return len(times) <= 1


def cut_columns(parts: Parts, runs: Sequence[Run], wanted: Wanted) -> tuple[str, ...]:
    """The leading columns of the order in which every run is ascending, as seen under the wanted schema.

    Columns that are not read, or that were dropped since a run was written, end it; so do times of
    several coordinates, whose order advancing does not keep.
    """
    order = wanted.order
    names = set(wanted.schema.names)
    kept = 0
    schemas = dict(parts.schema(run) for run in runs)
    full = wanted.schema.order_ids
    read_ids = [wanted.schema.field(name).id for name in order if name in names]
    for position, id in enumerate(read_ids):
        in_place = position < len(full) and full[position] == id
        if not in_place or any(_order_id(schema, position) not in (id, None) for schema in schemas.values()):
            return order[:kept]
        kept += 1
    if wanted.timed and wanted.schema.arity == 1 and len(read_ids) == len(full):
        return order if all(len(schema.order_ids) <= len(full) for schema in schemas.values()) else order[:kept]
    return order[:kept]


def _order_id(schema: Schema, position: int) -> int | None:
    """The field at a position of a schema's order; None past its end, where later columns are constant."""
    return schema.order_ids[position] if position < len(schema.order_ids) else None


def open_runs(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> list[Iterator[pa.Table]]:
    """An iterator per run that is large, and one for all that is small."""
    small_rows = max(memory_bytes // 4 // ROW_BYTES, 1)
    large: list[tuple[Run, list[Part]]] = []
    small: list[tuple[Run, list[Part]]] = []
    leaves = [(run, list(parts.leaves(run.parts))) for run in runs]
    for run, inside in sorted(leaves, key=lambda each: sum(part.rows for part in each[1])):
        rows = sum(part.rows for part in inside)
        if rows <= min(small_rows, SMALL_ROWS):
            small.append((run, inside))
            small_rows -= rows
        elif run.order is Order.UNORDERED:
            large.extend((run, [part]) for part in inside)
        else:
            large.append((run, inside))
    # A run alone is not merged with anything: its blocks need not be put together.
    chunk_rows = chunk_rows_for(len(large) + 1, memory_bytes) if len(runs) > 1 else 1
    opened = [ahead(_ordered(parts, run, inside, wanted, chunk_rows), parts.pool) for run, inside in large]
    if len(small) == 1 and small[0][0].order is Order.SORTED:
        opened.append(_ordered(parts, *small[0], wanted, 1))
    elif small:
        opened.append(_gathered(parts, small, wanted))
    if wanted.lower is None and wanted.upper is None:
        return opened
    first = wanted.schema.order_names[:1]
    return [(clip(table, first, wanted.lower, wanted.upper) for table in tables) for tables in opened]


def clip(table: pa.Table, columns: Sequence[str], lower: bytes | None, upper: bytes | None) -> pa.Table:
    """The rows of an ascending table whose encoding by these columns lies in [lower, upper)."""
    start = 0 if lower is None else _first_at_or_after(table, columns, lower)
    stop = table.num_rows if upper is None else _first_at_or_after(table, columns, upper)
    return table if (start, stop) == (0, table.num_rows) else table.slice(start, max(stop - start, 0))


def _first_at_or_after(table: pa.Table, columns: Sequence[str], bound: bytes) -> int:
    """The first row that is at or after a bound: a binary search that looks at a handful of rows."""
    return bisect_left(range(table.num_rows), bound, key=lambda index: encode_row(table, index, columns))


def chunk_rows_for(runs: int, memory_bytes: int) -> int:
    """Rows per chunk, so that a chunk being merged and one read ahead of every run fit the memory."""
    return min(max(memory_bytes // ROW_BYTES // (4 * runs), 1), 1 << 19)


def _ordered(parts: Parts, run: Run, inside: list[Part], wanted: Wanted, chunk_rows: int) -> Iterator[pa.Table]:
    """One run in its order. Of an unordered one, a single part, which is put in order first."""
    id, schema = parts.schema(run)
    if run.order is Order.UNORDERED:
        yield from _gathered(parts, [(run, inside)], wanted)
        return
    for part in inside:
        for table in parts.tables(part, id, schema, wanted, chunk_rows):
            yield filtered(table, wanted)


def _gathered(parts: Parts, runs: list[tuple[Run, list[Part]]], wanted: Wanted) -> Iterator[pa.Table]:
    """Runs that fit the memory, as one table in order.

    Parts that are seen whole and as they were written are put together first: the window and the
    schema are then applied once, and not to each of a thousand small parts.
    """
    tables: list[pa.Table] = []
    plain: dict[int, list[pa.Table]] = {}
    for run, inside in runs:
        id, schema = parts.schema(run)
        for part in inside:
            if part.is_truncated or part.rewrite is not None:
                tables.extend(parts.tables(part, id, schema, wanted, 1 << 62))
            else:
                plain.setdefault(id, []).extend(parts.written(part, id, schema, wanted, 1 << 62))
    columns = {id: parts.columns(id, wanted) for id in plain}
    for id, written in plain.items():
        if written:
            whole = pa.concat_tables([table.select(columns[id]) for table in written])
            tables.append(parts.shown(whole, WHOLE, parts.schema_of(id), wanted))
    if tables:
        yield consolidate(filtered(pa.concat_tables(tables), wanted), wanted.order)


def ahead(tables: Iterator[pa.Table], pool: Executor | None) -> Iterator[pa.Table]:
    """The same tables, the next one being read while the caller is at work on the last."""
    if pool is None:
        yield from tables
        return
    coming = pool.submit(next, tables, None)
    while (table := coming.result()) is not None:
        coming = pool.submit(next, tables, None)
        yield table


def empty_table(wanted: Wanted) -> pa.Table:
    """No rows, with the columns that a scan gives."""
    fields = [wanted.schema.update_arrow.field(name) for name in (*wanted.order, DIFF)]
    return pa.schema(fields).empty_table()


def meta_of(part: Part) -> PartMeta | None:
    """What the state knows of a part."""
    return PartMeta.decode(part.meta) if part.meta else None
