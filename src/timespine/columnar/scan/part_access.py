"""The parts of a collection: opened once, skipped by statistics, decoded once, seen through their bounds."""

from __future__ import annotations

import contextlib
import random
import threading
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import pyarrow as pa

from timespine.columnar.ingest.update_table import project_rows
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.inline_part import decode_together
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_list_tree import read_run
from timespine.columnar.parts.part_reader import MissingBlob, PartReader, check_footer, open_part
from timespine.columnar.parts.part_stats import PartMeta, known_meta
from timespine.columnar.scan.fetch_ahead import (
    announce_blooms,
    announce_footers,
    announce_groups,
    announce_lists,
    announcer,
)
from timespine.columnar.scan.prune import Pruner
from timespine.columnar.scan.row_group_blocks import by_columns, constant_column, constants_of, cut_groups, table_of
from timespine.columnar.scan.scan_request import ScanRequest, clip, filter_rows
from timespine.columnar.scan.visibility import apply_visibility
from timespine.columnar.schema.schema import Schema, time_names
from timespine.config import Config
from timespine.core.batch import Part, Run
from timespine.core.read_plan import apply_parent_bounds
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.pool import outcome

BLOCKS_AHEAD = 2
"""Blocks that are fetched from a remote place while one is decoded."""

INLINE_BLOCK = 64
"""Inline parts that are decoded and kept together, on average; four times as many at most."""

INLINE_KEPT = 8
"""Inline parts that the next reader finds decoded, at least: fewer are decoded as fast as they are found."""

DEPTH_MAX = 64
"""Lists inside of lists. Balanced trees never get there."""

CHECKED_TOGETHER = 64
"""Footers that one thread compares with their hashes."""

ROW_BYTES = 64
"""What a row takes in memory, when nothing is known of it yet."""

_reading = threading.local()
"""The statistics of the read of this thread: readers share open parts, which do not know for whom they fetch."""


@dataclass(slots=True)
class ScanStats:
    """What a scan did, for metrics and for people."""

    parts: int = 0
    parts_skipped: int = 0
    groups: int = 0
    groups_skipped: int = 0
    pages: int = 0
    """Pages that were decoded one by one, of row groups of which few rows are wanted."""
    bytes: int = 0
    audited: int = 0
    """Parts that the reader would skip, and read to check that skipping them is right."""


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
    footers: PartCache | None = None
    """Where footers and lists are kept, if not with the rows: a merge must not push out what others come back to."""
    scan_stats: ScanStats = field(default_factory=ScanStats)
    audit: float = 0.0
    """The share of skipped parts that the reader reads to check that skipping them is right."""
    _pruners: dict[int, tuple[ScanRequest, Pruner]] = field(default_factory=dict)

    @property
    def known(self) -> PartCache:
        """Where footers and lists are kept."""
        return self.cache if self.footers is None else self.footers

    def schema(self, run: Run) -> tuple[int, Schema]:
        """Return the schema that a run was written with."""
        if run.schema is None:
            raise CorruptionError(f"a run of {self.collection} names no schema")
        return run.schema, self.schema_of(run.schema)

    def open(self, part: Part, id: int, schema: Schema) -> PartReader:
        """Return the footer of a part, parsed once per process."""

        def load() -> tuple[PartReader, int]:
            reader = open_part(part, self.collection, schema, id, _fetcher(self.blob, part.key), self.config)
            return reader, reader.nbytes

        with self._counted():
            reader: PartReader = self.known.get_or_load(("footer", part.key), load)
        return reader

    def check_footers(self, parts: Sequence[Part], id: int, schema: Schema) -> None:
        """Compare the footers of parts with their hashes, in the threads of the pool, for readers of other processes.

        Footers that this process has parsed have been compared.
        """
        unknown = [part for part in parts if not self.has_footer(part)]
        chunks = [unknown[start : start + CHECKED_TOGETHER] for start in range(0, len(unknown), CHECKED_TOGETHER)]
        if self.pool is None or len(chunks) < 2:
            for chunk in chunks:
                self._check_footers(chunk, id, schema)
            return
        tasks = [self.pool.submit(self._check_footers, chunk, id, schema) for chunk in chunks]
        try:
            for task in tasks:
                outcome(task)
        finally:
            for task in tasks:
                task.cancel()

    def _check_footers(self, parts: Sequence[Part], id: int, schema: Schema) -> None:
        self.fetch_footers(parts)
        for part in parts:
            check_footer(part, self.collection, schema, id, _fetcher(self.blob, part.key), self.config)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count what this thread fetches in the block."""
        before = getattr(_reading, "scan_stats", None)
        _reading.scan_stats = self.scan_stats
        try:
            yield
        finally:
            _reading.scan_stats = before

    def has_footer(self, part: Part) -> bool:
        """Tell whether the footer of a part is known."""
        return ("footer", part.key) in self.known

    def has_list(self, part: Part) -> bool:
        """Tell whether the list of a hollow run is known."""
        return ("run", part.key) in self.known

    def fetch_lists(self, parts: Iterable[Part]) -> None:
        """Begin to fetch lists of hollow runs that are not known, if blobs are at a remote place."""
        announce_lists(self.blob, parts, self.has_list)

    def fetch_footers(self, parts: Iterable[Part]) -> None:
        """Begin to fetch footers that are not known, if blobs are at a remote place."""
        announce_footers(self.blob, parts, self.has_footer)

    def fetch_groups(self, wanted: Sequence[tuple[Part, Run]], request: ScanRequest) -> None:
        """Begin to fetch what a read of whole parts will need, if blobs are at a remote place."""
        if announcer(self.blob) is None:
            return
        opened = []
        for part, run in wanted:
            id, schema = self.schema(run)
            opened.append((self.open(part, id, schema), self._pruner(id, schema, request)))
        if request.keys is not None and len(request.keys) == 1:
            announce_blooms(self.blob, (reader for reader, _ in opened))
        for reader, pruner in opened:
            kept = self.cache
            missing = {
                group: [name for name in pruner.written_columns if (reader.key, group, name) not in kept]
                for group in pruner.groups(reader)
            }
            for columns, groups in by_columns(missing):
                announce_groups(self.blob, reader, groups, columns)

    def leaves(self, parts: Iterable[Part], depth: int = 0) -> Iterator[Part]:
        """Yield the parts with rows, those inside hollow runs included, as they are seen through their runs."""
        for part in parts:
            if part.hollow:
                yield from self.leaves(self._children(part, depth), depth + 1)
            else:
                yield part

    def _children(self, part: Part, depth: int) -> Iterator[Part]:
        """Yield what a hollow run lists, as it is seen through it."""
        if depth >= DEPTH_MAX:
            raise CorruptionError(f"hollow run {part.key} is {depth} levels deep: it comes back to itself")

        def load() -> tuple[tuple[Part, ...], int]:
            children = read_run(part, self.blob)
            if children is None:
                raise MissingBlob(part.key)
            return children, 8 * part.size

        children: tuple[Part, ...] = self.known.get_or_load(("run", part.key), load)
        self.fetch_lists(children)
        return (apply_parent_bounds(part, child) for child in children)

    def matching(self, listed: Iterable[Part], run: Run, request: ScanRequest, depth: int = 0) -> Iterator[Part]:
        """Yield the parts of a run that may have a row that is wanted. Like `leaves`, without what statistics rule
        out."""
        id, schema = self.schema(run)
        pruner = self._pruner(id, schema, request)
        for part in listed:
            if not pruner.part_may_match(part):
                self.scan_stats.parts_skipped += 1
                if self.audit and random.random() < self.audit:
                    for leaf in self.leaves((part,)):
                        self._audit(leaf, id, schema, request)
            elif part.hollow:
                yield from self.matching(self._children(part, depth), run, request, depth + 1)
            else:
                yield part

    def weigh(self, part: Part, id: int, schema: Schema) -> tuple[int, int]:
        """Return about how many bytes all rows of a part take in memory, and those that are read at once at least."""
        if part.inline is not None:
            size = max(part.rows * ROW_BYTES, len(part.inline))
            return size, size
        reader = self.open(part, id, schema)
        return reader.decoded_bytes

    def tables(self, part: Part, id: int, schema: Schema, request: ScanRequest, chunk_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of one part that count, in chunks of about this size, in the order of the part."""
        for table in self.written(part, id, schema, request, chunk_bytes):
            yield self.project_chunk(table, part, schema, request)

    def written(
        self, part: Part, id: int, schema: Schema, request: ScanRequest, chunk_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of one part that may count, as they were written.

        Row groups, and rows beside the wanted keys, that cannot count are left out.
        """
        self.scan_stats.parts += 1
        if part.inline is not None:
            yield self.decoded((part,), id, schema, request.hint)
            return
        reader = self.open(part, id, schema)
        pruner = self._pruner(id, schema, request)
        with self._counted():
            groups = pruner.groups(reader)
        self.scan_stats.groups += len(groups)
        self.scan_stats.groups_skipped += reader.groups - len(groups)
        columns = pruner.written_columns
        gathered: list[pa.Table] = []
        size = 0
        cut = list(cut_groups(groups, reader, chunk_bytes))
        is_local = announcer(self.blob) is None
        by_pages = is_local and pruner.may_read_pages(reader, groups)
        keys_first = is_local and pruner.may_read_keys_first
        for place, block in enumerate(cut):
            for coming in cut[place + 1 : place + 1 + BLOCKS_AHEAD]:
                announce_groups(self.blob, reader, coming, columns)
            if by_pages:
                tables = [table for group in block for table in self._near_pages(reader, group, pruner, request.hint)]
            elif keys_first:
                tables, keys_first = self._near_keys(reader, block, pruner, request.hint)
            else:
                tables = pruner.near_keys(reader, self._read(reader, block, columns, request.hint))
            gathered.extend(tables)
            size += sum(table.nbytes for table in tables)
            if size >= chunk_bytes:
                yield pa.concat_tables(gathered)
                gathered, size = [], 0
        if gathered:
            yield pa.concat_tables(gathered)

    def columns(self, id: int, request: ScanRequest) -> list[str]:
        """Return the columns of a part written with one schema that have to be read."""
        return list(self._pruner(id, self.schema_of(id), request).written_columns)

    def _pruner(self, id: int, schema: Schema, request: ScanRequest) -> Pruner:
        """Return what decides for parts of one schema. There may be thousands of them in a scan."""
        known = self._pruners.get(id)
        if known is None or known[0] is not request:
            known = self._pruners[id] = (request, Pruner(request, schema))
        return known[1]

    def _audit(self, part: Part, id: int, schema: Schema, request: ScanRequest) -> None:
        """Read a part that was skipped; a CorruptionError if it has a row that is wanted."""
        self.scan_stats.audited += 1
        if part.inline is not None:
            table = decode_together([(part.inline, part.rows)], schema, self.config)
        else:
            columns = self._pruner(id, schema, request).written_columns
            table = self.open(part, id, schema).read(None, columns)
        table = filter_rows(self.project_chunk(table, part, schema, request), request)
        if (request.lower is not None or request.upper is not None) and table.num_rows:
            table = clip(consolidate(table, request.order), request.cut_names, request.lower, request.upper)
        if table.num_rows:
            raise CorruptionError(f"part {part.key or '(inline)'} was skipped by its statistics and yet has rows")

    def decoded(self, inside: Sequence[Part], id: int, schema: Schema, hint: CacheHint) -> pa.Table:
        """Return the rows of some inline parts, as they were written, in any order.

        The next reader of the same parts finds them decoded. After further commits, a reader finds blocks of them.
        Where a block ends depends on the bytes of a part alone, so readers that begin elsewhere find the same blocks.

        SUBTLE: the same bytes mean other columns in another collection (test_scan.py).
        """
        written = [(part.inline, part.rows) for part in inside if part.inline is not None]
        name = ("inline rows", self.collection, id)
        is_kept = len(written) >= INLINE_KEPT
        kept: tuple[list[tuple[bytes, int]], pa.Table] | None = self.cache.get(name) if is_kept else None
        if kept is not None and kept[0] == written:
            return kept[1]
        tables = []
        start = 0
        for place, (data, _) in enumerate(written, 1):
            if zlib.crc32(data) % INLINE_BLOCK == 0 or place - start == 4 * INLINE_BLOCK:
                tables.append(self._block(tuple(written[start:place]), id, schema, hint))
                start = place
        if start < len(written) or not tables:
            tables.append(decode_together(written[start:], schema, self.config))
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        if is_kept and hint is CacheHint.MAY_ADD:
            self.cache.put(name, (written, table), table.nbytes + sum(len(data) for data, _ in written))
        return table

    def _block(self, block: tuple[tuple[bytes, int], ...], id: int, schema: Schema, hint: CacheHint) -> pa.Table:
        """Return the rows of a block of inline parts, decoded once."""

        def load() -> tuple[pa.Table, int]:
            table = decode_together(block, schema, self.config)
            return table, table.nbytes + sum(len(data) for data, _ in block)

        table: pa.Table = self.cache.get_or_load((block, self.collection, id), load, hint)
        return table

    def row_groups(
        self,
        part: Part,
        id: int,
        schema: Schema,
        groups: tuple[int, ...],
        columns: tuple[str, ...],
        hint: CacheHint,
        *,
        apart: bool = True,
    ) -> list[pa.Table]:
        """Read row groups of a part as they were written: each by itself, through the cache, or all as one table."""
        reader = self.open(part, id, schema)
        if apart:
            return self._read(reader, groups, columns, hint)
        with self._counted():
            return [reader.read(groups, columns)]

    def _near_pages(self, reader: PartReader, group: int, pruner: Pruner, hint: CacheHint) -> list[pa.Table]:
        """Return the rows of a row group that may be asked for, of which the columns beside those of the filter are
        read by pages if that is less.

        The columns of the filter are read first, whole: they tell which pages have such a row. A row group is read
        whole when other pages of it are wanted for the second time, so that the next readers find all of it decoded.
        """
        columns, filters = pruner.written_columns, pruner.filter_columns
        same = constants_of(reader, group, columns)
        rest = tuple(name for name in columns if name not in filters and name not in same)
        if not rest or (reader.key, group, rest[0]) in self.cache:
            return pruner.near_keys(reader, self._read(reader, (group,), columns, hint))
        (filtered,) = self._read(reader, (group,), filters, hint)
        start, stop = pruner.rows_to_read(reader, filtered)
        if start == stop:
            return []
        with self._counted():
            table = reader.page_table(group)
        pages = range(0) if table is None else range(start // table.page_rows, -(-stop // table.page_rows))
        if table is None or 2 * len(pages) > table.pages or not self._is_first_look(reader, group, pages):
            return pruner.near_keys(reader, self._read(reader, (group,), columns, hint))
        read = pa.concat_tables([self._page(reader, group, page, rest, hint) for page in pages])
        read = read.slice(start - pages.start * table.page_rows, stop - start)
        found = {name: constant_column(value, reader.group_rows(group)) for name, value in same.items()}
        found = {name: column.slice(start, stop - start) for name, column in found.items()}
        found |= {name: filtered.column(name).slice(start, stop - start) for name in filters}
        found |= {name: read.column(name) for name in rest}
        return [table_of(reader, columns, found)]

    def _near_keys(
        self, reader: PartReader, block: tuple[int, ...], pruner: Pruner, hint: CacheHint
    ) -> tuple[list[pa.Table], bool]:
        """Return the rows of some row groups that may have one of the keys, and whether a row group has none.

        The columns of the filter are read first, and the others of row groups with such a row. Where each row group has
        one, to look at them first saves nothing, and the caller reads the next block whole.
        """
        columns, filters = pruner.written_columns, pruner.filter_columns
        rest = tuple(name for name in columns if name not in filters)
        hits = {}
        for group, table in zip(block, self._read(reader, block, filters, hint), strict=True):
            start, stop = pruner.rows_to_read(reader, table)
            if start < stop:
                hits[group] = table
        others = self._read(reader, tuple(hits), rest, hint) if hits else []
        tables = [
            table_of(reader, columns, {name: table.column(name) for table in pair for name in table.column_names})
            for pair in zip(hits.values(), others, strict=True)
        ]
        return pruner.near_keys(reader, tables), len(hits) < len(block)

    def _is_first_look(self, reader: PartReader, group: int, pages: range) -> bool:
        """Tell whether no other pages of a row group were read since it was last read whole, and note these."""
        name = ("pages", reader.key, group)
        before: range | None = self.cache.get(name)
        is_first = not before or before == pages
        self.cache.put(name, pages if is_first else range(0), 64)
        return is_first

    def _page(self, reader: PartReader, group: int, page: int, columns: tuple[str, ...], hint: CacheHint) -> pa.Table:
        """Return some columns of one page, from the cache or decoded."""

        def load() -> tuple[pa.Table, int]:
            with self._counted():
                table = reader.read_page(group, page, columns)
            self.scan_stats.pages += 1
            return table, table.nbytes

        table: pa.Table = self.cache.get_or_load((reader.key, group, page, columns), load, hint)
        return table

    def _read(
        self, reader: PartReader, groups: tuple[int, ...], columns: tuple[str, ...], hint: CacheHint
    ) -> list[pa.Table]:
        """Return row groups, each column from the cache or decoded.

        SUBTLE: kept one by one. Where a block of row groups begins depends on who reads what, and so does which columns
        are read. If blocks or sets of columns were kept, the same values would be decoded and kept again by every
        reader that cuts otherwise (test_cached_groups.py).

        Times and diffs that are the same in all rows of a row group are neither read nor kept: the footer has them.
        """

        def load(missing: list[Hashable]) -> list[tuple[pa.ChunkedArray, int]]:
            wanted: dict[int, list[str]] = {}
            for key in missing:
                group, name = places[key]
                wanted.setdefault(group, []).append(name)
            found: dict[tuple[int, str], pa.ChunkedArray] = {}
            with self._counted():
                for names, inside in by_columns(wanted):
                    for group, table in zip(inside, reader.read_each(inside, names), strict=True):
                        found |= {(group, name): table.column(name) for name in names}
            return [(found[places[key]], found[places[key]].nbytes) for key in missing]

        same = {
            (group, name): value for group in groups for name, value in constants_of(reader, group, columns).items()
        }
        places: dict[Hashable, tuple[int, str]] = {
            (reader.key, group, name): (group, name)
            for group in groups
            for name in columns
            if (group, name) not in same
        }
        found = dict(zip(places.values(), self.cache.get_or_load_all(list(places), load, hint), strict=True))
        arrays = [
            found[each] if each in found else constant_column(same[each], reader.group_rows(group))
            for group in groups
            for each in ((group, name) for name in columns)
        ]
        written = reader.schema.update_arrow
        shape, width = pa.schema([written.field(name) for name in columns]), len(columns)
        return [
            pa.Table.from_arrays(arrays[place : place + width], schema=shape) for place in range(0, len(arrays), width)
        ]

    def project_chunk(self, table: pa.Table, part: Part, schema: Schema, request: ScanRequest) -> pa.Table:
        """Return a chunk through the part's bounds and the window, under the wanted schema. Not filtered yet."""
        table = apply_visibility(table, part, request.window, schema.arity)
        table = project_rows(table, schema, request.schema, columns=request.read)
        return table if request.keep_times else table.drop_columns(list(time_names(schema.arity)))


def _fetcher(blob: Blob, key: str) -> Callable[[int, int], bytes | None]:
    def fetch(start: int, stop: int) -> bytes | None:
        scan_stats: ScanStats | None = getattr(_reading, "scan_stats", None)
        if scan_stats is not None:
            scan_stats.bytes += stop - start
        return blob.get_range(key, start, stop)

    return fetch


def meta_of(part: Part) -> PartMeta | None:
    """Return what the state knows of a part."""
    return known_meta(part.meta) if part.meta else None
