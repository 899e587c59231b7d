"""Rows of files and readers in batches of bounded size, however large they decode.

A Parquet file of a kilobyte may hold gigabytes: a long value in a dictionary, and a million references to it. So
texts behind a dictionary are read as references and decoded a bounded number of bytes at a time. For all other
columns the footer has the number of bytes, which determines how many rows to read at once within the bound. A
batch has at least one row: a row is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from timespine.errors import UsageError
from timespine.libraries import pc, pq

BATCH_ROWS = 262_144
"""Most rows of a batch."""

BATCH_BYTES = 16 << 20
"""About the most bytes of a batch in memory, if it has more than one row."""

VALUE_BYTES_MAX = 1 << 28
"""Most bytes of one value in a file. Larger values raise an error before they are decoded."""

READ_BYTES = 1 << 20
"""Bytes of one column that are read at once."""

DELTA_ROWS = 1024
"""Rows of a batch with delta encodings of texts, whose decoded size no footer tells."""

_REFERENCES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_DELTAS = {"DELTA_BYTE_ARRAY"}


def file_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Read the rows of a Parquet file, in batches of at most about BATCH_BYTES."""
    return parquet_batches(lambda: file, file.name)


def parquet_batches(source: Callable[[], Path | pa.NativeFile], name: str) -> Iterator[pa.RecordBatch]:
    """Read the rows of Parquet data, in batches of at most about BATCH_BYTES. The source is opened twice."""
    # SUBTLE: Arrow's default would keep the bytes of the whole file in memory during the read (test_bulk_load.py).
    with pq.ParquetFile(source(), pre_buffer=False, buffer_size=READ_BYTES) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        texts = [field.name for field in schema if _is_text(field.type)]
    rows, referred = _plan_batches(metadata, set(texts), name)
    with pq.ParquetFile(source(), pre_buffer=False, buffer_size=READ_BYTES, read_dictionary=referred) as opened:
        for batch in opened.iter_batches(rows):
            yield from split_to_bound(batch, {name: schema.field(name).type for name in referred})


def split_to_bound(batch: pa.RecordBatch, decoded: dict[str, pa.DataType] | None = None) -> Iterator[pa.RecordBatch]:
    """Slice a batch into batches of at most about BATCH_BYTES; decode `decoded` columns to these types."""
    decoded = decoded or {}
    if batch.num_rows == 0:
        return
    referred = [column for column in batch.columns if _is_referred(column.type)]
    plain = sum(column.nbytes for column in batch.columns if not _is_referred(column.type))
    ends = np.full(batch.num_rows, plain // batch.num_rows + 1).cumsum()
    for column in referred:
        lengths = pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0)
        ends += lengths.to_numpy(zero_copy_only=False).astype(np.int64).cumsum()
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + BATCH_BYTES, side="right")), start + 1)
        yield _decode_references(batch.slice(start, stop - start), decoded)
        start = stop


def _decode_references(batch: pa.RecordBatch, decoded: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Decode some columns from references to values."""
    columns = [
        column.cast(decoded[name]) if name in decoded else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plan_batches(metadata: pq.FileMetaData, texts: set[str], name: str) -> tuple[int, list[str]]:
    """Decide how many rows of a file to read at once, and which columns as references."""
    rows = BATCH_ROWS
    referred: dict[str, None] = {}
    for group in (metadata.row_group(index) for index in range(metadata.num_row_groups)):
        row_bytes = 0.0
        for chunk in (group.column(index) for index in range(group.num_columns)):
            encodings = set(chunk.encodings)
            size = chunk.total_uncompressed_size
            if size > VALUE_BYTES_MAX * max(chunk.num_values, 1):
                raise UsageError(
                    f"column {chunk.path_in_schema} of {name} has values of more than {VALUE_BYTES_MAX} bytes: "
                    "split them before they are loaded"
                )
            if encodings & _REFERENCES and chunk.path_in_schema in texts:
                referred[chunk.path_in_schema] = None
            elif encodings & _DELTAS:
                rows = min(rows, DELTA_ROWS)
            row_bytes += size / max(group.num_rows, 1)
        rows = min(rows, max(int(BATCH_BYTES / max(row_bytes, 1)), 1))
    return rows, list(referred)


def _is_referred(type: pa.DataType) -> bool:
    """Return whether a column holds references to texts."""
    return bool(pa.types.is_dictionary(type)) and _is_text(type.value_type)


def _is_text(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type)
        or pa.types.is_binary(type)
        or pa.types.is_large_string(type)
        or pa.types.is_large_binary(type)
    )
