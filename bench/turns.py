"""Two source trees in turns: python -m bench.turns TREE [TREE ...] [--works many-on append ...] [--rounds 3]

Every figure is taken in a process of its own, whose PYTHONPATH names one of the trees; the trees take turns, so that a
busy machine slows all of them. What is printed is the median of each tree and its ratio to the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": "timestamp", "note": "string"}

Figures = dict[str, float]
"""Figures of one run, by their names: seconds if the name ends with `s`, counts otherwise."""


def main(arguments: list[str] | None = None) -> None:
    """Run the works on every tree in turns, and print them side by side."""
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs="+", type=Path, help="source trees; the first is what others are compared with")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--number", type=int, help="commits, seconds or rows of a work instead of its default")
    parser.add_argument("--folder", help="where stores are made; /dev/shm leaves fsync out")
    options = parser.parse_args(arguments)
    for work in options.works:
        found: list[list[Figures]] = [[] for _ in options.trees]
        for _ in range(options.rounds):
            for tree, figures in zip(options.trees, found, strict=True):
                figures.append(_run(tree, work, options.number, options.folder))
        for name in found[0][0]:
            medians = [statistics.median(each[name] for each in figures) for figures in found]
            ratios = [f"{each / medians[0]:.2f}" for each in medians[1:] if medians[0]]
            print(f"{work:12} {name:28}", *(f"{each:12.5g}" for each in medians), *ratios, flush=True)


def _run(tree: Path, work: str, number: int | None, folder: str | None) -> Figures:
    """The figures of one work of one tree, from a fresh process."""
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}"}
    with tempfile.TemporaryDirectory(prefix="bench-turns-", dir=folder) as place:
        figures: Figures = {}
        for step in WORKS[work]:
            command = [sys.executable, __file__, "--child", step, place, str(number or 0)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            figures.update(json.loads(done.stdout))
        return figures


def _table(start: int, count: int) -> Any:
    import numpy as np
    import pyarrow as pa

    ids = np.arange(start, start + count)
    return pa.table(
        {
            "id": ids,
            "customer": pa.array([f"customer-{each % 9973:05}" for each in range(start, start + count)]),
            "total": ids * 0.37 % 1000,
            "created": pa.array(1_700_000_000_000_000 + ids * 1000, pa.timestamp("us")),
            "note": pa.array([f"note {each % 31} of an order" for each in range(start, start + count)]),
        }
    )


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _many(place: str, commits: int, *, maintenance: bool) -> Figures:
    """Commits of ten rows, and a whole read after some of them."""
    import timespine as ts

    figures: Figures = {}
    with ts.open(f"{place}/store", maintenance=maintenance) as store:
        items = store.create("items", key=KEY, value=VALUE)
        times = []
        for number in range(commits):
            table = _table(number * 10, 10)
            times.append(_seconds(lambda table=table: items.append(table)))  # type: ignore[misc]
            if number + 1 in (10, 100, 1000, 3000, 10_000):
                figures[f"snapshot {number + 1} s"] = _seconds(lambda: items.snapshot().to_arrow())
                figures[f"again {number + 1} s"] = _seconds(lambda: items.snapshot().to_arrow())
                parts = [part for batch in items._handle.state().hollow_batches() for part in batch.parts]
                figures[f"parts {number + 1}"] = len(parts)
                figures[f"blobs {number + 1}"] = sum(part.inline is None for part in parts)
                figures[f"last commits {number + 1} s"] = statistics.median(times[-100:])
        assert items.count() == commits * 10
    return figures


def many_on(place: str, number: int) -> Figures:
    """Small commits with a maintenance thread."""
    return _many(place, number or 3000, maintenance=True)


def many_off(place: str, number: int) -> Figures:
    """Small commits that no process maintains."""
    return _many(place, number or 3000, maintenance=False)


def append(place: str, number: int) -> Figures:
    """Appends of one row given as Python values."""
    import timespine as ts

    with ts.open(f"{place}/append") as store:
        items = store.create("items", key=KEY, value={"name": "string"})
        times = []
        before = time.process_time()
        for each in range(number or 1500):
            times.append(_seconds(lambda each=each: items.append([{"id": each, "name": "x"}])))  # type: ignore[misc]
        cpu = time.process_time() - before
    times.sort()
    return {
        "p50 s": statistics.median(times),
        "p99 s": times[len(times) * 99 // 100],
        "CPU per append s": cpu / len(times),
    }


def threads(place: str, number: int) -> Figures:
    """Eight threads that append one row each, as fast as they can."""
    import timespine as ts

    times: list[float] = []
    with ts.open(f"{place}/threads") as store:
        items = store.create("items", key=KEY, value={"name": "string"})
        end = time.perf_counter() + (number or 2)

        def work(start: int) -> None:
            each = start
            while time.perf_counter() < end:
                times.append(_seconds(lambda: items.append([{"id": each, "name": "x"}])))  # noqa: B023
                each += 8

        workers = [threading.Thread(target=work, args=(each,)) for each in range(8)]
        began, before = time.perf_counter(), time.process_time()
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        took, cpu = time.perf_counter() - began, time.process_time() - before
    times.sort()
    return {
        "per append s": took / len(times),
        "CPU per append s": cpu / len(times),
        "p99 s": times[len(times) * 99 // 100],
    }


def write(place: str, number: int) -> Figures:
    """One append of many rows."""
    import timespine as ts

    with ts.open(f"{place}/store", maintenance=False) as store:
        items = store.create("items", key=KEY, value=VALUE)
        table = _table(0, number or 4_000_000)
        return {"write s": _seconds(lambda: items.append(table))}


def commits(place: str, number: int) -> Figures:
    """Commits of ten rows that no process maintains."""
    import timespine as ts

    with ts.open(f"{place}/store", maintenance=False) as store:
        items = store.create("items", key=KEY, value=VALUE)
        tables = (_table(each * 10, 10) for each in range(number or 10_000))
        return {"all commits s": _seconds(lambda: [items.append(table) for table in tables])}


def first_read(place: str, number: int) -> Figures:
    """Open a store, look one row up, and read all rows, twice."""
    import timespine as ts

    began = time.perf_counter()
    with ts.open(f"{place}/store", maintenance=False) as store:
        items = store["items"]
        opening = time.perf_counter() - began
        assert items.lookup({"id": 5})
        row = time.perf_counter() - began
        user, system = os.times()[:2]
        first = _seconds(lambda: items.snapshot().to_arrow())
        used = [after - before for after, before in zip(os.times(), (user, system), strict=False)]
        warm = _seconds(lambda: items.snapshot().to_arrow())
    return {
        "open s": opening,
        "open and first row s": row,
        "first read s": first,
        "its user time s": used[0],
        "its system time s": used[1],
        "second read s": warm,
    }


STEPS: dict[str, Callable[[str, int], Figures]] = {
    each.__name__: each for each in (many_on, many_off, append, threads, write, commits, first_read)
}
WORKS = {
    "many-on": ["many_on", "first_read"],
    "many-off": ["many_off", "first_read"],
    "append": ["append"],
    "threads": ["threads"],
    "whole": ["write", "first_read"],
    "opening": ["commits", "first_read"],
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(STEPS[sys.argv[2]](sys.argv[3], int(sys.argv[4]))))
    else:
        main()
