"""The figures of `bench.streams` as tables: those that have an aim first, then all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BEGIN, END = "<!-- streams: begin -->", "<!-- streams: end -->"
RATES = ("appends per second", "batches per second", "updates per second", "upserts per second")
COUNTS = ("started again", "placed again", "turns taken", "refused")

Row = dict[str, Any]
"""One figure of one system in one work: the median, and all repetitions."""


@dataclass(frozen=True)
class Aim:
    """What many writers should reach."""

    work: str
    """The work that measures it."""

    figure: str
    """The figure of the work."""

    limit: float
    """The most of it, or the least of a rate."""

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.figure in RATES


AIMS = (
    Aim("appends of one row by 8 threads", "appends per second", 5_000),
    Aim("appends of one row by 8 threads", "p99", 0.020),
    Aim("appends of one row by 8 processes of 8 threads", "appends per second", 3_500),
    Aim("appends of one row by 8 processes of 8 threads", "p99", 0.050),
    Aim("upserts of 100 rows in 100,000 by 4 processes", "changes started again", 0),
)


def aims(rows: list[Row]) -> Iterator[str]:
    """Yield a table of what has an aim and was measured, misses in bold; nothing if none of it was."""
    ours = {(row["work"], row["figure"]): row["median"] for row in rows if row["system"] == "ours"}
    measured = [aim for aim in AIMS if (aim.work, aim.figure) in ours]
    if not measured:
        return
    yield "| aim | figure | ours | limit | reached |"
    yield "| --- | --- | ---: | ---: | --- |"
    for aim in measured:
        value = ours[aim.work, aim.figure]
        reached = value >= aim.limit if aim.is_rate else value <= aim.limit
        cells = (
            aim.work,
            aim.figure,
            _bold(_shown(aim.figure, value), not reached),
            f"at {'least' if aim.is_rate else 'most'} {_shown(aim.figure, aim.limit)}",
            "yes" if reached else "**no**",
        )
        yield f"| {' | '.join(cells)} |"


def lines(rows: list[Row]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield figure, system, median, spread, and how ours compares: by the first system of the same work."""
    for figure in dict.fromkeys(row["figure"] for row in rows):
        same = [row for row in rows if row["figure"] == figure]
        for row in same:
            shown = [_shown(figure, value) for value in (row["median"], min(row["all"]), max(row["all"]))]
            ratio = f"{same[0]['median'] / row['median']:.2f}" if row is not same[0] and row["median"] else ""
            yield figure, row["system"], shown[0], f"{shown[1]} - {shown[2]}", ratio


def markdown(report: dict[str, Any]) -> str:
    """Write all figures as tables."""
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    sizes = "quick sizes: not for comparison" if report["quick"] else "full sizes"
    text = [f"Measured {report['when']} ({sizes}, repetitions: {report['repeat']}) on: {about}."]
    if table := list(aims(report["found"])):
        text += ["", *table]
    for work in dict.fromkeys(row["work"] for row in report["found"]):
        text += ["", f"**{work[:1].upper()}{work[1:]}**", "", "| figure | | median | spread | ours / other |"]
        text += ["| --- | --- | --- | --- | --- |"]
        text += [f"| {' | '.join(each)} |" for each in lines([row for row in report["found"] if row["work"] == work])]
    return "\n".join(text) + "\n"


def _shown(figure: str, value: float) -> str:
    if figure.endswith((*RATES, *COUNTS)):
        return f"{value:,.0f}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text
