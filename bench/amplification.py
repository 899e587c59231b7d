"""Rows that maintenance writes per row appended: python -m bench.amplification [--quick]

Five arrival patterns on a virtual clock, in memory: the background does between two appends what it would do in that
time. Nothing is timed, so the figures are the same on every machine. Beside them stand the bound that
`timespine.core.maintenance_policy` derives, and what storage holds at rest.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.config import Config
from timespine.core.maintenance_policy import run_count
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.testing.maintenance_bound import written_rows_max

CONFIG = Config(inline_part_bytes=1)
"""Every row goes to a blob: what is inline hides what storage costs."""

REST_S = 120.0
"""How long no writer writes at the end."""


class Clock:
    """The wall clock and the monotonic one, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Figures:
    """What one pattern cost."""

    pattern: str
    appended: int
    """Rows that were appended; an upsert of a row that is there is two updates."""
    written: int
    """Rows that maintenance wrote."""
    bound: float
    """Rows that it may write at most."""
    runs: int
    """Runs that a reader merges at rest."""
    stored: float
    """Bytes in storage at rest per byte that is live."""

    @property
    def per_row(self) -> float:
        """Rows written per row appended."""
        return self.written / self.appended


@dataclass(frozen=True, slots=True)
class Pattern:
    """When rows arrive, and which."""

    name: str
    gap_s: float
    """Between two appends."""
    rows: Callable[[random.Random, int], list[int]]
    """The keys of one append."""
    upserts: bool = False
    retain: str | None = None


def new_keys(random_: random.Random, number: int) -> list[int]:
    """Keys that were not there before, anywhere in the order."""
    return sorted(random_.sample(range(1 << 40), 100))


def some_keys(random_: random.Random, number: int) -> list[int]:
    """Keys out of a thousand."""
    return sorted(random_.sample(range(1000), 100))


PATTERNS = (
    Pattern("burst", 0.01, new_keys),
    Pattern("one per second", 1.0, new_keys),
    Pattern("one per minute", 60.0, new_keys),
    Pattern("upserts, one per minute", 60.0, some_keys, upserts=True),
    Pattern("upserts, one per minute, retain 1 hour", 60.0, some_keys, upserts=True, retain="1 hour"),
)


def passing(store: Store, clock: Clock, seconds: float) -> None:
    """Let time pass, and the background do what it does in it."""
    left = seconds
    while True:
        while store._maintenance.round():
            pass
        if left <= 0:
            return
        step = min(left, 5.0)
        clock.now += step
        left -= step


def appending(collection: Collection, pattern: Pattern, appends: int, seed: int = 1) -> Iterator[int]:
    """Append, one batch per step."""
    random_ = random.Random(seed)
    for number in range(appends):
        keys = pattern.rows(random_, number)
        values = [f"{random_.getrandbits(64):x}" for _ in keys]
        table = pa.table({"id": keys, "v": values})
        if pattern.upserts:
            collection.upsert(table)
        else:
            collection.append(table)
        yield number


def measured(pattern: Pattern, appends: int) -> Figures:
    """One pattern, and then rest."""
    clock = Clock()
    store = Store(
        MemoryBlob(),
        MemoryConsensus(),
        config=CONFIG,
        maintenance=False,
        clock=clock,
        monotonic=clock,
        sleep=lambda seconds: None,
    )
    with store:
        collection = store.create("c", key={"id": "int64"}, value={"v": "string"}, retain=pattern.retain)
        for _ in appending(collection, pattern, appends):
            passing(store, clock, pattern.gap_s)
        passing(store, clock, REST_S)
        state = collection._handle.state()
        totals = state.totals
        stored = sum(info.size for info in store._context.blob.list_keys(f"{collection.id}/"))
        bound = written_rows_max(totals.appended_rows)
        shape = (run_count(state), stored / totals.live_bytes)
        return Figures(pattern.name, totals.appended_rows, totals.merged_rows, bound, *shape)


def table_of(figures: list[Figures]) -> str:
    """The figures as a table of Markdown."""
    lines = [
        "| arrival | rows appended | rows written by maintenance | per row | at most | runs at rest | stored / live |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.pattern} | {each.appended:,} | {each.written:,} | {each.per_row:.1f} "
        f"| {each.bound / each.appended:.1f} | {each.runs} | {each.stored:.2f} |"
        for each in figures
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the appends")
    appends = 50 if parser.parse_args().quick else 500
    print(table_of([measured(pattern, appends) for pattern in PATTERNS]))


if __name__ == "__main__":
    main()
