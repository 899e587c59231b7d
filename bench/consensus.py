"""Durable commits through SQLite: how many, how long each, and how long the unluckiest waits.

    python -m bench.consensus [--seconds 3] [--folder DIR] [--json FILE]

Every process appends 200 bytes to a log of its own as fast as it can, so no
compare-and-set is ever lost: what is measured is the commit and the wait for
it. "turns" is the adapter as it is; "lock" is the same with one file lock and
no place for the next in line; "busy" has neither and waits by SQLite's
busy_timeout alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sqlite3
import tempfile
import time
from multiprocessing.synchronize import Barrier
from typing import Any

from timespine.location.consensus import LogWrite
from timespine.location.sqlite import fair_lock, sqlite_file
from timespine.location.sqlite.fair_lock import FairFileLock
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

ENTRY = bytes(range(200))
CASES = [(1, "turns"), (1, "busy"), (4, "turns"), (4, "lock"), (4, "busy")]


class OneLock(FairFileLock):
    """A process that finds the turn free takes it."""

    def enter(self, deadline: float) -> bool:
        return fair_lock.poll(self.turn, deadline, fair_lock.BEHIND_S, fair_lock.BEHIND_S)


class NoLine(FairFileLock):
    """No process waits here."""

    def enter(self, deadline: float) -> bool:
        return True


LINES = {"turns": FairFileLock, "lock": OneLock, "busy": NoLine}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument("--folder", help="where the file goes; must be on the disk that is measured")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    print("processes  waiting  commits/s  p50 ms  p99 ms   max ms  commits per process")
    results = []
    for processes, waiting in CASES:
        result = measure(processes, waiting, options.seconds, options.folder)
        results.append(result)
        print(
            f"{processes:9}  {waiting:7}  {result['commits_per_s']:9.0f}  {result['p50_ms']:6.2f}"
            f"  {result['p99_ms']:6.2f}  {result['max_ms']:7.1f}  {result['commits_of_each']}",
            flush=True,
        )
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "consensus", "machine": machine, "results": results}, file, indent=2)


def measure(processes: int, waiting: str, seconds: float, folder: str | None) -> dict[str, Any]:
    """One case: a number of processes, for some seconds, on a new file."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-consensus-") as place:
        path = os.path.join(place, "consensus.db")
        SqliteConsensus(path).close()
        start, answers = context.Barrier(processes), context.Queue()
        workers = [
            context.Process(target=commit, args=(path, f"log{number}", waiting, seconds, start, answers))
            for number in range(processes)
        ]
        for worker in workers:
            worker.start()
        of_each: list[list[float]] = [answers.get(timeout=seconds + 120) for _ in workers]
        for worker in workers:
            worker.join()
    waits = sorted(wait for waits in of_each for wait in waits)
    return {
        "processes": processes,
        "waiting": waiting,
        "seconds": seconds,
        "commits_per_s": len(waits) / seconds,
        "p50_ms": 1e3 * waits[len(waits) // 2],
        "p99_ms": 1e3 * waits[len(waits) * 99 // 100],
        "max_ms": 1e3 * waits[-1],
        "commits_of_each": sorted(map(len, of_each)),
    }


def commit(path: str, key: str, waiting: str, seconds: float, start: Barrier, answers: Any) -> None:
    """The work of one process: the duration of each of its commits, in seconds."""
    sqlite_file.FairFileLock = LINES[waiting]  # type: ignore[misc,attr-defined]
    log = SqliteConsensus(path, wait_s=seconds + 60)
    head = None
    waits = []
    start.wait()
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        if log.compare_and_set([LogWrite(key, head, ENTRY)]) is not None:
            raise SystemExit(f"the log {key} has another writer")
        waits.append(time.perf_counter() - begun)
        head = 0 if head is None else head + 1
    answers.put(waits)
    log.close()


if __name__ == "__main__":
    main()
