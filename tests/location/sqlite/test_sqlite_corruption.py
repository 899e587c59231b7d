"""Files that are not ours, and files that are damaged, are refused: nothing made up is ever returned."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from timespine.errors import CorruptionError, VersionError
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.sqlite import sqlite_consensus
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.location.sqlite.sqlite_file import FORMAT_VERSION


def read(path: Path, keys: str = "a") -> dict[str, list[LogEntry]]:
    with contextlib.closing(SqliteConsensus(path)) as log:
        return {key: log.scan(key) for key in keys}


def written(path: Path, keys: str = "a", entries: int = 3) -> dict[str, list[LogEntry]]:
    with contextlib.closing(SqliteConsensus(path)) as log:
        for seqno in range(entries):
            log.compare_and_set([LogWrite(key, seqno - 1 if seqno else None, b"%d" % seqno) for key in keys])
    return read(path, keys)


def tamper(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


class Large(NamedTuple):
    """A file of several pages, made once, and what is in it."""

    file: bytes
    mark: bytes
    """The mark beside it."""
    truth: dict[str, list[LogEntry]]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Large:
    path = tmp_path_factory.mktemp("large") / "consensus.db"
    truth = written(path, "abc", 120)
    return Large(path.read_bytes(), mark_of(path).read_bytes(), truth)


def mark_of(path: Path) -> Path:
    return Path(f"{path}.mark")


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"not a database\n" * 400, b"SQLite format 3\0" + b"x" * 84])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    tamper(path, "CREATE TABLE entries (key, seqno, data)")
    before = path.read_bytes()
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(path: Path) -> None:
    written(path)
    tamper(path, f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(VersionError):
        SqliteConsensus(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        "CREATE TABLE more (x)",
        "PRAGMA user_version = 0",
        "PRAGMA application_id = 1",
    ],
)
def test_tables_that_we_did_not_make_are_refused(path: Path, statement: str) -> None:
    written(path)
    tamper(path, statement)
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)


def test_statistics_of_sqlite_do_no_harm(path: Path) -> None:
    truth = written(path)
    tamper(path, "ANALYZE")
    assert read(path) == truth


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET data = x'00' WHERE seqno = 1",
        "UPDATE entries SET key = 'b' WHERE seqno = 1",
        "UPDATE entries SET seqno = 7 WHERE seqno = 2",
        "DELETE FROM entries WHERE seqno = 1",
    ],
)
def test_entries_that_were_changed_are_corrupt(path: Path, statement: str) -> None:
    written(path)
    tamper(path, statement)
    with contextlib.closing(SqliteConsensus(path)) as log, pytest.raises(CorruptionError):
        log.scan("a")


def test_a_scan_that_does_not_reach_the_head_is_corrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path)
    monkeypatch.setattr(
        sqlite_consensus, "_SCAN", sqlite_consensus._SCAN.replace("seqno >= ?", "seqno >= ? AND seqno < 2")
    )
    with contextlib.closing(SqliteConsensus(path)) as log:
        assert len(log.scan("a", 0, 2)) == 2
        with pytest.raises(CorruptionError, match="breaks off"):
            log.scan("a")


def test_a_table_dropped_under_us_is_corrupt(path: Path, log: SqliteConsensus) -> None:
    tamper(path, "DROP TABLE entries")
    calls: list[Callable[[], object]] = [lambda: log.head("a"), lambda: log.compare_and_set([LogWrite("a", None, b"")])]
    for call in calls:
        with pytest.raises(CorruptionError):
            call()


def test_flipped_bits_are_found_or_harmless(path: Path, large: Large) -> None:
    random_ = random.Random(7)
    refused = 0
    for round_ in range(150):
        damaged = bytearray(large.file)
        page = random_.randrange(len(damaged) // 4096) * 4096
        damaged[page + random_.randrange(40 if round_ % 2 else 4096)] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged)
        mark_of(path).write_bytes(large.mark)
        try:
            assert read(path, "abc") == large.truth
        except (CorruptionError, VersionError):
            refused += 1
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert 30 < refused < 150


@pytest.mark.parametrize("size", [1, 100, 4096, 8192, -4096, -1])
def test_a_truncated_file_is_corrupt(path: Path, large: Large, size: int) -> None:
    path.write_bytes(large.file[:size])
    mark_of(path).write_bytes(large.mark)
    with pytest.raises(CorruptionError):
        read(path, "abc")


def test_a_log_without_its_database_is_corrupt(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"what was committed last")
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert not path.exists()
