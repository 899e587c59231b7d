"""Waiting for a turn: in order, and never for longer than asked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from faults import failing

from timespine.errors import Determinate
from timespine.location.consensus import LogWrite
from timespine.location.sqlite import fair_lock, sqlite_file
from timespine.location.sqlite.fair_lock import SLOW_S, FairFileLock
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.conformance.consensus import fill

PATIENCE_S = 60.0
"""For what takes microseconds, on a machine that has other things to do."""


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (fair_lock, sqlite_file):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_waiting_for_a_turn_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    line = FairFileLock(str(path))
    assert line.enter(clock.now)
    with contextlib.closing(SqliteConsensus(path, wait_s=2)) as log:
        with pytest.raises(Determinate, match="no turn"):
            log.compare_and_set([LogWrite("a", None, b"x")])
        given_up = clock.now
        assert 1002 <= given_up <= 1002 + 2 * SLOW_S
        assert (log.head("a"), clock.now) == (None, given_up)  # readers do not wait
        fcntl.flock(line.turn, fcntl.LOCK_UN)
        fill(log, "a", 1)
    line.close()


def test_waiting_to_be_next_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    line = FairFileLock(str(path))
    with open(f"{path}.next", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not line.enter(1002)
        assert 1002 <= clock.now <= 1002 + 2 * SLOW_S
        fcntl.flock(other, fcntl.LOCK_UN)
    assert line.enter(1002)  # late, but free
    line.close()


def test_locks_that_fail_are_determinate(log: SqliteConsensus, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fair_lock, "poll", failing(errno.ENOLCK))
        with pytest.raises(Determinate, match="cannot lock"):
            log.compare_and_set([LogWrite("a", None, b"x")])
    fill(log, "a", 1)


def test_a_writer_that_ignores_the_turns_is_waited_for_and_bounded(path: Path, hasty: SqliteConsensus) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(Determinate, match="SQLITE_BUSY"):
            hasty.compare_and_set([LogWrite("a", None, b"x")])
        stranger.execute("ROLLBACK")
    fill(hasty, "a", 1)
    with contextlib.closing(SqliteConsensus(path, wait_s=2)) as patient:  # the wait is SQLite's own here
        fill(patient, "a", 1)
        writer = patient._file._writer
        assert writer is not None
        assert writer.execute("PRAGMA busy_timeout").fetchone() == (2000,)


def test_who_leaves_cannot_overtake_who_is_next(path: Path) -> None:
    first, second = FairFileLock(str(path)), FairFileLock(str(path))
    order: list[str] = []
    assert first.enter(time.monotonic())

    def take_a_turn() -> None:
        assert second.enter(time.monotonic() + PATIENCE_S)
        order.append("second")
        fcntl.flock(second.turn, fcntl.LOCK_UN)

    thread = threading.Thread(target=take_a_turn)
    thread.start()
    probe = os.open(f"{path}.next", os.O_RDWR)
    with contextlib.suppress(BlockingIOError):
        while thread.is_alive():  # until the second is next
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(probe, fcntl.LOCK_UN)
    fcntl.flock(first.turn, fcntl.LOCK_UN)
    assert first.enter(time.monotonic() + PATIENCE_S)
    order.append("first")
    thread.join()
    os.close(probe)
    first.close()
    second.close()
    assert order == ["second", "first"]
