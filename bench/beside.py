"""How fast background merges are beside a thread that runs Python: python -m bench.beside [--rows N] [--turns N]

Merges of eight sorted runs, alone and beside a thread that never lets the interpreter lock go by itself, in turns.
Every call of numpy or Arrow gives the lock up, and waits up to the switch interval (5 ms) to get it back. So the number
of such calls decides, and not what they compute. The waits of the merging thread are counted too: other programs on
the machine change the speeds, and hardly these.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa

from bench.core import table as print_table
from timespine.columnar.kernels.background_flag import background_work
from timespine.columnar.kernels.kway_merge import kway_merge

SEED = 5
RUNS = 8
ORDER = ("key", "value", "_time")


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.beside")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    lines = []
    for kind in ("int new", "string new", "int pairs", "string pairs"):
        runs = runs_of(options.rows, kind)
        rows = sum(run.num_rows for run in runs)
        for name, work in (("for a caller", merged), ("background", merged_in_background)):
            call = partial(work, runs)
            alone, beside = [], []
            for _ in range(options.turns):
                alone.append(measured(call))
                with busy_thread():
                    beside.append(measured(call))
            quick, slow = min(alone)[0], sorted(beside)[len(beside) // 2][0]
            waits = min(count for _, count in beside)
            figures = {"alone": f"{rows / quick / 1e6:.2f}", "beside": f"{rows / slow / 1e6:.2f}"}
            per_million = round(waits * 1e6 / rows)
            lines.append({"rows": kind, "kernel": name, **figures, "kept": f"{quick / slow:.0%}", "waits": per_million})
    print_table(f"Merges of {RUNS} runs: millions of rows per second, and waits per million rows beside", lines)


if __name__ == "__main__":
    main()
