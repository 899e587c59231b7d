"""Apache Iceberg, by pyiceberg with its SQL catalog on SQLite."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from bench.peers.system import NO_IDS, Polled, Version
from bench.rows import SCHEMA

NAME = "bench.orders"
ATTEMPTS = 200


class Iceberg(Polled):
    """Copy on write, as pyiceberg does it. A commit that lost to another is tried again here, as its manual says."""

    name = "pyiceberg"
    kind = "table format"
    commit = "the catalog is fsynced (SQLite), data and metadata files are not: the catalog may name a lost file"
    packages = ("pyiceberg",)
    cannot = {
        "changes": "reads no changes, only appended files",
        "compact": "has no compaction",
        "consolidate": "a table, not a kernel",
        "merge_runs": "has no compaction",
        "write_runs": "a table, not a kernel",
    }

    def create(self) -> None:
        catalog = self._catalog()
        catalog.create_namespace("bench")
        self._table = catalog.create_table(NAME, schema=SCHEMA)

    def open(self) -> None:
        self._table = self._catalog().load_table(NAME)

    def close(self) -> None:
        self._table.catalog.close()

    def version(self) -> Version:
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def append(self, table: pa.Table) -> None:
        self._table.append(table)

    def writer(self) -> Callable[[pa.Table], None]:
        own = self._catalog().load_table(NAME)
        return lambda table: _append_again(own, table)

    def upsert(self, table: pa.Table) -> None:
        self._table.upsert(table, join_cols=["id"])

    def snapshot(self, version: Version = None) -> pa.Table:
        return self._table.scan(snapshot_id=version).to_arrow()

    def lookup(self, key: int) -> list[dict[str, Any]]:
        return self._table.scan(row_filter=f"id = {key}").to_arrow().to_pylist()

    def range(self, low: int, high: int) -> pa.Table:
        return self._table.scan(row_filter=f"id >= {low} and id < {high}").to_arrow()

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        self._table.refresh()
        latest = self.version()
        if latest == after:
            return after, NO_IDS
        scan = self._table.incremental_append_scan(from_snapshot_id_exclusive=after, selected_fields=("id",))
        return latest, scan.to_arrow().column("id").to_numpy()

    def expire(self) -> None:
        current = self.version()
        old = [each.snapshot_id for each in self._table.snapshots() if each.snapshot_id != current]
        self._table._maintenance.expire_snapshots().by_ids(old).commit()

    def _catalog(self) -> SqlCatalog:
        place = self.folder.resolve()
        return SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")


def _append_again(table: Table, rows: pa.Table) -> None:
    for attempt in range(ATTEMPTS):
        try:
            table.append(rows)
            return
        except CommitFailedException:
            time.sleep(0.001 * min(attempt, 20))
            table.refresh()
    raise CommitFailedException(f"lost {ATTEMPTS} times")
