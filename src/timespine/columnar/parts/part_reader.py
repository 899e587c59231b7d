"""Read parts, and check every byte from storage before a decoder sees it.

The state has the length and the hash of the tail of a part. The footer in the tail has
the length and the hash of every other piece of the file (see `columnar.parts.part_writer`).
The reader compares the hash of a piece before it decodes the piece, and holds the sizes in
the footer against limits. A piece that does not fit is a CorruptionError.

A reader holds the parsed footer and no rows. It never changes once it is open
(all threads compute the same derived values), so threads share it
and callers keep it in a cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyarrow._parquet import ParquetReader  # what pq.ParquetFile reads with; only here a memory pool can be named

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.key_encoding import NULL
from timespine.columnar.parts import bloom_probe
from timespine.columnar.parts.inline_part import check_decoded_updates
from timespine.columnar.parts.page_table import GAP_BYTES, PageTable, decode_page_table, fetch_ranges
from timespine.columnar.parts.parquet_of_one_page import ChunkPages, page_file
from timespine.columnar.parts.part_footer import (
    HASH_BYTES,
    MAGIC,
    Footer,
    MissingBlob,
    check_claims,
    check_file_schema,
    check_groups,
    hash_of,
    is_surely_current,
    leaf_counts,
    parse_tail,
    piece_hasher,
    piece_starts,
)
from timespine.columnar.parts.part_stats import BOUND_BYTES_MAX, PartMeta, Range
from timespine.columnar.parts.rewrite_parquet_footer import schema_bytes
from timespine.columnar.parts.row_group_index import GroupRanges, KeyIndex
from timespine.columnar.parts.row_memory_pool import row_pool
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.config import Config
from timespine.core.batch import Part
from timespine.errors import CorruptionError, UsageError
from timespine.ids import parse_blob_key
from timespine.libraries import pq

__all__ = ["Fetch", "MissingBlob", "PartReader", "check_footer", "open_part"]

Fetch = Callable[[int, int], bytes | None]
"""Gives the bytes [start, stop) of the blob, or None if there is no blob."""

ROUNDING_BYTES = 1 << 20
"""Bytes that decoded rows may take beyond twice what the writer counted: bitmaps and offsets are rounded up."""


def open_part(part: Part, collection: str, schema: Schema, schema_id: int, fetch: Fetch, config: Config) -> PartReader:
    """Return a reader for a part that a state refers to, after one read of its tail and every check that needs no rows.

    `schema` is the one that it was written with. A blob that is not there is MissingBlob.
    """
    meta, tail = _verified_tail(part, fetch, config)
    end, what = part.size - meta.tail, f"part {part.key}"
    metadata, parsed, footer = parse_tail(tail, what)
    identity = (footer.collection, footer.part, footer.schema, footer.rows)
    wanted = (collection, parse_blob_key(part.key).name, schema_id, part.rows)
    if identity != wanted:
        raise CorruptionError(f"{what} says that it is {identity}, and not {wanted}")
    check_file_schema(parsed, schema, what)
    try:
        file_schema = schema_bytes(tail[:-8]) if footer.page_tables else b""
    except (ValueError, IndexError, RecursionError) as error:
        raise CorruptionError(f"the footer of {what} is not laid out as we write it") from error
    return PartReader(part.key, schema, fetch, config, metadata, footer, end, meta.tail_hash, file_schema)


def check_footer(part: Part, collection: str, schema: Schema, schema_id: int, fetch: Fetch, config: Config) -> None:
    """Check that the footer of a part is the one that the state knows, for a reader outside of this process.

    To compare a hash takes a tenth of a millisecond, and to parse a footer two. So it is parsed only if it does not
    surely have the format that we know.
    """
    _, tail = _verified_tail(part, fetch, config)
    if not is_surely_current(tail):
        open_part(part, collection, schema, schema_id, fetch, config)


def _verified_tail(part: Part, fetch: Fetch, config: Config) -> tuple[PartMeta, bytes]:
    """Return what the state knows of a part, and the tail of its blob, whose hash is the one in the state."""
    if part.hollow or part.inline is not None:
        raise UsageError("a hollow run and inline data are not read as a part")
    meta = PartMeta.decode(part.meta)
    check_claims(part, meta, config)
    tail = _fetch_exactly(fetch, part.size - meta.tail, part.size, part.key)
    if hash_of(tail) != meta.tail_hash:
        raise CorruptionError(f"the last {meta.tail} bytes of part {part.key} are not those that the state knows")
    return meta, tail


class PartReader:
    """An open part: what its footer says, and how to read any of its row groups and columns."""

    def __init__(
        self,
        key: str,
        schema: Schema,
        fetch: Fetch,
        config: Config,
        metadata: pq.FileMetaData,
        footer: Footer,
        end: int,
        tail_hash: bytes,
        file_schema: bytes,
    ) -> None:
        self.key = key
        """The key of the blob."""
        self.schema = schema
        """The schema that it was written with."""
        self.groups: int = metadata.num_row_groups
        """How many row groups there are."""
        self.rows = footer.rows
        """How many rows there are."""
        self.footer = footer
        """What we wrote into the footer."""
        self.key_index = KeyIndex(footer.lowers) if footer.sorted else None
        """Where to look for keys; None if rows are not in order."""
        self._what = f"part {key}"
        self._fetch = fetch
        self._config = config
        self._metadata = metadata
        self._end = end
        self._tail_hash = tail_hash
        self._file_schema = file_schema
        self._hasher = piece_hasher(footer.piece_hash)
        self._width: int = metadata.num_columns
        self._group_rows = check_groups(metadata, footer, schema, config, self._what)
        self._starts, self._hashes = piece_starts(footer, self.groups, self._width, end, self._what)
        self._index_piece = self.groups * (self._width + footer.blooms)
        self._types = {field.name: field.type for field in schema.update_arrow}
        stops = np.cumsum((0, *leaf_counts(schema.update_arrow))).tolist()
        self._leaves = {name: range(*ends) for name, ends in zip(self._types, pairwise(stops), strict=True)}
        self._nans = frozenset(field.name for field in schema.fields if field.id in footer.nans)
        self._ranges: dict[int, GroupRanges] = {}
        self._blooms: dict[int, bytes] = {}
        self._page_tables: dict[int, PageTable | None] = {}
        self._constants: dict[tuple[int, str], int | None] = {}

    @property
    def nbytes(self) -> int:
        """About how much memory the reader takes, with the Bloom filters that it may come to hold."""
        bloom_bytes: int = self._starts[self._index_piece] - self._starts[self.groups * self._width]
        table_bytes: int = self._starts[-1] - self._starts[self._index_piece + 1]
        footer_bytes = int(self._metadata.serialized_size)
        return 4096 + 4 * (footer_bytes + table_bytes) + bloom_bytes

    def group_rows(self, group: int) -> int:
        """Return how many rows a row group has."""
        return self._group_rows[group]

    def group_bytes(self, group: int) -> int:
        """Return about how much memory its rows take."""
        return self.footer.decoded[group]

    @cached_property
    def decoded_bytes(self) -> tuple[int, int]:
        """About how much memory all rows take, and those of the largest row group."""
        return sum(self.footer.decoded), max(self.footer.decoded, default=0)

    def group_ranges(self, group: int) -> Mapping[str, Range]:
        """Return what is known of the columns of a row group, by name; worked out when a column is asked for."""
        ranges = self._ranges.get(group)
        if ranges is None:
            chunks = self._metadata.row_group(group)
            bound_bytes = min(self._config.bound_bytes, BOUND_BYTES_MAX)
            ranges = GroupRanges(chunks, self._types, self._leaves, self._nans, bound_bytes)
            self._ranges[group] = ranges
        return ranges

    @cached_property
    def group_lowers(self) -> tuple[bytes | None, ...]:
        """At or before every value of the first ordered column, per row group, null included; None: unknown."""
        first = self.schema.order_names[0]
        ranges = [self.group_ranges(group).get(first) for group in range(self.groups)]
        return tuple(None if each is None else NULL if each.nulls else each.lower for each in ranges)

    def may_contain(self, group: int, column: str, value: object) -> bool:
        """Tell whether a row group may have a row with that value; asks the Bloom filter, if there is one."""
        stored = bloom_probe.stored_bytes(value, self._types[column]) if self.footer.blooms else None
        if stored is None:
            return True
        chunk = self._metadata.row_group(group).column(self._leaves[column].start)
        if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
            return True
        piece = self.groups * self._width + group
        filters = self._blooms.get(group)
        if filters is None:
            filters = self._blooms[group] = self._fetch_verified(piece, piece + 1)
        place = chunk.bloom_filter_offset - self._starts[piece]
        return place < 0 or bloom_probe.may_hold(filters[place : place + chunk.bloom_filter_length], stored)

    def group_ends(self, group: int, column: str) -> tuple[int, int]:
        """Return the smallest and the largest value of a time or of the diffs in a row group."""
        statistics = self._metadata.row_group(group).column(self._leaves[column].start).statistics
        if statistics is None or not statistics.has_min_max:
            raise CorruptionError(f"the footer of {self._what} has no statistics of {column}")
        return statistics.min, statistics.max

    def constant(self, group: int, column: str) -> int | None:
        """Return the value that all rows of a row group have as a time or a diff; None if there may be several."""
        if (group, column) not in self._constants:
            statistics = self._metadata.row_group(group).column(self._leaves[column].start).statistics
            is_known = statistics is not None and statistics.has_min_max and statistics.null_count == 0
            value = statistics.min if is_known and statistics.min == statistics.max else None
            # A time before 0 is refused where rows are decoded.
            self._constants[group, column] = None if value is None or (value < 0 and column != DIFF) else value
        return self._constants[group, column]

    # What a copy of row groups needs.

    def chunk_pieces(self, groups: range) -> range:
        """Return the places of the column chunks of adjacent row groups among the pieces of the file."""
        return range(groups.start * self._width, groups.stop * self._width)

    def bloom_pieces(self, groups: range) -> range:
        """Return the places of their Bloom filters; none if the part has none."""
        first = self.groups * self._width
        return range(first + groups.start, first + groups.stop) if self.footer.blooms else range(first, first)

    def piece_bytes(self, pieces: range) -> tuple[int, int]:
        """Return where adjacent pieces start and stop in the file."""
        return self._starts[pieces.start], self._starts[pieces.stop]

    def piece_hashes(self, pieces: range) -> list[tuple[int, bytes]]:
        """Return the lengths and the hashes of pieces."""
        return [
            (self._starts[piece + 1] - self._starts[piece], self._hashes[HASH_BYTES * piece : HASH_BYTES * (piece + 1)])
            for piece in pieces
        ]

    def fetch_pieces(self, pieces: range) -> bytes:
        """Return the bytes of adjacent pieces, each compared with its hash."""
        return self._fetch_verified(pieces.start, pieces.stop)

    def fetch_page_indexes(self) -> tuple[int, bytes]:
        """Return where the page indexes start in the file, and their bytes."""
        piece = self._index_piece
        return self._starts[piece], self._fetch_verified(piece, piece + 1)

    def fetch_page_table(self, group: int) -> bytes:
        """Return the bytes of the page table of a row group; none if it has no page table."""
        if not self.footer.page_tables:
            return b""
        piece = self._index_piece + 1 + group
        return self._fetch_verified(piece, piece + 1)

    def fetch_footer(self) -> bytes:
        """Return the bytes of the footer."""
        stop = self._end + int(self._metadata.serialized_size)
        footer = _fetch_exactly(self._fetch, self._end, stop, self.key)
        tail = footer + len(footer).to_bytes(4, "little") + MAGIC
        if hash_of(tail) != self._tail_hash:
            raise CorruptionError(f"the footer of {self._what} is not the one that the state knows")
        return footer

    def ranges(self, groups: Sequence[int], columns: Sequence[str]) -> list[tuple[int, int]]:
        """Return the bytes that `read` fetches for some row groups, ascending, one range per request."""
        runs = self._piece_runs(self._check_groups(groups), self._leaves_of(self._target(columns)))
        return [(self._starts[first], self._starts[stop]) for first, stop in runs]

    @property
    def bloom_range(self) -> tuple[int, int] | None:
        """The bytes of all Bloom filters; None if there are none."""
        start, stop = self._starts[self.groups * self._width], self._starts[self._index_piece]
        return (start, stop) if start < stop else None

    def page_table(self, group: int) -> PageTable | None:
        """Return where the pages of a row group are; None if it has no page table."""
        if group not in self._page_tables:
            chunks = self.chunk_pieces(range(group, group + 1))
            sizes = [self._starts[piece + 1] - self._starts[piece] for piece in chunks]
            data = self.fetch_page_table(group)
            self._page_tables[group] = decode_page_table(data, self._group_rows[group], sizes, self._what)
        return self._page_tables[group]

    def read_page(self, group: int, page: int, columns: Sequence[str]) -> pa.Table:
        """Return the rows of one page of a row group that has a page table, with some columns in the order given."""
        target = self._target(columns)
        table = self.page_table(group)
        if table is None or not 0 <= page < table.pages:
            raise UsageError(f"row group {group} of {self._what} has no page {page}")
        leaves = self._leaves_of(target)
        chunks = self._metadata.row_group(group)
        rows = min(table.page_rows, self._group_rows[group] - page * table.page_rows)
        file = page_file(
            self._file_schema,
            [chunks.column(leaf) for leaf in range(self._width)],
            self._fetch_pages(group, page, leaves, table),
            rows,
        )
        decoded = self._decode_file(pa.BufferReader(file), None, [0], leaves)
        return self._check_rows(decoded, rows, self.group_bytes(group), target)

    def _fetch_pages(self, group: int, page: int, leaves: list[int], table: PageTable) -> dict[int, ChunkPages]:
        """Return one page of some column chunks with their dictionary pages, each compared with its hash."""
        wanted = []
        for leaf in leaves:
            chunk = self._starts[group * self._width + leaf]
            for start, stop, page_hash in (table.dictionary(leaf), table.data_page(leaf, page)):
                wanted.append((chunk + start, chunk + stop, page_hash))
        found = fetch_ranges(
            wanted, lambda start, stop: _fetch_exactly(self._fetch, start, stop, self.key), self._hasher, self._what
        )
        return {leaf: ChunkPages(*found[2 * place : 2 * place + 2]) for place, leaf in enumerate(leaves)}

    def read(self, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of some row groups, ascending, with some columns in the order given; by default all of both.

        All of the work is done by the calling thread, nearly all of it without Python's
        lock: who wants more cores reads row groups from several threads.
        """
        chosen = self._check_groups(range(self.groups) if groups is None else groups)
        target = self._target(columns)
        if not chosen:
            return target.empty_table()
        leaves = self._leaves_of(target)
        return self._rows(self._spans(chosen, leaves), chosen, leaves, target)

    def read_each(self, groups: Sequence[int], columns: Sequence[str]) -> list[pa.Table]:
        """Return the rows of some row groups, ascending, each in a table of its own that shares no memory with the
        others.

        They are fetched together, in as few requests as pays.
        """
        chosen = self._check_groups(groups)
        target = self._target(columns)
        if not chosen:
            return []
        leaves = self._leaves_of(target)
        spans = self._spans(chosen, leaves)
        return [self._rows(spans, [group], leaves, target) for group in chosen]

    def _check_groups(self, groups: Iterable[int]) -> list[int]:
        chosen = list(groups)
        if any(not 0 <= group < self.groups for group in chosen) or any(b <= a for a, b in pairwise(chosen)):
            raise UsageError(f"row groups to read must be ascending, and from 0 to {self.groups - 1}")
        return chosen

    def _leaves_of(self, target: pa.Schema) -> list[int]:
        return sorted(leaf for name in target.names for leaf in self._leaves[name])

    def _rows(
        self, spans: list[tuple[int, pa.Buffer]], chosen: list[int], leaves: list[int], target: pa.Schema
    ) -> pa.Table:
        """Decode and check row groups."""
        table = self._decode(spans, chosen, leaves)
        rows = sum(self._group_rows[group] for group in chosen)
        return self._check_rows(table, rows, sum(self.group_bytes(group) for group in chosen), target)

    def _check_rows(self, table: pa.Table, rows: int, claimed: int, target: pa.Schema) -> pa.Table:
        """Return decoded rows with the types of the schema, if they are what the footer says."""
        if table.num_rows != rows:
            raise CorruptionError(f"{self._what} has {table.num_rows} rows where its footer says {rows}")
        # A zone is not stored in the file: the values are the same, and so this copies nothing.
        arrays = [table.column(field.name) for field in target]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, target, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=target)
        if table.nbytes > 2 * claimed + ROUNDING_BYTES:
            raise CorruptionError(f"{self._what} takes {table.nbytes} bytes where its footer says {claimed}")
        check_decoded_updates(table, self.schema, self._what)
        return table

    def verify(self) -> None:
        """Compare every byte of the file with its hash, also what no reader here ever decodes."""
        if _fetch_exactly(self._fetch, 0, len(MAGIC), self.key) != MAGIC:
            raise CorruptionError(f"{self._what} does not begin as a Parquet file")
        pieces = len(self._starts) - 1
        for first in range(0, pieces, self._width):
            self._fetch_verified(first, min(first + self._width, pieces))
        for group in range(self.groups):
            table = self.page_table(group)
            for page in range(0 if table is None else table.pages):
                assert table is not None
                self._fetch_pages(group, page, list(range(self._width)), table)

    def _target(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of the result."""
        whole = self.schema.update_arrow
        if columns is None:
            return whole
        if not columns or len(set(columns)) < len(columns) or not self._types.keys() >= set(columns):
            raise UsageError(f"columns to read of {self._what} must be some of its own, each once")
        return pa.schema([whole.field(name) for name in columns])

    def _spans(self, groups: Sequence[int], leaves: Sequence[int]) -> list[tuple[int, pa.Buffer]]:
        """Return the wanted column chunks, read in as few requests as pays, each compared with its hash."""
        runs = self._piece_runs(groups, leaves)
        return [(self._starts[first], pa.py_buffer(self._fetch_verified(first, stop))) for first, stop in runs]

    def _piece_runs(self, groups: Sequence[int], leaves: Sequence[int]) -> list[list[int]]:
        """Return the first piece of each request for the wanted column chunks, and the one after its last."""
        wanted = [group * self._width + leaf for group in groups for leaf in leaves]
        runs = [[wanted[0], wanted[0] + 1]]
        for piece in wanted[1:]:
            if self._starts[piece] - self._starts[runs[-1][1]] <= GAP_BYTES:
                runs[-1][1] = piece + 1
            else:
                runs.append([piece, piece + 1])
        return runs

    def _fetch_verified(self, first: int, stop: int) -> bytes:
        """Return the bytes of adjacent pieces, after a look at all their hashes."""
        start = self._starts[first]
        data = _fetch_exactly(self._fetch, start, self._starts[stop], self.key)
        view = memoryview(data)
        for piece in range(first, stop):
            inside = view[self._starts[piece] - start : self._starts[piece + 1] - start]
            if self._hasher(inside) != self._hashes[HASH_BYTES * piece : HASH_BYTES * (piece + 1)]:
                raise CorruptionError(f"piece {piece} of {self._what} is not what was written")
        return data

    def _decode(self, spans: list[tuple[int, pa.Buffer]], groups: list[int], leaves: list[int]) -> pa.Table:
        file = pa.PythonFile(_Spans(spans), mode="r")
        return self._decode_file(file, self._metadata, groups, leaves)

    def _decode_file(
        self, file: pa.NativeFile, metadata: pq.FileMetaData | None, groups: list[int], leaves: list[int]
    ) -> pa.Table:
        """Return what Parquet makes of verified bytes.

        SUBTLE: never `pq.read_table` with filters, which can hang. Never with threads of Arrow: one may
        still hold a Python object when the interpreter ends, and then aborts the process
        (test_only_the_calling_thread_touches_what_is_read).
        """
        try:
            reader = ParquetReader(memory_pool=row_pool())
            reader.open(file, metadata=metadata, pre_buffer=False)
            # By number: a name with dots in it can look like the path into another column.
            return reader.read_row_groups(groups, column_indices=leaves, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptionError(f"row groups of {self._what} cannot be decoded, from {groups[0]} on") from error


class _Spans:
    """A file of some ranges of another file. A read outside of them finds nothing."""

    closed = False

    def __init__(self, spans: list[tuple[int, pa.Buffer]]) -> None:
        self._starts = [start for start, _ in spans]
        self._buffers = [buffer for _, buffer in spans]
        self._place = 0

    def seek(self, place: int, whence: int = 0) -> int:
        from_where = (0, self._place, self._starts[-1] + self._buffers[-1].size)[whence]
        self._place = from_where + place
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.read_buffer(size).to_pybytes()
        return data

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """Return bytes without a copy: Arrow asks for this one if it is there."""
        span = bisect_right(self._starts, self._place) - 1
        inside = self._place - self._starts[span]
        if span < 0 or size < 0 or inside + size > self._buffers[span].size:
            raise ValueError(f"bytes {self._place} to {self._place + size} were not verified")
        self._place += size
        return self._buffers[span].slice(inside, size)

    def close(self) -> None:
        return None


def _fetch_exactly(fetch: Fetch, start: int, stop: int, key: str) -> bytes:
    """Return exactly these bytes of a blob."""
    data = fetch(start, stop)
    if data is None:
        raise MissingBlob(key)
    if len(data) != stop - start:
        raise CorruptionError(f"bytes {start} to {stop} of {key} are {len(data)} bytes")
    return data
