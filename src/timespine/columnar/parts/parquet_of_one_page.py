"""Make a Parquet file of one page of some columns, so that a library that decodes row groups decodes one page.

The pages are those of another file, as they are. The footer is written here: one row group, with column chunks of one
data page and perhaps a dictionary page. Columns that are not wanted have empty column chunks, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timespine.columnar.parts.part_footer import MAGIC
from timespine.columnar.parts.rewrite_parquet_footer import write_row_group
from timespine.libraries import pq

__all__ = ["ChunkPages", "page_file"]


class ChunkPages(NamedTuple):
    """The pages of one column that a file is made of."""

    dictionary: memoryview
    """The dictionary page; empty if there is none."""
    page: memoryview
    """The data page."""


def page_file(
    schema: bytes, chunks: Sequence[pq.ColumnChunkMetaData], pages: dict[int, ChunkPages], rows: int
) -> bytes:
    """Return a file with these pages, by the place of their column.

    `schema` is how the footer of the other file begins, and `chunks` says how its columns are stored.
    """
    data: list[bytes | memoryview] = [MAGIC]
    place = len(MAGIC)
    columns = []
    for leaf, chunk in enumerate(chunks):
        sizes = (0, 0)
        if leaf in pages:
            data += pages[leaf]
            sizes = (pages[leaf].dictionary.nbytes, pages[leaf].page.nbytes)
        columns.append((chunk, place, *sizes))
        place += sum(sizes)
    footer = schema + write_row_group(columns, rows)
    return b"".join((*data, footer, len(footer).to_bytes(4, "little"), MAGIC))
