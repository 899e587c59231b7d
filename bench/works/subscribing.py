"""From the call that writes to the subscriber that has the row."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from bench.peers.system import Cannot, System
from bench.rows import rows
from bench.works.work import Case, Out, Size, State, Work, median, opened, spread

PAUSE_S = 0.01
START_S = 30


class Subscribe(Work):
    """One row per commit. A system without a push is polled every millisecond; the time runs from the call of write."""

    name = "subscribe"
    headlines = ("latency",)
    pairs = (("latency of the first row", "latency"),)
    title = "from the call that commits one row to the subscriber that has it, {writes} times"
    needs = ("append", "feed")
    cases = (
        Case("same process", {"writes": 20, "apart": 0}, {"writes": 100, "apart": 0}),
        Case("another process", {"writes": 20, "apart": 1}, {"writes": 100, "apart": 1}),
    )

    def setup_key(self, size: Size) -> str:
        return "one-row"

    def setup(self, system: System, size: Size, out: Out) -> State:
        system.create()
        system.append(rows(np.array([0])))
        system.close()
        return {}

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        if size["apart"] and system.one_process:
            raise Cannot(system.one_process)
        with opened(system):
            write = _write_apart if size["apart"] else _write_here
            first, *times = _follow(system, 1 + size["writes"], write)
        out.figure("latency of the first row", first)
        out.figure("latency", median(times), note=spread(times))


def write(system: System, count: int) -> list[int]:
    """Commit ids 1 to count, with a pause between; when each call began, in nanoseconds since boot."""
    began = []
    for number in range(1, count + 1):
        row = rows(np.array([number]))
        time.sleep(PAUSE_S)
        began.append(time.monotonic_ns())
        system.append(row)
    return began


def _write_here(system: System, count: int) -> list[int]:
    return write(system, count)


def _write_apart(system: System, count: int) -> list[int]:
    """By a process of its own, that tells when each call began: the monotonic clock is the same for all."""
    command = [sys.executable, "-m", "bench.child", "--write", str(count), "--folder", str(system.folder)]
    command += ["--system", system.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the writing process failed: {done.stderr.strip().splitlines()[-1:]}")
    return [int(each) for each in done.stdout.split()]


def _follow(system: System, count: int, write: Callable[[System, int], list[int]]) -> list[float]:
    seen: dict[int, int] = {}
    ready, stop, failures = threading.Event(), threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            for ids in system.feed(stop):
                now = time.monotonic_ns()
                ready.set()
                for each in ids.tolist():
                    seen.setdefault(each, now)
                if len(seen.keys() & set(range(1, count + 1))) == count:
                    return
        except BaseException as failure:
            failures.append(failure)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    ready.wait(START_S)
    began = write(system, count)
    follower.join(timeout=10)
    stop.set()
    if failures:
        raise failures[0]
    if not set(range(1, count + 1)) <= seen.keys():
        raise RuntimeError(f"the subscriber saw {len(seen)} of {count} rows")
    return [(seen[number] - start) / 1e9 for number, start in enumerate(began, start=1)]
