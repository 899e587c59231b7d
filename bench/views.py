"""Refreshes of TPC-H views beside recomputation: python -m bench.views --scale 0.1 --changes 0.01,0.1,1,10 --peers all

Every view is created over a shop that `bench.tpch` makes. Then changes of a share of orders and customers are
committed, and each view is refreshed by itself, with its commit: `process` is ours in this process, `spark` ours on
Spark. The peers compute the same text whole, as of the same time: `spark-snapshots` reads the collections,
`spark-parquet` and `duckdb` read Parquet files of the same rows. After each change all answers of ours are compared
with those of DuckDB. Wall and CPU seconds are medians; CPU includes child processes.

It runs in pieces: `--views`, `--changes` and `--peers` choose, `--minutes` begins nothing new after so long, `--json
FILE` adds to what the file has, and `--from FILE` measures nothing. `--together` measures all views in one refresh, an
idle refresh and the change of one row. `--markdown docs/benchmarks.md` puts the tables into the page.
"""

from __future__ import annotations

import argparse
import decimal
import json
import os
import resource
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
from bench.view_tables import merged, page_of, short
from timespine.config import Config

OURS = ("process", "spark")
PEERS = (*OURS, "spark-snapshots", "spark-parquet", "duckdb")
TICKS = os.sysconf("SC_CLK_TCK")

WARM_UPS = 2

MANY = 0.01
"""From this share of changes on, one repetition is enough: it takes longer than the noise is."""

Times = tuple[float, float]
"""Wall and CPU seconds."""

Found = dict[str, Any]
"""What was measured of one view after changes of one size."""


def main(arguments: list[str] | None = None) -> int:
    """Run the pieces that were asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.earlier is not None:
        found: list[Found] = json.loads(options.earlier.read_text())
    else:
        peers = list(PEERS) if options.peers == "all" else options.peers.split(",")
        views = [int(each.lstrip("q")) for each in options.views.split(",")]
        if any(each not in PEERS for each in peers) or any(each not in QUERIES for each in views):
            parser.error(f"peers are {', '.join(PEERS)}, or all; views are q1 to q22")
        found = _run(options, views, peers)
    page = page_of(found, PEERS)
    if options.markdown is not None:
        from bench.report import put_between

        put_between(options.markdown, "<!-- views: begin -->", "<!-- views: end -->", page)
    print(page)
    return 1 if any(not each["right"] for each in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.views", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--changes", default="0.1", help="percent of orders, by commas (default 0.1)")
    parser.add_argument("--views", default=",".join(f"q{number}" for number in QUERIES), help="such as q1,q3")
    parser.add_argument("--peers", default="process,duckdb", help=f"of {', '.join(PEERS)}; or all")
    parser.add_argument("--repeat", type=int, default=3, help="changes of each size below 1 %% (default 3)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing new after so long")
    parser.add_argument("--cache-mb", type=int, default=256, help="cache_bytes of the store (default 256)")
    parser.add_argument("--together", action="store_true", help="all views at once, idle, and one row")
    parser.add_argument("--json", type=Path, help="the file to add the figures to")
    parser.add_argument("--markdown", type=Path, help="the page to put the tables into")
    parser.add_argument("--from", type=Path, dest="earlier", help="take the figures of a file, and measure nothing")
    return parser


def _run(options: argparse.Namespace, views: list[int], peers: list[str]) -> list[Found]:
    """Measure, and return the figures with those that the file has."""
    until = time.monotonic() + options.minutes * 60
    shares = [float(each) / 100 for each in options.changes.split(",")]
    before = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else []

    def keep(found: list[Found]) -> list[Found]:
        """Store the figures beside those that there are: a run that ends early loses only what it measures then."""
        if options.json is None:
            return found
        everything = merged(before, found)
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
        return everything

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.scale, views, peers, options.cache_mb << 20)
        try:
            found = bench.run(shares, options.repeat, until, keep)
            if options.together:
                found += bench.together(shares[0], options.repeat)
        finally:
            bench.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB", file=sys.stderr)
    return keep(found)


class Bench:
    """One shop, one store with its views, and the peers."""

    def __init__(self, folder: Path, scale: float, views: list[int], peers: list[str], cache: int = 256 << 20) -> None:
        self.folder, self.scale, self.views, self.peers = folder, scale, views, peers
        self._begun = time.monotonic()
        self.shop = Shop(scale)
        self._say("made the data")
        self.store = ts.open(folder / "store", config=Config(cache_bytes=cache))
        self.time = 0
        self.spark: Any = None
        for table, columns in TABLES.items():
            self.store.create(table, schema=columns, key=KEYS[table], timeline="counter")
        self.commit({table: self.shop.arrow(table) for table in TABLES})
        for table in TABLES:
            self.store[table].compact(wait=True)
        self._say("loaded them")
        self.handles: dict[int, Any] = {}
        for number in views:
            self.handles[number] = self.store.view(f"q{number}", sql=QUERIES[number], policy="incremental")
        self._say("built the views")
        if any(each.startswith("spark") for each in peers):
            self.spark = start_spark()
            self._warm_up()
            self._say("started Spark, and let it warm up")

    def _warm_up(self) -> None:
        """Let the virtual machine of Spark compile what all queries need."""
        for _ in range(WARM_UPS):
            self.commit(self.shop.change(0.0))
            self._parquet()
            for number in self.views[:2]:
                for peer in self.peers:
                    if peer.startswith("spark"):
                        self._call(number, peer)()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s: {what}", file=sys.stderr, flush=True)

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

    def run(self, shares: list[float], repeat: int, until: float, keep: Callable[[list[Found]], object]) -> list[Found]:
        """Measure every view after changes of each size: in this process first, on Spark while there is time."""
        found: dict[tuple[int, float], Found] = {}
        local = [each for each in self.peers if not each.startswith("spark")]
        for peers in (local, [each for each in self.peers if each not in local]):
            for share in shares if peers else ():
                times: dict[tuple[int, str], list[Times]] = {}
                right = dict.fromkeys(self.views, True)
                changed = 0
                for _ in range(repeat if share < MANY and peers == local else 1):
                    if time.monotonic() < until:
                        updates = self.shop.change(share)
                        changed = sum(map(len, updates.values()))
                        self.commit(updates)
                        self._measure(peers, times, right, until)
                for number in self.views:
                    self._note(found, number, share, changed, times, right[number])
                keep(list(found.values()))
                self._say(f"{', '.join(peers)} after changes of {share * 100:g} %")
        return list(found.values())

    def _measure(
        self, peers: list[str], times: dict[tuple[int, str], list[Times]], right: dict[int, bool], until: float
    ) -> None:
        """Refresh and recompute every view once, and compare its rows with those of DuckDB."""
        self._parquet()
        for number in self.views:
            told = None
            for peer in peers:
                if time.monotonic() < until or peer in OURS:
                    taken, got = measured(self._call(number, peer))
                    times.setdefault((number, peer), []).append(taken)
                    told = got if peer == "duckdb" else told
            view = self.handles[number]
            if not any(peer in OURS for peer in peers):
                view.refresh()
            told = self.duckdb(number) if told is None else told
            right[number] &= plain_rows(view.snapshot().to_arrow()) == plain_rows(told)

    def _call(self, number: int, peer: str) -> Callable[[], Any]:
        view = self.handles[number]
        if peer == "process":
            return lambda: view.refresh(engine="process")
        if peer == "spark":
            return lambda: view.refresh(engine="spark", spark=self.spark)
        if peer == "duckdb":
            return lambda: self.duckdb(number)
        return lambda: self.on_spark(number, peer)

    def _note(
        self,
        found: dict[tuple[int, float], Found],
        number: int,
        share: float,
        changed: int,
        times: dict[tuple[int, str], list[Times]],
        right: bool,
    ) -> None:
        """Add figures of one view to those that there are."""
        figures = {}
        for peer in self.peers:
            if (number, peer) in times:
                wall, cpu = zip(*times[number, peer], strict=True)
                figures[peer] = {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}
        new = {
            "view": f"q{number}",
            "scale": self.scale,
            "change": share * 100,
            "updates": changed,
            "figures": figures,
            "state": self.handles[number].status().bytes,
            "right": right,
        }
        if (number, share) in found:
            (new,) = merged([found[number, share]], [new])
        found[number, share] = new
        print(short(new), file=sys.stderr, flush=True)

    def together(self, share: float, repeat: int) -> list[Found]:
        """Measure all views in one refresh, an idle refresh, and the change of one row of a view with one stage."""
        self.store.refresh()
        names = f"{len(self.views)} views in one refresh", "an idle refresh of them", "one row, one stage"
        cases: dict[str, list[Times]] = {name: [] for name in names}
        right = True
        for _ in range(max(repeat, 3)):
            self.commit(self.shop.change(share))
            cases[names[0]].append(measured(self.store.refresh)[0])
            cases[names[1]].append(measured(self.store.refresh)[0])
        self._parquet()
        for number in self.views:
            right &= plain_rows(self.handles[number].snapshot().to_arrow()) == plain_rows(self.duckdb(number))
        view = self.store.view(
            "by_segment", sql="SELECT c_mktsegment, count(*) AS n FROM customer GROUP BY c_mktsegment"
        )
        self.store.maintain()
        for _ in range(max(repeat, 25)):
            row = self.shop.tables["customer"].sample(1, seed=self.time)
            self.commit({"customer": row.to_arrow()})
            cases[names[2]].append(measured(view.refresh)[0])
        found = []
        for name, taken in cases.items():
            wall, cpu = zip(*taken, strict=True)
            figures = {"process": {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}}
            about = {"view": name, "scale": self.scale, "change": share * 100, "updates": 0, "state": 0}
            found.append({**about, "figures": figures, "right": right})
        return found

    # Peers.

    def _parquet(self) -> None:
        """Write what there is now for the peers that read files."""
        for table in TABLES:
            pq.write_table(self.shop.arrow(table), self.folder / f"{table}.parquet")

    def duckdb(self, number: int) -> pa.Table:
        """Let DuckDB compute a query over Parquet files."""
        import duckdb

        with duckdb.connect() as connection:
            for table in TABLES:
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{self.folder}/{table}.parquet'")
            return connection.sql(QUERIES[number]).to_arrow_table()

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

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.buffer.pageSize": "4m",  # as in a session that timespine starts
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ts.spark.prepare(spark)
    return spark


def measured(call: Callable[[], Any]) -> tuple[Times, Any]:
    """Return wall and CPU seconds of a call, with child processes that are there at its end, and its result."""
    before, cpu, wall = seconds_below(), time.process_time(), time.perf_counter()
    result = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    below = sum(seconds - before.get(process, 0.0) for process, seconds in seconds_below().items())
    return (wall, cpu + below), result


def seconds_below() -> dict[int, float]:
    """Return the CPU seconds of the processes below this one, by their ids."""
    above, found = {os.getpid()}, dict[int, float]()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended just now
        if int(fields[1]) in above:
            above.add(int(folder.name))
            found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows for comparison: numbers rounded, in one order."""

    def plain(value: Any) -> Any:
        return round(float(value), 2) if isinstance(value, float | decimal.Decimal) else value

    return sorted((tuple(map(plain, row.values())) for row in table.to_pylist()), key=repr)


if __name__ == "__main__":
    sys.exit(main())
