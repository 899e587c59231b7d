"""Timespine, by its public API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.peers.system import NO_IDS, System, Version
from bench.rows import COLUMNS
from timespine.config import Config

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": pa.timestamp("us"), "note": "string"}
NAME = "orders"
PATIENCE_S = 30.0

MERGE_SHARE, PART_SHARE = 5, 20
"""What a merge of a process with some memory is told to use, as fractions of it: for the rows in it, and for a part.

A writer has up to seven parts in memory (see `columnar.write.run_writer`), so that rows take 55 % of the memory. The
rest is for the interpreter and its libraries, footers, and what allocators keep.
"""

_ = ts.open  # without it there is nothing to measure, and the probe says so


def config_for_memory(memory_mb: int) -> Config:
    """Bound what merges hold, so that their process stays within some memory."""
    memory_bytes = memory_mb << 20
    return Config(merge_bytes=memory_bytes // MERGE_SHARE, part_bytes=memory_bytes // PART_SHARE)


class Ours(System):
    """Background maintenance as it is by default, except where a work is about its absence."""

    name = "ours"
    kind = "ours"
    commit = "blob, folder and consensus (SQLite) are fsynced"
    packages = ("pyarrow", "polars", "numpy")

    _maintenance = True

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"timespine": ts.__version__, **super().versions()}

    def create(self) -> None:
        self._store = ts.open(self.folder / "store", maintenance=self._maintenance)
        self._orders = self._store.create(NAME, key=KEY, value=VALUE)

    def open(self) -> None:
        self._store = ts.open(self.folder / "store", maintenance=self._maintenance)
        self._orders = self._store[NAME]
        self.version()

    def close(self) -> None:
        self._store.close()

    def version(self) -> Version:
        ((upper,),) = self._orders.upper
        return upper - 1

    def append(self, table: pa.Table) -> None:
        self._orders.append(table)

    def upsert(self, table: pa.Table) -> None:
        self._orders.upsert(table)

    def snapshot(self, version: Version = None) -> pa.Table:
        return self._orders.snapshot(as_of=version).to_arrow()

    def changes(self, after: Version, until: Version) -> pa.Table:
        return self._orders.changes(after=after, until=until).to_arrow()

    def lookup(self, key: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._orders.lookup({"id": key}).to_pylist()
        return found

    def range(self, low: int, high: int) -> pa.Table:
        return self._orders.snapshot(where=f"id >= {low} AND id < {high}").to_arrow()

    def feed(self, stop: threading.Event) -> Iterator[np.ndarray]:
        with self._orders.subscribe(snapshot=False, timeout=PATIENCE_S) as events:
            yield NO_IDS
            for event in events:
                if event.rows is not None:
                    yield event.rows.column("id").to_numpy()

    def compact(self) -> None:
        self._orders.compact(wait=True)

    def expire(self) -> None:
        self._orders.expire(before=self.version())

    def maintain(self) -> None:
        """It does that by itself."""

    def background(self, on: bool) -> None:
        self._maintenance = on

    def consolidate(self, updates: pa.Table) -> pa.Table:
        """The kernel that every append and merge goes through; not a name that users see."""
        from timespine.columnar.kernels.consolidate import consolidate

        return consolidate(updates, [*COLUMNS, "_time"])

    def write_runs(self, runs: Iterator[pa.Table]) -> None:
        with ts.open(self.folder / "store", maintenance=False) as store:
            orders = store.create(NAME, key=KEY, value=VALUE, timeline="counter")
            for run in runs:
                orders.append(run)

    def merge_runs(self, memory_mb: int) -> int:
        """Rows of old times net once expired."""
        with ts.open(self.folder / "store", maintenance=False, config=config_for_memory(memory_mb)) as store:
            self._orders = store[NAME]
            self.expire()
            self._orders.compact(wait=True)
            return self._orders.count()
