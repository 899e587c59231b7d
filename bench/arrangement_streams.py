"""Inserts of small batches: with and without merging, from a feed, as pairs, and beside a thread of gets."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from bench.arrangement_rows import BATCH, SCHEMA, Figures, Taken, rows_of_ids, timed
from timespine.arrangement.batch.batch import batch_of
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.spine.spine import Spine
from timespine.columnar.schema.schema import DIFF, TIME

ROUNDS = 3
"""How often each kind of insert is measured."""

PAIRED_BATCHES = 200
"""Batches of rows that are there before pairs of retraction and new version come."""


def inserts(figures: Figures, count: int) -> None:
    """Measure all kinds of inserts."""
    ids = np.random.default_rng(2).permutation(count * BATCH)
    tables = [rows_of_ids(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)]
    rows = len(ids)
    batches = [batch_of(table, Layout.of(SCHEMA)) for table in tables]
    taken = _least(
        {
            "without merging": lambda: _inserted(tables, rows, pauses=True),
            "with merging (aim: >= 0.70x)": lambda: _inserted(tables, rows),
            "with merging, from a feed": lambda: _inserted(batches, rows),
            "rocksdict (aim: <= 0.25x of merging)": lambda: _rocks(tables),
        }
    )
    figures.rates(f"inserts of {BATCH:,} new rows", count, taken, "batches", "merging >= 70 %, >= 4x rocksdict")
    _pairs(figures, count)
    _beside_gets(figures, tables)


def _least(works: Mapping[str, Callable[[], Taken]]) -> dict[str, Taken]:
    """Return the least that each work took, all in turns: a machine that is busy for a moment spoils one of them."""
    rounds = [{name: work() for name, work in works.items()} for _ in range(ROUNDS)]
    return {name: Taken(*(min(each[name][place] for each in rounds) for place in (0, 1))) for name in works}


def _inserted(updates: Sequence[object], rows: int, *, pauses: bool = False, before: Sequence[object] = ()) -> Taken:
    """Return what it takes to insert updates, merges under way included, and check that all rows are there."""
    with Spine(SCHEMA) as spine:
        for each in before:
            spine.insert(each)
        if before:
            spine.complete_merges()
        if pauses:
            spine.pause()

        def insert_all() -> None:
            for each in updates:
                spine.insert(each)

        taken = timed(insert_all)
        if pauses:
            spine.resume()
        else:
            spine.complete_merges()
            assert len(spine) == rows, (len(spine), rows)
    return taken


def _rocks(tables: Sequence[pa.Table]) -> Taken:
    from rocksdict import Rdict, WriteBatch

    with tempfile.TemporaryDirectory() as folder:
        peer = Rdict(str(Path(folder) / "peer"))

        def insert_all() -> None:
            for table in tables:
                batch = WriteBatch()
                for row in table.drop_columns([TIME, DIFF]).to_pylist():
                    batch.put(row["id"], msgspec.msgpack.encode(row))
                peer.write(batch)

        taken = timed(insert_all)
        peer.close()
    return taken


def _pairs(figures: Figures, count: int) -> None:
    """Measure pairs of the retraction of a row and its new version."""
    count = max(count // 2, 10)
    there = min(PAIRED_BATCHES, count)
    draw = np.random.default_rng(6)
    versions = np.zeros(there * BATCH, np.int64)
    before = [rows_of_ids(np.arange(start, start + BATCH)) for start in range(0, there * BATCH, BATCH)]
    tables = []
    for _ in range(count):
        ids = draw.choice(there * BATCH, BATCH, replace=False)
        old, new = (_versioned(ids, versions[ids] + step, diff) for step, diff in ((0, -1), (1, 1)))
        versions[ids] += 1
        tables.append(pa.concat_tables([old, new]))
    rows = there * BATCH
    batches = [batch_of(table, Layout.of(SCHEMA)) for table in tables]
    versions_only = [table.slice(BATCH) for table in tables]
    taken = _least(
        {
            "without merging": lambda: _inserted(tables, rows, pauses=True, before=before),
            "with merging (aim: >= 0.45x)": lambda: _inserted(tables, rows, before=before),
            "with merging, from a feed": lambda: _inserted(batches, rows, before=before),
            "rocksdict, new versions": lambda: _rocks(versions_only),
        }
    )
    figures.rates(
        f"inserts of {BATCH:,} pairs of retraction and new version", count, taken, "batches", "merging >= 45 %"
    )


def _versioned(ids: np.ndarray, versions: np.ndarray, diff: int) -> pa.Table:
    table = rows_of_ids(ids, diff=diff)
    return table.set_column(2, "total", pa.array(ids * 0.25 + versions))


def _beside_gets(figures: Figures, tables: Sequence[pa.Table]) -> None:
    """Measure inserts alone, and beside a thread that gets rows without a pause."""
    some = tables[: max(len(tables) // 4, 1)]
    rows = sum(table.num_rows for table in some)
    gets = [0]

    def beside() -> Taken:
        ends = threading.Event()
        with Spine(SCHEMA) as spine:
            spine.insert(tables[-1])
            keys: list[int] = tables[-1].column("id").to_pylist()
            thread = threading.Thread(target=_get_all, args=(spine, keys, ends, gets))
            thread.start()
            try:
                return timed(_insert_into(spine, some))
            finally:
                ends.set()
                thread.join()

    taken = {"alone": _inserted(some, rows), "beside gets (aim: >= 0.25x of wall)": beside()}
    figures.rates(f"inserts of {BATCH:,} rows beside {gets[0]:,} gets", len(some), taken, "batches", ">= 25 % of wall")


def _insert_into(spine: Spine, tables: Sequence[pa.Table]) -> Callable[[], None]:
    def insert_all() -> None:
        for table in tables:
            spine.insert(table)

    return insert_all


def _get_all(spine: Spine, keys: Sequence[int], ends: Any, gets: list[int]) -> None:
    while not ends.is_set():
        view = spine.view()
        for key in keys:
            view.get({"id": key})
        gets[0] += len(keys)
