"""Bulk load: an existing Parquet or Delta table becomes a collection, at the speed of the disk.

Files are read and parts are written as streams; memory stays within the bound of
a few parts. All rows appear at once, at one time, in one commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timespine.client.access import Access
from timespine.client.writer import Writer
from timespine.client.writing import Committed
from timespine.columnar.rows import updates
from timespine.core.hollow import HollowBatch
from timespine.core.transitions import AppendNext
from timespine.errors import UsageError

BATCH_ROWS = 262_144
"""Rows that are taken over at once."""

Progress = Callable[[int], None]
"""Called with the number of rows taken over so far."""


def source_of(path: str | os.PathLike[str]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the rows of a Parquet file, a folder of them, or a Delta table."""
    root = Path(path)
    if (root / "_delta_log").is_dir():
        return _delta(root)
    files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    if not files:
        raise UsageError(f"there is no Parquet file at {root}")
    try:
        schema = pq.read_schema(files[0])
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{files[0].name} is not a Parquet file that can be read") from error
    return schema.remove_metadata(), _batches(files)


def _batches(files: list[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                yield from opened.iter_batches(BATCH_ROWS)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{file.name} cannot be read as Parquet: {type(error).__name__}") from error


def _delta(root: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise UsageError("to load a Delta table, install deltalake: pip install deltalake") from error
    reader = pa.RecordBatchReader.from_stream(DeltaTable(str(root)).to_pyarrow_dataset().scanner().to_reader())
    return reader.schema, iter(reader)


def load(access: Access, batches: Iterator[pa.RecordBatch], progress: Progress | None = None) -> Committed:
    """Append all rows at the next free time, as one commit."""
    state = access.known()
    _, schema = access.schema(state)
    if schema.arity != 1:
        raise UsageError("a bulk load needs totally ordered times")
    at = max(access.next_time(), state.upper.elements[0][0] if state.upper.elements else 0)
    writer = Writer(access)
    rows = 0
    with writer.builder((at,)) as builder:
        for batch in batches:
            builder.add(updates(pa.Table.from_batches([batch]), schema, (at,)))
            rows += batch.num_rows
            if progress is not None:
                progress(rows)
        built: HollowBatch = builder.finish(type(state.upper).at(at + 1))
    try:
        (reply,) = access.committer.commit(
            (access.id, AppendNext(built, at, None, "load", access.config.inline_total_bytes))
        )
    except UsageError:
        writer.delete(built)
        raise
    return Committed(reply.time, reply.upper, int(np.int64(built.len)))
