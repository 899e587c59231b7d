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

from timespine.columnar.parts import Parts, Tally
from timespine.columnar.scan import scan
from timespine.columnar.splits import split_keys
from timespine.columnar.wanted import Wanted
from timespine.core.hollow import Run

SHARE_ROWS = 1 << 17
"""Rows that are worth a share of their own."""

PER_CORE = 2
"""Shares per core: they are only about equal, and whoever is done first takes another one."""

CORES_MAX = 8
"""More threads than this are held up by Python's lock, and by memory."""


def scan_in_shares(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> Iterator[pa.Table]:
    """The same tables as those of `scan`, cut in other places; all of it is read at once."""
    cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, CORES_MAX)
    rows = sum(part.rows for run in runs for part in run.parts)
    count = min(PER_CORE * cores, rows // SHARE_ROWS)
    cuts = split_keys(parts, runs, wanted, count) if parts.pool is not None and cores > 1 and count > 1 else []
    if parts.pool is None or not cuts:
        yield from scan(parts, runs, wanted, memory_bytes)
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


def _read(parts: Parts, runs: Sequence[Run], wanted: Wanted, memory_bytes: int) -> list[pa.Table]:
    return list(scan(parts, runs, wanted, memory_bytes))


def _add(total: Tally, share: Tally) -> None:
    for each in fields(Tally):
        setattr(total, each.name, getattr(total, each.name) + getattr(share, each.name))
