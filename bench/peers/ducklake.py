"""DuckLake: Parquet files, and a catalog in a duckdb file.

The extension comes as a wheel for one version of duckdb, mostly not the newest,
so it has an environment of its own: `python -m bench --install-ducklake`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_ducklake
import numpy as np
import pyarrow as pa

from bench.peers.system import NO_IDS, Polled, Version
from bench.rows import COLUMNS

ROWS = ", ".join(COLUMNS)


class DuckLake(Polled):
    """As it is by default: very small inserts are kept in the catalog."""

    name = "ducklake"
    kind = "table format"
    commit = "the catalog is fsynced (duckdb's log), data files are not: the catalog may name a lost file"
    one_process = "its catalog is a duckdb file, which one process at a time may open"
    packages = ("duckdb", "duckdb_extension_ducklake")
    cannot = {
        "consolidate": "a table, not a kernel",
        "merge_runs": "merge_adjacent_files concatenates and nets nothing",
        "write_runs": "a table, not a kernel",
    }

    def create(self) -> None:
        self.open()
        self._db.execute(
            "CREATE TABLE orders (id BIGINT, customer VARCHAR, total DOUBLE, created TIMESTAMP, note VARCHAR)"
        )

    def open(self) -> None:
        home = Path(str(duckdb_extension_ducklake.__file__)).parent
        (extension,) = home.glob("extensions/*/ducklake.duckdb_extension")
        self._db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self._db.execute(f"LOAD '{extension}'; SET TimeZone = 'UTC'")
        self._db.execute(
            f"ATTACH 'ducklake:{self.folder}/catalog.ducklake' AS lake (DATA_PATH '{self.folder}/data/'); USE lake"
        )

    def close(self) -> None:
        self._db.execute("USE memory; DETACH lake")
        self._db.close()

    def version(self) -> Version:
        return _latest(self._db)

    def append(self, table: pa.Table) -> None:
        _insert(self._db, table)

    def writer(self) -> Callable[[pa.Table], None]:
        own = self._db.cursor()
        own.execute("USE lake")
        return lambda table: _insert(own, table)

    def upsert(self, table: pa.Table) -> None:
        self._db.register("given", table)
        self._db.execute(
            "MERGE INTO orders USING given ON orders.id = given.id"
            " WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"
        )

    def snapshot(self, version: Version = None) -> pa.Table:
        at = "" if version is None else f" AT (VERSION => {version})"
        return self._db.execute(f"SELECT {ROWS} FROM orders{at}").to_arrow_table()

    def changes(self, after: Version, until: Version) -> pa.Table:
        return self._db.execute(
            f"""SELECT {ROWS}, if(change_type IN ('delete', 'update_preimage'), -1, 1)::BIGINT AS _diff
            FROM ducklake_table_changes('lake', 'main', 'orders', {after + 1}, {until})"""
        ).to_arrow_table()

    def lookup(self, key: int) -> list[dict[str, Any]]:
        return self._db.execute(f"SELECT {ROWS} FROM orders WHERE id = {key}").to_arrow_table().to_pylist()

    def range(self, low: int, high: int) -> pa.Table:
        return self._db.execute(f"SELECT {ROWS} FROM orders WHERE id >= {low} AND id < {high}").to_arrow_table()

    def reader(self) -> Polled:
        """Another cursor: the catalog is open already, and may be open once only."""
        another = copy.copy(self)
        another._db = self._db.cursor()
        return another

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        latest = _latest(self._db)
        if latest == after:
            return after, NO_IDS
        feed = f"SELECT id FROM ducklake_table_insertions('lake', 'main', 'orders', {after + 1}, {latest})"
        return latest, self._db.execute(feed).to_arrow_table().column("id").to_numpy()

    def compact(self) -> None:
        self._db.execute("CALL ducklake_flush_inlined_data('lake')")
        self._db.execute("CALL ducklake_rewrite_data_files('lake', 'orders', delete_threshold => 0)")
        self._db.execute("CALL ducklake_merge_adjacent_files('lake')")

    def expire(self) -> None:
        self._db.execute("CALL ducklake_expire_snapshots('lake', older_than => now())").to_arrow_table()
        self._db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)").to_arrow_table()


def _latest(db: duckdb.DuckDBPyConnection) -> int:
    ((latest,),) = db.execute("SELECT id FROM lake.current_snapshot()").fetchall()
    return int(latest)


def _insert(db: duckdb.DuckDBPyConnection, table: pa.Table) -> None:
    db.register("given", table)
    db.execute(f"INSERT INTO orders SELECT {ROWS} FROM given")
