"""Pictures of growth, drawn from the figures that the benches wrote.

python -m bench.pictures BENCH.json STREAMS.json --folder docs/pictures

    growth-rows.svg          small steps on larger and larger tables
    growth-commits.svg       reading after more and more small commits
    growth-collections.svg   what a commit costs in a store of more and more collections
    growth-processes.svg     appends per second of more and more processes

Both axes are logarithmic, so that a straight flat line means "does not grow", and a diagonal "in proportion".
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import figures

Lines = dict[str, list[tuple[float, float]]]
"""By name, the points of a line."""

SEED = "timespine"
"""Names of shapes in the file, which would be random otherwise: the same figures give the same bytes."""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    across: str
    """What the horizontal axis counts."""

    up: str
    """What the vertical axis counts."""

    lines: Lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bench", type=Path, help="what `python -m bench --json` wrote")
    parser.add_argument("streams", type=Path, nargs="?", help="what `python -m bench.streams --json` wrote")
    parser.add_argument("--folder", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    report = json.loads(options.bench.read_text())
    streams = json.loads(options.streams.read_text())["found"] if options.streams else []
    for name, panels in {
        "growth-rows": _rows(report),
        "growth-commits": _commits(report),
        "growth-collections": _collections(streams),
        "growth-processes": _processes(streams),
    }.items():
        drawn = [each for each in panels if each.lines]
        if drawn:
            draw(drawn, options.folder / f"{name}.svg")
            print(f"{name}.svg: {', '.join(each.title for each in drawn)}")


def draw(panels: list[Panel], file: Path) -> None:
    """Draw panels side by side."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": SEED, "svg.fonttype": "none", "font.size": 9, "axes.grid": True})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.4), squeeze=False)
    others = dict.fromkeys(name for panel in panels for name in panel.lines if not name.startswith(figures.OURS))
    colors = {name: f"C{number}" for number, name in enumerate(others)}  # the same in all panels
    for panel, each in zip(panels, axes[0], strict=True):
        for name, points in panel.lines.items():
            ours = name not in colors
            style = {"color": "black", "linewidth": 2.2, "zorder": 3} if ours else {"color": colors[name]}
            dashes = "--" if name.endswith("p99") else "-"
            each.plot(*zip(*sorted(points), strict=True), dashes, marker="o", markersize=3, label=name, **style)
        each.set(title=panel.title, xlabel=panel.across, ylabel=panel.up, xscale="log", yscale="log")
        each.grid(alpha=0.3)
        each.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _rows(report: figures.Report) -> list[Panel]:
    entries = [each for each in report["works"] if each["work"] == "growth"]
    titles = {
        "upsert": "upsert of 1,000 rows",
        "changes": "net changes of five of them",
        "point": "one row by key",
        "snapshot": "all rows",
    }
    return [
        Panel(title, "rows in the table", "ms", _by_system((each["size"]["base"], each, metric) for each in entries))
        for metric, title in titles.items()
    ]


def _commits(report: figures.Report) -> list[Panel]:
    panels = []
    for entry in report["works"]:
        if entry["work"] == "many-commits":
            stops = [(metric, re.fullmatch(r"snapshot after ([\d,]+)", metric)) for metric in figures.metrics(entry)]
            points = [(float(found[1].replace(",", "")), entry, metric) for metric, found in stops if found]
            panels.append(Panel(f"snapshot, {entry['case']}", "commits of 10 rows", "ms", _by_system(points)))
    return panels


def _collections(found: list[dict[str, Any]]) -> list[Panel]:
    wanted = ("open", "append, one open, p50", "append, in turns, p50", "create", "names() again")
    lines: Lines = {}
    for row in found:
        count = re.fullmatch(r"a store of ([\d,]+) collections", row["work"])
        if count and row["figure"] in wanted:
            lines.setdefault(row["figure"], []).append((float(count[1].replace(",", "")), row["median"] * 1e3))
    return [Panel("a store with many collections", "collections", "ms", lines)]


def _processes(found: list[dict[str, Any]]) -> list[Panel]:
    rates: Lines = {}
    waits: Lines = {}
    for row in found:
        count = re.fullmatch(r"appends of one row by (\d+) process(?:es)? of \d+ threads", row["work"])
        if count and row["figure"] == "appends per second":
            rates.setdefault(row["system"], []).append((float(count[1]), row["median"]))
        elif count and row["figure"] in ("p50", "p99"):
            waits.setdefault(f"{row['system']}, {row['figure']}", []).append((float(count[1]), row["median"] * 1e3))
    return [
        Panel("processes on one collection", "processes of 8 threads", "appends per second", rates),
        Panel("how long one append takes", "processes of 8 threads", "ms", waits),
    ]


def _by_system(points: Iterable[tuple[float, figures.Entry, str]]) -> Lines:
    lines: Lines = {}
    for at, entry, metric in points:
        for system in entry["results"]:
            found = figures.figure(entry, system, metric)
            if found is not None:
                lines.setdefault(system, []).append((at, found.median * 1e3))
    return lines


if __name__ == "__main__":
    main()
