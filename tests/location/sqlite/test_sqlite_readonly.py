"""Reading the SQLite file of others: nothing is made or changed, and what is committed meanwhile is seen."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from timespine.errors import CorruptionError, Determinate, UsageError
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.folder import durable
from timespine.location.sqlite import sqlite_readonly
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.conformance.consensus import fill


@pytest.fixture
def written(path: Path) -> Path:
    """A file with three entries that nobody has open."""
    with contextlib.closing(SqliteConsensus(path)) as log:
        fill(log, "a", 3)
    return path


@contextlib.contextmanager
def reading(path: Path) -> Iterator[SqliteConsensus]:
    with contextlib.closing(SqliteConsensus(path, read_only=True)) as log:
        yield log


def append(path: Path, key: str, expected: int | None) -> None:
    """What another process does: open, write, close."""
    with contextlib.closing(SqliteConsensus(path)) as log:
        assert log.compare_and_set([LogWrite(key, expected, b"new")]) is None


def test_a_file_at_rest_is_read_and_nothing_appears_beside_it(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(written.parent)), written.stat().st_mtime_ns
    monkeypatch.setattr(durable.os, "fsync", lambda fd: pytest.fail("something is synced"))
    with reading(written) as log:
        assert log.head("a") == LogEntry(2, b"2")
        assert len(log.scan("a")) == 3
        assert log.list_keys() == ["a"]
        assert sorted(os.listdir(written.parent)) == before[0]
    assert (sorted(os.listdir(written.parent)), written.stat().st_mtime_ns) == before


def test_what_others_commit_is_seen_while_they_have_the_file_open_and_after(written: Path) -> None:
    with reading(written) as log:
        assert log.head("a") == LogEntry(2, b"2")
        with contextlib.closing(SqliteConsensus(written)) as writer:
            fill(writer, "b", 1)
            assert log.head("b") == LogEntry(0, b"0")
        append(written, "b", 0)
        assert log.head("b") == LogEntry(1, b"new")
    with reading(written) as log:
        assert log.head("b") == LogEntry(1, b"new")


def test_a_commit_between_two_reads_by_a_process_that_has_ended_is_seen(written: Path) -> None:
    with reading(written) as log:
        for expected in range(2, 6):
            append(written, "a", expected)
            assert log.head("a") == LogEntry(expected + 1, b"new")


@pytest.mark.parametrize("work", ["head", "scan"])
def test_what_is_read_while_others_write_is_read_again(
    written: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    looked = sqlite_readonly.ReadOnlySqliteFile._at_rest
    others: list[Callable[[], None]] = []

    def looking(file: sqlite_readonly.ReadOnlySqliteFile) -> sqlite_readonly.FileAtRest | None:
        rest = looked(file)
        if others:
            others.pop()()  # after the look, and before what is read
        return rest

    with reading(written) as log:
        monkeypatch.setattr(sqlite_readonly.ReadOnlySqliteFile, "_at_rest", looking)
        others.append(lambda: append(written, "a", 2))
        found = log.head("a") if work == "head" else log.scan("a")[-1]
        assert found == LogEntry(3, b"new")


def test_a_file_that_never_comes_to_rest_is_unavailable(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reading(written) as log:
        counter = iter(range(10_000))
        monkeypatch.setattr(sqlite_readonly.ReadOnlySqliteFile, "_at_rest", lambda file: (0, 0, next(counter)))
        with pytest.raises(Determinate, match="writers opened and closed it"):
            log.head("a")


def test_a_log_that_a_crash_left_behind_is_read_too(written: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    copied.mkdir()
    with contextlib.closing(SqliteConsensus(written)) as log:
        fill(log, "b", 1)
        for name in ("", "-wal", "-shm", ".mark"):
            shutil.copy(f"{written}{name}", copied)
    with reading(copied / written.name) as log:
        assert log.head("b") == LogEntry(0, b"0")


def test_damage_is_found_without_a_writer(written: Path) -> None:
    data = written.read_bytes()
    written.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError), reading(written):
        pass


def test_nothing_is_made_where_there_is_no_file_and_nothing_can_be_written(written: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        SqliteConsensus(tmp_path / "other.db", read_only=True)
    assert not (tmp_path / "other.db").exists()
    with reading(written) as log:
        for write in (lambda: log.compare_and_set([LogWrite("a", 2, b"x")]), lambda: log.truncate("a", 2)):
            with pytest.raises(UsageError, match="for reading only"):
                write()


def test_a_file_that_is_taken_away_is_no_empty_one(written: Path) -> None:
    with reading(written) as log:
        written.unlink()
        with pytest.raises(CorruptionError, match="gone"):
            log.head("a")
