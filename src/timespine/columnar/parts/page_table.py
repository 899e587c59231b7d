"""Page tables: which bytes of a row group are which page, and what each page hashes to.

With them a lookup reads and decodes pages instead of row groups. The page table of a row group is a piece of the file
like any other, with its hash in the footer:

    rows per page, 4 bytes | lengths, 4 bytes each | hashes, 16 bytes each

Lengths and hashes are those of the pages of every column chunk, in the order of the file: of its dictionary page, with
length 0 if there is none, and then of its data pages. Page n of every column has the same rows: all pages but the last
have the same number of them. A row group whose pages are cut otherwise has an empty page table. So has every row group
of a part with nested columns, since a value of these is several in a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from timespine.columnar.parts.part_footer import HASH_BYTES, SIZE_BYTES
from timespine.columnar.parts.rewrite_parquet_footer import page_locations
from timespine.errors import CorruptionError
from timespine.libraries import pq

__all__ = ["GAP_BYTES", "PageTable", "decode_page_table", "encode_page_tables", "fetch_ranges"]

Hasher = Callable[[bytes | memoryview], bytes]
"""The function that hashes pages, as their part says (`piece_hasher`)."""

GAP_BYTES = 64 * 1024
"""Bytes between two pieces or pages that are read along with them rather than by a second request."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """Where the pages of a row group are."""

    page_rows: int
    """Rows of each page but the last one."""
    pages: int
    """Data pages of each column chunk."""
    starts: tuple[tuple[int, ...], ...]
    """For each column chunk, the bytes before each of its pages: dictionary page, data pages, and the end."""
    hashes: bytes
    """The hashes of all pages, in the same order."""

    def dictionary(self, leaf: int) -> tuple[int, int, bytes]:
        """Return where the dictionary page of a column chunk starts and stops, and its hash."""
        return self._page(leaf, 0)

    def data_page(self, leaf: int, page: int) -> tuple[int, int, bytes]:
        """Return where a data page of a column chunk starts and stops, and its hash."""
        return self._page(leaf, page + 1)

    def _page(self, leaf: int, place: int) -> tuple[int, int, bytes]:
        start, stop = self.starts[leaf][place : place + 2]
        index = leaf * (self.pages + 1) + place
        return start, stop, self.hashes[HASH_BYTES * index : HASH_BYTES * (index + 1)]


def encode_page_tables(
    file: memoryview, metadata: pq.FileMetaData, indexes: int, end: int, page_rows: int, hasher: Hasher
) -> Iterator[bytes]:
    """Yield the page table of every row group of a file, whose offset indexes lie between two places."""
    for group in range(metadata.num_row_groups):
        chunks = metadata.row_group(group)
        pages = -(-chunks.num_rows // page_rows)
        places: list[list[int]] = []
        is_regular = True
        for column in range(metadata.num_columns):
            chunk = chunks.column(column)
            located, indexes = page_locations(file, indexes)
            first = chunk.data_page_offset
            start = first if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
            places.append([start, *(offset for offset, _, _ in located), start + chunk.total_compressed_size])
            rows = [row for _, _, row in located]
            is_regular = is_regular and rows == list(range(0, chunks.num_rows, page_rows)) and located[0][0] == first
        yield _encode(file, places, pages, page_rows, hasher) if is_regular else b""
    if indexes != end:
        raise AssertionError("the offset indexes of a Parquet file are not laid out as they always were")


def _encode(file: memoryview, places: Sequence[Sequence[int]], pages: int, page_rows: int, hasher: Hasher) -> bytes:
    """Return the page table of a row group whose pages begin at these places of the file."""
    ends = np.array(places, dtype=np.int64)
    assert ends.shape[1] == pages + 2
    sizes = np.diff(ends).astype("<u4").tobytes()
    hashes = [hasher(file[start:stop]) for each in places for start, stop in pairwise(each)]
    return page_rows.to_bytes(SIZE_BYTES, "little") + sizes + b"".join(hashes)


def decode_page_table(data: bytes, rows: int, chunk_sizes: Sequence[int], what: str) -> PageTable | None:
    """Return the page table of a row group, None if it has none; the bytes of its column chunks are known."""
    if not data:
        return None
    page_rows = int.from_bytes(data[:SIZE_BYTES], "little")
    pages = -(-rows // page_rows) if page_rows else 0
    count = len(chunk_sizes) * (pages + 1)
    if not pages or len(data) != SIZE_BYTES + count * (SIZE_BYTES + HASH_BYTES):
        raise CorruptionError(f"a page table of {what} does not list the pages of {rows} rows")
    sizes = np.frombuffer(data, "<u4", count, SIZE_BYTES).reshape(len(chunk_sizes), pages + 1).tolist()
    starts = tuple(tuple(accumulate(each, initial=0)) for each in sizes)
    if [each[-1] for each in starts] != list(chunk_sizes):
        raise CorruptionError(f"the pages in a page table of {what} do not fill its column chunks")
    return PageTable(page_rows, pages, starts, data[SIZE_BYTES * (count + 1) :])


def fetch_ranges(
    wanted: Sequence[tuple[int, int, bytes]], fetch: Callable[[int, int], bytes], hasher: Hasher, what: str
) -> list[memoryview]:
    """Return the bytes of some ascending ranges, in as few requests as pays, each compared with its hash."""
    found: list[memoryview] = []
    place = 0
    while place < len(wanted):
        start, end, _ = wanted[place]
        last = place + 1
        while last < len(wanted) and wanted[last][0] - end <= GAP_BYTES:
            end = wanted[last][1]
            last += 1
        view = memoryview(fetch(start, end))
        for first, stop, wanted_hash in wanted[place:last]:
            inside = view[first - start : stop - start]
            if hasher(inside) != wanted_hash:
                raise CorruptionError(f"bytes {first} to {stop} of {what} are not what was written")
            found.append(inside)
        place = last
    return found
