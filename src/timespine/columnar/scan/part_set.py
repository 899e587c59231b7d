"""The parts of a collection: opened once, skipped by statistics, decoded once, seen through their bounds."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from timespine.columnar.ingest.update_table import project
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.cache import Hint, PartCache
from timespine.columnar.parts.hollow_run import read_run
from timespine.columnar.parts.inline import decode_inline
from timespine.columnar.parts.part_reader import MissingBlob, PartReader, open_part
from timespine.columnar.parts.stats import PartMeta, known_meta
from timespine.columnar.scan.prune import Pruner
from timespine.columnar.scan.request import Wanted, clip, filtered
from timespine.columnar.scan.visibility import seen
from timespine.columnar.schema.schema import Schema, time_names
from timespine.config import Config
from timespine.core.batch import Part, Run
from timespine.core.read_plan import seen_through
from timespine.errors import CorruptionError
from timespine.location.blob import Blob

BLOCK_GROUPS = 8
"""Row groups that are fetched together."""

DEPTH_MAX = 64
"""Lists inside of lists. Balanced trees never get there."""

ROW_BYTES = 64
"""What a row takes in memory, when nothing is known of it yet."""

_reading = threading.local()
"""The tally of whoever reads in this thread: open parts are shared, and do not know for whom they fetch."""


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
    footers: PartCache | None = None
    """Where footers and lists are kept, if not with the rows: a merge must not push out what others come back to."""
    tally: Tally = field(default_factory=Tally)
    audit: float = 0.0
    """The share of skipped parts that is read all the same, to see that skipping them was right."""
    _pruners: dict[int, tuple[Wanted, Pruner]] = field(default_factory=dict)

    @property
    def known(self) -> PartCache:
        """Where footers and lists are kept."""
        return self.cache if self.footers is None else self.footers

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
            reader: PartReader = self.known.get_or_load(("footer", part.key), load)
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

    def leaves(self, parts: Iterable[Part], depth: int = 0) -> Iterator[Part]:
        """The parts with rows, those inside hollow runs included, as they are seen through their runs."""
        for part in parts:
            if part.hollow:
                yield from self.leaves(self._children(part, depth), depth + 1)
            else:
                yield part

    def _children(self, part: Part, depth: int) -> Iterator[Part]:
        """What a hollow run lists, as it is seen through it."""
        if depth >= DEPTH_MAX:
            raise CorruptionError(f"hollow run {part.key} is {depth} levels deep: it comes back to itself")

        def load() -> tuple[tuple[Part, ...], int]:
            children = read_run(part, self.blob)
            if children is None:
                raise MissingBlob(part.key)
            return children, 8 * part.size

        children: tuple[Part, ...] = self.known.get_or_load(("run", part.key), load)
        return (seen_through(part, child) for child in children)

    def matching(self, listed: Iterable[Part], run: Run, wanted: Wanted, depth: int = 0) -> Iterator[Part]:
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
                yield from self.matching(self._children(part, depth), run, wanted, depth + 1)
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
            tables = self._read(reader, part, block, columns, wanted.hint)
            gathered.extend(tables)
            size += sum(table.nbytes for table in tables)
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
            table = clip(consolidate(table, wanted.order), wanted.cut_names, wanted.lower, wanted.upper)
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
    ) -> list[pa.Table]:
        """Row groups, each from the cache or decoded.

        SUBTLE: kept one by one. Where a block of them begins depends on who reads what, and if blocks were kept,
        the same rows would be decoded and kept again by every reader that cuts otherwise (test_cached_groups.py).
        """
        by_key: dict[Hashable, int] = {(part.key, group, columns): group for group in groups}

        def load(missing: list[Hashable]) -> list[tuple[pa.Table, int]]:
            with self._counted():
                tables = reader.read_each([by_key[key] for key in missing], columns)
            return [(table, table.nbytes) for table in tables]

        return self.cache.get_or_load_all(list(by_key), load, hint)

    def shown(self, table: pa.Table, part: Part, schema: Schema, wanted: Wanted) -> pa.Table:
        """A chunk through the part's bounds and the window, under the wanted schema. Not filtered yet."""
        table = seen(table, part, wanted.window, schema.arity)
        table = project(table, schema, wanted.schema, columns=wanted.read)
        return table if wanted.timed else table.drop_columns(list(time_names(schema.arity)))


def _fetcher(blob: Blob, key: str) -> Callable[[int, int], bytes | None]:
    def fetch(start: int, stop: int) -> bytes | None:
        tally: Tally | None = getattr(_reading, "tally", None)
        if tally is not None:
            tally.bytes += stop - start
        return blob.get_range(key, start, stop)

    return fetch


def _blocks(groups: list[int], reader: PartReader, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
    """Row groups that are fetched together."""
    largest = max((reader.group_bytes(group) for group in groups), default=1)
    size = BLOCK_GROUPS
    while size > 1 and size * largest > chunk_bytes:
        size //= 2
    for _, block in groupby(groups, key=lambda group: group // size):
        yield tuple(block)


def meta_of(part: Part) -> PartMeta | None:
    """What the state knows of a part."""
    return known_meta(part.meta) if part.meta else None
