"""One row, and a thousand, out of many."""

from __future__ import annotations

import numpy as np

from bench.peers.system import System
from bench.rows import rows, sample
from bench.works.tables import Loaded
from bench.works.work import Case, Out, Size, State, check, median, opened, seconds, spread

RANGE = 1_000
RANGES = f"range of {RANGE:,}"
LATE = " right after commits"


class Lookup(Loaded):
    """By key, on a loaded table, and again right after 100 small commits."""

    name = "lookup"
    headlines = ("first point", "point", RANGES)
    pairs = tuple((f"first {what}{when}", f"{what}{when}") for when in ("", LATE) for what in ("point", RANGES))
    title = "point and range lookup in {base:,} rows, also right after {commits} commits of 100 new rows"
    needs = ("append", "lookup", "range")
    cases = (
        Case(
            quick={"base": 500_000, "points": 20, "ranges": 5, "commits": 20},
            full={"base": 10_000_000, "points": 50, "ranges": 10, "commits": 100},
        ),
    )

    def setup_key(self, size: Size) -> str:
        return f"indexed-{size['base']}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        state = super().setup(system, size, out)
        system.open()
        system.index()
        system.close()
        return state

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        base = size["base"]
        with opened(system):
            keys = sample(size["points"] + 1, base, salt=1)
            self._look(system, size, out, keys, "")
            for each in range(size["commits"]):
                system.append(rows(np.arange(base + each * 100, base + (each + 1) * 100)))
            # Half of them old, half of them in the commits just made.
            fresh = base + sample(size["points"] // 2, size["commits"] * 100, salt=2)
            self._look(system, size, out, np.concatenate([fresh, keys[: 1 + len(fresh)]]), LATE)

    def _look(self, system: System, size: Size, out: Out, keys: np.ndarray, when: str) -> None:
        times = []
        for key in keys.tolist():
            found = []
            times.append(seconds(lambda key=key, found=found: found.append(system.lookup(key))))
            check(f"row {key}", found[0], rows(np.array([key])).to_pylist())
        self._tell(out, f"point{when}", times)
        times = []
        for low in sample(size["ranges"] + 1, size["base"] - RANGE, salt=3).tolist():
            found = []
            times.append(seconds(lambda low=low, found=found: found.append(system.range(low, low + RANGE))))
            check(f"rows from {low}", [found[0].num_rows], [RANGE])
        self._tell(out, f"{RANGES}{when}", times)

    def _tell(self, out: Out, metric: str, times: list[float]) -> None:
        first, *later = times
        out.figure(f"first {metric}", first)
        out.figure(metric, median(later), note=spread(later))
