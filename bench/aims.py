"""What the figures of `python -m bench` should reach: each as a time, or as a ratio to one peer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench import figures
from bench.figures import OURS, Entry, Report, shown

MEMORY = "peak memory"
"""The metric of an aim about the most memory of a process."""

EXPIRY_BEFORE_S = 2.41
"""Seconds that "expiry and compaction" took at `ee9da37`, before past and live rows were runs of
their own, on the machine of docs/benchmarks.md."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What one figure of ours should be at most."""

    work: str
    """The work that measures it."""

    case: str
    """The case of the work."""

    metric: str
    """The figure."""

    limit: float
    """The most: a value in the unit of the figure, or ours divided by that of the peer."""

    peer: str = ""
    """The peer that ours is divided by; "best" for the fastest. Empty where the figure itself has the limit."""


LOADED, UPDATED, KEPT = "loaded at once", "after an upsert of a tenth", "compacted, history kept"

AIMS = (
    Aim("commit-1", "", "commit", 0.001),
    Aim("commit-10k", "", "commit", 1.0, "best"),
    Aim("open", "never maintained", "open and first row", 0.2),
    *(
        Aim("many-commits", f"{how} maintenance", f"snapshot after {commits:,}", limit)
        for how in ("with", "without")
        for commits, limit in ((10, 0.004), (1_000, 0.015), (10_000, 0.12))
    ),
    *(
        Aim("snapshots", case, metric, limit, "deltalake")
        for case, limits in ((LOADED, (0.8, 1.1, 1.0)), (UPDATED, (1.0, 1.3, 1.0)), (KEPT, (1.0, 1.0, 1.0)))
        for metric, limit in zip(("first read", "again", MEMORY), limits, strict=True)
    ),
    Aim("upkeep", "", "expiry and compaction", EXPIRY_BEFORE_S / 10),
    Aim("upsert-10k", "", "upsert", 1.0, "duckdb"),
    Aim("upsert-1m", "", "upsert", 1.0, "duckdb"),
    Aim("lookup", "", "first point", 0.005),
    Aim("lookup", "", "point", 0.0015),
    Aim("lookup", "", "point", 0.6, "duckdb"),
    Aim("lookup", "", "range of 1,000", 1.0, "duckdb"),
    Aim("compact", "overlapping", "merge", 16 / 3.5),
    Aim("compact", "overlapping", "most memory / what it was told to use", 1.2),
    Aim("compact", "not overlapping", "merge", 16 / 30),
)


def aims(report: Report) -> Iterator[str]:
    """Yield a table of what has an aim and was measured, misses in bold; nothing if none of it was."""
    entries = {(entry["work"], entry["case"]): entry for entry in report["works"]}
    rows = [
        row
        for aim in AIMS
        if (entry := entries.get((aim.work, aim.case))) is not None and (row := _row(report, entry, aim)) is not None
    ]
    if rows:
        yield from ("| work | we | compared with | at most | reached |", "| --- | ---: | ---: | ---: | --- |", *rows)


def _row(report: Report, entry: Entry, aim: Aim) -> str | None:
    ours = _value(entry, OURS, aim.metric)
    if ours is None:
        return None
    value, unit = ours
    work = f"{figures.name(entry)}: {aim.metric}"
    if not aim.peer:
        reached = value <= aim.limit
        return f"| {work} | {_bold(shown(value, unit), not reached)} | | {shown(aim.limit, unit)} | {_said(reached)} |"
    best = figures.ratio(report, entry, aim.metric)
    peer = best.peer if aim.peer == "best" and best is not None else aim.peer
    theirs = _value(entry, peer, aim.metric)
    if theirs is None:
        return f"| {work} | {shown(value, unit)} | {peer} has no figure | {aim.limit:g}x | not compared |"
    ratio = value / theirs[0]
    compared = _bold(f"{shown(theirs[0], unit)} {peer} = {ratio:.2f}x", ratio > aim.limit)
    return f"| {work} | {shown(value, unit)} | {compared} | {aim.limit:g}x | {_said(ratio <= aim.limit)} |"


def _value(entry: Entry, system: str, metric: str) -> tuple[float, str] | None:
    """Return a figure of a system and its unit, or None if it was not measured."""
    result = entry["results"].get(system)
    if result is None or not result["values"]:
        return None
    if metric == MEMORY:
        return result["peak_mb"], "MB"
    found = figures.figure(entry, system, metric)
    return None if found is None else (found.median, found.unit)


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _said(reached: bool) -> str:
    return "yes" if reached else "**no**"
