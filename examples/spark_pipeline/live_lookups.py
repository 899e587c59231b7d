"""Look rows up in a live index while a stream writes them, and check every kept answer afterwards."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import timespine as ts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = 40
"""Answers that are checked."""

PAUSE_S = 0.002
"""The pause between two lookups: Spark needs the cores too."""


class Shown(Protocol):
    """What shows a pipeline."""

    spark: SparkSession
    folder: Path

    def say(self, text: str) -> None:
        """Tell a line."""

    def check(self, holds: bool, what: str) -> None:
        """Tell whether something holds."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A lookup: the key, the rows, and the last complete times before and after it."""

    key: dict[str, Any]
    rows: list[dict[str, Any]]
    before: int
    after: int


@dataclass(slots=True)
class Lookups:
    """What a thread asked while the stream ran."""

    kept: list[Answered] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: BaseException | None = None


@contextmanager
def live_lookups(pipeline: Shown, orders: ts.Collection) -> Iterator[None]:
    """Look up random keys in an arrangement while the block runs; afterwards compare answers with the history."""
    asked, stop = Lookups(), threading.Event()
    with orders.arrange(folder=pipeline.folder / "index") as index:
        thread = threading.Thread(target=_ask, args=(orders, index, asked, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
        if asked.error is not None:
            raise asked.error
        spent = f"{statistics.median(asked.seconds) * 1e6:.0f} us at the median" if asked.seconds else "none"
        pipeline.say(f"Meanwhile a thread looked up {len(asked.seconds):,} keys in a live index: {spent}.")
        right = all(_is_right(orders, each) for each in asked.kept)
        pipeline.check(right, f"{len(asked.kept)} of its answers are the collection as of the moment of the lookup")
        index.save()
    keys = _keys(orders)
    probes = orders.snapshot(columns=keys).to_spark(pipeline.spark)
    with_rows = ts.spark.enrich(probes, pipeline.folder / "index", on=keys, how="inner")
    pipeline.check(with_rows.count() == orders.count(), "executors find every row in the files that the index saved")


def _ask(orders: ts.Collection, index: ts.OpenArrangement, asked: Lookups, stop: threading.Event) -> None:
    draw = random.Random(1)
    keys: list[dict[str, Any]] = []
    try:
        while not stop.wait(PAUSE_S):
            before = orders.upper.last_complete()
            if before is None:
                continue
            if not keys or draw.random() < 0.01:
                keys = orders.snapshot(columns=_keys(orders)).to_arrow().slice(0, 1000).to_pylist()
                continue
            key = draw.choice(keys)
            began = time.perf_counter()
            rows = index.get(key)
            asked.seconds.append(time.perf_counter() - began)
            if len(asked.kept) < KEPT and draw.random() < 0.2:
                asked.kept.append(Answered(key, rows, before, orders.upper.last_complete() or 0))
    except BaseException as error:
        asked.error = error


def _is_right(orders: ts.Collection, asked: Answered) -> bool:
    """Tell whether an answer is the collection as of one of the times that were newest meanwhile."""
    times = range(asked.before, asked.after + 1)
    return any(orders.lookup(asked.key, as_of=time).to_pylist() == asked.rows for time in times)


def _keys(orders: ts.Collection) -> list[str]:
    return list(orders.schema.key_names)
