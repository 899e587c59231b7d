"""Make a part of row groups of other parts, without decoding them.

A merge that changes few row groups of a part writes these anew and copies the others: their bytes, compared with their
hashes, their Bloom filters and their column indexes as they are. What says where something is in the file is written
anew: offsets in the footer and in the offset indexes. What the state knows of the part is put together from what the
footers say of each row group. So a copied row group costs a read, a hash and a write, and no codec.

No column may be nested: of nested ones, a footer does not say how many values are null. And the row groups come from
parts that have each row once (`PartMeta.repeats` is 0), or are whole parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels.key_encoding import encode_row, truncate_lower, truncate_upper
from timespine.columnar.parts.part_footer import FOOTER_KEY, FORMAT_VERSION, MAGIC, Footer, hash_of, piece_hasher
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.parts.part_stats import (
    BOUND_BYTES_MAX,
    PartMeta,
    Range,
    diff_sum_of,
    ends_of,
    keep_within_budget,
    stats_to_keep,
)
from timespine.columnar.parts.part_writer import EncodedPart
from timespine.columnar.parts.rewrite_parquet_footer import (
    FileBytes,
    Offset,
    move_page_index,
    parse_footer,
    write_footer,
)
from timespine.columnar.schema.schema import DIFF
from timespine.config import Config
from timespine.core.batch import wrap_int64
from timespine.errors import UsageError


@dataclass(frozen=True)
class RowGroups:
    """Adjacent row groups of an open part."""

    reader: PartReader
    """The part."""
    meta: PartMeta
    """What the state knows of it."""
    groups: range
    """The places of the row groups."""
    file: FileBytes
    """The footer of the part, with these row groups."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """About how many bytes the rows of each row group take in memory."""
        return tuple(self.reader.group_bytes(group) for group in self.groups)

    @cached_property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(self.reader.group_rows(group) for group in self.groups)

    def take(self, groups: range) -> RowGroups:
        """Return some of them, by their places in the part."""
        start = self.groups.start
        inside = self.file.groups[groups.start - start : groups.stop - start]
        return RowGroups(self.reader, self.meta, groups, replace(self.file, groups=inside))

    def count(self, total: int | None) -> int | None:
        """Return how many of something they have, given how many the part has; None if that is unknown."""
        return total if total == 0 or len(self.groups) == self.reader.groups else None

    @property
    def ends_part(self) -> bool:
        """Whether no row group of the part comes after these."""
        return self.groups.stop == self.reader.groups


def row_groups(reader: PartReader, meta: PartMeta, config: Config) -> RowGroups | None:
    """Return all row groups of a part, to be copied; None if the footer of the part is not as we write it today.

    SUBTLE: a footer names one hash for all of its pieces, so those of another hash are not copied
    (test_row_groups_with_another_hash_are_not_copied).
    """
    if reader.footer.piece_hash != config.piece_hash:
        return None
    try:
        file = parse_footer(reader.fetch_footer())
    except ValueError:
        return None
    return RowGroups(reader, meta, range(reader.groups), file) if len(file.groups) == reader.groups else None


def join_row_groups(
    spans: Sequence[RowGroups], collection: str, schema_id: int, name: str, config: Config
) -> EncodedPart:
    """Return a sorted part of row groups that come one after the other, each row once."""
    lowers = _lowers(spans)
    chunks, chunk_pieces = _chunks(spans)
    hasher = piece_hasher(config.piece_hash)
    blooms, bloom_pieces = _blooms(spans, hasher(b""))
    index_start = len(MAGIC) + sum(map(len, chunks)) + sum(map(len, blooms))
    groups, indexes = _move(spans, index_start)
    tables = _page_tables(spans)
    pieces = [*chunk_pieces, *bloom_pieces, *((len(each), hasher(each)) for each in (indexes, *tables))]
    footer = Footer(
        version=FORMAT_VERSION,
        collection=collection,
        part=name,
        schema=schema_id,
        rows=sum(span.rows for span in spans),
        sorted=True,
        decoded=tuple(size for span in spans for size in span.sizes),
        pieces=np.array([size for size, _ in pieces], dtype="<u4").tobytes() + b"".join(hash for _, hash in pieces),
        blooms=bool(bloom_pieces),
        nans=tuple(sorted({id for span in spans for id in span.reader.footer.nans})),
        lowers=tuple(lowers),
        page_tables=bool(tables),
        piece_hash=config.piece_hash,
    )
    text = msgspec.json.encode(footer).decode()
    thrift = write_footer(spans[0].file, footer.rows, groups, (FOOTER_KEY, text))
    tail = thrift + len(thrift).to_bytes(4, "little") + MAGIC
    data = b"".join((MAGIC, *chunks, *blooms, indexes, *tables, tail))
    if len(data) > config.object_bytes_max or footer.rows > config.part_rows_max:
        raise UsageError(f"part {name} would have {len(data)} bytes and {footer.rows} rows, more than it may")
    trimmed: list[int] = []
    meta = _describe(spans, lowers[0], config, trimmed)
    meta = msgspec.structs.replace(meta, tail=len(tail), tail_hash=hash_of(tail))
    return EncodedPart(data, meta, footer.rows, wrap_int64(sum(map(_diff_sum, spans))), sum(trimmed), None)


def _lowers(spans: Sequence[RowGroups]) -> list[bytes]:
    """Return where row groups begin: as many bytes as tell a row from the one before it.

    SUBTLE: the first row of a part was cut without regard to a row before it. What comes before it now is before the
    row group that followed in its own part, whose lower therefore tells how many bytes are needed. The first row is at
    or after that lower, or it would have been merged into what comes before (test_copied_groups.py).
    """
    lowers: list[bytes] = []
    before: RowGroups | None = None
    for span in spans:
        own = list(span.reader.footer.lowers[span.groups.start : span.groups.stop])
        needed = 0 if before is None or before.ends_part else len(before.reader.footer.lowers[before.groups.stop])
        if needed > len(own[0]):
            first = span.reader.read((span.groups.start,))
            own[0] = encode_row(first, 0, span.reader.schema.order_names, needed)[:needed]
        lowers += own
        before = span
    return lowers


def _chunks(spans: Sequence[RowGroups]) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Return the column chunks of each span as they are, and the length and the hash of each."""
    pieces = [(span.reader, span.reader.chunk_pieces(span.groups)) for span in spans]
    return (
        [reader.fetch_pieces(inside) for reader, inside in pieces],
        [each for reader, inside in pieces for each in reader.piece_hashes(inside)],
    )


def _blooms(spans: Sequence[RowGroups], empty: bytes) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Return the Bloom filters of all row groups, empty for those that have none, with the hash `empty`; nothing if
    none has any."""
    if not any(span.reader.footer.blooms for span in spans):
        return [], []
    data, hashes = [], []
    for span in spans:
        pieces = span.reader.bloom_pieces(span.groups)
        data.append(span.reader.fetch_pieces(pieces))
        hashes += span.reader.piece_hashes(pieces) or [(0, empty)] * len(span.groups)
    return data, hashes


def _page_tables(spans: Sequence[RowGroups]) -> list[bytes]:
    """Return the page tables of all row groups, empty for those that have none; nothing if none has any."""
    tables = [span.reader.fetch_page_table(group) for span in spans for group in span.groups]
    return tables if any(tables) else []


def _move(spans: Sequence[RowGroups], index_start: int) -> tuple[list[bytes], bytes]:
    """Return the row groups of the new footer, and the page indexes, which start there."""
    shifts = _shifts(spans)
    parsed = [group for span in spans for group in span.file.groups]
    # By identity: rows that were encoded for this part have its key, as often as they come.
    known = {
        id(reader): reader.fetch_page_indexes() for reader in {id(span.reader): span.reader for span in spans}.values()
    }
    readers = [span.reader for span in spans for _ in span.groups]
    columns, locations = [], []
    for reader, group, (chunk_shift, _) in zip(readers, parsed, shifts, strict=True):
        start, data = known[id(reader)]
        for column_place, column_size, place, size in group.indexes:
            columns.append(data[column_place - start : column_place - start + column_size] if column_size else b"")
            locations.append(move_page_index(data[place - start : place - start + size], chunk_shift))
    places = np.cumsum([index_start, *map(len, columns), *map(len, locations)]).tolist()
    moved = []
    done = 0
    for ordinal, (group, (chunk_shift, bloom_shift)) in enumerate(zip(parsed, shifts, strict=True)):
        numbers = []
        for each in group.places:
            chunk = done + each.column
            if each.what is Offset.PAGES:
                numbers.append(each.number + chunk_shift if each.number else 0)
            elif each.what is Offset.BLOOM:
                numbers.append(each.number + bloom_shift)
            elif each.what is Offset.COLUMN_INDEX:
                numbers.append(places[chunk])
            elif each.what is Offset.PAGE_INDEX:
                numbers.append(places[len(columns) + chunk])
            elif each.what is Offset.PAGE_INDEX_BYTES:
                numbers.append(len(locations[chunk]))
            else:
                numbers.append(ordinal)
        moved.append(group.moved(numbers))
        done += len(group.indexes)
    return moved, b"".join((*columns, *locations))


def _shifts(spans: Sequence[RowGroups]) -> list[tuple[int, int]]:
    """Return by how many bytes each row group moves, and its Bloom filters."""
    chunks = [span.reader.piece_bytes(span.reader.chunk_pieces(span.groups)) for span in spans]
    blooms = [span.reader.piece_bytes(span.reader.bloom_pieces(span.groups)) for span in spans]
    place, shifts = len(MAGIC), []
    for start, stop in (*chunks, *blooms):
        shifts.append(place - start)
        place += stop - start
    pairs = zip(spans, shifts[: len(spans)], shifts[len(spans) :], strict=True)
    return [(chunk, bloom) for span, chunk, bloom in pairs for _ in span.groups]


# What the state knows of the part, without a look at its rows.


def _describe(spans: Sequence[RowGroups], lower: bytes, config: Config, trimmed: list[int]) -> PartMeta:
    schema = spans[0].reader.schema
    bound_bytes = min(config.bound_bytes, BOUND_BYTES_MAX)
    each = [(span.reader, group) for span in spans for group in span.groups]
    times = [_integers(each, name) for name in schema.time_names]
    min_diff, max_diff = _integers(each, DIFF)
    ranges = {name: _cover(each, name) for name in schema.names}
    return PartMeta(
        tail=0,
        tail_hash=b"",
        lower=truncate_lower(lower, bound_bytes),
        upper=_upper(spans[-1], bound_bytes),
        min_time=tuple(low for low, _ in times),
        max_time=tuple(high for _, high in times),
        min_diff=min_diff,
        max_diff=max_diff,
        columns=keep_within_budget(
            schema,
            {name: range for name, range in ranges.items() if range is not None},
            config.stats_bytes,
            stats_to_keep(config.stats_always_keep),
            trimmed,
        ),
        row_bytes=sum(size for span in spans for size in span.sizes),
        repeats=_total([span.count(span.meta.repeats) for span in spans]),
        negatives=_total([span.count(span.meta.negatives) for span in spans]) if min_diff < 0 else 0,
    )


def _upper(last: RowGroups, bound_bytes: int) -> bytes | None:
    """Return a bound of the last row.

    SUBTLE: where the next row group begins would be a bound too, but not one before the next part: then two parts
    of a run could share a row, and no reader would scan them without a merge (test_copied_groups.py).
    """
    if last.ends_part:
        return last.meta.upper
    table = last.reader.read((last.groups[-1],))
    return truncate_upper(ends_of(table, last.reader.schema, bound_bytes)[1], bound_bytes)


def _integers(groups: Sequence[tuple[PartReader, int]], name: str) -> tuple[int, int]:
    """Return the smallest and the largest value of a column of integers that are never null."""
    ends = [reader.group_ends(group, name) for reader, group in groups]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _cover(groups: Sequence[tuple[PartReader, int]], name: str) -> Range | None:
    """Return what is known of a column in all of these row groups; None if that is nothing."""
    nulls = 0
    lowers: list[bytes | None] = []
    uppers: list[bytes | None] = []
    for reader, group in groups:
        known = reader.group_ranges(group).get(name)
        if known is None:
            return None
        nulls += known.nulls
        if known.nulls < reader.group_rows(group):  # without values there are no bounds, and none are needed
            lowers.append(known.lower)
            uppers.append(known.upper)
    lower = min((each for each in lowers if each is not None), default=None)
    upper = max((each for each in uppers if each is not None), default=None)
    return Range(None if None in lowers else lower, None if None in uppers else upper, nulls)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _diff_sum(span: RowGroups) -> int:
    low, high = _integers([(span.reader, group) for group in span.groups], DIFF)
    return low * span.rows if low == high else diff_sum_of(span.reader.read(tuple(span.groups), (DIFF,)))
