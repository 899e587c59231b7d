"""Two views are kept fresh while a stream runs, and are what Spark answers to the same texts in one batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import timespine as ts
from examples.spark_pipeline.change_log import SEQUENCE, quoted
from examples.spark_pipeline.console import bar, waiting

if TYPE_CHECKING:
    from examples.spark_pipeline.pipeline import Pipeline

FRESH_S = 60.0
"""How long the follower may take for the last refresh."""


def fresh_views(pipeline: Pipeline, store: ts.Store, log: Path) -> None:
    """Stream the log into a collection once more, while a thread keeps two views of it fresh."""
    changes = ts.spark.stream_changes(pipeline.spark, log, key=pipeline.asked.key)
    key, value = ts.spark.collection_columns(changes, pipeline.asked.key)
    live = store.create("live", key=key, value=value, timeline="counter")
    live.seal(1)  # a view begins at a complete time
    texts = view_texts(live)
    pipeline.title(f"Two views of the same log are kept fresh while it streams in: {' and '.join(texts)}")
    for name, sql in texts.items():
        store.view(name, sql=sql)
    refreshes = 0

    def count(done: Mapping[str, object]) -> None:
        nonlocal refreshes
        refreshes += 1

    with store.follow(list(texts), every=0.05, callback=count) as following:
        with bar(pipeline.console, "Streaming", len(list(log.glob("*.*")))) as step:
            write = ts.spark.foreach_batch(live, "upsert", sink="live", sequence_by=SEQUENCE, done=step)
            pipeline.stream(changes, write, "live")
        with waiting(pipeline.console, "Refreshing"):
            deadline = time.monotonic() + FRESH_S
            while any(store.view(name).upper != live.upper for name in texts) and time.monotonic() < deadline:
                time.sleep(0.01)
        status = following.status()
    pipeline.say(f"{live.count():,} rows after {len(live.history())} commits, and {refreshes} refreshes meanwhile.")
    failed = [each.error for each in status.views.values() if each.error]
    pipeline.check(not failed and refreshes > 0, "the follower had no error" if not failed else f"{failed}")
    with live.snapshot() as rows:
        rows.to_spark(pipeline.spark).createOrReplaceTempView("live")
    for name, sql in texts.items():
        pipeline.check(_is_answer(pipeline, store, name, sql), f"{name} is what Spark answers to its text in one batch")
    for name in reversed(texts):
        store.drop(name)
    ts.spark.release(pipeline.spark)


def view_texts(rows: ts.Collection) -> dict[str, str]:
    """Return the texts of two views of a collection: totals of groups, and a view on that view with the largest."""
    types = {name: kind for name, kind in rows.schema.types.items() if name not in rows.schema.key_names}
    group = next((name for name, kind in types.items() if pa.types.is_string(kind)), rows.schema.key_names[0])
    whole = next((name for name, kind in types.items() if pa.types.is_integer(kind) or pa.types.is_decimal(kind)), None)
    total = f", sum({quoted(whole)}) AS total" if whole is not None else ""
    by = quoted(group)
    return {
        "totals": f"SELECT {by} AS member, count(*) AS entries{total} FROM live GROUP BY {by}",
        "largest": "SELECT member, entries FROM totals ORDER BY entries DESC, member LIMIT 5",
    }


def _is_answer(pipeline: Pipeline, store: ts.Store, name: str, sql: str) -> bool:
    """Compare a view with Spark's answer over the newest rows; that answer stands for the view in later texts."""
    spark = pipeline.spark
    with store[name].snapshot() as kept:
        ours = kept.to_spark(spark)
    theirs = spark.sql(sql)
    theirs.createOrReplaceTempView(name)
    theirs = theirs.select([theirs[each.name].cast(each.dataType) for each in ours.schema])
    same: bool = not ours.exceptAll(theirs).count() and not theirs.exceptAll(ours).count()
    return same
