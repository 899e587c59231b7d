"""Where the time of a work goes, by part of the code: `python -m bench.profile upsert lookup`.

python -m bench.profile                                     all works, in a table of 10 million rows
python -m bench.profile append threads --rows 1000000       some of them
python -m bench.profile --markdown docs/benchmarks.md       the table of the page again

Threads of the library are switched off, so that the parts add up; eight threads of a user are profiled each by itself,
without what they wait for each other. A work runs once to warm up, and then in turns without the profiler and with
it: the time is the least of the former, and the shares are those of the fastest of the latter, without what the
profiler itself takes.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timespine as ts
from bench.figures import shown
from bench.profile_parts import PARTS, WAITING, profiler_overhead_s, seconds_by_part
from bench.profile_works import WORKS, Pass, Sizes, Tables, Work, quick_sizes
from bench.report import machine, put_between
from timespine.columnar.kernels import take_rows
from timespine.columnar.scan import parallel_scan
from timespine.pool import Pool, PoolTask

BEGIN, END = "<!-- profile: begin -->", "<!-- profile: end -->"
PER_THREAD = sys.version_info < (3, 12)
"""Whether each thread can have a profiler of its own. Later ones note the calls of all threads."""


@dataclass(frozen=True, slots=True)
class Found:
    """The profile of one work."""

    title: str
    """What one call does."""
    call_s: float
    """Seconds of one call, without the profiler; with many threads, of all calls divided by their number."""
    shares: dict[str, float]
    """Of the time of a call, what is spent in each part of the code."""
    waiting: float
    """Of the time of all threads, what they wait for each other; the shares are of the rest."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("works", nargs="*", metavar="NAME", help=f"of {', '.join(WORKS)}; all of them by default")
    parser.add_argument("--rows", type=int, default=Sizes().rows, help="rows of the table that is read and updated")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not where does the time go")
    parser.add_argument("--dir", type=Path, help="where the store is made")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table into this page: all works")
    options = parser.parse_args(arguments)
    unknown = [each for each in options.works if each not in WORKS]
    if unknown:
        parser.error(f"no such work: {', '.join(unknown)}")
    if options.markdown and options.works:
        parser.error("a page has the table of all works: name none of them")
    sizes = quick_sizes(Sizes(options.rows)) if options.quick else Sizes(options.rows)
    found = list(profiled([WORKS[name] for name in options.works or WORKS], sizes, options.dir))
    if options.markdown:
        put_between(options.markdown, BEGIN, END, page(found, sizes, options.quick))


def profiled(works: Sequence[Work], sizes: Sizes, folder: Path | None) -> Iterator[Found]:
    """Profile works one after the other, and print each."""
    overhead_s = profiler_overhead_s()
    before = parallel_scan.CORES_MAX, take_rows.THREADED_ROWS, Pool.submit
    parallel_scan.CORES_MAX, take_rows.THREADED_ROWS = 1, 1 << 60
    Pool.submit = _run_at_once  # type: ignore[assignment, method-assign]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-profile-", dir=folder) as place,
            ts.open(place, maintenance=False) as store,
        ):
            tables = Tables(store, sizes)
            for work in works:
                found = _profile(work, tables, overhead_s)
                if found is None:
                    print(f"\n{work.title}: needs Python 3.11, in which every thread has a profiler of its own")
                    continue
                print("", *_text(found), sep="\n", flush=True)
                yield found
    finally:
        parallel_scan.CORES_MAX, take_rows.THREADED_ROWS, Pool.submit = before  # type: ignore[method-assign]


def _run_at_once(pool: Pool, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PoolTask[Any]:
    """Run a task of the pool in the calling thread, the only one that is profiled."""
    task = PoolTask(lambda: work(*args, **kwargs))
    task.run()
    return task


def _profile(work: Work, tables: Tables, overhead_s: float) -> Found | None:
    passes = work.passes(tables)
    try:
        calls = next(passes)
        if len(calls) > 1 and not PER_THREAD:
            return None
        _run(calls)
        elapsed: list[float] = []
        spent: list[Counter[str]] = []
        for _ in range(work.rounds):
            calls = next(passes)
            elapsed.append(_run(calls) / sum(map(len, calls)))
            calls = next(passes)
            profiles = [cProfile.Profile() for _ in calls]
            _run(calls, profiles)
            spent.append(seconds_by_part(profiles, overhead_s))
    finally:
        passes.close()  # type: ignore[attr-defined]
    least = min(spent, key=Counter.total)
    whole_s, waiting_s = least.total(), least.pop(WAITING, 0.0)
    shares = {part: least[part] / (whole_s - waiting_s) for part in PARTS}
    return Found(work.title, min(elapsed), shares, waiting_s / whole_s)


def _run(calls: Pass, profiles: Sequence[cProfile.Profile] = ()) -> float:
    """Make the calls of every thread, and return the time from the start of all to the end of the last."""
    threads = [_Caller(each, profiles[number] if profiles else None) for number, each in enumerate(calls)]
    began = time.perf_counter()
    if len(threads) == 1:
        threads[0].run()
    else:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    elapsed = time.perf_counter() - began
    failures = [each.failure for each in threads if each.failure]
    if failures:
        raise failures[0]
    return elapsed


class _Caller(threading.Thread):
    def __init__(self, calls: list[Callable[[], object]], profile: cProfile.Profile | None) -> None:
        super().__init__()
        self.calls, self.profile = calls, profile
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            if self.profile:
                self.profile.runcall(self._call_all)
            else:
                self._call_all()
        except BaseException as failure:
            self.failure = failure

    def _call_all(self) -> None:
        for call in self.calls:
            call()


def _text(found: Found) -> Iterator[str]:
    waiting = f", and {found.waiting:.0%} of the threads' time waiting for each other" if found.waiting > 0.01 else ""
    yield f"{found.title}: {shown(found.call_s, 's')}{waiting}"
    for part, share in sorted(found.shares.items(), key=lambda each: -each[1]):
        if share >= 0.005:
            yield f"  {part:18} {share:4.0%}"


def page(found: Sequence[Found], sizes: Sizes, quick: bool) -> str:
    """Write all profiles as one table: a row for each work, a column for each part."""
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    kind = "quick sizes: not for comparison" if quick else "full sizes"
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    lines = [f"Measured {when} ({kind}, a table of {sizes.rows:,} rows) on: {about}.", ""]
    lines += [f"| work | one call | {' | '.join(PARTS)} |", f"| --- | ---: |{' ---: |' * len(PARTS)}"]
    for each in found:
        cells = [f"{share:.0%}" if (share := each.shares[part]) >= 0.005 else "" for part in PARTS]
        lines.append(f"| {each.title} | {shown(each.call_s, 's')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
