"""Two more things that the pipeline shows: late data, and batches that are in two collections or in none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

import timespine as ts
from examples.spark_pipeline.console import bar
from examples.spark_pipeline.files import age_in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

PAYMENTS = ((3, 1, 2, 5), (4, 7, 6), (2, 9, 8))
"""The minutes of payments, batch by batch as they come: out of order, and the first of the last batch too late."""

DELAY = 2
"""Minutes that a payment may come behind a later one, and still be in time."""

BASKETS = 30
"""Baskets that are sold in a batch."""

BATCHES = 3


class Stage(Protocol):
    """Where things are shown."""

    spark: SparkSession
    console: Console
    folder: Path

    def title(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def check(self, holds: bool, what: str) -> None: ...

    def stream(self, frame: DataFrame, write: Callable[[DataFrame, int], None], name: str) -> None: ...

    def forget_last_batch(self, name: str) -> None: ...


def late_data(stage: Stage, store: ts.Store) -> None:
    """Show that payments come in any order and count once their minute is sealed, and that answers never change."""
    payments = store.create("payments", key={"id": "int64"}, value={"cents": "int64"}, timeline="counter")
    stage.title(f"Payments come out of order; a minute is sealed {DELAY} after it, and what is later still is moved")
    batches = [
        [{"id": 10 * place + at, "cents": 100 * at, "minute": at} for at in minutes]
        for place, minutes in enumerate(PAYMENTS)
    ]
    frame = _stream(stage, "payments", batches, "id long, cents long, minute long")
    answers: dict[int, int] = {}
    changed: list[int] = []
    late = 0

    def look(batch: int, done: Any) -> None:
        """Read the complete minutes, and compare them with earlier answers."""
        nonlocal late
        late += done.late
        complete = payments.upper.time - 1
        found = {at: _cents(payments, at) for at in range(complete + 1)}
        changed.extend(at for at, cents in answers.items() if found[at] != cents)
        answers.update(found)
        waiting = payments.unsealed().to_arrow().num_rows
        moved = f", {done.late} of them late" if done.late else ""
        stage.say(
            f"batch {batch}: minutes {', '.join(map(str, PAYMENTS[batch]))}{moved}; complete up to {complete} with "
            f"{found[complete]:,} cents, and {waiting} written ahead of the seal"
        )

    write = ts.spark.foreach_batch(
        payments, sink="payments", times="minute", seal=f"delay {DELAY}", late="move", done=look
    )
    stage.stream(frame, write, "payments")
    stage.check(
        late == 1 and not changed, "the late one counts from the earliest open minute on: no answer has changed"
    )
    total = sum(100 * at for minutes in PAYMENTS for at in minutes)
    before = _cents(payments)
    payments.seal(max(map(max, PAYMENTS)) + 1)
    stage.check(
        before < total == _cents(payments) and all(_cents(payments, at) == cents for at, cents in answers.items()),
        f"sealed to the end all {total:,} cents are there, and every earlier answer is what it was",
    )


def atomic_batches(stage: Stage, store: ts.Store) -> None:
    """Show that every batch is one commit to two collections: baskets, and their items."""
    baskets = store.create("baskets", key={"id": "int64"}, value={"cents": "int64"}, timeline="counter")
    items = store.create(
        "items", key={"basket": "int64", "place": "int64"}, value={"cents": "int64"}, timeline="counter"
    )
    stage.title("Baskets and their items are two collections, and every batch is one commit to both")
    frame = _stream(stage, "baskets", [_sold(batch) for batch in range(BATCHES)], "id long, items array<long>")
    with bar(stage.console, "Selling", BATCHES) as step:
        stage.stream(frame, ts.spark.foreach_batch_together(store, _split, sink="shop", done=step), "baskets")
    cuts = [_cut(store, at) for at in range(BATCHES)]
    stage.say(f"baskets {', '.join(f'{cents:,}' for cents, _ in cuts)} cents as of the {BATCHES} commits")
    stage.check(
        all(cents == summed for cents, summed in cuts) and cuts == sorted(set(cuts)),
        "as of each of them the items of all baskets add up to the same",
    )
    commits = [each.history() for each in (baskets, items)]
    stage.forget_last_batch("baskets")
    stage.stream(frame, ts.spark.foreach_batch_together(store, _split, sink="shop"), "baskets")
    stage.check(
        [each.history() for each in (baskets, items)] == commits,
        "the last batch is given again, as after a crash: both have it once",
    )
    stage.check(
        _is_refused(stage, store) and [each.history() for each in (baskets, items)] == commits,
        "a batch whose items are wrong is refused, and its baskets are not there either",
    )


def _split(frame: DataFrame, batch: int) -> dict[str, DataFrame]:
    """Split sold baskets into the rows of both collections."""
    from pyspark.sql import functions as F

    total = F.aggregate("items", F.lit(0).cast("long"), lambda sum, cents: sum + cents)
    return {
        "baskets": frame.select("id", total.alias("cents")),
        "items": frame.select(F.col("id").alias("basket"), F.posexplode("items").alias("place", "cents")),
    }


def _is_refused(stage: Stage, store: ts.Store) -> bool:
    """Return whether a batch with an item that has no place is refused."""
    from pyspark.sql import functions as F

    def split(frame: DataFrame, batch: int) -> dict[str, DataFrame]:
        pieces = _split(frame, batch)
        return {**pieces, "items": pieces["items"].withColumn("place", F.lit(None).cast("int"))}

    sold = stage.spark.createDataFrame([(BASKETS * BATCHES, [1])], "id long, items array<long>")
    try:
        ts.spark.foreach_batch_together(store, split, sink="wrong")(sold, 0)
    except ts.UsageError:
        return True
    return False


def _sold(batch: int) -> list[dict[str, Any]]:
    ids = range(batch * BASKETS, (batch + 1) * BASKETS)
    return [{"id": id, "items": [100 + (id * 37 + place * 11) % 400 for place in range(1 + id % 4)]} for id in ids]


def _stream(stage: Stage, name: str, batches: list[list[dict[str, Any]]], schema: str) -> DataFrame:
    """Open a stream of rows with one file, and so one batch, at a time."""
    folder = stage.folder / "log" / name
    folder.mkdir(parents=True)
    files = [folder / f"{place:04}.jsonl" for place in range(len(batches))]
    for file, rows in zip(files, batches, strict=True):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    age_in_order(files)
    return stage.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def _cents(collection: ts.Collection, at: int | None = None) -> int:
    with collection.snapshot(at, columns=["cents"]) as rows:
        return _sum(rows.to_arrow())


def _cut(store: ts.Store, at: int) -> tuple[int, int]:
    """Add up baskets and items as of one time."""
    with store.snapshot(["baskets", "items"], as_of=at) as cut:
        return _sum(cut["baskets"].to_arrow()), _sum(cut["items"].to_arrow())


def _sum(table: pa.Table) -> int:
    return int(pc.sum(table.column("cents")).as_py() or 0)
