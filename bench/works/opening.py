"""How long it takes to open a table that has had very many commits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.peers.system import Cannot, System
from bench.rows import rows
from bench.works.work import Case, Out, Size, State, Work, check, seconds

PACE = 50


class Open(Work):
    """From the folder to a handle that knows the latest version, and to one row: in a fresh process, and again."""

    name = "open"
    headlines = ("open and first row",)
    pairs = (("open", "open, again"), ("open and first row", "open and first row, again"))
    title = "open a table that was made by {commits:,} commits of one row"
    needs = ("append", "lookup")
    cases = (
        Case("after fewer commits", {"commits": 20, "on": 1}, {"commits": 1_000, "on": 1}),
        Case("after many commits", {"commits": 100, "on": 1}, {"commits": 10_000, "on": 1}),
        Case("never maintained", {"commits": 100, "on": 0}, {"commits": 10_000, "on": 0}),
    )

    def setup(self, system: System, size: Size, out: Out) -> State:
        system.background(bool(size["on"]))
        system.create()
        began = time.perf_counter()
        for number in range(size["commits"]):
            if number and number % PACE == 0:
                needed = (time.perf_counter() - began) / number * (size["commits"] - number)
                if needed > out.remaining():
                    raise Cannot(
                        f"too slow: {size['commits'] - number:,} more commits would take about {needed:,.0f} s"
                    )
            system.append(rows(np.array([number])))
        system.close()
        return {}

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        system.background(False)
        for open_, first_row in zip(*self.pairs, strict=True):
            opening = seconds(system.open)
            found: list[list[dict[str, Any]]] = []
            reading = seconds(lambda found=found: found.append(system.lookup(size["commits"] // 2)))
            out.figure(open_, opening)
            out.figure(first_row, opening + reading)
            system.close()
            check("rows found", [len(found[0])], [1])
