"""What `bench.profile` profiles: each work yields, pass after pass, the calls that every thread makes.

What stands between two passes is not measured: new collections, new rows, empty caches. The first pass warms up.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import timespine as ts
from bench.ours import KEY, VALUE
from bench.rows import rows, sample
from bench.works.kernels import RUNS, overlapping_run
from bench.works.tables import upsert_rows

Call = Callable[[], object]
Pass = list[list[Call]]
"""The calls of every thread; most works have one thread."""

RANGE = 1_000
UPSERT = 10_000
TENTH = 10
THREADS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rows: int = 10_000_000
    """Rows of the table that is read and updated."""
    run_rows: int = 100_000
    """Updates of each of the 16 runs that are merged."""
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
    """A store, and the table that most works read: loaded at once, and later with a tenth of its rows updated."""

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
        """Return the table after an upsert of a tenth of its rows, which happens once."""
        _ = self.update
        return self.items

    @cached_property
    def update(self) -> tuple[int, int]:
        """The last time before that upsert, and its own."""
        ((upper,),) = self.items.upper
        done = self.items.upsert(rows(sample(self.sizes.rows // TENTH, self.sizes.rows, 3), 1))
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


def settled(tables: Tables) -> Iterator[Pass]:
    """Read all rows of a table that was loaded at once."""
    while True:
        tables.forget()
        yield [[lambda: tables.items.snapshot().to_arrow()]]


def ranges(tables: Tables) -> Iterator[Pass]:
    """Read a thousand rows by their keys, a few times."""
    lows = _keys(tables, tables.sizes.lookups // 2, tables.sizes.rows - RANGE, 2)
    while True:
        tables.forget()
        yield [[lambda low=low: _range(tables.items, low) for low in next(lows)]]


def _range(items: Any, low: int) -> pa.Table:
    return items.snapshot(where=f"id >= {low} AND id < {low + RANGE}").to_arrow()


def lookup(tables: Tables) -> Iterator[Pass]:
    """Look up rows by their keys, each in another row group if there are enough."""
    keys = _keys(tables, tables.sizes.lookups, tables.sizes.rows, 11)
    while True:
        tables.forget()
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
    """Merge runs that overlap everywhere into one that has no history."""
    while True:
        collection = tables.new()
        for number in range(RUNS):
            collection.append(overlapping_run(number, tables.sizes.run_rows))
        ((upper,),) = collection.upper
        collection.expire(before=upper - 1)
        yield [[lambda collection=collection: collection.compact(wait=True)]]


def upsert(tables: Tables) -> Iterator[Pass]:
    """Upsert 10,000 rows that are scattered over the table."""
    version = 2
    while True:
        given = rows(sample(min(UPSERT, tables.sizes.rows), tables.sizes.rows, version), version)
        tables.forget()
        yield [[lambda given=given: tables.items.upsert(given)]]
        version += 1


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
    """Read all rows right after a tenth of them was upserted."""
    items = tables.updated()
    while True:
        tables.forget()
        yield [[lambda: items.snapshot().to_arrow()]]


def changes(tables: Tables) -> Iterator[Pass]:
    """Read the net changes of an upsert of a tenth."""
    after, until = tables.update
    while True:
        tables.forget()
        yield [[lambda: tables.items.changes(after=after, until=until).to_arrow()]]


def compacted(tables: Tables) -> Iterator[Pass]:
    """Read all rows of a compacted table that still has its history."""
    items = tables.updated()
    items.compact(wait=True)
    while True:
        tables.forget()
        yield [[lambda: items.snapshot().to_arrow()]]


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
    "merge": Work("merge of 16 overlapping runs", merge),
    "settled": Work("whole read, settled", settled),
    "range": Work("range lookup of 1,000 rows", ranges),
    "lookup": Work("point lookup", lookup),
    "first": Work("first lookup of a process", first_lookup),
    "upsert": Work("upsert of 10,000 scattered rows", upsert),
    "upsert-tenth": Work("upsert of a tenth of the rows, one of ten new", upsert_tenth),
    "updated": Work("whole read after an upsert of a tenth", updated),
    "changes": Work("net changes of an upsert of a tenth", changes),
    "compacted": Work("whole read, compacted, history kept", compacted),
}
"""In the order in which they run: those that change the table come last."""
