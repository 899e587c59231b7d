"""Where the time of a work goes, in this process and one thread: `python -m bench.profile snapshot upsert lookup`.

Threads are switched off, so that the parts add up; what is printed is the share of each part in the whole.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import timespine as ts
from bench.rows import rows, sample
from timespine.columnar.kernels import take_rows
from timespine.columnar.scan import parallel_scan
from timespine.pool import Pool, PoolTask

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": "timestamp", "note": "string"}

PARTS = {
    "decode Parquet": ("_decode",),
    "compare hashes": ("openssl_sha256",),
    "read files": ("posix.pread", "posix.open"),
    "pick and filter rows": ("'take' of", "compute.py", "combine_chunks", "single"),
    "encode Parquet": ("write_table",),
    "make durable": ("fsync", "posix.write", "posix.link"),
    "SQLite": ("sqlite3",),
    "kernels: words, merge, sums": ("columnar/kernels/", "numpy", "polars"),
}
"""What belongs to what, by how a line of the profile reads; the first that fits counts."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], help="snapshot, compacted, upsert, lookup")
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args(arguments)
    parallel_scan.CORES_MAX = 1
    take_rows.THREADED_ROWS = 1 << 60
    Pool.submit = _run_at_once  # type: ignore[assignment, method-assign]
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as folder, ts.open(folder, maintenance=False) as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(rows(np.arange(options.rows)))
        for name in options.works or WORKS:
            WORKS[name](store, items, options.rows)


def _run_at_once(pool: Pool, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PoolTask[Any]:
    """Run a task of the pool in the calling thread, the only one that is profiled."""
    task = PoolTask(lambda: work(*args, **kwargs))
    task.run()
    return task


def snapshot(store: Any, items: Any, count: int) -> None:
    """A whole read right after a tenth of the rows was upserted."""
    items.upsert(rows(sample(count // 10, count, 3), 1))
    _profiled("snapshot after an upsert", store, lambda: items.snapshot().to_arrow())


def compacted(store: Any, items: Any, count: int) -> None:
    """A whole read of one run that still has its history."""
    items.compact(wait=True)
    _profiled("snapshot, compacted", store, lambda: items.snapshot().to_arrow())


def upsert(store: Any, items: Any, count: int) -> None:
    """An upsert of ten thousand rows."""
    _profiled("upsert of 10,000", store, lambda: items.upsert(rows(sample(10_000, count, 9), 2)))


def lookup(store: Any, items: Any, count: int) -> None:
    """A hundred lookups, each of another row group."""
    keys = sample(100, count, 11).tolist()
    _profiled("100 lookups", store, lambda: [items.lookup({"id": key}) for key in keys])


WORKS: dict[str, Callable[[Any, Any, int], None]] = {
    each.__name__: each for each in (snapshot, compacted, upsert, lookup)
}


def _profiled(title: str, store: Any, run: Callable[[], Any]) -> None:
    run()  # so that memory and code are warm
    store._cache.clear()
    profile = cProfile.Profile()
    profile.runcall(run)
    spent = dict.fromkeys([*PARTS, "everything else"], 0.0)
    for (file, _, name), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        line = f"{file} {name}"
        found = next((part for part, marks in PARTS.items() if any(mark in line for mark in marks)), "everything else")
        spent[found] += own
    total = sum(spent.values())
    print(f"\n{title}: {total:.3f} s of one thread")
    for part, seconds in sorted(spent.items(), key=lambda each: -each[1]):
        if seconds / total > 0.01:
            print(f"  {part:28} {seconds:8.3f} s  {seconds / total:4.0%}", flush=True)


if __name__ == "__main__":
    main()
