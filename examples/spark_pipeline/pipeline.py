"""A change log becomes a collection, a table of sums follows it, and neither maintenance nor late data change answers.

    python -m examples.spark_pipeline.pipeline [--rows 20000] [--keep FOLDER]
    python -m examples.spark_pipeline.pipeline --log changes.csv --key id
    python -m examples.spark_pipeline.pipeline --store s3://bucket/a-new-prefix

Spark runs on this machine, on the session that is active or a new one. The store is in a temporary folder, or where
`--store` says; the log and the checkpoints are in the folder. The answers that are shown are
checked. Exit codes: 0 all of them are right, 1 one is not (a bug), 2 the arguments or the log cannot be understood,
3 Spark cannot run here.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import timespine as ts
from examples.spark_pipeline.change_log import DELETE, INSERT, SEQUENCE, UPDATE, quoted
from examples.spark_pipeline.console import bar, quietly, waiting
from examples.spark_pipeline.files import cut_into_files
from examples.spark_pipeline.fresh_views import fresh_views
from examples.spark_pipeline.generate_log import generate_log
from examples.spark_pipeline.late_data import atomic_batches, late_data
from examples.spark_pipeline.live_lookups import live_lookups
from examples.spark_pipeline.running_sums import Sums, sums_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RIGHT, WRONG, NOT_UNDERSTOOD, NO_SPARK = 0, 1, 2, 3

CONFIG = ts.Config(inline_part_bytes=1, rollup_seqnos=8)
"""Nothing inline, so that there are files to look at."""

BATCHES = 8
"""Files that a log is cut into, if they do not get too large by that."""

BATCH_ROWS_MAX = 20_000
"""Changes in one of them, at most."""

SETTINGS: dict[str, str | int | float | bool] = {
    "spark.sql.shuffle.partitions": 2,
    # A JVM that compiles little: it lives for seconds.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What suits a session for so little data."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a collection is as of a time."""

    rows: int
    total: Any
    print: str
    """One number for all rows, whatever their order: different rows have another one."""


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the pipeline; return the exit code."""
    asked = _parsed(arguments)
    console = console or Console(highlight=False, soft_wrap=False)
    with _folder(asked.keep) as folder:
        try:
            with quietly(folder / "spark.log"), waiting(console, "Starting Spark"):
                spark, is_ours = _session()
        except ts.UsageError as error:
            console.print(str(error), markup=False, soft_wrap=True)
            return NO_SPARK
        from pyspark.errors import PySparkException

        try:
            return RIGHT if Pipeline(spark, console, folder, asked).run() else WRONG
        except (ts.UsageError, PySparkException) as error:
            console.print(_reason_of(error), markup=False, soft_wrap=True)
            return NOT_UNDERSTOOD
        finally:
            ts.spark.release(spark)
            if is_ours:
                spark.stop()


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m examples.spark_pipeline.pipeline", description=about)
    parser.add_argument("--log", metavar="PATH", help="a log of changes: CSV, JSON lines, Parquet or Debezium")
    parser.add_argument("--key", metavar="NAMES", help="its key columns, with commas between them (default: id)")
    parser.add_argument("--sequence", metavar="NAME", help="a column that orders its changes (default: as they stand)")
    parser.add_argument("--rows", metavar="N", type=int, default=20_000, help="changes to generate without a log")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep everything in this new folder")
    parser.add_argument("--store", metavar="URL", help="a folder or a bucket for the store, which stays; a new one")
    parser.add_argument("--consensus", metavar="ADDRESS", help="where the logs of a new store in a bucket are")
    return parser.parse_args(arguments)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Make the folder for everything: a new one that stays, or one that goes."""
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            print(f"{keep} is not empty: name a new folder to keep things in", file=sys.stderr)
            raise SystemExit(NOT_UNDERSTOOD)
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="timespine-pipeline-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _session() -> tuple[SparkSession, bool]:
    """Return a session, and whether the pipeline must stop it.

    A session that other code made gets a sibling, so that it keeps its settings and the history of its DataFrames.
    """
    try:
        from pyspark import SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        return ts.spark.session(), True
    # A session is active in the threads that have used it; a context runs for all of them.
    if SparkSession.getActiveSession() is not None or SparkContext._active_spark_context is not None:
        return ts.spark.prepare(SparkSession.builder.getOrCreate().newSession()), False
    try:
        return ts.spark.session("timespine pipeline", master="local[*]", conf=SETTINGS), True
    except PySparkRuntimeError as error:
        raise ts.UsageError(f"Spark does not start: {_reason_of(error)}") from error


class Pipeline:
    """One store, one collection, one table of sums that follows it."""

    def __init__(self, spark: SparkSession, console: Console, folder: Path, asked: argparse.Namespace) -> None:
        self.spark = spark
        self.console = console
        self.folder = folder
        self.asked = asked
        self.is_right = True
        self.began = time.monotonic()

    def run(self) -> bool:
        """Run all steps; return whether every answer was right."""
        where = self.asked.store or self.folder / "store"
        self.say(f"Spark {self.spark.version} and a store in {where}.")
        with ts.open(where, maintenance=False, config=CONFIG, consensus=self.asked.consensus) as store:
            if store.names():
                raise ts.UsageError(f"{store.location} has collections: name a new folder or prefix for this pipeline")
            log = self.log()
            orders = self.collected(store, log)
            sums = self.followed(store, orders)
            times = self.times(orders)
            before = self.answers(orders, sums, times)
            self.compare(orders, sums, times)
            merged, after = self.maintained(store, orders, sums, times)
            self.prove(times, before, merged, after)
            late_data(self, store)
            atomic_batches(self, store)
            fresh_views(self, store, log)
        self.say(f"\nAll of it took {time.monotonic() - self.began:.0f} s.")
        return self.is_right

    def log(self) -> Path:
        """Write the log as files that a stream can take one by one."""
        folder = self.folder / "log"
        if self.asked.log is None:
            rows = self.asked.rows
            generate_log(folder, rows=rows, batches=max(1, min(BATCHES, rows)))
            self.title(f"A log of {rows:,} changes of orders, made up from a seed")
            return folder / "orders"
        with waiting(self.console, "Reading the log"):
            changes = ts.spark.read_changes(
                self.spark, self.asked.log, key=self.asked.key, sequence=self.asked.sequence
            )
            rows = changes.count()
            if not rows:
                raise ts.UsageError(f"there are no changes in {self.asked.log}")
            size = min(BATCH_ROWS_MAX, max(1, -(-rows // BATCHES)))
            files = cut_into_files(changes, folder / "given", size)
        self.title(f"The log {self.asked.log}: {rows:,} changes, dealt out in their order into {files} files")
        return folder / "given"

    def collected(self, store: ts.Store, log: Path) -> ts.Collection:
        """Stream the log into a collection, one file per batch, each exactly once."""
        changes = ts.spark.stream_changes(self.spark, log, key=self.asked.key)
        key, value = ts.spark.collection_columns(changes, self.asked.key)
        orders = store.create("orders", key=key, value=value, timeline="counter")
        self.title("A stream of its files goes into the collection orders: upserts and deletes, in one commit per file")
        files = len(list(log.glob("*.*")))
        with live_lookups(self, orders), bar(self.console, "Applying changes", files) as step:
            self.stream(
                changes, ts.spark.foreach_batch(orders, "upsert", sink="log", sequence_by=SEQUENCE, done=step), "log"
            )
        commits = orders.history()
        self.say(
            f"{orders.count():,} rows after {len(commits)} commits, with {sum(e.rows for e in commits):,} updates."
        )
        self.forget_last_batch("log")
        self.stream(changes, ts.spark.foreach_batch(orders, "upsert", sink="log", sequence_by=SEQUENCE), "log")
        self.check(orders.history() == commits, "the last file is given again, as after a crash: it is in once")
        return orders

    def followed(self, store: ts.Store, orders: ts.Collection) -> Sums:
        """Start a second query, which keeps sums from changes alone."""
        sums = sums_of(store, orders)
        self.title(f"A second query follows the changes of orders and keeps {sums.table.name}: {sums.about}")
        feed = self.spark.readStream.format("timespine").option("readChangeFeed", "true").option("hold", "sums")
        most = max(1, sum(entry.rows for entry in orders.history()) // BATCHES)
        changes = feed.option("maxRowsPerTrigger", most).load(f"{store.location}/orders")
        with bar(self.console, "Following", len(orders.history())) as step:
            self.stream(changes, sums.follow(done=step), "sums")
        self.say(f"{sums.table.count():,} rows after {len(sums.table.history())} commits.")
        return sums

    def times(self, orders: ts.Collection) -> list[int]:
        """Choose three times to look at, or as many as there are."""
        newest = orders.upper.time - 1
        return sorted({newest // 3, 2 * newest // 3, newest})

    def answers(self, orders: ts.Collection, sums: Sums, times: list[int], *, shown: bool = True) -> dict[int, Answer]:
        """Read the collection as of some times with Spark."""
        found = {}
        with bar(self.console, "Reading as of", len(times)) as step:
            for at in times:
                with orders.snapshot(as_of=at) as snapshot:
                    found[at] = answer(snapshot.to_spark(self.spark), sums)
                step()
        ts.spark.release(self.spark)
        if shown:
            self.title("The collection as of three times")
            for at, each in found.items():
                self.say(f"as of {at}: {each.rows:>9,} rows, {sums.measured} {each.total}")
        return found

    def compare(self, orders: ts.Collection, sums: Sums, times: list[int]) -> None:
        """Compare the net change between two times with the counts, and the sums with all rows."""
        first, last = times[0], times[-1]
        with waiting(self.console, "Comparing"):
            changes = orders.changes(after=first, until=last, images=True).to_spark(self.spark)
            kinds = {row["_change_type"]: row["count"] for row in changes.groupBy("_change_type").count().collect()}
            kept, rows = sums.kept(self.spark), sums.worked_out(self.spark)
            differ = kept.exceptAll(rows).count() + rows.exceptAll(kept).count()
        ts.spark.release(self.spark)
        inserts, updates, deletes = (kinds.get(kind, 0) for kind in (INSERT, UPDATE, DELETE))
        self.say(f"Net change after {first} until {last}: {inserts:,} new, {updates:,} changed, {deletes:,} gone.")
        grown = orders.count(last) - orders.count(first)
        self.check(inserts - deletes == grown, f"that is {grown:+,} rows, as the counts of both say")
        self.check(not differ, f"{sums.table.name} is what the newest rows add up to, row by row")

    def maintained(
        self, store: ts.Store, orders: ts.Collection, sums: Sums, times: list[int]
    ) -> tuple[dict[int, Answer], dict[int, Answer]]:
        """Compact, expire and vacuum, and say what they freed; return the answers after the first and after all."""
        self.title("Maintenance, while anybody may read and write")
        files = _blobs_of(store)
        batches = orders.inspect().batches
        with waiting(self.console, "Merging"):
            orders.compact(wait=True)
        whole = orders.inspect().batches
        self.say(f"compaction: {_told_of(batches)} of orders become {_told_of(whole)}")
        merged = self.answers(orders, sums, times, shown=False)
        with waiting(self.console, "Forgetting"):
            reply = orders.expire(before=times[0])
            orders.compact(wait=True)
            done = [store.maintain(sweep=True) for _ in range(2)]
        held = f", held back by {', '.join(reply.held_by)}" if reply.held_by else ""
        forgotten = sum(each.rows for each in whole) - sum(each.rows for each in orders.inspect().batches)
        self.say(f"expiry: history is exact from {reply.since} on{held}; {forgotten:,} updates are forgotten")
        gone = sum(each.collected + each.swept for each in done)
        found = store.vacuum(dry_run=False)
        self.say(f"garbage collection: {gone} blobs are deleted; vacuum finds {len(found.blobs)} more that have leaked")
        before, after = (f"{count} blobs of {size:,} bytes" for count, size in (files, _blobs_of(store)))
        self.say(f"the collections had {before} and have {after}")
        if times[0] > 0 and not reply.held_by:
            self.check(
                _is_refused(orders, times[0] - 1), f"as of {times[0] - 1} there is an error, and never other rows"
            )
        return merged, self.answers(orders, sums, times, shown=False)

    def prove(self, times: list[int], *answers: dict[int, Answer]) -> None:
        """Check that the same questions have the same answers."""
        table = Table(title="The same answers before and after", title_justify="left", title_style="bold")
        for name in ("as of", "rows", "before", "compacted", "expired", ""):
            table.add_column(name, justify="right", no_wrap=True)
        for at in times:
            seen = [each[at] for each in answers]
            is_same = len(set(seen)) == 1
            self.is_right &= is_same
            table.add_row(str(at), f"{seen[0].rows:,}", *(each.print for each in seen), "same" if is_same else "A BUG")
        self.console.print()
        self.console.print(table)

    def stream(self, frame: DataFrame, write: Callable[[DataFrame, int], None], name: str) -> None:
        """Run a query until it has taken all that there is."""
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint(name)))
        writer.trigger(availableNow=True).start().awaitTermination()

    def checkpoint(self, name: str) -> Path:
        """Return the folder of the checkpoint of a query."""
        return self.folder / "checkpoints" / name

    def forget_last_batch(self, name: str) -> None:
        """Remove the record of the last batch, as if Spark had died before it wrote that."""
        commits = self.checkpoint(name) / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for each in (commits / str(last), commits / f".{last}.crc"):
            each.unlink(missing_ok=True)

    def title(self, text: str) -> None:
        self.console.print(f"\n{text}", style="bold", markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def check(self, holds: bool, what: str) -> None:
        """Say whether something holds."""
        self.is_right &= holds
        self.say(f"{'ok' if holds else 'THIS IS A BUG'}: {what}")


def answer(frame: DataFrame, sums: Sums) -> Answer:
    """Compute the number of rows, their sum, and a fingerprint of all of them."""
    from pyspark.sql import functions as F

    prints = F.sum(F.xxhash64(*(F.col(quoted(name)) for name in frame.columns)).cast("decimal(38, 0)"))
    row = frame.agg(F.count("*").alias("rows"), sums.total(F.lit(1)).alias("total"), prints.alias("print")).head()
    assert row is not None
    return Answer(row["rows"], row["total"], f"{int(row['print'] or 0) & (1 << 64) - 1:016x}"[:12])


def _blobs_of(store: ts.Store) -> tuple[int, int]:
    """Count the blobs of the open collections, and their bytes."""
    figures = store.metrics()
    return int(figures["trace blobs"]), int(figures["trace blob bytes"])


def _reason_of(error: BaseException) -> str:
    """Reduce an error of Spark to its cause, in one line."""
    text = str(error).strip() or type(error).__name__
    cause = re.search(r"(?:\w+Error: |\[[A-Z_.]+\] )(.+?)(?: SQLSTATE.*)?$", text, re.MULTILINE)
    return cause[1].strip() if cause is not None and not isinstance(error, ts.UsageError) else text.splitlines()[0]


def _told_of(batches: Sequence[Any]) -> str:
    """Describe batches of a collection in numbers."""
    rows, size = (sum(getattr(each, name) for each in batches) for name in ("rows", "size"))
    return f"{len(batches)} {'batch' if len(batches) == 1 else 'batches'} ({rows:,} updates, {size:,} bytes)"


def _is_refused(orders: ts.Collection, at: int) -> bool:
    try:
        orders.snapshot(as_of=at).close()
    except ts.SinceError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
