"""Refreshes of TPC-H views beside recomputation: python -m bench.views --scale 0.1 --changes 0.1 --views q1,q3

Every view is created over a shop that `bench.tpch` makes. Then changes of a share of orders and customers are
committed, and each view is refreshed: `process` is ours in this process, `spark` ours on Spark. The peers compute the
same text whole, as of the same time: `spark-snapshots` reads the collections, `spark-parquet` and `duckdb` read Parquet
files of the same rows. Answers are compared with those of DuckDB. Wall and CPU seconds are medians; CPU includes child
processes.

It runs in pieces: `--views`, `--changes` and `--peers` choose, `--json FILE` adds to what the file has, and
`--table FILE` prints what is in it as a table for docs/benchmarks.md. `--together` measures all views in one refresh,
an idle refresh and the change of one row.
"""

from __future__ import annotations

import argparse
import decimal
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import timespine as ts
from bench.tpch import KEYS, QUERIES, TABLES, Shop

PEERS = ("process", "spark", "spark-snapshots", "spark-parquet", "duckdb")
TICKS = os.sysconf("SC_CLK_TCK")

Times = tuple[float, float]
"""Wall and CPU seconds."""


def main(arguments: list[str] | None = None) -> int:
    """Run the pieces that were asked for."""
    parser = argparse.ArgumentParser(prog="bench.views", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--changes", default="0.1", help="percent of orders, by commas (default 0.1)")
    parser.add_argument("--views", default=",".join(f"q{number}" for number in QUERIES), help="such as q1,q3")
    parser.add_argument("--peers", default="process,duckdb", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--repeat", type=int, default=3, help="changes of each size (default 3)")
    parser.add_argument("--together", action="store_true", help="all views at once, idle, and one row")
    parser.add_argument("--json", type=Path, help="the file to add the figures to")
    parser.add_argument("--table", type=Path, help="print the figures of a file, and measure nothing")
    options = parser.parse_args(arguments)
    if options.table is not None:
        print(table_of(json.loads(options.table.read_text())))
        return 0
    peers, views = options.peers.split(","), [int(each.lstrip("q")) for each in options.views.split(",")]
    unknown = [each for each in peers if each not in PEERS]
    if unknown or any(each not in QUERIES for each in views):
        parser.error(f"peers are {', '.join(PEERS)}; views are q1 to q22")
    shares = [float(each) / 100 for each in options.changes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.scale, views, peers)
        try:
            found = bench.run(shares, options.repeat)
            if options.together:
                found += bench.together(shares[0], options.repeat)
        finally:
            bench.close()
    if options.json is not None:
        before = json.loads(options.json.read_text()) if options.json.exists() else []
        options.json.write_text(json.dumps(merged(before, found), indent=1) + "\n")
    print(table_of(found))
    return 1 if any(not each["right"] for each in found) else 0


class Bench:
    """One shop, one store with its views, and the peers."""

    def __init__(self, folder: Path, scale: float, views: list[int], peers: list[str]) -> None:
        self.folder, self.scale, self.views, self.peers = folder, scale, views, peers
        self.shop = Shop(scale)
        self.store = ts.open(folder / "store")
        self.time = 0
        self.spark: Any = None
        if any(each.startswith("spark") for each in peers):
            self.spark = start_spark()
        for table, columns in TABLES.items():
            self.store.create(table, schema=columns, key=KEYS[table], timeline="counter")
        self.commit({table: self.shop.arrow(table) for table in TABLES})
        for table in TABLES:
            self.store[table].compact(wait=True)
        self.handles = {
            number: self.store.view(f"q{number}", sql=QUERIES[number], policy="incremental") for number in views
        }

    def close(self) -> None:
        """Close what was opened."""
        self.store.close()
        if self.spark is not None:
            self.spark.stop()

    def commit(self, updates: dict[str, pa.Table]) -> None:
        """Commit changes of some tables at one time, and seal all of them."""
        with self.store.transaction() as tx:
            for table, rows in updates.items():
                tx.append(table, rows, at=self.time)
        self.time += 1
        self.store.seal(list(TABLES), self.time, if_behind="ignore")

    def run(self, shares: list[float], repeat: int) -> list[dict[str, Any]]:
        """Measure every view after changes of each size."""
        found = []
        for share in shares:
            times: dict[tuple[int, str], list[Times]] = {}
            right, last = dict.fromkeys(self.views, True), None
            for _ in range(repeat):
                updates = self.shop.change(share)
                changed = sum(map(len, updates.values()))
                self.commit(updates)
                last = self._measure(times)
            assert last is not None
            for number in self.views:
                right[number] = last[number]
                found.append(self._figures(number, share, changed, times, right[number]))
                print(short(found[-1]), file=sys.stderr, flush=True)
        return found

    def _measure(self, times: dict[tuple[int, str], list[Times]]) -> dict[int, bool]:
        """Refresh and recompute every view once; return whether its rows are those of DuckDB."""
        for table in TABLES:
            pq.write_table(self.shop.arrow(table), self.folder / f"{table}.parquet")
        right = {}
        for number in self.views:
            view = self.handles[number]
            for peer in self.peers:
                if peer == "process":
                    taken, _ = measured(view.refresh)
                elif peer == "spark":
                    taken, _ = measured(lambda view=view: view.refresh(engine="spark", spark=self.spark))
                elif peer == "duckdb":
                    taken, _ = measured(lambda number=number: self.duckdb(number))
                else:
                    taken, _ = measured(lambda number=number, peer=peer: self.on_spark(number, peer))
                times.setdefault((number, peer), []).append(taken)
            told = plain_rows(self.duckdb(number))
            right[number] = plain_rows(view.snapshot().to_arrow()) == told
        return right

    def _figures(
        self, number: int, share: float, changed: int, times: dict[tuple[int, str], list[Times]], right: bool
    ) -> dict[str, Any]:
        figures = {}
        for peer in self.peers:
            wall, cpu = zip(*times[number, peer], strict=True)
            figures[peer] = {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}
        return {
            "view": f"q{number}",
            "scale": self.scale,
            "change": share * 100,
            "updates": changed,
            "figures": figures,
            "state": self.handles[number].status().bytes,
            "right": right,
        }

    def together(self, share: float, repeat: int) -> list[dict[str, Any]]:
        """Measure all views in one refresh, an idle refresh, and the change of one row of a view with one stage."""
        self.store.refresh()
        cases: dict[str, list[Times]] = {"all views": [], "idle": [], "one row": []}
        for _ in range(repeat):
            updates = self.shop.change(share)
            self.commit(updates)
            cases["all views"].append(measured(self.store.refresh)[0])
            cases["idle"].append(measured(self.store.refresh)[0])
        view = self.store.view(
            "by_segment", sql="SELECT c_mktsegment, count(*) AS n FROM customer GROUP BY c_mktsegment"
        )
        for _ in range(max(repeat, 5)):
            row = self.shop.tables["customer"].sample(1, seed=self.time)
            self.commit({"customer": row.to_arrow()})
            cases["one row"].append(measured(view.refresh)[0])
        found = []
        for name, taken in cases.items():
            wall, cpu = zip(*taken, strict=True)
            figures = {"process": {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}}
            found.append(
                {"view": name, "scale": self.scale, "change": share * 100, "updates": 0, "figures": figures, "state": 0}
                | {"right": True}
            )
        return found

    # Peers.

    def duckdb(self, number: int) -> pa.Table:
        """Let DuckDB compute a query over Parquet files."""
        import duckdb

        with duckdb.connect() as connection:
            for table in TABLES:
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{self.folder}/{table}.parquet'")
            return connection.execute(QUERIES[number]).to_arrow_table()

    def on_spark(self, number: int, peer: str) -> pa.Table:
        """Let Spark compute a query over snapshots or Parquet files."""
        for table in TABLES:
            if peer == "spark-parquet":
                frame = self.spark.read.parquet(str(self.folder / f"{table}.parquet"))
            else:
                frame = self.store[table].snapshot().to_spark(self.spark)
            frame.createOrReplaceTempView(table)
        return self.spark.sql(QUERIES[number]).toArrow()


def start_spark() -> Any:
    """Start a session on this machine."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    ts.spark.prepare(spark)
    return spark


def measured(call: Callable[[], Any]) -> tuple[Times, Any]:
    """Return wall and CPU seconds of a call, with child processes, and its result."""
    cpu, wall = tree_seconds(), time.perf_counter()
    result = call()
    return (time.perf_counter() - wall, tree_seconds() - cpu), result


def tree_seconds() -> float:
    """Return the CPU seconds of this process, and of those below it."""
    below, total = {os.getpid()}, time.process_time()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended just now
        if int(fields[1]) in below:
            below.add(int(folder.name))
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows for comparison: numbers rounded, in one order."""

    def plain(value: Any) -> Any:
        return round(float(value), 2) if isinstance(value, float | decimal.Decimal) else value

    return sorted((tuple(map(plain, row.values())) for row in table.to_pylist()), key=repr)


def merged(before: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add figures to those that a file has; newer ones replace older."""
    by_case = {(each["view"], each["scale"], each["change"]): each for each in before}
    for each in found:
        known = by_case.setdefault((each["view"], each["scale"], each["change"]), each)
        figures = {**known["figures"], **each["figures"]}
        by_case[each["view"], each["scale"], each["change"]] = {**each, "figures": figures}
    return list(by_case.values())


def short(each: dict[str, Any]) -> str:
    """Return one case as a line."""
    figures = " ".join(
        f"{peer} {value['wall'] * 1e3:.0f}/{value['cpu'] * 1e3:.0f} ms" for peer, value in each["figures"].items()
    )
    return f"{each['view']} {each['change']:g} %: {figures}{'' if each['right'] else '  WRONG'}"


def table_of(found: list[dict[str, Any]]) -> str:
    """Return figures as a table of Markdown: wall / CPU milliseconds."""
    lines = [
        f"| view | scale | change | updates | {' | '.join(PEERS)} | state |",
        f"| --- | --- | --- | --- | {' | '.join('---' for _ in PEERS)} | --- |",
    ]
    for each in found:
        cells = []
        for peer in PEERS:
            figure = each["figures"].get(peer)
            cells.append("" if figure is None else f"{figure['wall'] * 1e3:,.0f} / {figure['cpu'] * 1e3:,.0f}")
        state = f"{each['state'] / 1e6:.1f} MB" if each["state"] else ""
        change = f"{each['change']:g} %"
        lines.append(
            f"| {each['view']} | {each['scale']:g} | {change} | {each['updates'] or ''} "
            f"| {' | '.join(cells)} | {state} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
