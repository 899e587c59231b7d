"""Upserts of one collection by several processes at once, and how often one had to give way.

A change reads the rows that it replaces. If another process commits first, the change follows that commit and is
*placed again*, without another read of the collection; after some losses it takes a *turn*, for which the others wait.
Only if it cannot follow, because the schema changed or history was expired, it *starts again* from the beginning.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.streams_runs import KEY, NOTE_BYTES, Bench, race, require, spread, wait_for_start
from bench.usage import used

VALUE = {"total": "int64", "note": "string"}
COUNTERS = ("changes started again", "changes placed again", "turns taken")
"""What the store counts of changes that lose to others."""


def upserts(bench: Bench) -> None:
    """Upserts of scattered rows, all of which are there, by processes that may choose the same ones."""
    for many in bench.sizes.upserters:
        bench.compare(
            f"upserts of {bench.sizes.rows} rows in {bench.sizes.base:,} by {many} process{'es' if many > 1 else ''}",
            ours=lambda many=many: _upserted(bench, many),
        )


def _upserted(bench: Bench, processes: int) -> dict[str, float]:
    sizes = bench.sizes
    with bench.store() as store:
        items = store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(_rows(np.arange(sizes.base), 0))
        bounds = (sizes.upserts, sizes.upserts_s, sizes.base, sizes.rows)
        said = race("bench.streams_upserts", [(store.location, number, *bounds) for number in range(processes)])
        table = items.snapshot().to_arrow()
    expected = _totals(sizes.base, sizes.rows, [each["commits"] for each in said])
    require(table.num_rows == sizes.base, "rows are missing, or there twice")
    totals = table.sort_by("id").column("total").to_numpy()
    require(bool((totals == expected).all()), "rows are not those of the last upsert of their ids")
    counted = sum((Counter(each["counters"]) for each in said), Counter[str]())
    done = sum(len(each["times_s"]) for each in said)
    return {
        "upserts per second": done / max(each["lasted_s"] for each in said),
        **spread([seconds for each in said for seconds in each["times_s"]]),
        "CPU time per upsert": sum(each["cpu_s"] for each in said) / done,
        **{name: float(counted[name]) for name in (*COUNTERS, "refused")},
    }


def _totals(base: int, rows: int, commits: list[list[tuple[int, int]]]) -> np.ndarray:
    """Return the totals that the collection should have: for each id, those of the latest upsert."""
    found = np.zeros(base, dtype=np.int64)
    known = [(at, process, number) for process, some in enumerate(commits) for at, number in some]
    for _, process, number in sorted(known):
        found[_ids(base, rows, process, number)] = _total(process, number)
    return found


def _ids(base: int, rows: int, process: int, number: int) -> np.ndarray:
    return np.random.default_rng((process, number)).choice(base, min(rows, base), replace=False)


def _total(process: int, number: int) -> int:
    """No two upserts have the same."""
    return (process + 1 << 32) + number


def _rows(ids: np.ndarray, total: int) -> pa.Table:
    notes = pa.array(np.char.mod(f"%0{NOTE_BYTES}d", ids).astype(object), pa.string())
    return pa.table({"id": ids, "total": np.full(len(ids), total), "note": notes})


def upsert_in_race(location: str, process: int, upserts: int, seconds: float, base: int, rows: int) -> dict[str, Any]:
    """Upsert as one of several processes, up to a number of times and of seconds; return what happened.

    One upsert more comes before the race, in which the process registers and reads the collection.
    """
    times_s: list[float] = []
    counters = Counter[str]()
    with ts.open(location) as store:
        items = store["items"]
        given = [_rows(_ids(base, rows, process, number), _total(process, number)) for number in range(upserts + 1)]
        commits = [(items.upsert(given[0]).time, 0)]
        wait_for_start()
        before = store.metrics()
        began, cpu_s = time.perf_counter(), used().cpu_s
        for number, each in enumerate(given[1:], start=1):
            start = time.perf_counter()
            if start > began + seconds:
                break
            try:
                commits.append((items.upsert(each).time, number))
            except ts.Contention:  # nothing was changed
                counters["refused"] += 1
            times_s.append(time.perf_counter() - start)
        lasted_s, spent_s = time.perf_counter() - began, used().cpu_s - cpu_s
        after = store.metrics()
    counters.update({name: int(after.get(name, 0) - before.get(name, 0)) for name in COUNTERS})
    return {"commits": commits, "times_s": times_s, "lasted_s": lasted_s, "cpu_s": spent_s, "counters": counters}


if __name__ == "__main__":
    location, process, upserts_, seconds_, base_, rows_ = sys.argv[1:]
    found = upsert_in_race(location, int(process), int(upserts_), float(seconds_), int(base_), int(rows_))
    print(json.dumps(found))
