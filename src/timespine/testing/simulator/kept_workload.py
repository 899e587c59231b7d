"""Histories of stores that keep what they delete for a while.

Garbage collection keeps every state of the last `keep_ms` restorable: its blobs, and the log from a rollup at or before
it on. The check looks after every deletion and every cut of a log. Clocks differ, and do not jump: a store promises the
time that it keeps deleted data up to the error of clocks.
"""

from __future__ import annotations

from typing import Any

from timespine.core.effects import Protocol
from timespine.core.protocols import garbage
from timespine.testing.simulator.simulator import Operation, SimulatedProcess, Simulator
from timespine.testing.simulator.workload import Body, Workload

CLOCK_ERROR_MS = 600
"""The largest difference between two clocks of a history."""

KEEP_MS = (1_500, 4_000, 12_000)
"""How long a store keeps deleted data: one of these per history."""


class KeptWorkload(Workload):
    """The operations of any workload, with more collections of garbage, which keep what is recent."""

    def __init__(self, simulator: Simulator, operations: int) -> None:
        super().__init__(simulator, operations)
        simulator.faults.clock = 0.0
        self.keep_ms = self.random.choice(KEEP_MS)
        self.world.keep_for(self.keep_ms - CLOCK_ERROR_MS, lambda: simulator.now)

    def _menu(self) -> list[tuple[int, str, Body]]:
        more = {"roll up": 20, "collect garbage": 20, "ask for merges": 12, "merge": 20}
        return [(more.get(kind, weight), kind, body) for weight, kind, body in super()._menu()]

    def _collect(self, process: SimulatedProcess, name: str, operation: Operation) -> Protocol[Any]:
        return (yield from garbage.collect_garbage(process.session, name, self.keep_ms))
