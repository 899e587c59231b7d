"""The figures of `bench.views` as tables: one for each scale and size of changes, losing rows in bold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAMES = {
    "process": "we, in the process",
    "spark": "we, on Spark",
    "spark-snapshots": "Spark, from snapshots",
    "spark-parquet": "Spark, from Parquet",
    "duckdb": "DuckDB, from Parquet",
}


def merged(before: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add figures to those that there are; newer ones replace older."""
    by_case = {(each["view"], each["scale"], each["change"]): each for each in before}
    for each in found:
        known = by_case.setdefault((each["view"], each["scale"], each["change"]), each)
        figures = {**known["figures"], **each["figures"]}
        by_case[each["view"], each["scale"], each["change"]] = {
            **each,
            "figures": figures,
            "updates": each["updates"] or known["updates"],
            "right": each["right"] and known["right"],
        }
    return list(by_case.values())


def short(each: dict[str, Any]) -> str:
    """Return one case as a line."""
    figures = " ".join(
        f"{peer} {value['wall'] * 1e3:.0f}/{value['cpu'] * 1e3:.0f} ms" for peer, value in each["figures"].items()
    )
    return f"{each['view']} {each['change']:g} %: {figures}{'' if each['right'] else '  WRONG'}"


def page_of(found: Sequence[dict[str, Any]], peers: Sequence[str]) -> str:
    """Return all figures as tables of Markdown."""
    parts = []
    for scale, change in dict.fromkeys((each["scale"], each["change"]) for each in found):
        cases = [each for each in found if (each["scale"], each["change"]) == (scale, change)]
        wrong = [each["view"] for each in cases if not each["right"]]
        views = [each for each in cases if each["state"]]
        if views:
            parts.append(_table(views, peers, scale, change))
        others = [each for each in cases if not each["state"]]
        if others:
            parts.append(_together(others, scale, change))
        if wrong:
            parts.append(f"**Wrong answers: {', '.join(wrong)}.**")
    return "\n\n".join(parts) + "\n"


def _table(cases: list[dict[str, Any]], peers: Sequence[str], scale: float, change: float) -> str:
    shown = [peer for peer in peers if any(peer in each["figures"] for each in cases)]
    updates = max(each["updates"] for each in cases)
    lines = [
        f"TPC-H SF{scale:g}, {change:g} % changed ({updates:,} updates); milliseconds, wall / CPU. Ratio: the faster "
        "of Spark's recomputations over ours in the process, in wall time. Bold: a recomputation is faster.",
        "",
        f"| view | {' | '.join(NAMES[peer] for peer in shown)} | state | ratio |",
        f"| --- | {' | '.join('---:' for _ in shown)} | ---: | ---: |",
    ]
    for each in cases:
        cells = [
            f"**{_cell(each, peer)}**" if peer == "process" and _loses(each) else _cell(each, peer) for peer in shown
        ]
        lines.append(f"| {each['view']} | {' | '.join(cells)} | {each['state'] / 1e6:.1f} MB | {_ratio(each)} |")
    sums = [_sum(cases, peer) for peer in shown]
    state = sum(each["state"] for each in cases)
    return "\n".join([*lines, f"| all | {' | '.join(sums)} | {state / 1e6:.1f} MB | |"])


def _cell(each: dict[str, Any], peer: str) -> str:
    figure = each["figures"].get(peer)
    return "" if figure is None else f"{figure['wall'] * 1e3:,.0f} / {figure['cpu'] * 1e3:,.0f}"


def _sum(cases: list[dict[str, Any]], peer: str) -> str:
    """Return the sum of a column, if it has all rows."""
    figures = [each["figures"].get(peer) for each in cases]
    if any(figure is None for figure in figures):
        return ""
    wall, cpu = (sum(figure[kind] for figure in figures) for kind in ("wall", "cpu"))
    return f"{wall * 1e3:,.0f} / {cpu * 1e3:,.0f}"


def _ratio(each: dict[str, Any]) -> str:
    figures = each["figures"]
    ours = figures.get("process")
    theirs = [figures[peer]["wall"] for peer in ("spark-snapshots", "spark-parquet") if peer in figures]
    if ours is None or not theirs:
        return ""
    said = "" if len(theirs) == 2 else " (of one)"
    return f"{min(theirs) / ours['wall']:.1f} x{said}"


def _loses(each: dict[str, Any]) -> bool:
    """Return whether a recomputation took less time than ours."""
    figures = each["figures"]
    others = [figures[peer]["wall"] for peer in figures if peer not in ("process", "spark")]
    return "process" in figures and min(others, default=float("inf")) < figures["process"]["wall"]


def _together(cases: list[dict[str, Any]], scale: float, change: float) -> str:
    lines = [f"SF{scale:g}, {change:g} % changed, in the process:", "", "| what | wall / CPU |", "| --- | ---: |"]
    return "\n".join([*lines, *(f"| {each['view']} | {_cell(each, 'process')} |" for each in cases)])
