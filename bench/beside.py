"""How fast background merges are beside a thread that runs Python: python -m bench.beside [--rows N] [--turns N]

Merges of eight sorted runs, alone and beside a thread that never lets the interpreter lock go by itself, in turns.
Every call of numpy or Arrow gives the lock up, and waits up to the switch interval (5 ms) to get it back. So the number
of such calls decides, and not what they compute. The waits of the merging thread are counted too: other programs on
the machine change the speeds, and hardly these.

Two merges are of tables in memory: as a caller does it, and as background work. The others are the whole merge of a
collection as background work, as the maintenance thread does it: decode the stored runs, merge them, encode and put the
result, and commit. It has threads of its own for reading ahead and for encoding, so that it has more than one core
while it is alone. One of them runs in this process, and the other in a process of its own (`Config.merge_process`) that
was started before. The waits are those of the merging thread of this process only.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.core import table as print_table
from timespine.client.maintenance.merge_process.merge_process import LEAST_ROWS
from timespine.columnar.kernels.background_flag import background_work
from timespine.columnar.kernels.kway_merge import kway_merge

SEED = 5
RUNS = 8
AIM = 0.3
"""The share of its speed that a background merge should keep beside a thread that runs Python."""
BY_PROCESS = "stored runs, by another process"
ORDER = ("key", "value", "_time")

Prepare = Callable[[], AbstractContextManager[Callable[[], None]]]
"""Gives a merge that can be called once, and removes what it made afterwards."""


def runs_of(rows: int, kind: str) -> list[pa.Table]:
    """Sorted runs of updates: of new keys, or of pairs of a retraction and a new version of the same keys."""
    draw = np.random.default_rng(SEED)
    found = []
    for number in range(RUNS):
        if kind.endswith("pairs"):
            keys = np.sort(draw.choice(rows, rows // RUNS // 2, replace=False)).repeat(2)
            values = np.full(len(keys), number) - np.tile([1, 0], len(keys) // 2)
            diffs = np.tile([-1, 1], len(keys) // 2)
        else:
            keys = np.arange(number, rows, RUNS)
            values = draw.integers(0, 1000, len(keys))
            diffs = np.ones(len(keys), np.int64)
        named = pa.array([f"customer-{key:016d}" for key in keys]) if kind.startswith("string") else pa.array(keys)
        found.append(pa.table({"key": named, "value": values, "_time": np.full(len(keys), number), "_diff": diffs}))
    return found


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that runs Python until the block ends."""
    over = threading.Event()

    def spin() -> None:
        count = 0
        while not over.is_set():
            for _ in range(1000):
                count += 1

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def measured(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds of a call, and how often this thread waited meanwhile: for the interpreter lock, mostly."""
    began, waits = time.perf_counter(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    work()
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - waits


def merged(runs: list[pa.Table]) -> None:
    for _ in kway_merge([iter([run]) for run in runs], ORDER, chunk_bytes=256 << 20):
        pass


def merged_in_background(runs: list[pa.Table]) -> None:
    with background_work():
        merged(runs)


def stored(runs: list[pa.Table], folder: Path) -> None:
    """Make a store with a collection of these runs, each of a batch of its own."""
    with ts.open(folder, maintenance=False) as store:
        key = {"key": "string" if pa.types.is_string(runs[0].schema.field("key").type) else "int64"}
        items = store.create("items", key=key, value={"value": "int64"}, timeline="counter")
        for run in runs:
            items.append(run)
        first = store.create("first", key={"key": "int64"}, timeline="counter")
        for number in range(2):
            first.append(pa.table({"key": np.arange(number, 2 * LEAST_ROWS, 2)}))


@contextmanager
def merge_of_stored(source: Path, by_process: bool) -> Iterator[Callable[[], None]]:
    """Copy a store, and give the call that merges its collection in the background. It works once."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        with ts.open(folder, maintenance=False, config=ts.Config(merge_process=by_process)) as store:
            items = store["items"]
            rows = items.count()
            with background_work():
                store["first"].compact(wait=True)  # starts the process

            def merge() -> None:
                with background_work():
                    items.compact(wait=True)

            yield merge
            asked = by_process + (by_process and rows >= LEAST_ROWS)
            if store.metrics().get("merges by process", 0) < asked:
                raise RuntimeError("the process did not merge")
            if items.count() != rows:
                raise RuntimeError(f"wrong answer: {rows:,} rows before the merge, {items.count():,} after it")


@contextmanager
def repeatable(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Give a call that works as often as one likes."""
    yield work


def compared(
    prepare: Callable[[], AbstractContextManager[Callable[[], None]]], rows: int, turns: int
) -> dict[str, str]:
    """Measure a merge alone and beside a thread that runs Python, in turns, each time prepared anew."""
    alone, beside = [], []
    for _ in range(turns):
        with prepare() as call:
            alone.append(measured(call))
        with prepare() as call, busy_thread():
            beside.append(measured(call))
    quick, slow = min(alone)[0], sorted(beside)[len(beside) // 2][0]
    waits = round(min(count for _, count in beside) * 1e6 / rows)
    speeds = {"alone": f"{rows / quick / 1e6:.2f}", "beside": f"{rows / slow / 1e6:.2f}"}
    return {**speeds, "kept": f"{quick / slow:.0%}", "waits": str(waits)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.beside")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the stores are made")
    options = parser.parse_args(arguments)
    lines = []
    for kind in ("int new", "string new", "int pairs", "string pairs"):
        runs = runs_of(options.rows, kind)
        rows = sum(run.num_rows for run in runs)
        with tempfile.TemporaryDirectory(prefix="bench-beside-", dir=options.dir) as folder:
            stored(runs, source := Path(folder) / "stored")
            for name, prepare in (
                ("in memory, for a caller", partial(repeatable, partial(merged, runs))),
                ("in memory, background", partial(repeatable, partial(merged_in_background, runs))),
                ("stored runs, background", partial(merge_of_stored, source, by_process=False)),
                (BY_PROCESS, partial(merge_of_stored, source, by_process=True)),
            ):
                lines.append({"rows": kind, "merge": name, **compared(prepare, rows, options.turns)})
    print_table(f"Merges of {RUNS} runs: millions of rows per second, and waits per million rows beside", lines)
    kept = [line["kept"] for line in lines if line["merge"] == BY_PROCESS]
    print(f"\nAim: background merges keep at least {AIM:.0%}. By another process they keep {', '.join(kept)}.")


if __name__ == "__main__":
    main()
