"""A report for people: as text while it runs, as Markdown for the docs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from bench import figures
from bench.aims import aims
from bench.figures import TABLE_FORMAT, Entry, Ratio, Report, shown
from bench.works import WORKS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SUMMARY_BEGIN, SUMMARY_END = "<!-- summary: begin -->", "<!-- summary: end -->"
USED = {"cpu_s": ("CPU time of the run", "s"), "read_mb": ("read", "MB"), "written_mb": ("written", "MB")}


def machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": str(usable),
        "memory": f"{memory:.0f} GiB",
        "load at the start": " ".join(f"{each:.1f}" for each in os.getloadavg()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def text(report: Report, entry: Entry) -> Iterator[str]:
    """One case of one work, losses like wins."""
    yield f"{figures.name(entry)}: {entry['title']} (repetitions: {entry['repetitions']})"
    for metric in figures.metrics(entry):
        yield f"  {metric}"
        for system in entry["results"]:
            found = figures.figure(entry, system, metric)
            if found is None:
                continue
            middle, least, most = (shown(each, found.unit) for each in (found.median, found.least, found.most))
            between = f"{least} - {most}" if entry["repetitions"] > 1 else ""
            note = f"  {found.note}" if found.note else ""
            yield f"    {system:<10}{middle:>10}  {between:<21}{note}"
        for kind, label in ((None, "peer"), (TABLE_FORMAT, TABLE_FORMAT)):
            best = figures.ratio(report, entry, metric, kind)
            if best is not None:
                yield f"    ours / best {label}: {best.value:.2f} ({best.peer})"
    for system, result in entry["results"].items():
        if result["values"]:
            used = [f"{label} {shown(value, unit)}" for label, unit, value in _used(entry, system)]
            yield f"    {system:<10}peak memory {result['peak_mb']:,.0f} MB, {', '.join(used)}"
    for system, metric, reason in figures.refusals(entry):
        yield f"  {system} cannot{' (' + metric + ')' if metric else ''}: {reason}"


def markdown(report: Report) -> str:
    parts = [_head(report), _summary(report), *(_section(report, each) for each in report["works"])]
    return "\n\n".join(parts) + "\n"


def fill(file: Path, report: Report) -> None:
    """Put the figures between the marks of a page; a page without them is refused, a new one gets them."""
    if not file.exists():
        file.write_text(f"# Benchmarks\n\n{SUMMARY_BEGIN}\n{SUMMARY_END}\n\n{BEGIN}\n{END}\n")
    put_between(file, SUMMARY_BEGIN, SUMMARY_END, summary(report))
    put_between(file, BEGIN, END, markdown(report))


def summary(report: Report) -> str:
    """One screen: the headlines of every work, ours, the best peer and the best table format; then what has an aim.

    Losing ratios and missed aims are bold.
    """
    sizes = " with quick sizes, not for comparison" if report["quick"] else ""
    lines = [f"Measured {report['when']} on {report['machine'].get('cores', '?')} cores{sizes}.", ""]
    lines += ["| work | we | best peer | ratio | best table format | ratio |", "| --- |" + " ---: |" * 5]
    for entry in report["works"]:
        for metric in WORKS[entry["work"]].headlines:
            ours = figures.figure(entry, figures.OURS, metric) if figures.OURS in entry["results"] else None
            best = figures.ratio(report, entry, metric)
            if ours is None or best is None:
                continue
            peers = " | ".join(
                _beside(entry, metric, each) for each in (best, figures.ratio(report, entry, metric, TABLE_FORMAT))
            )
            lines.append(f"| {figures.name(entry)}: {metric} | {shown(ours.median, ours.unit)} | {peers} |")
    if table := list(aims(report)):
        lines += ["", "What has an aim:", "", *table]
    return "\n".join(lines) + "\n"


def _beside(entry: Entry, metric: str, best: Ratio | None) -> str:
    """Return the figure of a peer and ours divided by it as two cells."""
    theirs = None if best is None else figures.figure(entry, best.peer, metric)
    if best is None or theirs is None:
        return "- | -"
    ratio = f"**{best.value:.2f}**" if best.value > 1 else f"{best.value:.2f}"
    return f"{shown(theirs.median, theirs.unit)} {best.peer} | {ratio}"


def put_between(file: Path, begin: str, end: str, figures: str) -> None:
    """Put figures between two marks of a page, or refuse one that does not have them."""
    before, first, rest = file.read_text().partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise SystemExit(f"{file} has no lines {begin} and {end} to put the figures between")
    file.write_text(f"{before}{begin}\n\n{figures}\n{end}{after}")


def _head(report: Report) -> str:
    sizes = "quick sizes: not for comparison" if report["quick"] else "full sizes"
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    lines = [
        f"Measured {report['when']} ({sizes}) on: {about}.",
        "",
        "| system | versions | kind | when a commit returns |",
    ]
    lines.append("| --- | --- | --- | --- |")
    for system, each in report["systems"].items():
        if each["missing"]:
            lines.append(f"| {system} | - | | did not take part: {_cell(each['missing'])} |")
        else:
            versions = ", ".join(f"{key} {value}" for key, value in each["versions"].items())
            lines.append(f"| {system} | {versions} | {each['kind']} | {each['commit'] or '-'} |")
    return "\n".join(lines)


def _summary(report: Report) -> str:
    lines = ["### All ratios", "", "Ours divided by the best peer: below 1 we are faster, above 1 the peer is.", ""]
    lines += ["| work | figure | ours | ratio to the best peer | ratio to the best table format |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for entry in report["works"]:
        for metric in figures.metrics(entry):
            best = figures.ratio(report, entry, metric)
            ours = figures.figure(entry, figures.OURS, metric) if figures.OURS in entry["results"] else None
            if ours is None:
                continue
            formats = figures.ratio(report, entry, metric, TABLE_FORMAT)
            value = shown(ours.median, ours.unit)
            lines.append(f"| {figures.name(entry)} | {metric} | {value} | {_ratio(best)} | {_ratio(formats)} |")
    return "\n".join(lines)


def _section(report: Report, entry: Entry) -> str:
    systems = [each for each, result in entry["results"].items() if result["values"]]
    lines = [
        f"### {figures.name(entry)}",
        "",
        f"{entry['title'][:1].upper()}{entry['title'][1:]} (repetitions: {entry['repetitions']})",
        "",
    ]
    lines += [f"| | {' | '.join(systems)} |", f"| --- |{' --- |' * len(systems)}"]
    for metric in figures.metrics(entry):
        cells = []
        for system in systems:
            found = figures.figure(entry, system, metric)
            cells.append("-" if found is None else _spread(found))
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    peaks = [f"{entry['results'][each]['peak_mb']:,.0f} MB" for each in systems]
    lines.append(f"| peak memory | {' | '.join(peaks)} |")
    for name, (label, unit) in USED.items():
        used = [figures.used(entry, each, name) for each in systems]
        if any(each is not None for each in used):
            lines.append(f"| {label} | {' | '.join('-' if each is None else shown(each, unit) for each in used)} |")
    lines.append("")
    lines += [f"- {remark}" for remark in _remarks(entry, systems)]
    return "\n".join(lines)


def _used(entry: Entry, system: str) -> Iterator[tuple[str, str, float]]:
    for name, (label, unit) in USED.items():
        value = figures.used(entry, system, name)
        if value is not None:
            yield label, unit, value


def _remarks(entry: Entry, systems: list[str]) -> Iterator[str]:
    for metric in figures.metrics(entry):
        found = [(each, figures.figure(entry, each, metric)) for each in systems]
        notes = [f"{each}: {known.note}" for each, known in found if known is not None and known.note]
        if notes:
            yield f"{metric}: {'; '.join(notes)}"
    if why := WORKS[entry["work"]].measured_once:
        yield f"measured once, since {why}"
    for system, metric, reason in figures.refusals(entry):
        yield f"{system} cannot{' (' + metric + ')' if metric else ''}: {_cell(reason)}"


def _spread(found: figures.Figure) -> str:
    middle, least, most = (shown(each, found.unit) for each in (found.median, found.least, found.most))
    return middle if least == most else f"{middle} ({least} - {most})"


def _ratio(best: Ratio | None) -> str:
    return "-" if best is None else f"{best.value:.2f} ({best.peer})"


def _cell(said: str) -> str:
    return said.replace("|", "\\|")
