"""Reading runs: parts in order, skipped by statistics, under the schema and through the bounds that are wanted.

A scan turns the runs of a plan into iterators of tables, each ascending in the
row order, and merges them. What is small is gathered into one table first, so
that ten thousand tiny commits are one run and not ten thousand.

Of the memory M of a scan, what is gathered takes a quarter, and so do the chunks of
all that is streamed; as much is read ahead. A chunk is a row group at least, and how
much that takes in memory its footer says. Whoever has more to stream at once than
`fit` allows merges some of it first, if it can write (`columnar.engine`).
"""

from __future__ import annotations

import contextlib
import random
import threading
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

WEIGHED_PARTS = 8
"""Parts of a long run whose footers are looked at to know how large its row groups are."""

_reading = threading.local()
"""The tally of whoever reads in this thread: open parts are shared, and do not know for whom they fetch."""


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
            reader = open_part(part, self.collection, schema, id, _fetcher(self.blob, part.key), self.config)
            return reader, reader.nbytes

        with self._counted():
            reader: PartReader = self.cache.get_or_load(("footer", part.key), load, Hint.MAY_ADD)
        return reader

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """What is fetched meanwhile, by this thread, counts for this tally."""
        before = getattr(_reading, "tally", None)
        _reading.tally = self.tally
        try:
            yield
        finally:
            _reading.tally = before

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

    def matching(self, listed: Iterable[Part], run: Run, wanted: Wanted) -> Iterator[Part]:
        """The parts of a run that may have a row that is wanted. Like `leaves`, without what statistics rule out."""
        id, schema = self.schema(run)
        pruner = self._pruner(id, schema, wanted)
        for part in listed:
            if not pruner.part_may_match(part):
                self.tally.parts_skipped += 1
                if self.audit and random.random() < self.audit:
                    for leaf in self.leaves((part,)):
                        self._audit(leaf, id, schema, wanted)
            elif part.hollow:
                yield from self.matching((seen_through(part, child) for child in self._children(part)), run, wanted)
            else:
                yield part

    def weigh(self, part: Part, id: int, schema: Schema) -> tuple[int, int]:
        """About how many bytes all rows of a part take in memory, and those that are read at once at least."""
        if part.inline is not None:
            size = max(part.rows * ROW_BYTES, len(part.inline))
            return size, size
        reader = self.open(part, id, schema)
        sizes = [reader.group_bytes(group) for group in range(reader.groups)]
        return sum(sizes), max(sizes, default=0)

    def tables(self, part: Part, id: int, schema: Schema, wanted: Wanted, chunk_bytes: int) -> Iterator[pa.Table]:
        """The rows of one part that count, in chunks of about so many bytes, in the order they were written in."""
        for table in self.written(part, id, schema, wanted, chunk_bytes):
            yield self.shown(table, part, schema, wanted)

    def written(self, part: Part, id: int, schema: Schema, wanted: Wanted, chunk_bytes: int) -> Iterator[pa.Table]:
        """The rows of one part that may count, as they were written, row groups that cannot have any left out."""
        self.tally.parts += 1
        if part.inline is not None:
            yield self.decoded(part, id, schema, wanted.hint)
            return
        reader = self.open(part, id, schema)
        pruner = self._pruner(id, schema, wanted)
        with self._counted():
            groups = pruner.groups(reader)
        self.tally.groups += len(groups)
        self.tally.groups_skipped += reader.groups - len(groups)
        columns = pruner.written_columns
        gathered: list[pa.Table] = []
        size = 0
        for block in _blocks(groups, reader, chunk_bytes):
            gathered.append(self._read(reader, part, block, columns, wanted.hint))
            size += gathered[-1].nbytes
            if size >= chunk_bytes:
                yield pa.concat_tables(gathered)
                gathered, size = [], 0
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

    def decoded(self, part: Part, id: int, schema: Schema, hint: Hint) -> pa.Table:
        """The rows of an inline part. A second reader of the same bytes finds them decoded.

        SUBTLE: the same bytes mean other columns in another collection (test_scan.py).
        """
        data = part.inline
        assert data is not None

        def load() -> tuple[pa.Table, int]:
            table = decode_inline(data, schema, part.rows, self.config)
            return table, table.nbytes + len(data)

        table: pa.Table = self.cache.get_or_load((data, self.collection, id), load, hint)
        return table

    def _read(
        self, reader: PartReader, part: Part, groups: tuple[int, ...], columns: tuple[str, ...], hint: Hint
    ) -> pa.Table:
        def load() -> tuple[pa.Table, int]:
            with self._counted():
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


def _fetcher(blob: Blob, key: str) -> Callable[[int, int], bytes | None]:
    def fetch(start: int, stop: int) -> bytes | None:
        tally: Tally | None = getattr(_reading, "tally", None)
        if tally is not None:
            tally.bytes += stop - start
        return blob.get_range(key, start, stop)

    return fetch


def _blocks(groups: list[int], reader: PartReader, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
    """Row groups that are read together. Always cut at the same places, so that the next reader finds them decoded."""
    largest = max((reader.group_bytes(group) for group in groups), default=1)
    size = BLOCK_GROUPS
    while size > 1 and size * largest > chunk_bytes:
        size //= 2
    for _, block in groupby(groups, key=lambda group: group // size):
        yield tuple(block)


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

    Only of a plain run are rows given as they are: where some columns are left out, one may come several times.
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


def merged(parts: Parts, found: Sequence[Source], wanted: Wanted, memory_bytes: int) -> Iterator[pa.Table]:
    """All that is wanted of some sources: tables ascending in `wanted.order`, each row once, with `_diff`."""
    small, large = together(found, memory_bytes)
    cut = cut_columns(wanted, [parts.schema(source.run)[1] for source in found if source.streams])
    chunk_bytes = max(memory_bytes // 4 // max(len(large), 1), 1)
    # What does not fit is not read ahead on top of it.
    pool = parts.pool if sum(source.step for source in large) <= memory_bytes // 4 else None
    opened = [ahead(_stream(parts, source, wanted, chunk_bytes), pool) for source in large]
    if len(small) == 1 and small[0].streams:
        opened.append(_stream(parts, small[0], wanted, chunk_bytes))
    elif small:
        opened.append(_gathered(parts, small, wanted))
    is_streamed = large[0].streams if large else len(small) == 1 and small[0].streams
    if len(opened) == 1 and not is_streamed:
        return _clipped(opened[0], wanted)  # gathered into one table, and consolidated with it
    # SUBTLE: where a run is not in the order of the first column any more, because the one before it was
    # dropped, nothing can be cut off before all is put in order (test_scan.py).
    if cut:
        opened = [_clipped(tables, wanted) for tables in opened]
    tables: Iterator[pa.Table] = merge(opened, wanted.order, cut, chunk_bytes=memory_bytes)
    return tables if cut else _clipped(tables, wanted)


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
    first = wanted.schema.order_names[:1]
    return (clip(table, first, wanted.lower, wanted.upper) for table in tables)


def clip(table: pa.Table, columns: Sequence[str], lower: bytes | None, upper: bytes | None) -> pa.Table:
    """The rows of an ascending table whose encoding by these columns lies in [lower, upper)."""
    start = 0 if lower is None else _first_at_or_after(table, columns, lower)
    stop = table.num_rows if upper is None else _first_at_or_after(table, columns, upper)
    return table if (start, stop) == (0, table.num_rows) else table.slice(start, max(stop - start, 0))


def _first_at_or_after(table: pa.Table, columns: Sequence[str], bound: bytes) -> int:
    """The first row that is at or after a bound: a binary search that looks at a handful of rows."""
    return bisect_left(range(table.num_rows), bound, key=lambda index: encode_row(table, index, columns))


def _stream(parts: Parts, source: Source, wanted: Wanted, chunk_bytes: int) -> Iterator[pa.Table]:
    """One source in order. What is not is put in order first, whole."""
    if not source.streams:
        yield from _gathered(parts, [source], wanted)
        return
    id, schema = parts.schema(source.run)
    for part in source.parts:
        for table in parts.tables(part, id, schema, wanted, chunk_bytes):
            yield filtered(table, wanted)


def _gathered(parts: Parts, found: Sequence[Source], wanted: Wanted) -> Iterator[pa.Table]:
    """Sources that fit the memory, as one table in order.

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
