"""Run many simulated histories: python -m timespine.testing.simulate --histories 1000 --jobs 2

The seed alone decides a history. On a violation the command prints the seed and a
shrunken trace; `--seed S --histories 1 --trace` replays one history in full.
With `--real`, rows are in Parquet, blobs are files and logs are in SQLite. With
`--flavour streams`, histories are of writes ahead of the seal and of transactions; with
`--flavour schemas`, schemas change between the making of rows and their commit; with
`--flavour kept`, garbage collection keeps what was deleted lately.
With `--flavour stores`, they are of real stores: all that users run, with its threads. With
`--flavour arrangements`, their users also arrange collections. With
`--flavour spines`, they are of the spines of arrangements, with naive batches or, with `--real`, real ones. With
`--flavour bucket`, they are of the consensus of a bucket alone. With `--flavour views`, they are
of real stores with views, which several processes create, refresh and drop. With `--flavour copies`, users also copy
their store, read the copies, and restore it.

`--plan mixed:1000:25 stores:100:15 real-spines:50:60` runs histories of several flavours, one after the other, in the
same processes: each of them imports everything once.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

from timespine.testing.bucket import history as bucket_history
from timespine.testing.bucket import scheduler as bucket_scheduler
from timespine.testing.copies.copy_history import run_copy_history
from timespine.testing.formats.parquet import PATHS
from timespine.testing.refreshers import view_history
from timespine.testing.simulator import checker
from timespine.testing.simulator.checker import FAULT_KINDS, FLAVOURS, HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.simulator.stream_workload import POINTS
from timespine.testing.simulator.violation import Violation
from timespine.testing.spines import history as spine_history
from timespine.testing.stores import history_run
from timespine.testing.stores.arranging_users import run_arrangement_history

CHUNK = 25
"""Histories that a worker runs between two reports."""

ENOUGH = 200
"""Histories with real rows of which some must have reached every path."""

MANY = 500
"""Histories of streams of which some must have been disturbed at every marked point."""

MARKED = tuple(f"{what}: {point}" for point in POINTS for what in ("crash", "outage"))
"""The disturbances that must have happened at every point that histories of streams mark."""


Done = tuple[int, int, Counter[str], list[tuple[int, list[Violation]]], int]
"""The number of histories, their operations, their counts, their violations, and a digest of all."""


STORES = "stores"
"""The flavour of histories of real stores."""

SPINES = "spines"
"""The flavour of histories of the spines of arrangements."""

BUCKET = "bucket"
"""The flavour of histories of the consensus of a bucket alone."""

ARRANGEMENTS = "arrangements"
"""The flavour of histories of real stores whose users arrange their collections."""

VIEWS = "views"
"""The flavour of histories of views of real stores."""

COPIES = "copies"
"""The flavour of histories of copies and restores of real stores."""

OWN_FAULTS = {
    STORES: history_run.FAULTS,
    COPIES: history_run.FAULTS,
    ARRANGEMENTS: history_run.FAULTS,
    VIEWS: history_run.FAULTS,
    SPINES: spine_history.FAULTS,
    BUCKET: bucket_scheduler.FAULTS,
}
"""The faults of histories that are not of the protocols of stores, by flavour."""


def run_history(
    seed: int,
    operations: int,
    faults: Faults | None = None,
    tracing: bool = False,
    real: bool = False,
    flavour: str = "mixed",
) -> HistoryResult:
    """Run one history: of the core, of real stores, their views or their copies, of spines, or of a bucket alone."""
    if flavour == BUCKET:
        return bucket_history.run_bucket_history(seed, operations, faults, tracing)
    if flavour == STORES:
        return history_run.run_store_history(seed, operations, faults, tracing)
    if flavour == COPIES:
        return run_copy_history(seed, operations, faults, tracing)
    if flavour == ARRANGEMENTS:
        return run_arrangement_history(seed, operations, faults, tracing)
    if flavour == VIEWS:
        return view_history.run_view_history(seed, operations, faults, tracing)
    if flavour == SPINES:
        return spine_history.run_spine_history(seed, operations, faults, tracing, real)
    return checker.run_core_history(seed, operations, faults, tracing, real, flavour)


def run_seeds(seeds: range, operations: int, real: bool = False, flavour: str = "mixed") -> Done:
    """Run histories. They are small: garbage in cycles is collected once, after all of them."""
    gc.disable()
    try:
        return _run_seeds(seeds, operations, real, flavour)
    finally:
        gc.enable()


def _run_seeds(seeds: range, operations: int, real: bool, flavour: str) -> Done:
    done, counts, digest = 0, Counter[str](), 0
    failed: list[tuple[int, list[Violation]]] = []
    for seed in seeds:
        result = run_history(seed, operations, real=real, flavour=flavour)
        done += result.operations
        counts.update(result.counts)
        digest = (digest * 31 + result.digest) % (1 << 61)
        if result.violations:
            failed.append((seed, result.violations))
            break
    return len(seeds), done, counts, failed, digest


def shrink(seed: int, operations: int, real: bool = False, flavour: str = "mixed") -> tuple[HistoryResult, Faults, int]:
    """Find a shorter and calmer history of the same seed that still fails, and return it with its trace."""
    run = partial(run_history, seed, real=real, flavour=flavour)
    faults, smallest = replace(OWN_FAULTS.get(flavour, Faults())), operations
    for fewer in sorted({*range(1, min(operations, 12)), *range(12, operations, 6)}):
        if run(fewer, faults).violations:
            smallest = fewer
            break
    for calmer in ("fail", "crash", "pause", "clock", "outage"):
        kept = getattr(faults, calmer)
        setattr(faults, calmer, 0.0)
        if not run(smallest, faults).violations:
            setattr(faults, calmer, kept)
    return run(smallest, faults, tracing=True), faults, smallest


def report_failure(
    seed: int, operations: int, violations: list[Violation], real: bool = False, flavour: str = "mixed"
) -> None:
    """Print a violation, with the command that replays it."""
    print(f"\nseed {seed}: {violations[0]}")
    result, faults, smallest = shrink(seed, operations, real, flavour)
    print(f"shrunk to {smallest} operations with {faults}; the last steps:")
    for line in result.trace[-60:]:
        print(f"  {line}")
    for violation in result.violations:
        print(f"  => {violation}")
    options = f"--seed {seed} --histories 1 --ops {operations} --flavour {flavour} --trace{' --real' if real else ''}"
    print(f"replay: python -m timespine.testing.simulate {options}")


@dataclass(frozen=True, slots=True)
class Course:
    """Histories of one flavour."""

    flavour: str
    histories: int
    operations: int
    """Operations per history."""
    seed: int
    """The first seed."""
    real: bool = False

    def chunks(self) -> list[range]:
        """Return the seeds that a worker runs between two reports."""
        end = self.seed + self.histories
        return [range(start, min(start + CHUNK, end)) for start in range(self.seed, end, CHUNK)]

    def wanted(self) -> tuple[str, ...]:
        """Return what must have happened in some of the histories, if they are many."""
        if self.flavour == BUCKET:
            return bucket_history.REACHED if self.histories >= MANY else ()
        if self.real and self.flavour != SPINES:
            return PATHS if self.histories >= ENOUGH else ()
        return MARKED if self.flavour == "streams" and self.histories >= MANY else ()


def _course_of(text: str, seed: int) -> Course:
    """Parse one course of a plan: flavour:histories:operations, with `real-` before the flavour for real rows."""
    try:
        flavour, histories, operations = text.split(":")
        return Course(flavour.removeprefix("real-"), int(histories), int(operations), seed, flavour.startswith("real-"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form flavour:histories:operations") from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="timespine.testing.simulate", description="Simulated histories with faults.")
    parser.add_argument("--histories", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--ops", type=int, default=60, help="operations per history (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--real", action="store_true", help="with Parquet, files and SQLite; spines with real batches and files"
    )
    parser.add_argument(
        "--flavour",
        choices=sorted([*FLAVOURS, *OWN_FAULTS]),
        default="mixed",
        help="what they are of (default mixed)",
    )
    parser.add_argument("--plan", nargs="+", default=[], metavar="FLAVOUR:HISTORIES:OPS", help="several flavours")
    parser.add_argument("--trace", action="store_true", help="print every step (with --histories 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    options = parser.parse_args(arguments)
    alone = Course(options.flavour, options.histories, options.ops, options.seed, options.real)
    try:
        courses = [_course_of(each, options.seed) for each in options.plan] or [alone]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    for course in courses:
        _check(parser, course, options.jobs)
    if options.trace:
        result = run_history(options.seed, options.ops, tracing=True, real=options.real, flavour=options.flavour)
        print("\n".join([*result.trace, *result.violations, f"digest {result.digest:08x}"]))
        return 1 if result.violations else 0
    with _workers(options.jobs) as run:
        results = [run(course) for course in courses]
        # The histories of a later course are not worth waiting for if an earlier one failed.
        return next((1 for each in zip(courses, results, strict=True) if _report(*each, as_json=options.json)), 0)


def _check(parser: argparse.ArgumentParser, course: Course, jobs: int) -> None:
    """End the command if a course cannot be run."""
    if course.flavour not in (*FLAVOURS, *OWN_FAULTS):
        parser.error(f"there is no flavour {course.flavour!r}")
    if course.histories < 1 or course.operations < 1 or jobs < 1 or course.seed < 0:
        parser.error("--histories, --ops and --jobs must be at least 1, --seed at least 0")
    if course.real and course.flavour in OWN_FAULTS and course.flavour != SPINES:
        parser.error("--real is about the core and spines: stores have real rows in any case, others have none")


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Course], Iterator[Done]]]:
    """Return the function that gives the result of every chunk of a course, in order."""

    def run_of(course: Course) -> Callable[[range], Done]:
        return partial(run_seeds, operations=course.operations, real=course.real, flavour=course.flavour)

    if jobs == 1:
        yield lambda course: map(run_of(course), course.chunks())
        return
    # Not forked: Arrow and Polars have threads of their own, which do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield lambda course: pool.map(run_of(course), course.chunks())
        pool.shutdown(cancel_futures=True)


def _report(course: Course, results: Iterable[Done], *, as_json: bool) -> bool:
    """Print the figures of a course and its first violations; return whether there are any, or it was too tame."""
    began = time.perf_counter()
    histories, operations, digest = 0, 0, 0
    counts: Counter[str] = Counter()
    failed: list[tuple[int, list[Violation]]] = []
    for done in results:
        histories += done[0]
        operations += done[1]
        counts.update(done[2])
        failed.extend(done[3])
        digest = (digest * 31 + done[4]) % (1 << 61)
        if histories % 2000 < CHUNK and not as_json:
            print(f"  {histories} of {course.histories} histories, {len(failed)} violations", file=sys.stderr)
    seconds = time.perf_counter() - began
    kinds = bucket_history.FAULT_KINDS if course.flavour == BUCKET else FAULT_KINDS
    figures = {
        "flavour": f"{'real-' if course.real else ''}{course.flavour}",
        "histories": histories,
        "operations": operations,
        "faults": {kind: counts[kind] for kind in kinds},
        "faults in all": sum(counts[kind] for kind in kinds) + counts["crashes"],
        "crashes": counts["crashes"],
        "commits": counts["commits"],
        **({"paths": {kind: counts[kind] for kind in PATHS}} if course.real and course.flavour != SPINES else {}),
        **(
            {"slots": counts["slots"], **{kind: counts[kind] for kind in bucket_history.REACHED[:3]}}
            if course.flavour == BUCKET
            else {}
        ),
        **({"marked points": {kind: counts[kind] for kind in MARKED}} if course.flavour == "streams" else {}),
        "violations": len(failed),
        "histories per second": round(histories / seconds, 1),
        "digest": f"{digest:016x}",
    }
    if as_json:
        print(json.dumps(figures), flush=True)
    else:
        for name, value in figures.items():
            print(f"{name:22} {value}", flush=True)
    for seed, violations in failed[:3]:
        report_failure(seed, course.operations, violations, course.real, course.flavour)
    unreached = [kind for kind in course.wanted() if not counts[kind]]
    if unreached:
        print(f"{histories} histories and never any {', '.join(unreached)}: they are too tame")
    return bool(failed or unreached)


if __name__ == "__main__":
    sys.exit(main())
