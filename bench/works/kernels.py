"""Kernels: consolidation in memory, and a merge of sorted runs within a memory bound."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.system import System
from bench.rows import SEED, rows, updates
from bench.usage import most_memory_mb
from bench.works.work import Case, Out, Size, State, Work, again, check, seconds

RUNS = 16
RETRACTED = 10
SMALL = 50
"""A small merge has this fraction of the updates of a large one."""


class Consolidate(Work):
    """Three of ten updates cancel each other; they come in random order."""

    name = "consolidate"
    headlines = ("consolidate",)
    pairs = (("consolidate", "consolidate, again"),)
    title = "consolidate {updates:,} updates in memory"
    needs = ("consolidate",)
    cases = (
        Case("small", {"updates": 100_000}, {"updates": 1_000_000}),
        Case("large", {"updates": 400_000}, {"updates": 10_000_000}),
    )

    def setup(self, system: System, size: Size, out: Out) -> State:
        return {}

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        given, survivors = _shuffled(size["updates"])

        def once() -> float:
            found: list[pa.Table] = []
            elapsed = seconds(lambda: found.append(system.consolidate(given)))
            check("updates kept", [found[0].num_rows], [survivors])
            ids = found[0].column("id").to_numpy()
            check("in order", [bool((ids[1:] >= ids[:-1]).all())], [True])
            return elapsed

        first = once()
        out.figure("consolidate", first, note=f"{size['updates'] / first / 1e6:.1f} M updates/s")
        again(out, "consolidate, again", first, once)


class Compact(Work):
    """Sorted runs that overlap everywhere, of which one of eleven updates retracts a row of the run before, or nowhere.

    What is merged is one run afterwards, so that there is nothing left for a second time. Two small sets of runs are
    merged before: the first one shows what a process does only once.
    """

    name = "compact"
    headlines = ("merge",)
    pairs = (("small merge, first of a process", "small merge, again"),)
    measured_once = "what was merged is one run, and the first merge of a process is a small one"
    title = "merge 16 sorted runs of {rows:,} updates into one, told to use {memory_mb} MB"
    needs = ("write_runs", "merge_runs")
    cases = tuple(
        Case(
            label,
            quick={"rows": 20_000, "memory_mb": 700, "apart": apart},
            full={"rows": 1_000_000, "memory_mb": 700, "apart": apart},
        )
        for apart, label in enumerate(("overlapping", "not overlapping"))
    )

    def setup(self, system: System, size: Size, out: Out) -> State:
        run = _run_apart if size["apart"] else overlapping_run
        for each, count in self._sets(system, size).values():
            each.folder.mkdir(exist_ok=True)
            each.write_runs(run(number, count) for number in range(RUNS))
        return {}

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        sets = self._sets(system, size)
        memory_mb = {metric: most_memory_mb(lambda m=metric: self._merge(m, *sets[m], size, out)) for metric in sets}
        out.figure("most memory of the merge", memory_mb["merge"], "MB")
        out.figure("most memory / what it was told to use", memory_mb["merge"] / size["memory_mb"], "x")

    def _sets(self, system: System, size: Size) -> dict[str, tuple[System, int]]:
        """Return the sets of runs by the figure of their merge: a system in a folder of its own, and rows of a run."""
        small = dict.fromkeys(self.pairs[0], size["rows"] // SMALL)
        return {
            metric: (type(system)(system.folder / metric.replace(" ", "-")), count)
            for metric, count in {**small, "merge": size["rows"]}.items()
        }

    def _merge(self, metric: str, system: System, count: int, size: Size, out: Out) -> None:
        found: list[int] = []
        elapsed = seconds(lambda: found.append(system.merge_runs(size["memory_mb"])))
        out.figure(metric, elapsed, note=f"{RUNS * count / elapsed / 1e6:.2g} M updates/s")
        retracted = 0 if size["apart"] else sum(_retracted(number, count) for number in range(RUNS))
        check("rows merged", found, [RUNS * count - 2 * retracted])


def _shuffled(count: int) -> tuple[pa.Table, int]:
    kept, cancelled = count * 7 // 10, count * 3 // 20
    inserted = updates(rows(np.arange(kept + cancelled)), time=1)
    retracted = updates(rows(np.arange(kept, kept + cancelled)), time=1, diff=-1)
    given = pa.concat_tables([inserted, retracted]).combine_chunks()
    return given.take(np.random.default_rng(SEED).permutation(given.num_rows)), kept


def _retracted(number: int, count: int) -> int:
    return count // (RETRACTED + 1) if number else 0


def overlapping_run(number: int, count: int) -> pa.Table:
    """Run n has the ids that are n modulo 16, and takes back every tenth of the run before."""
    retracted = _retracted(number, count)
    inserted = rows(np.arange(count - retracted) * RUNS + number)
    taken = rows(np.arange(retracted) * RETRACTED * RUNS + number - 1)
    both = pa.concat_tables([updates(inserted, number + 1), updates(taken, number + 1, diff=-1)])
    return both.take(pc.sort_indices(both, sort_keys=[("id", "ascending")]))


def _run_apart(number: int, count: int) -> pa.Table:
    """Run n has the ids that follow those of the run before."""
    return updates(rows(np.arange(number * count, (number + 1) * count)), number + 1)
