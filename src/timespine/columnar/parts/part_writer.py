"""Writing parts: a Parquet file that anybody can open, with a chain of hashes that only we follow.

    PAR1 | column chunks of row group 0, of 1, ... | Bloom filters | page indexes | page tables | tail
    tail: footer, its length, PAR1

The state holds the length and the hash of the tail. The footer, which is in the
tail, holds the length and the hash of every column chunk, of the Bloom filters of
every row group, of the page indexes, and of the page table of every row group. So a reader that has the state needs one
small read to know the hash of every byte that it will ever decode, whether it then
reads all of the file, or two columns of one row group.

What hashes what cannot be written in one go: Parquet has the footer's own metadata
settled before its bytes are. So the place of the lengths and hashes is kept free
with zeros, and filled in when the file is complete. They are text of a known
length, and so nothing moves.
"""

from __future__ import annotations

import inspect
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.page_table import encode_page_tables
from timespine.columnar.parts.part_footer import (
    FOOTER_KEY,
    FORMAT_VERSION,
    HASH_BYTES,
    MAGIC,
    SIZE_BYTES,
    Footer,
    MissingBlob,
    hash_of,
    leaf_columns,
    leaf_counts,
    piece_count,
    piece_hasher,
)
from timespine.columnar.parts.part_stats import (
    BOUND_BYTES_MAX,
    Ends,
    PartMeta,
    describe_updates,
    diff_sum_of,
    ends_of,
    stats_to_keep,
)
from timespine.columnar.parts.rewrite_parquet_footer import first_page_index
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested
from timespine.config import Config
from timespine.errors import UsageError
from timespine.libraries import pc, pq

__all__ = ["EncodedPart", "MissingBlob", "encode_part"]

BLOOM_ROWS_MIN = 1024
"""A part with fewer rows is decoded as fast as its filter is asked."""

BLOOM_COLUMNS_MAX = 4
"""Key columns that get a filter, at most, in the order of the key."""

BLOOM_FALSE = 0.05
"""How often a filter says yes where it should say no: about a byte per distinct value."""

PAGES_MIN = 4
"""A part with fewer pages in each column has one page per row group: a small commit is not worth page tables."""

DICTIONARY_SAMPLE = 4096
"""Values that are looked at before strings are written with a dictionary. Below a quarter of them distinct, it pays."""

DICTIONARY_ROWS_MIN = 1024
"""Rows from which on a dictionary is considered at all."""

LEVEL = {"lz4": None, "zstd": 1}
"""Of zstd: higher ones take several times as long for a few percent. lz4 has none."""


@cache
def _are_blooms_supported() -> bool:
    """Return whether this version of Arrow writes Bloom filters."""
    return "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part, ready to be put."""

    data: bytes
    """The blob."""
    meta: PartMeta
    """What the state keeps of it."""
    rows: int
    """Updates in it."""
    diff_sum: int
    """The sum of their diffs modulo 2^64."""
    trimmed_bytes: int
    """Bytes of column statistics that were left out to keep within the budget."""
    ends: Ends | None
    """The first and the last row, encoded; None if rows are in no order."""


def encode_part(
    table: pa.Table,
    schema: Schema,
    schema_id: int,
    collection: str,
    name: str,
    config: Config,
    *,
    is_sorted: bool = True,
) -> EncodedPart:
    """Return an update table as a part. `name` is the last segment of its key; `is_sorted` says that rows are in
    order."""
    if not table.schema.equals(schema.update_arrow):
        raise UsageError(f"the columns of part {name} are not those of schema {schema_id} of {collection}")
    if table.num_rows > config.part_rows_max:
        raise UsageError(f"part {name} would have {table.num_rows} rows, more than {config.part_rows_max}")
    if table.nbytes > config.part_decoded_bytes_max:
        raise UsageError(f"part {name} would have {table.nbytes} bytes of rows, over {config.part_decoded_bytes_max}")
    groups = [table.slice(start, config.row_group_rows) for start in range(0, table.num_rows, config.row_group_rows)]
    trimmed: list[int] = []
    ends = ends_of(table, schema) if is_sorted and groups else None
    meta = _describe(table, schema, name, config, trimmed, ends, is_sorted=is_sorted)
    layout = _layout(schema)
    blooms = _are_blooms_supported() and bool(layout.blooms) and table.num_rows >= BLOOM_ROWS_MIN
    has_pages = config.page_rows < config.row_group_rows and table.num_rows >= PAGES_MIN * config.page_rows
    page_tables = layout.is_flat and has_pages
    pieces = piece_count(len(groups), layout.leaves, blooms=blooms, page_tables=page_tables)
    footer = Footer(
        version=FORMAT_VERSION,
        collection=collection,
        part=name,
        schema=schema_id,
        rows=table.num_rows,
        sorted=is_sorted,
        decoded=tuple(group.nbytes for group in groups),
        pieces=bytes((SIZE_BYTES + HASH_BYTES) * pieces),
        blooms=blooms,
        nans=tuple(_with_nans(table, schema)),
        lowers=() if ends is None else _lowers(groups, schema, config, ends[0]),
        page_tables=page_tables,
        piece_hash=config.piece_hash,
    )
    written, metadata = _write(groups, schema, footer, config)
    data, tail = _fill_hashes(written, metadata, footer, config.page_rows)
    if len(data) > config.object_bytes_max:
        raise UsageError(f"part {name} would have {len(data)} bytes, more than {config.object_bytes_max}")
    meta = msgspec.structs.replace(meta, tail=len(tail), tail_hash=hash_of(tail))
    return EncodedPart(data, meta, table.num_rows, diff_sum_of(table), sum(trimmed), ends)


def _describe(
    table: pa.Table,
    schema: Schema,
    name: str,
    config: Config,
    trimmed: list[int],
    ends: Ends | None,
    *,
    is_sorted: bool,
) -> PartMeta:
    """Return what the state will know of the rows, if they are updates."""
    if any(table.column(each).null_count for each in schema.system_names):
        raise UsageError(f"part {name} would have a row without a time or a diff")
    meta = describe_updates(
        table,
        schema,
        sorted=is_sorted,
        budget=config.stats_bytes,
        bound_bytes=config.bound_bytes,
        stats_always_keep=stats_to_keep(config.stats_always_keep),
        trimmed=trimmed,
        ends=ends,
    )
    if min(meta.min_time) < 0:
        raise UsageError(f"part {name} would have a time before 0")
    return meta


def _lowers(groups: Sequence[pa.Table], schema: Schema, config: Config, first: bytes) -> tuple[bytes, ...]:
    """Return where row groups begin, the first one with this row: as many bytes as tell it from the row before, and
    `bound_bytes` at least.

    SUBTLE: with less, rows that begin alike could not be cut apart. And readers rely on it: no row of the group
    before is after what is left, unless that is the whole row or has BOUND_BYTES_MAX (`KeyIndex.find`).
    """
    least = min(config.bound_bytes, BOUND_BYTES_MAX)
    lowers = [first[:least]]
    for before, group in itertools.pairwise(groups):
        last = encode_row(before, before.num_rows - 1, schema.order_names, BOUND_BYTES_MAX)
        first = encode_row(group, 0, schema.order_names, BOUND_BYTES_MAX)[:BOUND_BYTES_MAX]
        lowers.append(first[: max(least, _shared_prefix_bytes(last, first) + 1)])
    return tuple(lowers)


def _shared_prefix_bytes(before: bytes, after: bytes) -> int:
    """Return how many bytes two encodings share at their beginning."""
    return bisect_left(range(1, len(after) + 1), True, key=lambda size: before[:size] != after[:size])


def _write(
    groups: Sequence[pa.Table], schema: Schema, footer: Footer, config: Config
) -> tuple[pa.Buffer, pq.FileMetaData]:
    """Return the Parquet file, with zeros where lengths and hashes will be, and what it says of itself."""
    layout = _layout(schema)
    options: dict[str, Any] = {}
    if footer.blooms:
        sizes = {"ndv": groups[0].num_rows, "fpp": BLOOM_FALSE}  # Arrow folds a filter that turns out emptier
        options["bloom_filter_options"] = dict.fromkeys(layout.blooms, sizes)
    if footer.sorted:
        options["sorting_columns"] = layout.sorting
    if footer.page_tables:
        options["max_rows_per_page"] = config.page_rows
    sink = pa.BufferOutputStream()
    collected: list[pq.FileMetaData] = []
    writer = pq.ParquetWriter(
        sink,
        schema.update_arrow,
        compression=config.compression,
        compression_level=LEVEL[config.compression],
        use_dictionary=[name for name in layout.texts if groups and _repeats(groups[0].column(name))],
        column_encoding=dict.fromkeys(layout.deltas, "DELTA_BINARY_PACKED"),
        data_page_version="1.0",  # whose checksums every reader knows
        store_schema=False,  # a reader takes the types from the state; the file is as any other to everybody else
        write_page_index=True,
        write_page_checksum=True,
        metadata_collector=collected,
        **options,
    )
    for group in groups:
        writer.write_table(group, row_group_size=group.num_rows)
    writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer).decode()})
    writer.close()
    return sink.getvalue(), collected[0]


def _fill_hashes(written: pa.Buffer, metadata: pq.FileMetaData, footer: Footer, page_rows: int) -> tuple[bytes, bytes]:
    """Fill in page tables, lengths and hashes: the file, and its tail."""
    view = memoryview(written).cast("B")
    tail = int.from_bytes(view[-8:-4], "little") + 8
    end = written.size - tail
    sizes = list(_piece_sizes(metadata, footer.blooms, end))
    hasher = piece_hasher(footer.piece_hash)
    start, hashes = len(MAGIC), []
    for size in sizes:
        hashes.append(hasher(view[start : start + size]))
        start += size
    tables: list[bytes] = []
    if footer.page_tables:
        first = first_page_index(bytes(view[end:-8]))
        tables = list(encode_page_tables(view, metadata, first, end, page_rows, hasher))
    sizes += map(len, tables)
    hashes += map(hasher, tables)
    pieces = np.array(sizes, dtype="<u4").tobytes() + b"".join(hashes)
    old, new = (msgspec.json.encode(each) for each in (footer, msgspec.structs.replace(footer, pieces=pieces)))
    # SUBTLE: the last occurrence. What comes before it may hold anything (names, bounds of columns), and what comes
    # after it is only the name of the library (test_a_part_may_hold_a_copy_of_its_own_footer).
    before, _, after = bytes(view[-tail:]).rpartition(old)
    if start != end or len(new) != len(old) or not after:
        raise AssertionError("a Parquet file is not laid out as it always was")
    sealed = before + new + after
    return b"".join((view[:-tail], *tables, sealed)), sealed


def _piece_sizes(metadata: pq.FileMetaData, blooms: bool, end: int) -> Iterator[int]:
    """Yield the lengths of everything between the first magic and the tail, in the order of the file."""
    place = len(MAGIC)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [[group.column(index) for index in range(metadata.num_columns)] for group in groups]
    sizes = [int(column.total_compressed_size) for group in columns for column in group]
    if blooms:
        sizes += [sum(column.bloom_filter_length or 0 for column in group) for group in columns]
    yield from sizes
    yield end - place - sum(sizes)


# What is written how. Spark's vectorised reader, DuckDB and Polars read all of it.


@dataclass(frozen=True, slots=True)
class _Layout:
    """What is the same for all parts of a schema."""

    leaves: int
    """Column chunks per row group."""
    is_flat: bool
    """Whether no column is nested."""
    deltas: tuple[str, ...]
    """The paths of what is written as differences: integers, and what is kept as one."""
    texts: tuple[str, ...]
    """The columns that may be written with a dictionary."""
    blooms: tuple[str, ...]
    """The columns that may get a filter."""
    sorting: tuple[pq.SortingColumn, ...]
    """The order of rows as Parquet can say it: as far as the first nested column."""


@lru_cache(maxsize=64)
def _layout(schema: Schema) -> _Layout:
    columns = schema.update_arrow
    types = {field.name: field.type for field in columns}
    starts = dict(zip(types, np.cumsum((0, *leaf_counts(columns))).tolist(), strict=False))
    flat = itertools.takewhile(lambda name: not is_nested(types[name]), (*schema.order_names, *schema.time_names))
    sorting = tuple(pq.SortingColumn(starts[name], descending=False, nulls_first=True) for name in flat)
    paths = [leaf for name, type in types.items() for leaf in leaf_columns(type, name)]
    if len({path for path, _ in paths}) < len(paths):
        # The name of a column looks like the path into another one: what is meant for one would hit both.
        return _Layout(len(paths), False, (), (), (), sorting)
    return _Layout(
        leaves=len(paths),
        is_flat=not any(map(is_nested, types.values())),
        deltas=tuple(path for path, type in paths if _is_kept_as_integer(type)),
        texts=tuple(name for name, type in types.items() if pa.types.is_string(type) or pa.types.is_binary(type)),
        blooms=tuple(name for name in schema.key_names if schema.key and _has_bloom(types[name]))[:BLOOM_COLUMNS_MAX],
        sorting=sorting,
    )


def _is_kept_as_integer(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_date(type) or pa.types.is_timestamp(type))


def _has_bloom(type: pa.DataType) -> bool:
    """Tell whether values of a type can be asked for in a filter: equal ones have equal bytes, and there are many."""
    is_text = pa.types.is_string(type) or pa.types.is_binary(type)
    return bool(is_text or _is_kept_as_integer(type) or pa.types.is_decimal(type))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Tell whether most values come several times, by a sample."""
    if len(column) < DICTIONARY_ROWS_MIN:
        return False
    sample = column.slice(max(0, len(column) - DICTIONARY_SAMPLE) // 2, DICTIONARY_SAMPLE)
    return bool(pc.count_distinct(sample, mode="all").as_py() * 4 <= len(sample))


def _with_nans(table: pa.Table, schema: Schema) -> Iterator[int]:
    for field in schema.update_arrow:
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table[field.name])).as_py():
            yield schema.field(field.name).id
