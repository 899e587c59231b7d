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
    """What appends of one row by many writers should reach."""

    work: str
    """The work that measures it."""

    per_second: int
    """Appends per second, at least."""

    p99_s: float
    """Seconds of the slowest of a hundred appends, at most."""


AIMS = (
    Aim("appends of one row by 8 threads", 5_000, 0.020),
    Aim("appends of one row by 8 processes of 8 threads", 3_500, 0.050),
)


def aims(rows: list[Row]) -> Iterator[str]:
    """Yield a table of what has an aim and was measured, misses in bold; nothing if none of it was."""
    ours = {(row["work"], row["figure"]): row["median"] for row in rows if row["system"] == "ours"}
    measured = [aim for aim in AIMS if (aim.work, "p99") in ours]
    if not measured:
        return
    yield "| aim | appends per second | at least | p99 | at most | reached |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for aim in measured:
        rate, p99_s = ours[aim.work, "appends per second"], ours[aim.work, "p99"]
        enough, fast = rate >= aim.per_second, p99_s <= aim.p99_s
        cells = (
            aim.work,
            _bold(_shown("appends per second", rate), not enough),
            f"{aim.per_second:,}",
            _bold(_shown("p99", p99_s), not fast),
            _shown("p99", aim.p99_s),
            "yes" if enough and fast else "**no**",
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
