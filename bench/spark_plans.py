"""Plans of reads of very many parts: a collection that has them, and the time that a driver takes to plan a read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import timespine as ts
from bench.ours import KEY, NAME, VALUE
from bench.rows import rows
from timespine.config import Config
from timespine.core.batch import Part
from timespine.spark import release

PARTS = 10_000
ROWS_MAX = 1_000_000
"""Rows of the collection, at most: a plan takes the time that the parts take, and small ones are soon written."""

AIM_S = 1.0
"""What the planning may take."""


def create_small_parts(folder: Path, count: int) -> None:
    """Create a store with a collection of some rows in at least as many parts as are to be planned."""
    given = rows(np.arange(min(count, ROWS_MAX)))
    part_bytes = (given.nbytes + 16 * given.num_rows) // (PARTS * 5 // 4)  # each row has a time and a diff too
    with ts.open(folder, maintenance=False, config=Config(part_bytes=part_bytes, inline_part_bytes=1)) as store:
        collection = store.create(NAME, key=KEY, value=VALUE, timeline="counter")
        collection.append(given)
        found = len(parts_of(collection))
    if not PARTS <= found <= 2 * PARTS:
        raise AssertionError(f"{found:,} parts instead of about {PARTS:,}")


def parts_of(collection: Any) -> list[Part]:
    """Return the parts of a collection, also those in lists."""
    parts = [part for run in collection.snapshot()._plan.runs for part in run.parts]
    return list(collection._handle.parts(collection._handle.state()).leaves(parts))


def planning_s(folder: Path, spark: Any, partitions: int | None) -> float:
    """Plan a read of all rows by a store that was just opened, in slices; return the seconds."""
    with ts.open(folder, maintenance=False) as store:
        collection = store[NAME]
        began = time.perf_counter()
        collection.snapshot().to_spark(spark, partitions=partitions)
        elapsed = time.perf_counter() - began
        release(spark)
    return elapsed
