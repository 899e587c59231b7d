"""A whole read by several threads: each scans a share of the keys.

Decoding, sorting and taking rows are done outside of Python's lock, so that two
threads are nearly twice as fast as one. Shares are cut where row groups begin:
next to nothing is decoded twice. Whoever wants a stream reads as one (`scan`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from itertools import pairwise

import pyarrow as pa

from timespine.columnar.predicate.keyset import FEW
from timespine.columnar.scan.part_set import Parts, Tally
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.splits import split_keys
from timespine.core.batch import Run

SHARE_ROWS = 1 << 17
"""Rows that are worth a share of their own."""

SELECTED = 8
"""Times as many, where a condition leaves out most of them."""

PER_CORE = 2
"""Shares per core: they are only about equal, and whoever is done first takes another one."""

CORES_MAX = 8
"""More threads than this are held up by Python's lock, and by memory."""


def scan_in_shares(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> Iterator[pa.Table]:
    """The same rows as those of `scan`, in any order; all of it is read at once."""
    wanted = replace(wanted, loose=True)
    cores = 1 if _is_lookup(wanted) else _cores()
    cuts = _cuts(parts, runs, wanted, cores) if cores > 1 else []
    if parts.pool is None or not cuts:
        # A lookup reads a row group or two: handing that to another thread takes longer than doing it.
        yield from scan(replace(parts, pool=None) if _is_lookup(wanted) else parts, runs, wanted, memory_bytes)
        return
    ends = pairwise([wanted.lower, *cuts, wanted.upper])
    shares = [replace(wanted, lower=lower, upper=upper) for lower, upper in ends]
    # A share waits for nothing that is done in the pool: nobody in it waits for ever.
    readers = [replace(parts, pool=None, tally=Tally(), _pruners={}) for _ in shares]
    memory = memory_bytes // cores
    pending: list[Future[list[pa.Table]]] = [
        parts.pool.submit(_read, reader, runs, share, memory) for reader, share in zip(readers, shares, strict=True)
    ]
    try:
        for reader, tables in zip(readers, pending, strict=True):
            yield from tables.result()
            _add(parts.tally, reader.tally)
    finally:
        for each in pending:
            each.cancel()


def _cuts(parts: Parts, runs: Sequence[Run], wanted: Wanted, cores: int) -> list[bytes]:
    """Where to cut what is wanted; nowhere if it is little, or if most of what may match will turn out not to."""
    if parts.pool is None or _is_lookup(wanted):
        return []
    planner = replace(parts, tally=Tally(), audit=0.0, _pruners={})
    rows = sum(part.rows for run in runs for part in planner.matching(run.parts, run, wanted))
    share = SHARE_ROWS if wanted.where is None else SELECTED * SHARE_ROWS
    count = min(PER_CORE * cores, rows // share)
    return split_keys(planner, runs, wanted, count) if count > 1 else []


def _cores() -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, CORES_MAX)


def _is_lookup(wanted: Wanted) -> bool:
    return wanted.keys is not None and len(wanted.keys) <= FEW


def _read(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> list[pa.Table]:
    return list(scan(parts, runs, wanted, memory_bytes))


def _add(total: Tally, share: Tally) -> None:
    for each in fields(Tally):
        setattr(total, each.name, getattr(total, each.name) + getattr(share, each.name))
