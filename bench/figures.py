"""What the repetitions say together: medians, spread, and the ratio to the best peer. Plain data in, plain data out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OURS = "ours"
TABLE_FORMAT = "table format"

Report = dict[str, Any]
"""One invocation, as it is written to JSON: when, machine, systems, works."""

Entry = dict[str, Any]
"""One case of one work in a report: its sizes, and for every system what was measured."""


@dataclass(frozen=True)
class Figure:
    """One metric of one system."""

    median: float
    least: float
    most: float
    unit: str
    note: str
    peak_mb: float


@dataclass(frozen=True)
class Ratio:
    """Ours divided by the fastest of some peers: below one, we win."""

    peer: str
    value: float


def metrics(entry: Entry) -> list[str]:
    """In the order in which they were measured; what only some systems reached stands where they reached it."""
    found: list[str] = []
    for result in entry["results"].values():
        place = 0
        for metric in [*result["values"], *result["refused"]]:
            if metric in found:
                place = found.index(metric) + 1
            else:
                found.insert(place, metric)
                place += 1
    return found


def figure(entry: Entry, system: str, metric: str) -> Figure | None:
    result = entry["results"][system]
    values = result["values"].get(metric)
    if not values:
        return None
    middle = statistics.median(values)
    note, unit = result["notes"].get(metric, ""), result["units"][metric]
    return Figure(middle, min(values), max(values), unit, note, result["peak_mb"])


def used(entry: Entry, system: str, name: str) -> float | None:
    """Give the median of what the runs of a system used, or None if that was not measured."""
    values = entry["results"][system].get("usage", {}).get(name)
    return statistics.median(values) if values else None


def ratio(report: Report, entry: Entry, metric: str, kind: str | None = None) -> Ratio | None:
    """Ours to the best peer, or to the best of one kind; None if there is no peer to compare with."""
    ours = figure(entry, OURS, metric) if OURS in entry["results"] else None
    if ours is None or ours.unit != "s":
        return None
    found = [
        (each.median, name)
        for name in entry["results"]
        if name != OURS
        and kind in (None, report["systems"][name]["kind"])
        and (each := figure(entry, name, metric)) is not None
    ]
    if not found:
        return None
    best, name = min(found)
    return Ratio(name, ours.median / best)


def refusals(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Every figure that is missing: system, metric (empty for all of them), reason."""
    for name, result in entry["results"].items():
        if result["reason"]:
            yield name, "", result["reason"]
        for metric, reason in result["refused"].items():
            yield name, metric, reason


def shown(value: float, unit: str) -> str:
    """A value as people write it."""
    if unit == "x":
        return f"{value:.2f}x"
    if unit.split()[0] != "s":
        return f"{value:,.0f} {unit}"
    if value < 0.001:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s"


def name(entry: Entry) -> str:
    return f"{entry['work']}, {entry['case']}" if entry["case"] else str(entry["work"])
