"""Timespine on Spark against what Spark does by itself, in one session.

python -m bench.spark                             everything, full sizes
python -m bench.spark compact sink --rows 1000000 --json FILE
python -m bench.spark --from FILE FILE --markdown docs/benchmarks.md     what was measured before, as a page

Each work runs in alternation with what it is compared with; what is printed is the median
of the repetitions, their spread, and the ratio of ours to the other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import timespine as ts
import timespine.spark
from bench.report import put_between
from bench.rows import COLUMNS, rows, sample
from timespine.spark import foreach_batch, merging_on

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": "timestamp", "note": "string"}
BEGIN, END = "<!-- spark: begin -->", "<!-- spark: end -->"
BATCHES = 30
SKIPPED = 5
"""The first micro-batches of a query, in which everything is loaded."""

Row = dict[str, Any]


class Bench:
    """One run."""

    def __init__(self, spark: Any, folder: Path, count: int, repeat: int) -> None:
        self.spark, self.folder, self.count, self.repeat = spark, folder, count, repeat
        self.found: list[Row] = []

    def compare(self, work: str, ours: Callable[[], Any], **others: Callable[[], Any]) -> None:
        """Run ours and the others in turns, and print what it took."""
        runs = {"ours": ours, **others}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.repeat):
            for name, run in runs.items():
                times[name].append(_seconds(run))
        self.told(work, times)

    def told(self, work: str, times: dict[str, list[float]]) -> None:
        """Print the figures of one work."""
        medians = {name: statistics.median(each) for name, each in times.items()}
        print(f"\n{work}")
        for name, each in times.items():
            ratio = "" if name == "ours" else f"   ours / {name}: {medians['ours'] / medians[name]:.2f}"
            print(f"  {name:28} {medians[name]:9.3f} s   {min(each):.3f} - {max(each):.3f}{ratio}", flush=True)
            self.found.append({"work": work, "system": name, "median": medians[name], "times": each})

    @contextmanager
    def store(self) -> Iterator[ts.Store]:
        """A store of its own, without anything in the background."""
        path = self.folder / "store"
        shutil.rmtree(path, ignore_errors=True)
        with ts.open(path, maintenance=False) as opened:
            yield opened

    def emptied(self) -> str:
        """A folder to write to."""
        path = self.folder / "written"
        shutil.rmtree(path, ignore_errors=True)
        return str(path)

    def files(self, collection: Any) -> Any:
        """The parts of a collection as Spark reads them: every update, with its time and diff."""
        parts = [part for run in collection.snapshot()._plan.runs for part in run.parts]
        leaves = collection._access.parts(collection._access.state()).leaves(parts)
        return self.spark.read.parquet(*(f"{self.folder}/store/blobs/{part.key}" for part in leaves))


def compact(bench: Bench) -> None:
    """16 runs, merged into one."""
    each = bench.count // 10
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        for number in range(16):
            items.append(rows(sample(each, 8 * each, number), number))
        kept = bench.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(store.location, kept)
        updates = bench.files(items)

        def shuffled() -> None:
            summed = updates.groupBy(*COLUMNS, "_time").agg(F.sum("_diff").alias("_diff")).filter("_diff <> 0")
            ordered = summed.repartitionByRange(*COLUMNS[:1]).sortWithinPartitions(*COLUMNS, "_time")
            ordered.write.option("compression", "zstd").parquet(bench.emptied())

        def merged(least_rows: int) -> None:
            copy = bench.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(kept, copy)
            began = time.perf_counter()
            with ts.open(copy, maintenance=False) as again, merging_on(again, bench.spark, least_rows=least_rows):
                again["items"].compact(wait=True)
            bench.lasted = time.perf_counter() - began  # type: ignore[attr-defined]

        times: dict[str, list[float]] = {"ours": [], "SQL shuffle": [], "engine of the process": []}
        for _ in range(bench.repeat):
            for name, least in (("ours", 1), ("engine of the process", 1 << 60)):
                merged(least)
                times[name].append(bench.lasted)  # type: ignore[attr-defined]
            times["SQL shuffle"].append(_seconds(shuffled))
        bench.told(f"compaction of 16 x {each:,}", times)


def snapshot(bench: Bench) -> None:
    """Ten overlapping runs, read by an aggregate and by a write."""
    each = bench.count // 10
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        for number in range(10):
            items.append(rows(sample(each, 5 * each, number), number))
        _read(bench, items, f"snapshot of 10 runs of {each:,}")


def updated(bench: Bench) -> None:
    """A consolidated base, and scattered updates of a tenth of it."""
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(rows(np.arange(bench.count)))
        items.upsert(rows(sample(bench.count // 10, bench.count, 3), 1))
        _read(bench, items, f"snapshot of {bench.count:,} with {bench.count // 10:,} updates")


def expired(bench: Bench) -> None:
    """The same, compacted and expired: against a plain scan of the same rows."""
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(rows(np.arange(bench.count)))
        items.upsert(rows(sample(bench.count // 10, bench.count, 3), 1))
        items.expire(before=1)
        items.compact(wait=True)
        plain = bench.folder / "plain"
        shutil.rmtree(plain, ignore_errors=True)
        items.snapshot().to_spark(bench.spark).write.option("compression", "zstd").parquet(str(plain))
        scan = bench.spark.read.parquet(str(plain))
        bench.compare(
            f"compacted and expired, {bench.count:,} rows, aggregate",
            lambda: _aggregated(items.snapshot().to_spark(bench.spark)),
            **{"plain Parquet": lambda: _aggregated(scan)},
        )


def _read(bench: Bench, items: Any, work: str) -> None:
    updates = bench.files(items)

    def grouped() -> Any:
        summed = updates.groupBy(*COLUMNS).agg(F.sum("_diff").alias("_n")).filter("_n > 0")
        return summed.select(*COLUMNS)

    bench.compare(
        f"{work}, aggregate",
        lambda: _aggregated(items.snapshot().to_spark(bench.spark)),
        **{"native groupBy": lambda: _aggregated(grouped())},
    )
    bench.compare(
        f"{work}, write",
        lambda: items.snapshot().to_spark(bench.spark).write.parquet(bench.emptied()),
        **{"native groupBy": lambda: grouped().write.parquet(bench.emptied())},
    )


def write(bench: Bench) -> None:
    """A sorted write of rows that Spark has."""
    source = bench.folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for number in range(4):
        part = np.random.default_rng(number).permutation(bench.count // 4) * 4 + number
        pa.parquet.write_table(rows(part), source / f"{number}.parquet")
    frame = bench.spark.read.parquet(str(source))

    def ours() -> None:
        with bench.store() as store:
            store.create("items", key=KEY, value=VALUE, timeline="counter").append(frame)

    bench.compare(
        f"write of {bench.count:,} rows",
        ours,
        **{
            "sorted write.parquet": lambda: (
                frame.repartitionByRange("id")
                .sortWithinPartitions("id")
                .write.option("compression", "zstd")
                .parquet(bench.emptied())
            ),
            "handing them to Python": lambda: (
                frame.repartitionByRange("id").mapInArrow(_nothing, "n long").write.format("noop").mode("append").save()
            ),
            "write.parquet": lambda: frame.write.option("compression", "zstd").parquet(bench.emptied()),
        },
    )


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task costs that only takes its rows."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], ["n"])


def sink(bench: Bench) -> None:
    """Micro-batches of a rate source, by what writes them."""
    bench.spark.dataSource.register(Empty)
    with bench.store() as store:
        log = store.create("log", key={"value": "int64"}, value={"timestamp": "timestamp[UTC]"}, timeline="counter")
        path = f"{store.location}/log"
        times = {
            "ours": _batches(bench, lambda each: each.format("timespine"), path),
            "empty Python sink": _batches(bench, lambda each: each.format("empty")),
        }
        bench.told("sink, per micro-batch of 1,000 rows", times)
        helper = foreach_batch(log, sink="bench")
        times = {
            "ours": _batches(bench, lambda each: each.foreachBatch(helper)),
            "noop foreachBatch": _batches(bench, lambda each: each.foreachBatch(lambda frame, batch: None)),
            "foreachBatch that takes the rows": _batches(
                bench, lambda each: each.foreachBatch(lambda frame, batch: frame.toArrow())
            ),
        }
        bench.told("foreach_batch, per micro-batch of 1,000 rows", times)


def source(bench: Bench) -> None:
    """Micro-batches of a feed against those of the rate source, into nothing."""
    with bench.store() as store:
        log = store.create("log", key={"value": "int64"}, timeline="counter")
        for number in range(BATCHES):
            log.append(pa.table({"value": np.arange(1000) + number * 1000}))
        feed = (
            bench.spark.readStream.format("timespine").option("maxRowsPerTrigger", 1000).load(f"{store.location}/log")
        )
        times = {
            "ours": _batches(bench, lambda each: each.format("noop"), frame=feed),
            "rate source": _batches(bench, lambda each: each.format("noop")),
        }
        bench.told("source, per micro-batch of 1,000 rows", times)


class Empty(DataSource):
    """A sink that does nothing: what Spark itself costs."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return EmptyWriter()


class EmptyWriter(DataSourceStreamArrowWriter):
    """Reads the rows and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _batches(bench: Bench, to: Callable[[Any], Any], path: str | None = None, frame: Any = None) -> list[float]:
    """How long micro-batches take, without the first ones."""
    if frame is None:
        frame = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    with tempfile.TemporaryDirectory(dir=bench.folder) as checkpoint:
        writer = to(frame.writeStream.option("checkpointLocation", checkpoint))
        query = writer.start(path) if path else writer.start()
        ended = time.monotonic() + 120
        while (query.lastProgress or {}).get("batchId", 0) < BATCHES - 2 and time.monotonic() < ended:
            time.sleep(0.02)
        query.stop()
        progress = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
        if query.exception() is not None:
            raise query.exception()
    return [each["durationMs"]["triggerExecution"] / 1000 for each in progress[SKIPPED:]]


def largest_worker() -> int:
    """Megabytes that the largest Python worker of this machine ever had, of those that are still there."""
    found = [0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark" in (process / "cmdline").read_bytes() and b"daemon" in (process / "cmdline").read_bytes():
                status = (process / "status").read_text()
                found.append(int(status.split("VmHWM:")[1].split()[0]) >> 10)
        except (OSError, IndexError):
            continue  # it is gone by now
    return max(found)


def markdown(found: list[Row]) -> str:
    """The figures as a table: what ours took, what the other took, and the ratio."""
    lines = ["| work | ours | compared with | it took | ours / it |", "| --- | --- | --- | --- | --- |"]
    ours = {each["work"]: each["median"] for each in found if each["system"] == "ours"}
    for each in found:
        if each["system"] == "memory":
            lines.append(f"| {each['work']} | {each['median']:.0f} MB | largest Python worker, at most | | |")
        elif each["system"] != "ours":
            mine, other = ours[each["work"]], each["median"]
            lines.append(f"| {each['work']} | {mine:.2f} s | {each['system']} | {other:.2f} s | {mine / other:.2f} |")
    return "\n".join(lines) + "\n"


def _aggregated(frame: Any) -> Any:
    return frame.agg(F.sum("total"), F.max("customer"), F.max("created"), F.count("note")).collect()


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


WORKS = {each.__name__: each for each in (compact, snapshot, updated, expired, write, sink, source)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all of them by default")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="measure nothing: take these")
    parser.add_argument("--markdown", type=Path, help="a page with the marks to put the table between")
    options = parser.parse_args(arguments)
    if options.sources:
        found = [each for source in options.sources for each in json.loads(source.read_text())]
        put_between(options.markdown, BEGIN, END, markdown(found))
        return
    unknown = [each for each in options.works if each not in WORKS]
    if unknown:
        parser.error(f"no such work: {unknown[0]}")
    spark = timespine.spark.session("bench", conf={"spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        bench = Bench(spark, Path(folder), options.rows, options.repeat)
        for name in options.works or WORKS:
            WORKS[name](bench)
            used = largest_worker()
            print(f"  largest Python worker so far: {used} MB", flush=True)
            bench.found.append({"work": f"{name}, {options.rows:,} rows", "system": "memory", "median": used})
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    if options.markdown:
        put_between(options.markdown, BEGIN, END, markdown(bench.found))
    spark.stop()


if __name__ == "__main__":
    main()
