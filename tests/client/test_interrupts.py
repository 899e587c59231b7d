"""An exception at any line and any bytecode of a call: the store goes on, and every row is in once or not at all."""

import contextlib
import fcntl
import random
import threading
from collections import Counter

import pytest
from interrupts import Interrupt

import timespine as ts
from timespine import locks, pool
from timespine.client import (
    access,
    append,
    append_batcher,
    committer,
    leases,
    line,
    prepare,
    session,
    stage,
    step_commit,
    transaction,
    transaction_steps,
)
from timespine.columnar import cache
from timespine.core.protocols import commit
from timespine.location import local, sqlite, sqlite_file, turns

MODULES = [
    *(locks, pool, access, append, append_batcher, committer, leases, line, prepare, session, stage),
    *(step_commit, transaction, transaction_steps),
    *(cache, commit, local, sqlite, sqlite_file, turns),
]
"""The way of a commit, and the locks on it."""

# An interrupt while a protocol is thrown away is printed and ignored, by Python itself.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KEY = {"n": "int64"}
LIMIT_S = 30
SAMPLE = 60
"""Bytecodes that are tried in every run; all of them with -m slow."""


class Subject:
    """A store that is interrupted again and again, with what it has acknowledged."""

    def __init__(self, path):
        self.path = path
        self.store = ts.open(path, maintenance=False, config=ts.Config(inline_part_bytes=1))
        self.numbers = self.store.create("numbers", key=KEY, timeline="counter")
        self.others = self.store.create("others", key=KEY, timeline="counter")
        self.acknowledged = []
        self.tried = 0
        self.kept = None

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

    def interrupted(self, call, moment, **options):
        """Interrupt a call, keep its traceback alive, and see that another thread goes on at once."""
        self.kept = None
        with Interrupt(MODULES, moment, **options) as interrupt:
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
    thread.join(LIMIT_S)
    assert outcome, f"{what} waits for ever"
    if outcome[0] is not None:
        raise outcome[0]


@pytest.fixture
def subject(tmp_path):
    made = Subject(tmp_path / "store")
    yield made
    with contextlib.suppress(Exception):
        made.store.close(1)


CALLS = ("append", "transact", "upsert", "read", "seal")


def moments_of(subject, name, event):
    """How many moments a call has, once everything that it needs is opened."""
    call = getattr(subject, name)
    call()
    with Interrupt(MODULES, event=event) as counted:
        call()
    return counted.seen


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_leaves_a_store_that_works(subject, name):
    moments = range(1, moments_of(subject, name, "line") + 1)
    for moment in random.Random(1).sample(moments, min(len(moments), SAMPLE)):
        subject.interrupted(getattr(subject, name), moment)
    subject.check()


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a row"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_bytecode_leaves_a_store_that_works(subject, name, twice):
    moments = range(1, moments_of(subject, name, "opcode") + 1)
    for moment in random.Random(2).sample(moments, SAMPLE):
        subject.interrupted(getattr(subject, name), moment, event="opcode", twice=twice)
    subject.check()


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a row"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_every_single_bytecode_leaves_a_store_that_works(subject, name, twice):
    for moment in range(1, moments_of(subject, name, "opcode") + 1):
        subject.interrupted(getattr(subject, name), moment, event="opcode", twice=twice)
    subject.check()


@pytest.mark.parametrize("event", ["line", "opcode"])
def test_closing_that_was_interrupted_is_closed_by_the_next_close(tmp_path, event):
    moment, stride = 1, 7 if event == "line" else 61
    while True:
        store = ts.open(tmp_path, maintenance=False)
        store.create("numbers", key=KEY, timeline="counter", if_exists="open").append([{"n": moment}])
        with Interrupt(MODULES, moment, event=event) as interrupt, contextlib.suppress(KeyboardInterrupt):
            store.close()
        with_limit(store.close, f"closing after an interrupt at {interrupt.where}")
        if interrupt.where is None:
            break
        moment += stride
    with ts.open(tmp_path, read_only=True) as again:
        assert again["numbers"].count() == len(range(1, moment + 1, stride))


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
    moments = range(1, moments_of(subject, "append", "opcode") + 1)
    try:
        for moment in random.Random(3).sample(moments, SAMPLE):
            subject.interrupted(subject.append, moment, event="opcode", twice=moment % 2 == 0)
    finally:
        done.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert failures == []
    subject.acknowledged += [{"n": n} for n in appended]
    subject.check()
