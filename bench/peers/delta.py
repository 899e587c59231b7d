"""Delta Lake, by the deltalake package (delta-rs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake

from bench.peers.system import NO_IDS, Polled, Version
from bench.rows import COLUMNS, SCHEMA

RETRIES = 1_000


class Delta(Polled):
    """The change data feed is on, or there would be no changes to read; it costs the merge some writing."""

    name = "deltalake"
    kind = "table format"
    commit = "data and log are renamed into place, neither is fsynced: lost with the power"
    packages = ("deltalake",)
    cannot = {
        "consolidate": "a table, not a kernel",
        "merge_runs": "optimize concatenates files and nets nothing",
        "write_runs": "a table, not a kernel",
    }

    def create(self) -> None:
        DeltaTable.create(str(self._uri), SCHEMA, configuration={"delta.enableChangeDataFeed": "true"})
        self.open()

    def open(self) -> None:
        self._table = DeltaTable(str(self._uri))

    def close(self) -> None:
        del self._table

    def version(self) -> Version:
        return self._table.version()

    def append(self, table: pa.Table) -> None:
        write_deltalake(self._table, table, mode="append")

    def writer(self) -> Callable[[pa.Table], None]:
        own = DeltaTable(str(self._uri))
        patient = CommitProperties(max_commit_retries=RETRIES)
        return lambda table: write_deltalake(own, table, mode="append", commit_properties=patient)

    def upsert(self, table: pa.Table) -> None:
        merger = self._table.merge(table, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def snapshot(self, version: Version = None) -> pa.Table:
        at = self._table if version is None else DeltaTable(str(self._uri), version=version)
        return _query(at, "SELECT * FROM t")

    def changes(self, after: Version, until: Version) -> pa.Table:
        feed = pa.table(self._table.load_cdf(after + 1, until).read_all())
        retracted = np.isin(feed.column("_change_type").to_numpy(), ["delete", "update_preimage"])
        return feed.select(COLUMNS).append_column("_diff", pa.array(np.where(retracted, -1, 1)))

    def lookup(self, key: int) -> list[dict[str, Any]]:
        return _query(self._table, f"SELECT * FROM t WHERE id = {key}").to_pylist()

    def range(self, low: int, high: int) -> pa.Table:
        return _query(self._table, f"SELECT * FROM t WHERE id >= {low} AND id < {high}")

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        self._table.update_incremental()
        latest = self._table.version()
        if latest == after:
            return after, NO_IDS
        feed = pa.table(self._table.load_cdf(after + 1, latest, columns=["id"]).read_all())
        return latest, feed.column("id").to_numpy()

    def compact(self) -> None:
        self._table.optimize.compact()

    def expire(self) -> None:
        self._table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        self._table.create_checkpoint()
        self._table.cleanup_metadata()

    @property
    def _uri(self) -> str:
        return str(self.folder / "table")


def _query(table: DeltaTable, sql: str) -> pa.Table:
    """By its own engine: ten times as fast for one row as `to_pyarrow_table` with a filter."""
    return pa.table(QueryBuilder().register("t", table).execute(sql).read_all())
