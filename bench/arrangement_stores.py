"""Lookups and upserts through an arrangement and without one; and a join on Spark against a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.arrangement_rows import Figures, Taken, in_turns, rows_of_ids, timed
from bench.usage import family_cpu_s
from timespine.columnar.schema.schema import DIFF, TIME

KEY = {"id": "int64"}
VALUE = {"name": "string", "total": "double", "seen": "int64", "note": "string"}
SLICE = 1_000_000
SIZES = {100: ">= 10x", 10_000: ">= 3x"}
"""Rows of an upsert, and how much faster it is to be through an arrangement."""


def stored(figures: Figures, folder: Path, count: int, repeat: int) -> None:
    """Measure calls of a collection, first without an arrangement and then with one."""
    with ts.open(str(folder / "store")) as store:
        orders = _filled(store, count)
        calls = _Calls(orders, count, repeat)
        without = {name: median_of(call) for name, call in calls.all().items()}
        with orders.arrange() as index:
            key = calls.keys[0]
            assert orders.lookup({"id": key}).to_pylist() == index.get(key)
            through = {name: median_of(call) for name, call in calls.all().items()}
    for name, aim in calls.aims().items():
        figures.show(name, {"through an arrangement": through[name], "without": without[name]}, "ms", aim)


def _filled(store: ts.Store, count: int) -> ts.Collection:
    orders = store.create("orders", key=KEY, value=VALUE, timeline="counter")
    for start in range(0, count, SLICE):
        orders.append(rows_of_ids(np.arange(start, min(start + SLICE, count))).drop_columns([TIME, DIFF]))
    orders.compact(wait=True)
    return orders


class _Calls:
    """Single lookups and upserts of random keys."""

    def __init__(self, orders: ts.Collection, count: int, repeat: int) -> None:
        self._orders, self._count, self._repeat = orders, count, repeat
        self._draw = random.Random(5)
        self.keys = [self._draw.randrange(count) for _ in range(20 * repeat)]
        self._version = 0

    def aims(self) -> dict[str, str]:
        """Return the names of the calls, with their aims."""
        return {"lookup of one key": ">= 20x", **{f"upsert of {size:,} rows": aim for size, aim in SIZES.items()}}

    def all(self) -> dict[str, list[Callable[[], object]]]:
        """Return the calls by name; upserts are of new values each time."""
        found: dict[str, list[Callable[[], object]]] = {
            "lookup of one key": [lambda key=key: self._orders.lookup({"id": key}) for key in self.keys]  # type: ignore[misc]
        }
        for size in SIZES:
            tables = [self._rows(min(size, self._count // 2)) for _ in range(max(self._repeat * 100 // size, 3))]
            found[f"upsert of {size:,} rows"] = [lambda table=table: self._orders.upsert(table) for table in tables]  # type: ignore[misc]
        return found

    def _rows(self, size: int) -> pa.Table:
        self._version += 1
        ids = np.sort(self._draw.sample(range(self._count), size))
        return rows_of_ids(ids, self._version).drop_columns([TIME, DIFF])


def median_of(calls: list[Callable[[], object]]) -> Taken:
    """Return the median of calls, after one that is not counted. Threads that work beside them count as well."""
    calls[0]()
    taken = [timed(call) for call in calls[1:]]
    return Taken(*(float(np.median([each[place] for each in taken])) for place in (0, 1)))


def enriched(figures: Figures, folder: Path, count: int) -> None:
    """Measure `enrich` against joins of Spark, with many probes and with few. The JVM and the workers count."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import timespine.spark  # noqa: F401 (for `ts.spark`)

    with ts.open(str(folder / "spark-store")) as store:
        orders = _filled(store, count)
        with orders.arrange(folder=str(folder / "spark-index")):
            pass
        orders.snapshot().to_polars().write_parquet(folder / "orders.parquet")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        table = spark.read.parquet(str(folder / "orders.parquet"))
        for probes in (min(1_000_000, count), 10_000):
            frame = spark.range(probes).select((F.col("id") * 7919 % count).alias("id"))
            taken = in_turns(_joins(frame, table, folder), cpu=family_cpu_s)
            figures.show(f"enrich {probes:,} of {count:,} rows on Spark", taken, "ms", ">= 1.5x")
    finally:
        spark.stop()


def _joins(frame: Any, table: Any, folder: Path) -> dict[str, Callable[[], object]]:
    from pyspark.sql import functions as F

    def through() -> int:
        found = ts.spark.enrich(frame, str(folder / "spark-index"), on="id", columns=["total", "name"], how="inner")
        return int(found.agg(F.count("name"), F.sum("total")).collect()[0][0])

    def joined(other: Any) -> int:
        found = frame.join(other, "id")
        return int(found.agg(F.count("name"), F.sum("total")).collect()[0][0])

    assert through() == joined(table)
    return {
        "ours": through,
        "Spark's join": lambda: joined(table.select("id", "name", "total")),
        "Spark's join, probes broadcast": lambda: int(
            table.join(F.broadcast(frame), "id").agg(F.count("name"), F.sum("total")).collect()[0][0]
        ),
    }
