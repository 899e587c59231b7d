"""An exception at every line and any bytecode of a call: the store goes on, and every row is in once or not at all."""

import contextlib
import fcntl
import os
import random
import threading
from collections import Counter

import pytest
from interrupts import Bytecodes, Lines, files_of

import timespine as ts
from timespine import locks
from timespine.client.commit import leader_queue
from timespine.client.maintenance import heartbeat
from timespine.client.read import leases
from timespine.location.sqlite import sqlite_file

FILES = files_of(
    *("locks.py", "pool.py", "client", "location", "core/protocols"),
    *("columnar/parts/part_cache.py", "columnar/write/run_writer.py", "columnar/write/upload.py"),
)
"""The way of a commit: all that holds a lock, a queue, a file or what the process knows.

Functions without any of these are left out: an interrupt inside of one is an interrupt of the line that calls it.
"""

# An interrupt while a protocol is thrown away is printed and ignored, by Python itself.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KEY = {"n": "int64"}

PATIENCE_S = 600
"""How long a call may take that must not wait for ever. How long it takes decides nothing else."""

SAMPLE = 20
"""Bytecodes that are tried in every run; all of them with -m slow."""

CALLS_MAX = 200
"""Calls before a store is replaced by a new one: reads get slower, and after more commits one writes a rollup."""


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """A call runs the same lines every time, whatever the clock shows, and does not wait for the disk."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", float("inf"))
    monkeypatch.setattr(leases, "ROTATE_S", float("inf"))
    for module in (locks, leader_queue):  # how soon a thread asks whether the first in its queue was interrupted
        monkeypatch.setattr(module, "TICK_S", 0.001)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    unsynced = [each.replace("synchronous = FULL", "synchronous = OFF") for each in sqlite_file._CONFIGURE]
    monkeypatch.setattr(sqlite_file, "_CONFIGURE", tuple(unsynced))


class Subject:
    """A store that is interrupted again and again, with what it has acknowledged, also when it was open before."""

    def __init__(self, path, before=None):
        self.path = path
        self.store = ts.open(path, maintenance=False, config=ts.Config(inline_part_bytes=1))
        self.numbers = self.store.create("numbers", key=KEY, timeline="counter", if_exists="open")
        self.others = self.store.create("others", key=KEY, timeline="counter", if_exists="open")
        self.acknowledged = before.acknowledged if before is not None else []
        self.tried = before.tried if before is not None else 0
        self.kept = None

    def again(self):
        """The same store, closed and opened again."""
        self.kept = None
        self.store.close()
        return Subject(self.path, before=self)

    def next(self):
        self.tried += 1
        return [{"n": self.tried}]

    def append(self):
        rows = self.next()
        self.numbers.append(rows)
        self.acknowledged += rows

    def transact(self):
        rows = self.next()
        with self.store.transaction() as transaction:
            transaction.append("numbers", rows)
            transaction.append("others", rows)
        self.acknowledged += rows

    def upsert(self):
        rows = self.next()
        self.numbers.upsert(rows)
        self.acknowledged += rows

    def read(self):
        assert {each["n"] for each in self.numbers.snapshot().to_pylist()} >= {each["n"] for each in self.acknowledged}

    def seal(self):
        uppers = [each.upper.elements[0][0] for each in (self.numbers, self.others)]
        self.store.seal(["numbers", "others"], max(uppers) + 1)

    def interrupted(self, call, interrupt):
        """Interrupt a call, keep its traceback alive, and see that another thread goes on at once."""
        self.kept = None
        with interrupt:
            try:
                call()
            except KeyboardInterrupt as error:
                self.kept = error
        with_limit(self.append, f"an append after an interrupt at {interrupt.where}")

    def check(self):
        """All that was acknowledged is in, nothing is in twice, transactions are whole, and the store can be closed."""
        with_limit(self.store.close, "closing")
        with open(f"{self.path}/consensus.db.lock") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with ts.open(self.path, read_only=True) as store:
            found = Counter(each["n"] for each in store["numbers"].snapshot().to_pylist())
            others = {each["n"] for each in store["others"].snapshot().to_pylist()}
        assert max(found.values(), default=1) == 1, "a row is in twice"
        assert {each["n"] for each in self.acknowledged} <= found.keys(), "an acknowledged row is lost"
        assert others <= found.keys(), "a transaction is in by half"


def with_limit(call, what):
    outcome = []

    def run():
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert outcome, f"{what} waits for ever"
    if outcome[0] is not None:
        raise AssertionError(f"{what} fails") from outcome[0]


@pytest.fixture
def subject(tmp_path):
    made = Subject(tmp_path / "store")
    yield made
    with contextlib.suppress(Exception):
        made.store.close(1)


CALLS = ("append", "transact", "upsert", "read", "seal")


def places_of(call):
    """The places that a call runs when nothing interrupts it."""
    with Lines(FILES) as lines:
        call()
    return list(lines.seen)


def listed(places):
    return ", ".join(sorted(map(str, places)))


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_every_line_leaves_a_store_that_works(tmp_path, name):
    """At every line of an append, and of the other calls at every line that an append does not run."""
    wanted, tried = [], set()
    left = None
    while left is None or left:
        subject = Subject(tmp_path / f"store-{len(tried)}")
        call = getattr(subject, name)
        for _ in range(3):  # opens what later calls find open
            call()
            subject.append()
        if left is None:
            common = set() if name == "append" else set(places_of(subject.append))
            left = wanted = [place for place in places_of(call) if place not in common]
        before = len(tried)
        for place in left[:CALLS_MAX]:
            lines = Lines(FILES, place)
            subject.interrupted(call, lines)
            tried.add(lines.where)
        subject.check()
        assert len(tried) > before, f"no call comes to these lines any more: {listed(left)}"
        left = [place for place in left if place not in tried]
    assert wanted
    assert tried >= set(wanted)


@pytest.mark.parametrize("name", ["append", "upsert"])
def test_an_interrupt_at_every_line_that_only_a_first_call_runs_leaves_a_store_that_works(tmp_path, name):
    """The first call of a process opens files, registers itself, and takes a lease."""
    subject = Subject(tmp_path)
    getattr(subject, name)()  # what is worked out once per process is known now
    subject = subject.again()
    first, second = places_of(getattr(subject, name)), places_of(getattr(subject, name))
    wanted = [place for place in first if place not in set(second)]
    tried = set()
    for place in wanted:
        subject = subject.again()
        lines = Lines(FILES, place)
        subject.interrupted(getattr(subject, name), lines)
        tried.add(lines.where)
    subject.check()
    assert set(wanted) == tried, f"never reached: {listed(set(wanted) - tried)}"


def test_closing_that_was_interrupted_at_any_line_is_closed_by_the_next_close(tmp_path):
    """At every line that an append does not run, too."""
    subject = Subject(tmp_path)
    subject.append()
    common = set(places_of(subject.append))
    wanted = [place for place in places_of(subject.store.close) if place not in common]
    tried = set()
    for place in wanted:
        subject = subject.again()
        subject.append()
        with Lines(FILES, place) as lines, contextlib.suppress(KeyboardInterrupt):
            subject.store.close()
        with_limit(subject.store.close, f"closing after an interrupt at {place}")
        tried.add(lines.where)
    subject.check()
    assert set(wanted) == tried, f"never reached: {listed(set(wanted) - tried)}"


def bytecodes_of(subject, name):
    """How many bytecodes a call has, once everything that it needs is open."""
    call = getattr(subject, name)
    call()
    with Bytecodes(FILES) as counted:
        call()
    return range(1, counted.seen + 1)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a row"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_bytecode_leaves_a_store_that_works(subject, name, twice):
    for moment in random.Random(2).sample(bytecodes_of(subject, name), SAMPLE):
        subject.interrupted(getattr(subject, name), Bytecodes(FILES, moment, twice=twice))
    subject.check()


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a row"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_every_single_bytecode_leaves_a_store_that_works(subject, name, twice):
    for moment in bytecodes_of(subject, name):
        subject.interrupted(getattr(subject, name), Bytecodes(FILES, moment, twice=twice))
    subject.check()


@pytest.mark.slow
def test_closing_that_was_interrupted_at_any_bytecode_is_closed_by_the_next_close(tmp_path):
    moment, interrupted = 1, True
    while interrupted:
        store = ts.open(tmp_path, maintenance=False)
        store.create("numbers", key=KEY, timeline="counter", if_exists="open").append([{"n": moment}])
        with Bytecodes(FILES, moment) as bytecodes, contextlib.suppress(KeyboardInterrupt):
            store.close()
        with_limit(store.close, f"closing after an interrupt at {bytecodes.where}")
        interrupted = bytecodes.where is not None
        moment += interrupted
    with ts.open(tmp_path, read_only=True) as again:
        assert again["numbers"].count() == moment


def test_threads_that_append_beside_one_that_is_interrupted_lose_nothing(subject):
    """The interrupted thread often leads the group of the others: they are told, and go on."""
    done, appended, failures = threading.Event(), [], []

    def append(first):
        n = first
        while not done.is_set():
            n += 1
            try:
                subject.numbers.append([{"n": n}])
                appended.append(n)
            except ts.errors.Indeterminate:
                pass  # the leader was interrupted, and it may be in
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=append, args=(first * 10**6,)) for first in (1, 2, 3)]
    for thread in threads:
        thread.start()
    moments = bytecodes_of(subject, "append")
    try:
        for moment in random.Random(3).sample(moments, 3 * SAMPLE):
            subject.interrupted(subject.append, Bytecodes(FILES, moment, twice=moment % 2 == 0))
    finally:
        done.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert failures == []
    subject.acknowledged += [{"n": n} for n in appended]
    subject.check()
