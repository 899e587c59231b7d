"""Polars and plain Parquet files, with the smallest log that makes versions of them.

Line n of `log` says which files version n adds and removes. An upsert writes
the whole table again: without a table format there is no cheaper way.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from bench.peers.runs import row_count, write_runs
from bench.peers.system import NO_IDS, Polled, Version
from bench.rows import COLUMNS, SCHEMA

Entry = dict[str, list[str]]
UPDATES = [*COLUMNS, "_time"]


class PolarsFiles(Polled):
    """Copy on write, by hand."""

    name = "polars"
    kind = "files"
    commit = "file, folder and log are fsynced"
    packages = ("polars",)

    def create(self) -> None:
        (self.folder / "log").touch()
        self.open()

    def open(self) -> None:
        self._turn = threading.Lock()
        self._log = (self.folder / "log").open("ab")
        self._entries: list[Entry] = []
        self._live: list[str] = []
        self._read_to = 0
        self._read_log()

    def close(self) -> None:
        self._log.close()

    def version(self) -> Version:
        return len(self._entries)

    def append(self, table: pa.Table) -> None:
        added = self._write(pl.from_arrow(table))
        with self._turn:
            self._commit({"add": [added], "remove": []})

    def upsert(self, table: pa.Table) -> None:
        given = pl.from_arrow(table)
        assert isinstance(given, pl.DataFrame)
        old = list(self._live)
        kept = self._scan(old).join(given.lazy(), on="id", how="anti")
        added = self._write(pl.concat([kept, given.lazy()]).collect())
        self._commit({"add": [added], "remove": old})

    def snapshot(self, version: Version = None) -> pa.Table:
        return self._scan(self._live if version is None else self._files_at(version)).collect().to_arrow()

    def changes(self, after: Version, until: Version) -> pa.Table:
        """The whole of both versions compared: there is nothing that says what changed."""
        old, new = self._scan(self._files_at(after)), self._scan(self._files_at(until))
        gone = old.join(new, on=COLUMNS, how="anti", nulls_equal=True).with_columns(_diff=pl.lit(-1, pl.Int64))
        came = new.join(old, on=COLUMNS, how="anti", nulls_equal=True).with_columns(_diff=pl.lit(1, pl.Int64))
        return pl.concat([gone, came]).collect().to_arrow()

    def lookup(self, key: int) -> list[dict[str, Any]]:
        return self._scan(self._live).filter(pl.col("id") == key).collect().to_arrow().to_pylist()

    def range(self, low: int, high: int) -> pa.Table:
        return self._scan(self._live).filter(pl.col("id") >= low, pl.col("id") < high).collect().to_arrow()

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        self._read_log()
        latest = len(self._entries)
        new = [each for entry in self._entries[after:] for each in entry["add"]]
        if not new:
            return latest, NO_IDS
        return latest, self._scan(new).select("id").collect().get_column("id").to_numpy()

    def compact(self) -> None:
        old = list(self._live)
        if len(old) > 1:
            added = self._write(self._scan(old).collect())
            self._commit({"add": [added], "remove": old})

    def expire(self) -> None:
        live = set(self._live)
        for path in self.folder.glob("*.parquet"):
            if path.name not in live:
                path.unlink()

    def consolidate(self, updates: pa.Table) -> pa.Table:
        given = pl.from_arrow(updates)
        assert isinstance(given, pl.DataFrame)
        summed = given.lazy().group_by(UPDATES).agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0)
        return summed.sort(UPDATES, nulls_last=False).collect(engine="streaming").to_arrow()

    def write_runs(self, runs: Iterator[pa.Table]) -> None:
        write_runs(self.folder, runs)

    def merge_runs(self, memory_mb: int) -> int:
        """Streaming, with no way to bound its memory: the peak says what it took."""
        runs = pl.scan_parquet(self.folder / "run-*.parquet")
        summed = runs.group_by(COLUMNS).agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0)
        merged = self.folder / "merged.parquet"
        summed.sort(COLUMNS, nulls_last=False).sink_parquet(merged, compression="zstd", compression_level=1)
        return row_count(merged)

    def _scan(self, files: list[str]) -> pl.LazyFrame:
        if not files:
            empty = pl.from_arrow(SCHEMA.empty_table())
            assert isinstance(empty, pl.DataFrame)
            return empty.lazy()
        return pl.scan_parquet([self.folder / each for each in files])

    def _write(self, frame: pl.DataFrame | pl.Series) -> str:
        assert isinstance(frame, pl.DataFrame)
        name = f"{uuid.uuid4().hex}.parquet"
        with (self.folder / name).open("wb") as file:
            frame.write_parquet(file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.folder)
        return name

    def _commit(self, entry: Entry) -> None:
        self._log.write(json.dumps(entry).encode() + b"\n")
        self._log.flush()
        os.fsync(self._log.fileno())
        self._read_log()

    def _read_log(self) -> None:
        """What this and other processes committed since it was read last."""
        with (self.folder / "log").open("rb") as log:
            log.seek(self._read_to)
            for line in log:
                entry: Entry = json.loads(line)
                self._entries.append(entry)
                self._live = _after(self._live, entry)
            self._read_to = log.tell()

    def _files_at(self, version: int) -> list[str]:
        return functools.reduce(_after, self._entries[:version], [])


def _after(files: list[str], entry: Entry) -> list[str]:
    if not entry["remove"]:
        return [*files, *entry["add"]]
    removed = set(entry["remove"])
    return [each for each in files if each not in removed] + entry["add"]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
