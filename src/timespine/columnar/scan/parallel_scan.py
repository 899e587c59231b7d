"""A whole read by several threads: each scans a share of the keys.

Decoding, sorting and taking rows are done outside of Python's lock, so that two
threads are nearly twice as fast as one. Shares are cut where row groups begin:
next to nothing is decoded twice. A caller that needs a stream uses `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa

from timespine.columnar.predicate.key_set import FEW
from timespine.columnar.scan.part_access import Parts, ScanStats
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.settled_run import scan_settled, settled_parts
from timespine.columnar.scan.settled_run_with_changes import changed_run, scan_changed
from timespine.columnar.scan.split_keys import split_keys
from timespine.core.batch import Run
from timespine.pool import outcome, usable_cores

T = TypeVar("T")

SHARE_ROWS = 1 << 17
"""Rows that are worth a share of their own."""

SELECTED = 8
"""Times as many, where a condition leaves out most of them."""

PER_CORE = 2
"""The shares per core: they are only about equal, and a thread that has finished one takes another. Each gets the
memory of a scan divided by the cores, so all together take this number of times as much at most, whatever the number of
threads."""

CORES_MAX = 8
"""More threads than this are held up by Python's lock, and by memory."""


def scan_in_shares(parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int) -> Iterator[pa.Table]:
    """Yield the same rows as those of `scan`, in any order; all of it is read at once."""
    request = replace(request, any_order=True)
    if parts.pool is not None and not _is_lookup(request):
        settled = settled_parts(parts, runs, request)
        if settled is not None:
            return scan_settled(parts, runs[0], settled, request, parts.pool)
        changed = changed_run(parts, runs, request, memory_bytes)
        if changed is not None:
            return scan_changed(parts, changed, request, memory_bytes, parts.pool, _scan_shares)
    return _scan_shares(parts, runs, request, memory_bytes, lambda table: table)


def _scan_shares(
    parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int, then: Callable[[pa.Table], T]
) -> Iterator[T]:
    """Yield what a function makes of the tables of `scan`, in their order if the request has one.

    All of it is read at once, and the function runs in the threads that read.
    """
    cores = 1 if _is_lookup(request) else min(parts.config.read_threads or usable_cores(), CORES_MAX)
    cuts = _cuts(parts, runs, request, cores) if cores > 1 else []
    if parts.pool is None or not cuts:
        # A lookup reads a row group or two: handing that to another thread takes longer than doing it.
        reader = replace(parts, pool=None) if _is_lookup(request) else parts
        yield from map(then, scan(reader, runs, request, memory_bytes))
        return
    ends = pairwise([request.lower, *cuts, request.upper])
    shares = [replace(request, lower=lower, upper=upper) for lower, upper in ends]
    # A share waits for no other work of the pool: no thread of it waits for ever.
    readers = [replace(parts, pool=None, scan_stats=ScanStats(), _pruners={}) for _ in shares]
    memory = memory_bytes // cores
    pending: list[Future[list[T]]] = [
        parts.pool.submit(_read, reader, runs, share, memory, then)
        for reader, share in zip(readers, shares, strict=True)
    ]
    try:
        for reader, made in zip(readers, pending, strict=True):
            yield from outcome(made)
            _add(parts.scan_stats, reader.scan_stats)
    finally:
        for each in pending:
            each.cancel()


def _cuts(parts: Parts, runs: Sequence[Run], request: ScanRequest, cores: int) -> list[bytes]:
    """Return where to cut what is wanted; nowhere if it is little, or if most of what may match will turn out not
    to."""
    if parts.pool is None or _is_lookup(request):
        return []
    planner = replace(parts, scan_stats=ScanStats(), audit=0.0, _pruners={})
    rows = sum(part.rows for run in runs for part in planner.matching(run.parts, run, request))
    share = SHARE_ROWS if request.where is None else SELECTED * SHARE_ROWS
    count = min(PER_CORE * cores, rows // share)
    return split_keys(planner, runs, request, count) if count > 1 else []


def _is_lookup(request: ScanRequest) -> bool:
    return request.keys is not None and len(request.keys) <= FEW


def _read(
    parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int, then: Callable[[pa.Table], T]
) -> list[T]:
    return [then(table) for table in scan(parts, runs, request, memory_bytes)]


def _add(total: ScanStats, share: ScanStats) -> None:
    for each in fields(ScanStats):
        setattr(total, each.name, getattr(total, each.name) + getattr(share, each.name))
