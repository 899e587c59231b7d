"""Small durable commits: how long one takes, from one thread and from eight."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa

from bench.peers.system import System
from bench.rows import rows
from bench.works.work import Case, Out, Size, State, Work, check, median, opened, seconds, spread

WARM = 3


class Commit(Work):
    """One commit after the other, each acknowledged before the next."""

    title = "one durable commit of {rows:,} rows"
    headlines = ("commit",)
    pairs = (("first commit of a process", "commit"),)

    def __init__(self, name: str, row_count: int, commits: int) -> None:
        self.name = name
        self.cases = (Case(quick={"rows": row_count, "commits": 20}, full={"rows": row_count, "commits": commits}),)

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        tables = [_batch(each, size["rows"]) for each in range(WARM + size["commits"])]
        with opened(system):
            first = seconds(lambda: system.append(tables[0]))
            for each in tables[1:WARM]:
                system.append(each)
            times = [seconds(lambda each=each: system.append(each)) for each in tables[WARM:]]
            out.figure("first commit of a process", first)
            out.figure("commit", median(times), note=spread(times))
            out.seal()
            if out.first:
                check("rows committed", [system.snapshot().num_rows], [len(tables) * size["rows"]])


class Threads(Work):
    """Eight threads of one process, each as fast as it can: a short race first, then a longer one."""

    name = "threads-8"
    title = "{threads} threads of one process, each making commits of {rows:,} rows"
    headlines = ("per commit",)
    pairs = (("per commit, first race of a process", "per commit"),)
    cases = (
        Case(
            quick={"threads": 8, "rows": 100, "first": 2, "commits": 5},
            full={"threads": 8, "rows": 100, "first": 5, "commits": 50},
        ),
    )

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        committed = 0
        with opened(system):
            for metric, each in zip(self.pairs[0], (size["first"], size["commits"]), strict=True):
                commits = size["threads"] * each
                elapsed = self._race(system, size, committed, each)
                out.figure(metric, elapsed / commits, note=f"{commits / elapsed:,.0f} commits/s")
                committed += commits
            out.seal()
        if out.first:
            with opened(system):
                check("rows committed", [system.snapshot().num_rows], [committed * size["rows"]])

    def _race(self, system: System, size: Size, after: int, commits: int) -> float:
        """Return the time from the start of all threads to the end of the last; `after` commits were made before."""
        start, failures = threading.Barrier(size["threads"] + 1), list[BaseException]()

        def work(number: int) -> None:
            first = after + number * commits
            tables = [_batch(each, size["rows"]) for each in range(first, first + commits)]
            append = system.writer()
            start.wait()
            try:
                for each in tables:
                    append(each)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(each,)) for each in range(size["threads"])]
        for each in threads:
            each.start()
        start.wait()
        began = time.perf_counter()
        for each in threads:
            each.join()
        elapsed = time.perf_counter() - began
        if failures:
            raise failures[0]
        return elapsed


def _batch(number: int, count: int) -> pa.Table:
    return rows(np.arange(number * count, (number + 1) * count))
