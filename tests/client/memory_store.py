"""Places to test a store in: memory that outlives its stores, with a clock and faults that the test decides.

Several stores on one place are several processes, as far as anybody but the
operating system can tell: nothing but storage is between them.
"""

from __future__ import annotations

import threading
from collections import Counter

from assertions import check, until

from timespine.client.store import Store
from timespine.config import Config
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.testing.unreliable import Fault, UnreliableBlob, UnreliableConsensus

QUICK = Config(retry_pause_ms=1, retry_pause_max_ms=1, storage_attempts=3)
"""Failures are soon found to be failures."""

BLOBS = Config(retry_pause_ms=1, retry_pause_max_ms=1, storage_attempts=3, inline_part_bytes=1)
"""Every row goes to a blob."""

SMALL = Config(
    part_bytes=600,
    row_group_rows=4,
    inline_part_bytes=300,
    inline_total_bytes=900,
    run_parts=2,
    rollup_seqnos=8,
    storage_attempts=3,
    retry_pause_ms=1,
)
"""A handful of rows makes parts, row groups, hollow runs and rollups."""


class Clock:
    """A clock that only the test moves, in seconds: for the wall and for what only goes forward."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds

    @property
    def ms(self):
        return int(self.now * 1000)


class Script:
    """Decides the faults of a store: rules are looked at in order, and each is used up once."""

    def __init__(self):
        self.rules = []
        self.calls = Counter()

    def add(self, operation, fault, *, key="", times=1, hook=None, skip=0):
        """The next calls of an operation on a key that contains `key` meet a fault; `hook` runs before the first."""
        self.rules.append([operation, key, fault, times, hook, skip])

    def __call__(self, operation, key):
        self.calls[operation] += 1
        for rule in self.rules:
            wanted, part, fault, times, hook, skip = rule
            if wanted != operation or part not in key or times <= 0:
                continue
            if skip:
                rule[5] -= 1
                continue
            rule[3] -= 1
            if hook is not None:
                rule[4] = None
                hook()
            return fault
        return Fault.NONE

    @property
    def is_done(self):
        return all(rule[3] <= 0 for rule in self.rules)


class _Blob(MemoryBlob):
    def close(self):
        """Others still use it."""


class _Consensus(MemoryConsensus):
    def close(self):
        """Others still use it."""


class MemoryStore:
    """Storage, and the stores that were opened on it."""

    def __init__(self, config=QUICK):
        self.config = config
        """The configuration of stores that are opened without one."""
        self.blob = _Blob()
        self.consensus = _Consensus()
        self.clock = Clock()
        self.stores = []

    def open(self, *, script=None, blob=None, consensus=None, **options):
        """A store: as if in a process of its own. There is no heartbeat but `heartbeat_once`."""
        blob = blob if blob is not None else self.blob
        consensus = consensus if consensus is not None else self.consensus
        if script is not None:
            blob, consensus = UnreliableBlob(blob, script), UnreliableConsensus(consensus, script)
        options = {
            "config": self.config,
            "maintenance": False,
            "clock": self.clock,
            "monotonic": self.clock,
            "sleep": lambda seconds: None,
            **options,
        }
        store = Store(blob, consensus, **options)
        # The thread goes by real seconds: on a busy machine it would renew leases that expired by the clock of a test.
        store._heartbeat_thread.stop()
        store.ghosts = lambda: consensus.release_ghosts()
        self.stores.append(store)
        return store

    def blobs(self, prefix=""):
        return [info.key for info in self.blob.list_keys(prefix)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for store in self.stores:
            store.close()


class Gate(_Consensus):
    """Consensus that can hold back compare-and-sets, to let others line up behind one that is under way."""

    def __init__(self, inner):
        super().__init__()
        self._logs = inner._logs
        self._lock = inner._lock
        self.free = threading.Event()
        self.free.set()
        self.waiting = threading.Event()
        self.sets = []
        """The keys of every compare-and-set that was tried."""
        self.raises = {}
        """What those of some places among them raise instead."""

    def compare_and_set(self, writes):
        number = len(self.sets)
        self.sets.append(tuple(write.key for write in writes))
        self.waiting.set()
        check(self.free.wait(60), "the gate was never opened")
        if number in self.raises:
            raise self.raises[number]
        return super().compare_and_set(writes)


def together(gate, store, works):
    """Run works as one group: the first begins to commit, and is held back until the others stand in line."""
    results = [None] * len(works)

    def run(index):
        try:
            results[index] = works[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    gate.waiting.clear()
    gate.free.clear()
    try:
        threads[0].start()
        check(gate.waiting.wait(60), "the first one commits nothing")
        for place, thread in enumerate(threads[1:], 1):
            thread.start()
            until(lambda place=place: in_line(store) == place)
    finally:
        gate.free.set()
    for thread in threads:
        thread.join(60)
        check(not thread.is_alive(), "somebody waits for ever")
    return results


def in_line(store):
    """How many wait for a commit."""
    return len(store._committer._queue)


def in_threads(*works):
    """Run works at the same time; the first that fails fails the test."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        check(not thread.is_alive(), "a thread hangs")
    if failures:
        raise failures[0]


def counted(rows, *names):
    """Rows as a multiset of tuples: those of `_diff` as often as they count."""
    found = Counter()
    for row in rows:
        found[tuple(row[name] for name in names)] += row.get("_diff", 1)
    return found
