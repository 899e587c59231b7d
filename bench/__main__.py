"""The same work on us and on peers, in one run.

python -m bench                          everything, full sizes
python -m bench commit-100 lookup --quick --json FILE --markdown docs/benchmarks.md
python -m bench --minutes 25 --json FILE --markdown docs/benchmarks.md     as many repetitions as fit
python -m bench --list
python -m bench --from FILE --markdown docs/benchmarks.md     what was measured before, as a page
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench import figures, harness, report
from bench.figures import Entry, Report
from bench.harness import About, Kept, Plan
from bench.peers import SYSTEMS
from bench.peers.install import install_ducklake
from bench.works import WORKS
from bench.works.work import Case, Work

QUICK_REPEAT = 1


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [each for each in options.works if each not in WORKS]
    if unknown:
        parser.error(f"no such work: {', '.join(unknown)} (see --list)")
    if options.list:
        _list()
    elif options.install_ducklake:
        print(f"DuckLake is in {install_ducklake()}")
    else:
        found = _merged(options.earlier) if options.earlier else _run(options)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        if options.markdown:
            report.fill(options.markdown, found)


def _run(options: argparse.Namespace) -> Report:
    about = harness.probe(options.systems)
    for name, each in about.items():
        known = ", ".join(f"{key} {value}" for key, value in each.versions.items())
        print(f"{name}: {'does not take part: ' + each.missing if each.missing else known + '; ' + each.commit}")
    found: Report = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "quick": options.quick,
        "machine": report.machine(),
        "systems": {name: asdict(each) for name, each in about.items()},
        "works": [],
    }
    repeat = options.repeat or (QUICK_REPEAT if options.quick else None)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as folder:
        stores = Path(folder) / "stores"
        stores.mkdir()
        until = time.monotonic() + 60 * options.minutes if options.minutes else None
        plan = Plan(options.quick, repeat, options.limit, stores, until)
        _measure_all([WORKS[each] for each in options.works or WORKS], about, plan, found, options.json)
    return found


def _measure_all(works: list[Work], about: dict[str, About], plan: Plan, found: Report, save: Path | None) -> None:
    """Each case in turn; saved after each, so that hours of work outlive an interrupted run."""
    kept = Kept(plan)
    todo = [(work, case) for work in works for case in work.cases]
    for number, (work, case) in enumerate(todo):
        began = time.monotonic()
        share_s = plan.share_s(len(todo) - number)
        if share_s == 0:
            print(f"\nno time is left for {len(todo) - number} of {len(todo)} cases, from {work.name} on", flush=True)
            return
        entry = _measure(work, case, about, plan, kept, share_s)
        found["works"].append(entry)
        print(
            f"\n[{number + 1}/{len(todo)}, {time.monotonic() - began:.0f} s]",
            *report.text(found, entry),
            sep="\n",
            flush=True,
        )
        if save:
            save.write_text(json.dumps(found, indent=1) + "\n")
        kept.forget_all_but({work.setup_key(_size(case, plan)) for work, case in todo[number + 1 :]})


def _measure(work: Work, case: Case, about: dict[str, About], plan: Plan, kept: Kept, share_s: float | None) -> Entry:
    results = harness.measure(work, case, about, plan, kept, share_s)
    ours = results.get(figures.OURS, harness.Measured())
    return {
        "work": work.name,
        "case": case.label,
        "title": work.title.format(**_size(case, plan)),
        "repetitions": max(map(len, ours.values.values()), default=plan.repeat or work.repeat),
        "size": dict(_size(case, plan)),
        "results": {name: asdict(each) for name, each in results.items()},
    }


def _size(case: Case, plan: Plan) -> dict[str, int]:
    return dict(case.quick if plan.quick else case.full)


def _merged(files: list[Path]) -> Report:
    """Reports of several invocations as one: what is in several is taken from the last."""
    reports = [json.loads(each.read_text()) for each in files]
    works = {(entry["work"], entry["case"]): entry for each in reports for entry in each["works"]}
    order = list(WORKS)
    merged: Report = {**reports[-1], "works": sorted(works.values(), key=lambda entry: order.index(entry["work"]))}
    merged["quick"] = any(each["quick"] for each in reports)
    merged["systems"] = {name: known for each in reports for name, known in each["systems"].items()}
    return merged


def _list() -> None:
    for work in WORKS.values():
        for case in work.cases:
            print(f"{work.name:<14}{case.label:<22}{work.title.format(**case.full)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("works", nargs="*", metavar="NAME", help="which works; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--list", action="store_true", help="say which works there are")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="repetitions; by default 3 for most works, 1 when quick"
    )
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds that one process may take")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="about how long the run may take: fewer repetitions, and peers are ended after five times our time",
    )
    parser.add_argument("--dir", type=Path, help="where the temporary folder goes: the disk that is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the tables into this page")
    parser.add_argument(
        "--from", type=Path, nargs="+", dest="earlier", metavar="FILE", help="render earlier JSON files"
    )
    parser.add_argument("--install-ducklake", action="store_true", help="make the environment that DuckLake needs")
    return parser


if __name__ == "__main__":
    main()
