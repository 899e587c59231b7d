"""The SQLite adapter: the contract, where its file may be, and failures of SQLite."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from faults import failing

from timespine.errors import CorruptionError, Determinate, Indeterminate, NoSpace, UsageError
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.location.sqlite import fair_lock, sqlite_file
from timespine.location.sqlite.fair_lock import SLOW_S, FairFileLock
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.conformance import ConsensusConformance, ConsensusUnderFaults
from timespine.testing.conformance.consensus import fill
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST, REQUEST_LOST


class TestSqliteConsensus(ConsensusConformance):
    def make(self, tmp_path: Path) -> SqliteConsensus:
        return SqliteConsensus(tmp_path / "consensus.db")

    def reopen(self, tmp_path: Path) -> SqliteConsensus:
        return SqliteConsensus(tmp_path / "consensus.db")

    def make_pair(self, tmp_path: Path) -> tuple[SqliteConsensus, SqliteConsensus]:
        return self.make(tmp_path), self.reopen(tmp_path)


# Where the file may be.


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        SqliteConsensus(tmp_path / "missing" / "consensus.db")


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), 1e9])
def test_a_wait_that_is_none_is_refused(path: Path, wait_s: float) -> None:
    with pytest.raises(UsageError):
        SqliteConsensus(path, wait_s=wait_s)


def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(UsageError, match="too old"):
        SqliteConsensus(path)


def test_a_symbolic_link_leads_to_the_locks_of_the_real_file(tmp_path: Path, path: Path, log: SqliteConsensus) -> None:
    (tmp_path / "link.db").symlink_to(path)
    with contextlib.closing(SqliteConsensus(tmp_path / "link.db")) as other:
        fill(other, "a", 1)
    assert not (tmp_path / "link.db.lock").exists()
    assert log.head("a") == LogEntry(0, b"0")


def test_opening_on_a_network_file_system_makes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "mount_table", lambda: "1 0 0:1 / / rw - nfs server:/ rw")
    with pytest.raises(UsageError, match="local disk"):
        SqliteConsensus(path)
    assert not path.exists()


def test_a_new_file_is_durable_in_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    SqliteConsensus(path).close()
    mark = path.with_name(f"{path.name}.mark")
    assert synced == [mark.stat().st_ino, path.stat().st_ino, path.parent.stat().st_ino]
    assert sorted(os.listdir(path.parent)) == [path.name, mark.name, f"{path.name}.reserve"]


def test_creating_that_fails_is_determinate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))
    with pytest.raises(Determinate):
        SqliteConsensus(path)
    assert os.listdir(path.parent) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_an_adapter_that_is_forgotten_closes_its_files(path: Path) -> None:
    def opened() -> list[str]:
        """The files of the adapter that this process has open: other tests of it may close theirs meanwhile."""
        found = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed just now
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        return [each for each in found if each.startswith(str(path))]

    SqliteConsensus(path).close()
    gc.collect()
    before = opened()
    forgotten = SqliteConsensus(path)
    fill(forgotten, "a", 1)
    assert len(opened()) > len(before)
    del forgotten
    gc.collect()
    assert opened() == before


# Failures of SQLite.


class Failing:
    """A connection that fails at one statement, after doing it or instead."""

    def __init__(self, connection: sqlite3.Connection, statement: str, code: int, *, after: bool = False) -> None:
        self.connection, self.statement, self.code, self.after = connection, statement, code, after

    def execute(self, sql: str, *args: Any) -> Any:
        if not sql.startswith(self.statement):
            return self.connection.execute(sql, *args)
        if self.after:
            self.connection.execute(sql, *args)
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode, error.sqlite_errorname = self.code, "SQLITE_INJECTED"
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


class TestSqliteUnderFaults(ConsensusUnderFaults):
    BROKEN = {
        REQUEST_LOST: ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, False),
        REPLY_LOST: ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, True),
        REFUSED: ("BEGIN", sqlite3.SQLITE_BUSY, False),
    }

    def make(self, tmp_path: Path) -> SqliteConsensus:
        return SqliteConsensus(tmp_path / "consensus.db")

    limit_s = 2.0 + 2 * SLOW_S
    refuses_children = True

    def save(self, tmp_path: Path) -> Callable[[], None]:
        path = tmp_path / "consensus.db"
        older = path.read_bytes()

        def put_back() -> None:
            path.write_bytes(older)

        return put_back

    @contextlib.contextmanager
    def hang(self, adapter: Consensus) -> Iterator[Callable[[], float]]:
        """Another process has the turn and never ends it."""
        assert isinstance(adapter, SqliteConsensus)
        adapter._file.wait_s = 2.0
        clock = SimpleNamespace(now=1000.0)
        clock.monotonic = lambda: clock.now
        clock.sleep = lambda seconds: vars(clock).update(now=clock.now + seconds)
        line = FairFileLock(adapter._file.path)
        assert line.enter(time.monotonic())
        with mock.patch.object(fair_lock, "time", clock), mock.patch.object(sqlite_file, "time", clock):
            try:
                yield lambda: clock.now - 1000.0
            finally:
                line.close()
                line.close()

    def break_next(self, adapter: Consensus, kind: str) -> bool:
        assert isinstance(adapter, SqliteConsensus)
        statement, code, after = self.BROKEN[kind]
        writer: Any = adapter._file._writer
        adapter._file._writer = Failing(writer, statement, code, after=after)  # type: ignore[assignment]
        return True


@pytest.mark.parametrize(
    ("statement", "code", "after", "kind"),
    [
        ("BEGIN", sqlite3.SQLITE_IOERR, False, Determinate),
        ("SELECT", sqlite3.SQLITE_IOERR_READ, False, Determinate),
        ("SELECT", sqlite3.SQLITE_CORRUPT, False, CorruptionError),
        ("COMMIT", sqlite3.SQLITE_BUSY, False, Determinate),
        ("COMMIT", sqlite3.SQLITE_FULL, False, NoSpace),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, False, Indeterminate),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, True, Indeterminate),
    ],
)
def test_a_failing_commit_says_whether_it_may_have_happened(
    log: SqliteConsensus, statement: str, code: int, after: bool, kind: type[Exception]
) -> None:
    fill(log, "a", 1)
    log._file._writer = Failing(log._file._writer, statement, code, after=after)  # type: ignore[assignment,arg-type]
    with pytest.raises(kind):
        log.compare_and_set([LogWrite("a", 0, b"x"), LogWrite("b", None, b"y")])
    assert [log.head("a"), log.head("b")] == (
        [LogEntry(1, b"x"), LogEntry(0, b"y")] if after else [LogEntry(0, b"0"), None]
    )
    fill(log, "c", 2)  # the next call has a connection that works


def test_a_full_disk_is_determinate_and_rolled_back(log: SqliteConsensus) -> None:
    fill(log, "a", 1)
    writer = log._file._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 8")
    with pytest.raises(NoSpace, match="was not written: No space left on device"):
        log.compare_and_set([LogWrite("a", 0, b"x"), LogWrite("b", None, b"y" * 100_000)])
    assert (log.head("a"), log.list_keys()) == (LogEntry(0, b"0"), ["a"])
    fill(log, "b", 1)


def test_an_interrupted_write_is_rolled_back(log: SqliteConsensus) -> None:
    def write_and_be_interrupted(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES ('a', 0, x'', 0)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log._file.write(write_and_be_interrupted)
    assert log.head("a") is None
    fill(log, "a", 1)
