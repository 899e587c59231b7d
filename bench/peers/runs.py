"""Sorted runs as plain Parquet files, compressed as ours are: what the merge kernels of peers are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_runs(folder: Path, runs: Iterator[pa.Table]) -> None:
    for number, run in enumerate(runs):
        pq.write_table(run, folder / f"run-{number:03}.parquet", compression="zstd", compression_level=1)


def row_count(file: Path) -> int:
    return pq.read_metadata(file).num_rows
