"""Merges of much more data than their memory, in a process of their own: how much they take at most."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.schema.schema import define
from timespine.columnar.write.run_writer import NO_LISTS, RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.effects import MergeRuns
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.location.folder.local_blob import LocalBlob
from timespine.model.description import Description
from timespine.model.frontier import Frontier

MB = 1 << 20
BOUND = 4 * MB
CONFIG = replace(DEFAULT, merge_bytes=BOUND, part_bytes=1 * MB, row_group_rows=2048)
SCHEMA = define({"k": "int64"}, {"v": "string"})
KEYLESS = define(None, {"a": "int64", "k": "int64", "v": "string"})


class Case:
    """Runs in a folder."""

    def __init__(self, folder, schemas):
        self.blob = LocalBlob(folder)
        self.schemas = schemas
        self.numbers = itertools.count()
        self.data = 0

    def fresh(self, prefix):
        return f"{prefix}{next(self.numbers)}"

    def run(self, tables):
        target = UploadTarget("c", "w0", self.schemas[0], 0, self.blob, CONFIG)
        writer = RunWriter(target, self.fresh, {}, run_parts=NO_LISTS)
        for table in tables:
            self.data += table.nbytes
            writer.add(table)
        (run,) = writer.finish()
        return run

    def table(self, keys, width, times):
        rows = len(keys)
        columns = [pa.array(keys), pa.repeat("x" * width, rows)]
        if len(self.schemas[0].names) == 3:
            columns = [pa.array(np.arange(rows)), *columns]
        times = np.broadcast_to(times, rows)
        columns += [pa.array(times.astype(np.int64)), pa.array(np.ones(rows, np.int64))]
        return pa.Table.from_arrays(columns, schema=self.schemas[0].update_arrow)


def narrow(case):
    """Sixteen runs of many short rows."""
    return [
        case.run([case.table(np.arange(n * 12_500, (n + 1) * 12_500) * 16 + r, 4, r) for n in range(5)])
        for r in range(16)
    ]


def wide(case):
    """Eight runs of rows of four kilobytes."""
    return [case.run([case.table(np.arange(1000) * 8 + r, 4096, r)]) for r in range(8)]


def many(case):
    """Fifty runs that are small each."""
    return [case.run([case.table(np.arange(20_000) * 50 + r, 4, r)]) for r in range(50)]


def unordered(case):
    """Parts that came in any order."""
    parts = [part for r in range(10) for part in case.run([case.table(np.arange(100_000) * 10 + r, 4, r)]).parts]
    return [Run(tuple(parts), Order.UNORDERED, 0)]


def one_row(case):
    """One row with millions of times."""
    return [
        case.run([case.table(np.zeros(100_000, np.int64), 4, np.arange(n * 100_000, (n + 1) * 100_000) * 4 + r)])
        for n in range(3)
        for r in range(4)
    ]


def dropped(case):
    """Rows that are ordered by a column that is not there any more."""
    return [case.run([case.table(np.arange(62_500)[::-1] * 14 + r, 4, r)]) for r in range(14)]


CASES = {
    "narrow": (narrow, [SCHEMA]),
    "wide": (wide, [SCHEMA]),
    "many": (many, [SCHEMA]),
    "unordered": (unordered, [SCHEMA]),
    "one row": (one_row, [SCHEMA]),
    "dropped": (dropped, [KEYLESS, KEYLESS.drop("a")]),
}


def measured(name):
    """Bytes of rows, and the peak of memory that their merge took beyond what there was before."""
    make, schemas = CASES[name]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        case = Case(folder, schemas)
        runs = make(case)
        edges = [Frontier.at(n) for n in range(len(runs) + 1)]
        batches = [
            HollowBatch(Description(a, b, Frontier.at(0)), sum(part.rows for part in run.parts), (run,))
            for run, (a, b) in zip(runs, pairwise(edges), strict=True)
        ]
        rope = ropes.balance([ropes.leaf(n, n + 1, batch) for n, batch in enumerate(batches)])
        request = MergeRequest(Description(edges[0], edges[-1], Frontier.at(0)), rope)
        engine = Engine(case.blob, lambda collection: schemas, CONFIG, fresh=case.fresh, cache=PartCache(MB), pool=pool)
        gc.collect()
        pa.default_memory_pool().release_unused()
        base = figure("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        merged = engine.merge(MergeRuns("c", request, "m1")).batch
        peak = figure("VmHWM") - base
        rows = sum(batch.len for batch in batches)
        return {"data": case.data, "bound": BOUND, "peak": peak, "lost": rows - merged.len}


def figure(name):
    """A figure of the process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(json.dumps({name: measured(name) for name in sys.argv[1:] or CASES}))
