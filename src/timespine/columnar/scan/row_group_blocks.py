"""Row groups of a part that are read together, and columns of them that need no read.

A block of row groups is fetched at once. The footer has the times and diffs that are the same in all rows of a row
group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.schema.schema import DIFF

BLOCK_GROUPS = 8
"""Row groups that are fetched together."""

CONSTANTS_MAX = 64
"""Columns of one value that a process keeps, of as many rows as a row group has."""


def constants_of(reader: PartReader, group: int, columns: Sequence[str]) -> dict[str, int]:
    """Return the times and diffs that are the same in all rows of a row group."""
    names = [name for name in (*reader.schema.time_names, DIFF) if name in columns]
    return {name: value for name in names if (value := reader.constant(group, name)) is not None}


@functools.lru_cache(CONSTANTS_MAX)
def constant_column(value: int, rows: int) -> pa.ChunkedArray:
    """Return a column that has one value in all rows. Many row groups share it."""
    return pa.chunked_array([pa.array(np.full(rows, value, dtype=np.int64))])


def by_columns(wanted: Mapping[int, Sequence[str]]) -> Iterable[tuple[tuple[str, ...], list[int]]]:
    """Put row groups of which the same columns are wanted together; those of which none are wanted are left out."""
    found: dict[tuple[str, ...], list[int]] = {}
    for group, names in wanted.items():
        if names:
            found.setdefault(tuple(names), []).append(group)
    return found.items()


def cut_groups(groups: list[int], reader: PartReader, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
    """Yield the row groups that are fetched together."""
    largest = max((reader.group_bytes(group) for group in groups), default=1)
    size = BLOCK_GROUPS
    while size > 1 and size * largest > chunk_bytes:
        size //= 2
    for _, block in groupby(groups, key=lambda group: group // size):
        yield tuple(block)


def table_of(reader: PartReader, names: Sequence[str], found: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """Put columns of a part together as a table."""
    written = reader.schema.update_arrow
    return pa.Table.from_arrays(
        [found[name] for name in names], schema=pa.schema([written.field(name) for name in names])
    )
