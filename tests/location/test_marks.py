"""Logs that went back are found: the mark beside them says what they must at least contain."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import zlib
from pathlib import Path

import pytest
from children import line_of, start

from timespine.errors import CorruptionError, Indeterminate, VersionError
from timespine.location import marks
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.marks import SLOT, Mark, MarkFile, decode_mark, encode_mark
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus, accept_log_loss
from timespine.location.sqlite.sqlite_mark import SqliteMark

ENTRIES = 40

WRITER = """
import sys
from timespine.location.consensus import LogWrite
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
log = SqliteConsensus(sys.argv[1])
for seqno in range(int(sys.argv[2])):
    expected = seqno - 1 if seqno else None
    log.compare_and_set([LogWrite("a", expected, b"a%d" % seqno), LogWrite("b", expected, b"b%d" % seqno)])
    print(seqno, flush=True)
sys.stdin.readline()
"""


def killed(path: Path, entries: int = ENTRIES) -> None:
    """Let a process write, and kill it when all was acknowledged: its log stays as it is."""
    with start(WRITER, path, entries) as child:
        for seqno in range(entries):
            assert line_of(child) == b"%d\n" % seqno
        child.kill()
        assert child.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed process left behind."""
    folder = tmp_path_factory.mktemp("left")
    killed(folder / "c.db")
    return folder


def copy(left: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(left, folder)
    return folder / "c.db"


TRUTH = {key: [LogEntry(seqno, f"{key}{seqno}".encode()) for seqno in range(ENTRIES)] for key in "ab"}


def read(path: Path, *, read_only: bool = False) -> dict[str, list[LogEntry]]:
    with contextlib.closing(SqliteConsensus(path, read_only=read_only)) as log:
        return {key: log.scan(key) for key in "ab"}


def beside(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def test_what_a_killed_process_left_is_whole(left: Path, tmp_path: Path) -> None:
    for _ in range(3):
        assert read(copy(left, tmp_path / "x")) == TRUTH
        assert read(tmp_path / "x" / "c.db") == TRUTH


def test_a_flipped_bit_anywhere_in_the_log_is_found_or_harmless(left: Path, tmp_path: Path) -> None:
    size = beside(left / "c.db", "-wal").stat().st_size
    refused = 0
    places = [*range(0, 32, 3), *range(40, size, size // 90), size - 1]
    for round_, place in enumerate(places):
        path = copy(left, tmp_path / "x")
        with beside(path, "-wal").open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes((byte ^ (1 << round_ % 8),)))
        damaged = beside(path, "-wal").read_bytes()
        try:
            assert read(path) == TRUTH
        except CorruptionError:
            refused += 1
            assert beside(path, "-wal").read_bytes() == damaged, "what is left of the log is not touched"
            with pytest.raises(CorruptionError):  # and it stays an error
                read(path)
    assert refused > len(places) * 0.9


@pytest.mark.parametrize("read_only", [False, True])
def test_a_truncated_or_missing_log_is_found(left: Path, tmp_path: Path, read_only: bool) -> None:
    size = beside(left / "c.db", "-wal").stat().st_size
    for keep in (0, 1, 32, size // 3, size // 2, size - 4096, size - 1):
        path = copy(left, tmp_path / "x")
        os.truncate(beside(path, "-wal"), keep)
        with pytest.raises(CorruptionError, match=r"accept-loss|damaged|SQLITE"):
            read(path, read_only=read_only)
    path = copy(left, tmp_path / "x")
    beside(path, "-wal").unlink()
    with pytest.raises(CorruptionError, match=f"lost {2 * ENTRIES} of {2 * ENTRIES} entries"):
        read(path, read_only=read_only)


def test_a_database_from_an_older_copy_is_found(path: Path) -> None:
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", None, b"0")])
    older = path.read_bytes()
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", 0, b"1")])
    path.write_bytes(older)
    for read_only in (False, True):
        with pytest.raises(CorruptionError, match="lost 1 of 2 entries"):
            SqliteConsensus(path, read_only=read_only)


def test_a_database_that_is_gone_is_not_made_anew(path: Path) -> None:
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", None, b"0")])
    path.unlink()
    with pytest.raises(CorruptionError, match="is gone"):
        SqliteConsensus(path)
    assert not path.exists()


def test_a_database_of_another_store_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with contextlib.closing(SqliteConsensus(tmp_path / name / "c.db")) as log:
            log.compare_and_set([LogWrite("a", None, name.encode())])
    shutil.copy(tmp_path / "one" / "c.db", tmp_path / "two" / "c.db")
    with pytest.raises(CorruptionError, match="entry 0 of a is not the one"):
        SqliteConsensus(tmp_path / "two" / "c.db")


def test_a_mark_that_is_missing_or_damaged_is_an_error_and_can_be_made_anew(left: Path, tmp_path: Path) -> None:
    path = copy(left, tmp_path / "x")
    mark = beside(path, ".mark")
    mark.unlink()
    with pytest.raises(CorruptionError, match="is missing"):
        SqliteConsensus(path)
    assert accept_log_loss(path) == (None, 2 * ENTRIES)
    assert read(path) == TRUTH
    for content in (b"", b"x" * 2 * SLOT, bytes(2 * SLOT)):
        mark.write_bytes(content)
        with pytest.raises(CorruptionError, match="is damaged"):
            SqliteConsensus(path)
    assert accept_log_loss(path) == (None, 2 * ENTRIES)
    assert read(path) == TRUTH


def test_what_was_lost_can_be_accepted_and_then_counts_again(left: Path, tmp_path: Path) -> None:
    path = copy(left, tmp_path / "x")
    os.truncate(beside(path, "-wal"), beside(path, "-wal").stat().st_size // 2)
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    before, found = accept_log_loss(path)
    assert before == 2 * ENTRIES
    assert 0 < found < 2 * ENTRIES
    rest = read(path)
    assert rest["a"] == TRUTH["a"][: found // 2]
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", found // 2 - 1, b"new")])
        assert total_entries(log) == found + 1
    assert counted(path) == found + 1


def test_a_process_killed_between_commit_and_mark_leaves_no_false_alarm(path: Path) -> None:
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", None, b"0")])
        log._file.mark.count = lambda appended: None  # type: ignore[method-assign]
        log.compare_and_set([LogWrite("a", 0, b"1")])
        log.compare_and_set([LogWrite("b", None, b"2")])
    assert counted(path) == 1
    with contextlib.closing(SqliteConsensus(path)) as log:
        assert total_entries(log) == 3
        log.compare_and_set([LogWrite("a", 0, b"x")])  # lost: nothing is committed, so nothing is counted
        assert counted(path) == 1
        log.compare_and_set([LogWrite("a", 1, b"3")])
    assert counted(path) == 4, "the next commit counts what was not counted"


def total_entries(log: SqliteConsensus) -> int:
    """Count the entries that were ever appended to the logs of an adapter: never less than before."""
    heads = (log.head(key) for key in log.list_keys())
    return sum(head.seqno + 1 for head in heads if head is not None)


def counted(path: Path) -> int:
    with contextlib.closing(MarkFile(str(beside(path, ".mark")), read_only=True)) as file:
        return file.read().entries


def test_the_mark_is_written_after_the_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(SqliteConsensus(path)) as log, contextlib.closing(SqliteConsensus(path)) as other:
        real = SqliteMark.count

        def count(mark: SqliteMark, appended: object) -> None:
            assert other.head("a") == LogEntry(0, b"0"), "it is committed"
            real(mark, appended)  # type: ignore[arg-type]

        monkeypatch.setattr(SqliteMark, "count", count)
        log.compare_and_set([LogWrite("a", None, b"0")])
    assert counted(path) == 1


def test_a_mark_that_cannot_be_written_leaves_the_commit_in_doubt_and_not_undone(path: Path) -> None:
    with contextlib.closing(SqliteConsensus(path)) as log:
        log.compare_and_set([LogWrite("a", None, b"0")])

        def fail(appended: object) -> None:
            raise OSError(5, "Input/output error")

        log._file.mark.count = fail  # type: ignore[method-assign]
        with pytest.raises(Indeterminate, match=r"\.mark cannot be written"):
            log.compare_and_set([LogWrite("a", 0, b"1")])
        assert log.head("a") == LogEntry(1, b"1")


def test_processes_that_write_and_open_at_the_same_time_raise_no_alarm(path: Path) -> None:
    writer = """
import sys
from timespine.location.consensus import LogWrite
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
for round in range(30):
    log = SqliteConsensus(sys.argv[1])
    for seqno in range(4):
        head = log.head(sys.argv[2])
        assert log.compare_and_set([LogWrite(sys.argv[2], None if head is None else head.seqno, b"x")]) is None
    log.close()
print("done", flush=True)
"""
    opened = 0
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(start(writer, path, key)) for key in "abc"]
        while any(child.poll() is None for child in children):
            if path.exists():
                with contextlib.closing(SqliteConsensus(path, read_only=bool(opened % 2))) as log:
                    log.head("a")
                    opened += 1
        assert [line_of(child) for child in children] == [b"done\n"] * 3
    assert opened > 3
    assert counted(path) == 3 * 120


def test_a_slot_that_is_being_written_leaves_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    marks.create_mark_file(str(path), Mark(0), 0o600)
    with contextlib.closing(MarkFile(str(path))) as file:
        for number in range(1, 6):
            file.advance(0, 1, "key", number, 7 * number)
            assert file.read() == Mark(number, "key", number, 7 * number)
            data = bytearray(path.read_bytes())
            newest = max((0, 1), key=lambda slot: (decode_mark(bytes(data), slot) or Mark(-1)).entries)
            for cut in range(0, SLOT, 37):
                torn = bytes(data[: newest * SLOT]) + os.urandom(cut) + bytes(data[newest * SLOT + cut :])
                found = [mark for slot in (0, 1) if (mark := decode_mark(torn, slot)) is not None]
                assert {mark.entries for mark in found} <= {number, number - 1}
                assert found


def test_every_flipped_bit_of_a_slot_makes_it_no_mark() -> None:
    data = encode_mark(Mark(7, "some-key", 5, 99)) * 2
    used = 8 + 21 + len("some-key")
    for bit in range(used * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_mark(bytes(damaged), 0) is None
        assert decode_mark(bytes(damaged), 1) == Mark(7, "some-key", 5, 99)


def test_a_mark_of_a_newer_version_is_refused() -> None:
    body = encode_mark(Mark(7, "key", 5, 99))[8:]
    head = b"TSM\x02"
    checksum = zlib.crc32(body[: 21 + 3], zlib.crc32(head))
    with pytest.raises(VersionError):
        decode_mark(head + struct.pack(">I", checksum) + body, 0)


def test_what_was_committed_is_acknowledged_though_the_mark_cannot_be_counted(tmp_path: Path) -> None:
    log = SqliteConsensus(tmp_path / "log.db")
    assert log.compare_and_set([LogWrite("a", None, b"0")]) is None
    with open(tmp_path / "log.db.mark", "r+b") as file:
        file.write(b"\xff" * 1024)
    with pytest.raises(Indeterminate):  # never an error that says that nothing was committed
        log.compare_and_set([LogWrite("a", 0, b"1")])
    assert [entry.data for entry in log.scan("a", 0, 10)] == [b"0", b"1"]
    log.close()


def test_a_mark_that_is_closed_twice_closes_no_file_of_another(tmp_path):
    """An interrupt after the first close leads to a second one, when the number may be that of another file."""
    path = tmp_path / "mark"
    marks.create_mark_file(str(path), Mark(3), 0o600)
    file = MarkFile(str(path))
    file.close()
    with open(path, "rb") as other:
        file.close()
        file.sync()
        assert other.read(3) == b"TSM"
