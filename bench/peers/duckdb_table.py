"""DuckDB: a native table, and beside it a log of updates that we write in the same transaction.

This is what a careful person builds without us: the table serves the latest
rows, the log serves changes and undoes them for an older version. One process.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.peers.runs import row_count, write_runs
from bench.peers.system import Polled, Version
from bench.rows import COLUMNS

ROWS = ", ".join(COLUMNS)
TYPES = "id BIGINT, customer VARCHAR, total DOUBLE, created TIMESTAMP, note VARCHAR"


class DuckTable(Polled):
    """No index unless a work asks for one: it would make the upserts slower."""

    name = "duckdb"
    kind = "database"
    commit = "the write-ahead log is fsynced (fdatasync)"
    one_process = "one process at a time may open the file"
    packages = ("duckdb",)

    def create(self) -> None:
        self._connect()
        self._db.execute(f"CREATE TABLE orders ({TYPES}); CREATE TABLE log (_time BIGINT, _diff BIGINT, {TYPES})")

    def open(self) -> None:
        self._connect()
        ((self._time,),) = self._db.execute("SELECT coalesce(max(_time), 0) FROM log").fetchall()

    def close(self) -> None:
        self._db.close()

    def version(self) -> Version:
        return self._time

    def load(self, table: pa.Table) -> None:
        """Not logged: history starts after it, and so the log costs nothing here."""
        self._db.register("given", table)
        self._db.execute("INSERT INTO orders SELECT * FROM given; CHECKPOINT")

    def append(self, table: pa.Table) -> None:
        self._append(self._db, table)

    def writer(self) -> Callable[[pa.Table], None]:
        own = self._db.cursor()
        return lambda table: self._append(own, table)

    def upsert(self, table: pa.Table) -> None:
        self._time += 1
        self._db.register("given", table)
        self._db.execute(
            f"""BEGIN;
            INSERT INTO log SELECT {self._time}, -1, {ROWS} FROM orders WHERE id IN (SELECT id FROM given);
            DELETE FROM orders WHERE id IN (SELECT id FROM given);
            INSERT INTO orders SELECT {ROWS} FROM given;
            INSERT INTO log SELECT {self._time}, 1, {ROWS} FROM given;
            COMMIT"""
        )

    def snapshot(self, version: Version = None) -> pa.Table:
        if version is None or version == self._time:
            return self._db.sql(f"SELECT {ROWS} FROM orders").to_arrow_table()
        return self._db.sql(
            f"""WITH net AS (
              SELECT {ROWS}, sum(_diff) AS d FROM log WHERE _time > {version} GROUP BY {ROWS} HAVING d <> 0)
            SELECT {ROWS} FROM orders WHERE id NOT IN (SELECT id FROM net)
            UNION ALL SELECT {ROWS} FROM net WHERE d < 0"""
        ).to_arrow_table()

    def changes(self, after: Version, until: Version) -> pa.Table:
        return self._db.sql(
            f"SELECT {ROWS}, _diff FROM log WHERE _time > {after} AND _time <= {until}"
        ).to_arrow_table()

    def lookup(self, key: int) -> list[dict[str, Any]]:
        return self._db.sql(f"SELECT {ROWS} FROM orders WHERE id = {key}").to_arrow_table().to_pylist()

    def range(self, low: int, high: int) -> pa.Table:
        return self._db.sql(f"SELECT {ROWS} FROM orders WHERE id >= {low} AND id < {high}").to_arrow_table()

    def index(self) -> None:
        self._db.execute("CREATE INDEX by_id ON orders (id); CHECKPOINT")

    def reader(self) -> Polled:
        """Another cursor: the file is open already, and may be open once only."""
        another = copy.copy(self)
        another._db = self._db.cursor()
        return another

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        found = self._db.sql(f"SELECT _time, id FROM log WHERE _time > {after}").to_arrow_table()
        latest = max(found.column(0).to_pylist(), default=after)
        return latest, found.column(1).to_numpy()

    def compact(self) -> None:
        self._db.execute("CHECKPOINT")

    def expire(self) -> None:
        self._db.execute("DELETE FROM log; CHECKPOINT")

    def consolidate(self, updates: pa.Table) -> pa.Table:
        order = ", ".join(f"{each} NULLS FIRST" for each in [*COLUMNS, "_time"])
        return duckdb.sql(
            f"SELECT {ROWS}, _time, sum(_diff)::BIGINT AS _diff FROM updates"
            f" GROUP BY {ROWS}, _time HAVING sum(_diff) <> 0 ORDER BY {order}"
        ).to_arrow_table()

    def write_runs(self, runs: Iterator[pa.Table]) -> None:
        write_runs(self.folder, runs)

    def merge_runs(self, memory_mb: int) -> int:
        work = duckdb.connect(config={"memory_limit": f"{memory_mb}MB", "temp_directory": str(self.folder / "spill")})
        work.execute(
            f"""COPY (SELECT {ROWS}, sum(_diff)::BIGINT AS _diff FROM '{self.folder}/run-*.parquet'
              GROUP BY {ROWS} HAVING sum(_diff) <> 0 ORDER BY id, customer, total, created, note)
            TO '{self.folder}/merged.parquet' (FORMAT parquet, COMPRESSION zstd)"""
        )
        return row_count(self.folder / "merged.parquet")

    def _connect(self) -> None:
        self._db = duckdb.connect(str(self.folder / "table.duckdb"))
        self._turn = threading.Lock()
        self._time = 0

    def _append(self, db: duckdb.DuckDBPyConnection, table: pa.Table) -> None:
        with self._turn:
            self._time += 1
            now = self._time
        db.register("given", table)
        db.execute(
            f"""BEGIN;
            INSERT INTO orders SELECT {ROWS} FROM given;
            INSERT INTO log SELECT {now}, 1, {ROWS} FROM given;
            COMMIT"""
        )
