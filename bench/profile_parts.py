"""To which part of the code the time of a profile belongs.

Most functions of this package belong to the part that their file stands for, and some calls of the system and of
libraries to a part of their own: to SQLite, to files, to hashes. Everything else, such as a sort by numpy, a `take` by
pyarrow or statistics of a part, belongs to the part that called it.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timespine

Function = tuple[str, int, str]
"""File, line and name, as `pstats` names a function; the file of what is not Python is "~"."""

REST = "the rest"
WAITING = "waiting for other threads"
"""What is left out of the whole: the thread that is waited for has its own time."""

BY_NAME = {
    "hashes": ("_hashlib", "xxhash", "crc32"),
    "SQLite": ("sqlite3",),
    "fsync and files": ("posix.", "_io.", "io.open", "fcntl"),
    WAITING: ("'acquire' of '_thread", "'__enter__' of '_thread", "time.sleep"),
}
"""Calls that are not Python, by what their names contain."""

BY_FILE = {
    "columnar/parts/inline_": "inline rows",
    "columnar/parts/part_reader": "decode Parquet",
    "columnar/parts/part_footer": "decode Parquet",
    "columnar/parts/row_group_index": "decode Parquet",
    "columnar/parts/bloom_probe": "decode Parquet",
    "columnar/parts/part_writer": "encode Parquet",
    "columnar/parts/copied_groups": "encode Parquet",
    "columnar/parts/rewrite_parquet_footer": "encode Parquet",
    "columnar/write/": "encode Parquet",
    "columnar/kernels/take_rows": "pick and filter",
    "columnar/kernels/": "kernels",
    "columnar/scan/": "pick and filter",
    "columnar/merge/": "pick and filter",
    "columnar/predicate/": "pick and filter",
    "columnar/ingest/": "check rows",
    "columnar/": None,
    "location/sqlite/": "SQLite",
    "location/": "fsync and files",
    "": "client and core",
}
"""Files of the package, by how their paths begin; the first that fits counts. None: the part of the callers."""

PARTS = (
    "decode Parquet",
    "encode Parquet",
    "inline rows",
    "hashes",
    "kernels",
    "pick and filter",
    "check rows",
    "SQLite",
    "fsync and files",
    "client and core",
    REST,
)
"""The parts in the order in which a table shows them. SQLite includes its own fsync."""

PACKAGE = str(Path(timespine.__file__).parent) + "/"
CALLS = 100_000


def seconds_by_part(profiles: Sequence[cProfile.Profile], overhead_s: float = 0.0) -> Counter[str]:
    """Add up the time of some threads by part. The profiler itself took `overhead_s` of every call."""
    stats: Any = pstats.Stats(profiles[0])
    for each in profiles[1:]:
        stats.add(each)
    found = Counter[str]()
    shares: dict[Function, dict[str, float]] = {}
    for function, (_, calls, own_s, _, _) in stats.stats.items():
        for part, share in _shares_of(function, stats.stats, shares).items():
            found[part] += max(own_s - calls * overhead_s, 0.0) * share
    return found


def profiler_overhead_s() -> float:
    """Measure the seconds that the profiler adds to a call: the least of some tries."""

    def empty() -> None:
        pass

    def many() -> None:
        for _ in range(CALLS):
            empty()

    found = []
    for _ in range(5):
        plain_s = _seconds(many)
        profile = cProfile.Profile()
        profiled_s = _seconds(lambda profile=profile: profile.runcall(many))
        found.append((profiled_s - plain_s) / CALLS)
    return max(min(found), 0.0)


def part_of(function: Function) -> str | None:
    """Return the part that a function belongs to by itself, or None if that is the part of its callers."""
    file, _, name = function
    if file.startswith(PACKAGE):
        inside = file.removeprefix(PACKAGE)
        return next(part for start, part in BY_FILE.items() if inside.startswith(start))
    if file == "~":
        return next((part for part, marks in BY_NAME.items() if any(mark in name for mark in marks)), None)
    return None


def _shares_of(
    function: Function, stats: dict[Function, Any], known: dict[Function, dict[str, float]]
) -> dict[str, float]:
    """Return how much of the own time of a function belongs to which part: the shares add up to 1."""
    if function in known:
        return known[function]
    own = part_of(function)
    if own is not None:
        known[function] = {own: 1.0}
        return known[function]
    # SUBTLE: a function that calls itself through others is a caller of its callers. It counts for nothing until it is
    # known, or this would not end (test_profile.py).
    known[function] = {}
    _, calls, own_s, _, callers = stats[function]
    found = Counter[str]()
    for caller, (_, calls_of_it, own_s_of_it, _) in callers.items():
        weight = own_s_of_it / own_s if own_s else calls_of_it / calls
        for part, share in _shares_of(caller, stats, known).items():
            found[part] += share * weight
    total = sum(found.values())
    known[function] = {part: share / total for part, share in found.items()} if total else {REST: 1.0}
    return known[function]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
