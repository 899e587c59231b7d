"""What `bench.profile` profiles: each work yields, pass after pass, the calls that every thread makes.

What stands between two passes is not measured: new collections, new rows, empty caches. The first pass warms up. Works
that stand for a figure of the bench do what it measures: the same rows, the same configuration, and as much that is
cached (`bench.works`).
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.ours import KEY, VALUE, Ours
from bench.rows import rows, sample
from bench.works.kernels import RUNS, SMALL, Compact, overlapping_run
from bench.works.tables import upsert_rows

Call = Callable[[], object]
Pass = list[list[Call]]
"""The calls of every thread; most works have one thread."""

RANGE = 1_000
UPSERT = 10_000
UPSERTED = 1_000_000
"""Rows of the table of small upserts, at most, as in the bench."""

TENTH = 10
THREADS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rows: int = 10_000_000
    """Rows of the table that is read and updated."""
    run_rows: int = 1_000_000
    """Updates of each of the 16 runs that are merged, as in the bench."""
    lookups: int = 50
    """Rows looked up in one pass, and fresh handles that look up their first are a fifth."""
    appends: int = 300
    """Commits of one row in one pass."""
    batches: int = 10
    """Commits of 10,000 rows in one pass."""
    small: int = 1_000
    """Commits of 10 rows before a snapshot."""
    commits: int = 50
    """Commits of 100 rows of each thread."""
    unmaintained: int = 10_000
    """Commits of one row before a store is opened."""
    opens: int = 5
    """Times that it is opened in one pass."""


def quick_sizes(sizes: Sizes) -> Sizes:
    """Return sizes that take a second or two, of no more rows than are asked for."""
    return Sizes(min(sizes.rows, 50_000), 2_000, 5, 20, 2, 50, 5, 100, 2)


class Tables:
    """A store, and the table that most works read: loaded at once, and later with one upsert of a tenth of its rows."""

    def __init__(self, store: ts.Store, sizes: Sizes) -> None:
        self.store, self.sizes = store, sizes
        self._made = 0

    @cached_property
    def items(self) -> Any:
        """The table, which is filled when a work first asks for it."""
        items = self.store.create("items", key=KEY, value=VALUE, timeline="counter")
        items.append(rows(np.arange(self.sizes.rows)))
        return items

    def new(self) -> Any:
        """Create one more collection."""
        self._made += 1
        return self.store.create(f"made{self._made}", key=KEY, value=VALUE, timeline="counter")

    def updated(self) -> Any:
        """Return the table after one upsert of a tenth as many rows as it has, one of ten of them new."""
        _ = self.update
        return self.items

    @cached_property
    def update(self) -> tuple[int, int]:
        """The last time before that upsert, and its own."""
        ((upper,),) = self.items.upper
        done = self.items.upsert(upsert_rows({"base": self.sizes.rows, "upsert": self.sizes.rows // TENTH}))
        return upper - 1, done.time

    def forget(self) -> None:
        """Drop the rows and footers that reads of this store keep."""
        self.store._cache.clear()


@dataclass(frozen=True, slots=True)
class Work:
    """One thing that is profiled."""

    title: str
    """What one call does."""
    passes: Callable[[Tables], Iterator[Pass]]
    """Yields the calls of one pass after another, without end."""
    rounds: int = 2
    """Passes without the profiler, and as many with it, after the one that warms up."""


def settled(tables: Tables) -> Iterator[Pass]:
    """Read all rows of a table that was loaded at once, with nothing cached."""
    return _first_reads(tables, tables.items)


def settled_again(tables: Tables) -> Iterator[Pass]:
    """Read them once more, with what the read before has cached."""
    return _next_reads(tables, tables.items)


def _first_reads(tables: Tables, items: Any) -> Iterator[Pass]:
    while True:
        tables.forget()
        yield [[lambda: items.snapshot().to_arrow()]]


def _next_reads(tables: Tables, items: Any) -> Iterator[Pass]:
    tables.forget()  # the pass that warms up is a first read
    while True:
        yield [[lambda: items.snapshot().to_arrow()]]


def ranges(tables: Tables) -> Iterator[Pass]:
    """Read a thousand rows by their keys, a few times, by a handle that has read some before."""
    lows = _keys(tables, tables.sizes.lookups // 2, tables.sizes.rows - RANGE, 2)
    while True:
        tables.forget()
        _range(tables.items, 0)
        yield [[lambda low=low: _range(tables.items, low) for low in next(lows)]]


def _range(items: Any, low: int) -> pa.Table:
    return items.snapshot(where=f"id >= {low} AND id < {low + RANGE}").to_arrow()


def lookup(tables: Tables) -> Iterator[Pass]:
    """Look up rows by their keys, each in another row group if there are enough, by a handle that looked one up."""
    keys = _keys(tables, tables.sizes.lookups, tables.sizes.rows, 11)
    while True:
        tables.forget()
        tables.items.lookup({"id": 0})
        yield [[lambda key=key: tables.items.lookup({"id": key}) for key in next(keys)]]


def first_lookup(tables: Tables) -> Iterator[Pass]:
    """Look up one row by a handle that was just opened. The code is warm, and nothing is cached."""
    keys = _keys(tables, tables.sizes.lookups // 5, tables.sizes.rows, 13)
    while True:
        with ExitStack() as stack:
            calls = []
            for key in next(keys):
                fresh = stack.enter_context(ts.open(tables.store.location, maintenance=False))["items"]
                _ = fresh.upper  # the work `lookup` opens before it measures, too
                calls.append(lambda fresh=fresh, key=key: fresh.lookup({"id": key}))
            yield [calls]


def append(tables: Tables) -> Iterator[Pass]:
    """Commit one row, again and again."""
    yield from _appended(tables, tables.sizes.appends, 1)


def batch(tables: Tables) -> Iterator[Pass]:
    """Commit 10,000 rows, again and again."""
    yield from _appended(tables, tables.sizes.batches, UPSERT)


def _appended(tables: Tables, commits: int, count: int) -> Iterator[Pass]:
    collection, done = tables.new(), 0
    while True:
        given = [rows(np.arange(number * count, (number + 1) * count)) for number in range(done, done + commits)]
        done += commits
        yield [[lambda each=each: collection.append(each) for each in given]]


def threads(tables: Tables) -> Iterator[Pass]:
    """Commit 100 rows from each of eight threads, again and again."""
    collection, commits, done = tables.new(), tables.sizes.commits, 0
    while True:
        firsts = range(done, done + THREADS * commits, commits)
        given = [[rows(np.arange(n * 100, (n + 1) * 100)) for n in range(first, first + commits)] for first in firsts]
        done += THREADS * commits
        yield [[lambda each=each: collection.append(each) for each in some] for some in given]


def small_commits(tables: Tables) -> Iterator[Pass]:
    """Read all rows right after many commits of 10 rows."""
    while True:
        collection = tables.new()
        for number in range(tables.sizes.small):
            collection.append(rows(np.arange(number * 10, (number + 1) * 10)))
        yield [[lambda collection=collection: collection.snapshot().to_arrow()]]


def unmaintained(tables: Tables) -> Iterator[Pass]:
    """Open a store that had very many commits and no maintenance, up to its first row."""
    collection = tables.new()
    for number in range(tables.sizes.unmaintained):
        collection.append(rows(np.array([number])))
    keys = _keys(tables, tables.sizes.opens, tables.sizes.unmaintained, 17)
    while True:
        with ExitStack() as stack:

            def open_and_look(key: int, stack: ExitStack = stack) -> object:
                fresh = stack.enter_context(ts.open(tables.store.location, maintenance=False))
                return fresh[collection.name].lookup({"id": key})

            yield [[lambda key=key: open_and_look(key) for key in next(keys)]]


def merge(tables: Tables) -> Iterator[Pass]:
    """Open a store of runs that overlap everywhere, and merge them into one without history, told to use some memory.

    Each pass merges a copy of the same store. The pass that warms up merges smaller runs, as the bench does.
    """
    memory_mb = Compact.cases[0].full["memory_mb"]
    with tempfile.TemporaryDirectory(dir=Path(tables.store.location).parent) as place:
        small, large, copy = (Ours(Path(place) / name) for name in ("small", "large", "copy"))
        small.write_runs(overlapping_run(number, max(tables.sizes.run_rows // SMALL, 100)) for number in range(RUNS))
        yield [[lambda: small.merge_runs(memory_mb)]]
        large.write_runs(overlapping_run(number, tables.sizes.run_rows) for number in range(RUNS))
        while True:
            shutil.copytree(large.folder, copy.folder)
            yield [[lambda: copy.merge_runs(memory_mb)]]
            shutil.rmtree(copy.folder)


def upsert(tables: Tables) -> Iterator[Pass]:
    """Upsert 10,000 rows that are scattered over a table, by a store that stays open and has upserted before."""
    with _upserted(tables) as (_, each):
        while True:
            yield [[next(each)]]


def upsert_cold(tables: Tables) -> Iterator[Pass]:
    """Upsert them with nothing cached."""
    with _upserted(tables) as (store, each):
        while True:
            store._cache.clear()
            yield [[next(each)]]


@contextmanager
def _upserted(tables: Tables) -> Iterator[tuple[ts.Store, Iterator[Call]]]:
    """Open a store with a table of a million rows at most; give upserts of it, one of ten rows new."""
    count = min(UPSERTED, tables.sizes.rows)
    size = {"base": count, "upsert": min(UPSERT, count // TENTH)}
    with tempfile.TemporaryDirectory(dir=Path(tables.store.location).parent) as place:
        with ts.open(place, maintenance=False) as store:
            store.create("items", key=KEY, value=VALUE, timeline="counter").append(rows(np.arange(count)))
        with ts.open(place, maintenance=False) as store:
            items = store["items"]
            _ = items.upper  # so does the bench when it opens a store

            def upserts() -> Iterator[Call]:
                for version in itertools.count(1):
                    yield partial(items.upsert, upsert_rows(size, version))

            yield store, upserts()


def upsert_tenth(tables: Tables) -> Iterator[Pass]:
    """Upsert a tenth as many rows as the table has, one of ten of them new, into a copy of a store with the table."""
    given = upsert_rows({"base": tables.sizes.rows, "upsert": tables.sizes.rows // TENTH})
    with tempfile.TemporaryDirectory(dir=Path(tables.store.location).parent) as place:
        source, copy = Path(place) / "source", Path(place) / "copy"
        with ts.open(source, maintenance=False) as store:
            store.create("items", key=KEY, value=VALUE, timeline="counter").append(rows(np.arange(tables.sizes.rows)))
        while True:
            shutil.copytree(source, copy)
            with ts.open(copy, maintenance=False) as store:
                items = store["items"]
                _ = items.upper
                yield [[lambda items=items: items.upsert(given)]]
            shutil.rmtree(copy)


def updated(tables: Tables) -> Iterator[Pass]:
    """Read all rows right after a tenth of them was upserted, with nothing cached."""
    return _first_reads(tables, tables.updated())


def updated_again(tables: Tables) -> Iterator[Pass]:
    """Read them once more, with the net changes and row groups that the read before has cached."""
    return _next_reads(tables, tables.updated())


def changes(tables: Tables) -> Iterator[Pass]:
    """Read the net changes of an upsert of a tenth."""
    after, until = tables.update
    while True:
        tables.forget()
        yield [[lambda: tables.items.changes(after=after, until=until).to_arrow()]]


def compacted(tables: Tables) -> Iterator[Pass]:
    """Read all rows of a compacted table that still has its history, with nothing cached."""
    items = tables.updated()
    items.compact(wait=True)
    return _first_reads(tables, items)


def _keys(tables: Tables, count: int, below: int, salt: int) -> Iterator[list[int]]:
    """Yield keys for one pass after another."""
    while True:
        yield sample(max(count, 1), below, salt).tolist()
        salt += 1


WORKS = {
    "append": Work("append of one row", append),
    "commit": Work("commit of 10,000 rows", batch),
    "threads": Work("commit of 100 rows, by 8 threads", threads),
    "small": Work("snapshot after 1,000 commits of 10 rows", small_commits),
    "open": Work("open and first row, after 10,000 commits without maintenance", unmaintained),
    "merge": Work("merge of 16 overlapping runs of 1M updates, within 700 MB", merge, rounds=1),
    "settled": Work("whole read, settled, first", settled),
    "settled-again": Work("whole read, settled, again", settled_again),
    "first": Work("point lookup, first of a handle", first_lookup),
    "lookup": Work("point lookup, cold row groups", lookup),
    "range": Work("range lookup of 1,000 rows", ranges),
    "upsert": Work("upsert of 10,000 scattered rows in 1M, store open", upsert),
    "upsert-cold": Work("upsert of 10,000 scattered rows in 1M, nothing cached", upsert_cold),
    "upsert-tenth": Work("upsert of a tenth of the rows, one of ten new", upsert_tenth),
    "updated": Work("whole read after an upsert of a tenth, first", updated),
    "updated-again": Work("whole read after an upsert of a tenth, again", updated_again),
    "changes": Work("net changes of an upsert of a tenth", changes),
    "compacted": Work("whole read, compacted, history kept", compacted),
}
"""In the order in which they run: those that change the table come last."""
