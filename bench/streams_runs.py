"""What the works of `bench.streams` have in common: sizes, runs in turns, races of processes, and small helpers."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import timespine as ts
from bench.streams_report import lines
from bench.usage import used

ROOT = Path(__file__).parent.parent
KEY, VALUE = {"id": "int64"}, {"note": "string"}
NOTE_BYTES = 92
"""With its id, a row has 100 bytes."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    seconds: float = 5.0
    writers: tuple[int, ...] = (8, 64)
    processes: tuple[int, ...] = (1, 2, 4, 8)
    sealed: int = 1000
    collections: tuple[int, ...] = (10, 100, 1000, 10_000)
    appends: int = 300
    batches: int = 1000
    steps: int = 1000
    rows: int = 100
    events: int = 300
    upserters: tuple[int, ...] = (1, 4)
    """Processes that upsert into one collection."""
    upserts: int = 200
    """Upserts of each of them, at most."""
    upserts_s: float = 20.0
    """Seconds after which none of them begins another."""
    base: int = 100_000
    """Rows of that collection."""


QUICK = Sizes(0.3, (2, 4), (1, 2), 20, (5, 20), 10, 20, 20, 10, 10, (1, 2), 5, 5.0, 1_000)


class Bench:
    """One run."""

    def __init__(self, folder: Path, sizes: Sizes, repeat: int) -> None:
        self.folder, self.sizes, self.repeat = folder, sizes, repeat
        self.found: list[dict[str, Any]] = []

    def compare(self, work: str, **runs: Callable[[], dict[str, float]]) -> None:
        """Run what is compared in turns, and print what was found. The first is ours."""
        values: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
        for _ in range(self.repeat):
            for name, run in runs.items():
                before = used()
                measured = run()
                measured["CPU time of the run"] = used().since(before).cpu_s
                for figure, value in measured.items():
                    values[name].setdefault(figure, []).append(value)
        print(f"\n{work}", flush=True)
        for name, figures in values.items():
            for figure, each in figures.items():
                row = {"work": work, "system": name, "figure": figure, "median": statistics.median(each), "all": each}
                self.found.append(row)
        for line_ in lines([row for row in self.found if row["work"] == work]):
            print(f"  {line_[0]:36} {line_[1]:26} {line_[2]:>12}  {line_[3]:26} {line_[4]}", flush=True)

    @contextmanager
    def store(self, *, maintenance: bool = True) -> Iterator[ts.Store]:
        """A store of its own."""
        path = self.folder / "store"
        shutil.rmtree(path, ignore_errors=True)
        with ts.open(path, maintenance=maintenance) as opened:
            yield opened


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return the median of some times, and what one of a hundred exceeds."""
    ordered = sorted(times)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]}


def prefixed(what: str, figures: dict[str, float]) -> dict[str, float]:
    """Name figures by what they are of."""
    return {f"{what}, {name}": value for name, value in figures.items()}


def seconds_of(run: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def require(holds: bool, otherwise: str) -> None:
    """Raise if an answer is wrong."""
    if not holds:
        raise RuntimeError(f"wrong answer: {otherwise}")


def race(module: str, arguments: Sequence[Sequence[object]]) -> list[dict[str, Any]]:
    """Run one process of a module for each list of arguments, let all of them go at once, and return what they say.

    A process says that it is ready, waits for a line, and writes its figures as JSON before it ends.
    """
    ports: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT}
    started = [subprocess.Popen([sys.executable, "-m", module, *map(str, each)], **ports) for each in arguments]
    try:
        for each in started:
            require(each.stdout.readline() == b"ready\n", "a process died before it was ready")
        for each in started:
            each.stdin.write(b"go\n")
            each.stdin.flush()
        said = [each.communicate()[0] for each in started]
        require(not any(each.returncode for each in started), "a process died")
        return [msgspec.json.decode(each, type=dict[str, Any]) for each in said]
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
                each.communicate()


def wait_for_start() -> None:
    """Tell that this process is ready, and wait until all of them may go."""
    print("ready", flush=True)
    sys.stdin.readline()


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own, and raise the first failure."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failures:
        raise failures[0]
