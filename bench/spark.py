"""Timespine on Spark against what Spark does by itself, in one session.

python -m bench.spark                             everything, full sizes
python -m bench.spark compact sink --rows 1000000 --json FILE
python -m bench.spark planning --rows 1000000     of a read of 10,000 parts
python -m bench.spark --from FILE FILE --markdown docs/benchmarks.md     what was measured before with several sizes

Each work runs in alternation with what it is compared with; what is printed is the median
of the repetitions, their spread, the ratio of ours to the other, and the most memory that a
Python worker of ours had, beside one that did nothing yet.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import timespine as ts
from bench.report import put_between
from bench.rows import COLUMNS, rows, sample
from bench.spark_plans import AIM_S, PARTS, create_small_parts, parts_of, planning_s
from bench.workers import Watch
from timespine.config import DEFAULT, Config
from timespine.spark import foreach_batch, merging_on
from timespine.spark.setup.session import session

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": "timestamp", "note": "string"}
BASE = "id long, customer string, total double, created timestamp_ntz, note string"
BEGIN, END = "<!-- spark: begin -->", "<!-- spark: end -->"
BATCHES = 30
SKIPPED = 5
"""The first micro-batches of a query, in which everything is loaded."""

QUARTER = Config(merge_bytes=DEFAULT.merge_bytes // 4, part_bytes=DEFAULT.part_bytes // 4)
OURS = "ours"
IDLE = "a worker that has done nothing yet"

Row = dict[str, Any]


class Bench:
    """One run."""

    def __init__(self, spark: Any, folder: Path, count: int, repeat: int) -> None:
        self.spark, self.folder, self.count, self.repeat = spark, folder, count, repeat
        self.found: list[Row] = []

    def compare(self, work: str, ours: Callable[[], Any], **others: Callable[[], Any]) -> None:
        """Run ours and the others in turns, and print what it took."""
        runs = {OURS: ours, **others}
        self.told(work, {name: partial(_seconds, run) for name, run in runs.items()})

    def told(self, work: str, runs: dict[str, Callable[[], Iterable[float]]], repeat: int | None = None) -> None:
        """Run what says itself how long it took, in turns, and print the figures."""
        print(f"\n{work}, {self.count:,} rows", flush=True)
        times: dict[str, list[float]] = {name: [] for name in runs}
        peak = 0
        for _ in range(repeat or self.repeat):
            for name, run in runs.items():
                with Watch() as watch:
                    times[name].extend(run())
                if name == OURS:
                    peak = max(peak, watch.peak)
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, each in times.items():
            said = (
                f"largest worker {peak >> 20} MiB" if name == OURS else f"ours / it {medians[OURS] / medians[name]:.2f}"
            )
            print(f"  {name:34} {medians[name]:9.3f} s   {min(each):.3f} - {max(each):.3f}   {said}", flush=True)
            found = {"work": work, "rows": self.count, "system": name, "median": medians[name], "times": each}
            self.found.append(found | ({"peak": peak} if name == OURS else {}))

    @contextmanager
    def store(self) -> Iterator[ts.Store]:
        """A store of its own, without anything in the background."""
        path = self.folder / "store"
        shutil.rmtree(path, ignore_errors=True)
        with ts.open(path, maintenance=False) as opened:
            yield opened

    def base(self) -> Any:
        """All rows, made by tasks: fifty million would not fit beside everything else."""
        return self.spark.range(self.count).mapInArrow(_rows, BASE)

    def emptied(self) -> str:
        """A folder to write to."""
        path = self.folder / "written"
        shutil.rmtree(path, ignore_errors=True)
        return str(path)

    def files(self, collection: Any) -> Any:
        """The parts of a collection as Spark reads them: every update, with its time and diff."""
        return self.spark.read.parquet(*(f"{self.folder}/store/blobs/{part.key}" for part in parts_of(collection)))


def compact(bench: Bench) -> None:
    """16 runs, merged into one."""
    with _sixteen(bench) as (items, kept):
        updates = bench.files(items)

        def summed(frame: Any) -> Any:
            return frame.groupBy(*COLUMNS, "_time").agg(F.sum("_diff").alias("_diff")).filter("_diff <> 0")

        def written(frame: Any) -> None:
            ordered = frame.sortWithinPartitions(*COLUMNS, "_time")
            ordered.write.option("compression", "zstd").parquet(bench.emptied())

        runs = {
            OURS: partial(_merged, bench, kept),
            "engine of the process": partial(_merged, bench, kept, least_rows=1 << 60),
            "SQL shuffle": partial(_seconds, lambda: written(summed(updates).repartitionByRange("id"))),
            "SQL, ranges first": partial(_seconds, lambda: written(summed(updates.repartitionByRange("id")))),
        }
        bench.told("compaction of 16 runs, each a tenth of the rows", runs)


def bounded(bench: Bench) -> None:
    """The same with a quarter of the memory per task."""
    with _sixteen(bench) as (_, kept):
        runs = {
            OURS: partial(_merged, bench, kept, config=QUARTER),
            "ours with all of it": partial(_merged, bench, kept),
        }
        # Once, and this first: a worker keeps for the next task what it had for the one before.
        bench.told("the same compaction with a quarter of the memory", runs, repeat=1)


@contextmanager
def _sixteen(bench: Bench) -> Iterator[tuple[Any, Path]]:
    """A collection of sixteen runs, each a tenth of the rows, and a copy of its store."""
    each = bench.count // 10
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        for number in range(16):
            items.append(rows(sample(each, 8 * each, number), number))
        kept = bench.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(store.location, kept)
        yield items, kept


def _merged(bench: Bench, kept: Path, *, least_rows: int = 1, config: Config = DEFAULT) -> list[float]:
    """Merge another copy of a store, by tasks if it has at least this many rows; the seconds that it took."""
    copy = bench.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kept, copy)
    began = time.perf_counter()
    with (
        ts.open(copy, maintenance=False, config=config) as again,
        merging_on(again, bench.spark, least_rows=least_rows),
    ):
        again["items"].compact(wait=True)
    return [time.perf_counter() - began]


def snapshot(bench: Bench) -> None:
    """Ten overlapping runs, read by an aggregate and by a write."""
    each = bench.count // 10
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        for number in range(10):
            items.append(rows(sample(each, 5 * each, number), number))
        _read(bench, items, "snapshot of 10 runs")


def updated(bench: Bench) -> None:
    """A consolidated base, and scattered updates of a tenth of it."""
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(bench.base())
        items.upsert(rows(sample(bench.count // 10, bench.count, 3), 1))
        _read(bench, items, "snapshot with a tenth updated")


def expired(bench: Bench) -> None:
    """The same, compacted and expired: against a plain scan of the same rows."""
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(bench.base())
        items.upsert(rows(sample(bench.count // 10, bench.count, 3), 1))
        items.expire(before=1)
        items.compact(wait=True)
        plain = bench.folder / "plain"
        shutil.rmtree(plain, ignore_errors=True)
        items.snapshot().to_spark(bench.spark).write.option("compression", "zstd").parquet(str(plain))
        scan = bench.spark.read.parquet(str(plain))
        bench.compare(
            "snapshot, compacted and expired, aggregate",
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


def planning(bench: Bench) -> None:
    """Plan a read of very many parts by a store that was just opened: cut by rows, and with a slice for each part."""
    folder = bench.emptied()
    create_small_parts(Path(folder), bench.count)
    for how, partitions in (("", None), (", a slice for each", PARTS)):
        runs = {
            OURS: lambda some=partitions: [planning_s(Path(folder), bench.spark, some)],
            f"the aim, {AIM_S:.0f} s": lambda: [AIM_S],
        }
        bench.told(f"planning of {PARTS:,} parts{how}", runs)


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
        "sorted write",
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


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whole rows of ids."""
    for batch in batches:
        yield from rows(batch.column(0).to_numpy()).to_batches()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task costs that only takes its rows."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], ["n"])


def upsert(bench: Bench) -> None:
    """Rows of a DataFrame in the place of a tenth of those that are there, against writing all of them anew."""
    base, changes = str(bench.folder / "base"), str(bench.folder / "changes")
    for path, frame in (
        (base, bench.base()),
        (changes, bench.base().filter("id % 10 = 3").withColumn("total", F.col("total") + 0.5)),
    ):
        shutil.rmtree(path, ignore_errors=True)
        frame.write.option("compression", "zstd").parquet(path)
    there, coming = bench.spark.read.parquet(base), bench.spark.read.parquet(changes)
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(there)
        turn = itertools.count()
        bench.compare(
            "upsert of a tenth",
            lambda: items.upsert(coming.withColumn("total", F.col("total") + next(turn))),
            **{
                "anti join, and all written anew": lambda: (
                    there.join(coming, "id", "left_anti")
                    .unionByName(coming)
                    .write.option("compression", "zstd")
                    .parquet(bench.emptied())
                )
            },
        )


def sink(bench: Bench) -> None:
    """Micro-batches of a rate source, by what writes them."""
    bench.spark.dataSource.register(Empty)
    with bench.store() as store:
        log = store.create("log", key={"value": "int64"}, value={"timestamp": "timestamp[UTC]"}, timeline="counter")
        path = f"{store.location}/log"
        runs = {
            OURS: partial(_batches, bench, lambda each: each.format("timespine"), path),
            "empty Python sink": partial(_batches, bench, lambda each: each.format("empty")),
        }
        bench.told("sink, per micro-batch of 1,000 rows", runs, repeat=1)
        helper = foreach_batch(log, sink="bench")
        runs = {
            OURS: partial(_batches, bench, lambda each: each.foreachBatch(helper)),
            "noop foreachBatch": partial(_batches, bench, lambda each: each.foreachBatch(lambda frame, batch: None)),
            "foreachBatch that takes the rows": partial(
                _batches, bench, lambda each: each.foreachBatch(lambda frame, batch: frame.toArrow())
            ),
        }
        bench.told("foreach_batch, per micro-batch of 1,000 rows", runs, repeat=1)


def source(bench: Bench) -> None:
    """Micro-batches of a feed against those of the rate source, into nothing."""
    with bench.store() as store:
        log = store.create("log", key={"value": "int64"}, timeline="counter")
        for number in range(BATCHES):
            log.append(pa.table({"value": np.arange(1000) + number * 1000}))
        feed = (
            bench.spark.readStream.format("timespine").option("maxRowsPerTrigger", 1000).load(f"{store.location}/log")
        )
        runs = {
            OURS: partial(_batches, bench, lambda each: each.format("noop"), frame=feed),
            "rate source": partial(_batches, bench, lambda each: each.format("noop")),
        }
        bench.told("source, per micro-batch of 1,000 rows", runs, repeat=1)


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


def idle(bench: Bench) -> None:
    """What a worker has before it does anything: the interpreter, and what tasks of ours import."""
    with Watch() as watch:
        bench.spark.range(2).mapInArrow(_imported, "id long").collect()
    print(f"\n{IDLE}: {watch.peak >> 20} MiB", flush=True)
    bench.found.append({"work": IDLE, "rows": bench.count, "system": OURS, "peak": watch.peak})


def _imported(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    importlib.import_module("timespine.spark.merge_job")
    yield from batches


def markdown(found: list[Row]) -> str:
    """The figures as two tables: times and their ratios by number of rows, and the memory of the largest worker."""
    counts = sorted({each["rows"] for each in found})
    at = {(each["work"], each["system"], each["rows"]): each for each in found}
    head = ["work", "compared with", *(f"{count:,} rows" for count in counts)]
    lines = [_line(head), _line(["---"] * len(head))]
    for work, system in dict.fromkeys((each["work"], each["system"]) for each in found if each["system"] != OURS):
        cells = (_compared(at, work, system, count) for count in counts)
        lines.append(_line([work, system, *cells]))
    lines += ["", "The largest Python worker of ours:", ""]
    head = ["work", *(f"{count:,} rows" for count in counts)]
    lines += [_line(head), _line(["---"] * len(head))]
    for work in dict.fromkeys(each["work"] for each in found if "peak" in each):
        peaks = (at.get((work, OURS, count)) for count in counts)
        lines.append(_line([work, *("" if each is None else f"{each['peak'] >> 20} MiB" for each in peaks)]))
    return "\n".join(lines) + "\n"


def _compared(at: dict[tuple[str, str, int], Row], work: str, system: str, count: int) -> str:
    if (work, system, count) not in at:
        return ""
    mine, other = at[work, OURS, count]["median"], at[work, system, count]["median"]
    return f"{mine:.2f} s : {other:.2f} s = {mine / other:.2f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _aggregated(frame: Any) -> Any:
    return frame.agg(F.sum("total"), F.max("customer"), F.max("created"), F.count("note")).collect()


def _seconds(run: Callable[[], Any]) -> list[float]:
    began = time.perf_counter()
    run()
    return [time.perf_counter() - began]


WORKS = {
    each.__name__: each
    for each in (compact, bounded, snapshot, updated, expired, planning, write, upsert, sink, source)
}


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
    spark = session("bench", conf={"spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        bench = Bench(spark, Path(folder), options.rows, options.repeat)
        idle(bench)
        for name in options.works or WORKS:
            WORKS[name](bench)
            if options.json:
                options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    if options.markdown:
        put_between(options.markdown, BEGIN, END, markdown(bench.found))
    spark.stop()


if __name__ == "__main__":
    main()
