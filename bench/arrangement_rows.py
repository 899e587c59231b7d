"""The rows of the bench of arrangements, how calls are timed, and how figures are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from timespine.columnar.schema.schema import DIFF, TIME, define

SCHEMA = define({"id": "int64"}, {"name": "string", "total": "double", "seen": "int64", "note": "string"})
BATCH = 1_000
"""Rows of a small batch."""

UNITS = {"us": 1e6, "ms": 1e3}


class Taken(NamedTuple):
    """What a call took, in seconds."""

    cpu: float
    """Of the processor, in all threads of this process."""
    wall: float


def rows_of_ids(ids: np.ndarray, version: int = 0, diff: int = 1) -> pa.Table:
    """Make the updates of some ids: all but the version follows from the id."""
    numbers = pa.array(ids)
    names = np.char.add("customer ", (ids % 5000).astype("U4"))
    notes = pa.array(np.where(ids % 3 == 0, "a note", "").tolist(), mask=ids % 3 != 0)
    table = pa.table(
        {
            "id": numbers,
            "name": pa.array(names.tolist()),
            "total": pa.array(ids * 0.25 + version),
            "seen": numbers,
            "note": notes,
        }
    )
    return table.append_column(TIME, pa.array(np.zeros(len(ids), np.int64))).append_column(
        DIFF, pa.array(np.full(len(ids), diff, np.int64))
    )


def medians(calls: Mapping[str, Callable[[int], object]], keys: list[int]) -> dict[str, Taken]:
    """Return the median of single calls, all in turns of a thousand keys. They run in this thread alone."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for start in range(0, len(keys), 1_000):
        for name, call in calls.items():
            for key in keys[start : start + 1_000]:
                began, cpu = time.perf_counter(), time.thread_time()
                call(key)
                times[name].append((time.thread_time() - cpu, time.perf_counter() - began))
    return {
        name: Taken(*(float(np.median([each[place] for each in taken])) for place in (0, 1)))
        for name, taken in times.items()
    }


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int = 5, cpu: Callable[[], float] = time.process_time
) -> dict[str, Taken]:
    """Return the least that each call took, all in turns; `cpu` is the clock of processor time."""
    best: dict[str, Taken] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            taken = timed(call, cpu)
            before = best.get(name, taken)
            best[name] = Taken(min(before.cpu, taken.cpu), min(before.wall, taken.wall))
    return best


def timed(call: Callable[[], object], cpu: Callable[[], float] = time.process_time) -> Taken:
    """Return what a call took."""
    began, before = time.perf_counter(), cpu()
    call()
    return Taken(cpu() - before, time.perf_counter() - began)


class Figures:
    """Everything that was measured."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        """One for each line that was shown."""

    def show(self, work: str, taken: Mapping[str, Taken], unit: str, aim: str) -> None:
        """Print what calls took, with their ratios to the first."""
        print(f"{work}{f'   aim: {aim}' if aim else ''}", flush=True)
        ours = next(iter(taken.values()))
        for name, each in taken.items():
            cpu, wall = (seconds * UNITS[unit] for seconds in each)
            ratios = [mine and other / mine for other, mine in zip(each, ours, strict=True)]
            print(f"  {name}: {cpu:,.2f} {unit} cpu ({ratios[0]:.2f}x), {wall:,.2f} {unit} wall ({ratios[1]:.2f}x)")
            self.records.append({"work": work, "system": name, "cpu": cpu, "wall": wall, "unit": unit, "aim": aim})

    def rates(self, work: str, count: int, taken: Mapping[str, Taken], what: str, aim: str) -> None:
        """Print how many calls a second has, with their ratios to the first."""
        print(f"{work}   aim: {aim}", flush=True)
        ours = next(iter(taken.values()))
        for name, each in taken.items():
            cpu, wall = (count / max(seconds, 1e-9) for seconds in each)
            ratios = [mine / max(other, 1e-9) for other, mine in zip(each, ours, strict=True)]
            print(f"  {name}: {cpu:,.0f} {what}/s of cpu ({ratios[0]:.2f}x), {wall:,.0f} of wall ({ratios[1]:.2f}x)")
            self.records.append(
                {"work": work, "system": name, "cpu": cpu, "wall": wall, "unit": f"{what}/s", "aim": aim}
            )

    def ratio(self, work: str, peer: str, ours: float, theirs: float, unit: str, aim: str) -> None:
        """Print one number beside that of a peer."""
        print(
            f"{work}   aim: {aim}\n  ours: {ours:,.1f} {unit} ({ours / theirs:.2f}x {peer}, {theirs:,.1f})", flush=True
        )
        self.records.append({"work": work, "system": "ours", "value": ours, "peer": theirs, "unit": unit, "aim": aim})
