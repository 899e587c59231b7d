"""The SQLite adapter: the contract, and what only a file shared by processes can get wrong."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import CorruptionError, Determinate, Indeterminate, UsageError, VersionError
from timespine.location import sqlite
from timespine.location.consensus import Entry, Write
from timespine.location.sqlite import SqliteConsensus, WriteLine, refuse_network_file_system
from timespine.testing.conformance import ConsensusConformance, fill


class TestSqliteConsensus(ConsensusConformance):
    def make(self, tmp_path: Path) -> SqliteConsensus:
        return SqliteConsensus(tmp_path / "consensus.db")

    def reopen(self, tmp_path: Path) -> SqliteConsensus:
        return SqliteConsensus(tmp_path / "consensus.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a ?#%' folder.db"


@pytest.fixture
def log(path: Path) -> Iterator[SqliteConsensus]:
    adapter = SqliteConsensus(path)
    yield adapter
    adapter.close()


@pytest.fixture
def hasty(path: Path) -> Iterator[SqliteConsensus]:
    adapter = SqliteConsensus(path, wait_s=0.2)
    yield adapter
    adapter.close()


def written(path: Path, keys: str = "a", entries: int = 3) -> dict[str, list[Entry]]:
    with contextlib.closing(SqliteConsensus(path)) as log:
        for key in keys:
            fill(log, key, entries)
        return {key: log.scan(key) for key in keys}


def tamper(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# Files that are not ours, and files that are damaged.


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"not a database\n" * 400, b"SQLite format 3\0" + b"x" * 84])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_refused_and_left_alone(path: Path) -> None:
    tamper(path, "CREATE TABLE entries (key, seqno, data)")
    before = path.read_bytes()
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(path: Path) -> None:
    written(path)
    tamper(path, f"PRAGMA user_version = {sqlite.FORMAT_VERSION + 1}")
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
    assert written(path, entries=0) == truth


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
    monkeypatch.setattr(sqlite, "_SCAN", sqlite._SCAN.replace("seqno >= ?", "seqno >= ? AND seqno < 2"))
    with contextlib.closing(SqliteConsensus(path)) as log:
        assert len(log.scan("a", 0, 2)) == 2
        with pytest.raises(CorruptionError, match="breaks off"):
            log.scan("a")


def test_a_table_dropped_under_us_is_corrupt(path: Path, log: SqliteConsensus) -> None:
    tamper(path, "DROP TABLE entries")
    calls: list[Callable[[], object]] = [lambda: log.head("a"), lambda: log.compare_and_set([Write("a", None, b"")])]
    for call in calls:
        with pytest.raises(CorruptionError):
            call()


def test_flipped_bits_are_found_or_harmless(path: Path) -> None:
    truth = written(path, "abc", 120)
    good = path.read_bytes()
    random_ = random.Random(7)
    refused = 0
    for round_ in range(150):
        damaged = bytearray(good)
        page = random_.randrange(len(good) // 4096) * 4096
        damaged[page + random_.randrange(40 if round_ % 2 else 4096)] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged)
        try:
            assert written(path, "abc", 0) == truth
        except (CorruptionError, VersionError):
            refused += 1
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert refused > 30


@pytest.mark.parametrize("size", [1, 100, 4096, 8192, -4096, -1])
def test_a_truncated_file_is_corrupt(path: Path, size: int) -> None:
    written(path, "abc", 120)
    os.truncate(path, size % path.stat().st_size)
    with pytest.raises(CorruptionError):
        written(path, "abc", 0)


def test_a_log_without_its_database_is_corrupt(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"what was committed last")
    with pytest.raises(CorruptionError):
        SqliteConsensus(path)
    assert not path.exists()


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
    assert log.head("a") == Entry(0, b"0")


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /mnt/nas rw - nfs4 server:/export rw
31 30 254:1 / /mnt/nas/local\040disk rw - xfs /dev/vdb rw
32 27 0:41 / /dbfs rw - fuse.s3fs s3fs rw
33 27 0:42 / /over rw - autofs systemd-1 rw
34 27 0:43 / /over rw master:3 - cifs //server/share rw
35 27 0:44 / /home rw - fuse.gocryptfs /crypt rw
not a line of a mount table
"""


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("/data/c.db", None),
        ("/mnt/nas/c.db", "nfs4"),
        ("/mnt/nasty/c.db", None),
        ("/mnt/nas/local disk/c.db", None),
        ("/mnt/nas/local diskette/c.db", "nfs4"),
        ("/dbfs/x/c.db", "fuse.s3fs"),
        ("/over/c.db", "cifs"),
        ("/home/me/c.db", None),
    ],
)
def test_network_file_systems_are_refused(place: str, refused: str | None) -> None:
    if refused is None:
        return refuse_network_file_system(place, MOUNTS)
    with pytest.raises(UsageError, match=refused):
        refuse_network_file_system(place, MOUNTS)
    return refuse_network_file_system(place, None)  # no table, no check


def test_opening_on_a_network_file_system_makes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "mount_table", lambda: "1 0 0:1 / / rw - nfs server:/ rw")
    with pytest.raises(UsageError, match="local disk"):
        SqliteConsensus(path)
    assert not path.exists()


def test_a_new_file_is_durable_in_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    SqliteConsensus(path).close()
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_creating_that_fails_is_determinate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(Determinate):
        SqliteConsensus(path)
    assert os.listdir(path.parent) == []


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


@pytest.mark.parametrize(
    ("statement", "code", "after", "kind"),
    [
        ("BEGIN", sqlite3.SQLITE_IOERR, False, Determinate),
        ("SELECT", sqlite3.SQLITE_IOERR_READ, False, Determinate),
        ("SELECT", sqlite3.SQLITE_CORRUPT, False, CorruptionError),
        ("COMMIT", sqlite3.SQLITE_BUSY, False, Determinate),
        ("COMMIT", sqlite3.SQLITE_FULL, False, Indeterminate),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, False, Indeterminate),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, True, Indeterminate),
    ],
)
def test_a_failing_commit_says_whether_it_may_have_happened(
    log: SqliteConsensus, monkeypatch: pytest.MonkeyPatch, statement: str, code: int, after: bool, kind: type[Exception]
) -> None:
    fill(log, "a", 1)
    log._database._writer = Failing(log._database._writer, statement, code, after=after)  # type: ignore[assignment,arg-type]
    with pytest.raises(kind):
        log.compare_and_set([Write("a", 0, b"x"), Write("b", None, b"y")])
    assert [log.head("a"), log.head("b")] == ([Entry(1, b"x"), Entry(0, b"y")] if after else [Entry(0, b"0"), None])
    fill(log, "c", 2)  # the next call has a connection that works


def test_a_full_disk_is_determinate_and_rolled_back(log: SqliteConsensus) -> None:
    fill(log, "a", 1)
    writer = log._database._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 8")
    with pytest.raises(Determinate, match="SQLITE_FULL"):
        log.compare_and_set([Write("a", 0, b"x"), Write("b", None, b"y" * 100_000)])
    assert (log.head("a"), log.list_keys()) == (Entry(0, b"0"), ["a"])
    fill(log, "b", 1)


def test_an_interrupted_write_is_rolled_back(log: SqliteConsensus) -> None:
    def write_and_be_interrupted() -> None:
        with log._database.writing() as connection:
            connection.execute("INSERT INTO entries VALUES ('a', 0, x'', 0)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_be_interrupted()
    assert log.head("a") is None
    fill(log, "a", 1)


# Waiting and taking turns.


def test_waiting_for_a_turn_is_bounded(path: Path, hasty: SqliteConsensus) -> None:
    line = WriteLine(str(path))
    assert line.enter(time.monotonic())
    begun = time.monotonic()
    with pytest.raises(Determinate, match="no turn"):
        hasty.compare_and_set([Write("a", None, b"x")])
    assert 0.2 <= time.monotonic() - begun < 5
    assert hasty.head("a") is None  # readers do not wait
    line.leave()
    fill(hasty, "a", 1)
    line.close()


def test_locks_that_fail_are_determinate(log: SqliteConsensus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> bool:
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_poll", fail)
        with pytest.raises(Determinate, match="no locks"):
            log.compare_and_set([Write("a", None, b"x")])
    fill(log, "a", 1)


def test_a_writer_that_ignores_the_turns_is_waited_for_and_bounded(path: Path, hasty: SqliteConsensus) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(Determinate, match="SQLITE_BUSY"):
            hasty.compare_and_set([Write("a", None, b"x")])
        stranger.execute("ROLLBACK")
    fill(hasty, "a", 1)


def test_who_leaves_cannot_overtake_who_is_next(path: Path) -> None:
    first, second = WriteLine(str(path)), WriteLine(str(path))
    order: list[str] = []
    assert first.enter(time.monotonic())

    def take_a_turn() -> None:
        assert second.enter(time.monotonic() + 10)
        order.append("second")
        second.leave()

    thread = threading.Thread(target=take_a_turn)
    thread.start()
    probe = os.open(f"{path}.next", os.O_RDWR)
    with contextlib.suppress(BlockingIOError):
        while True:  # until the second is next
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(probe, fcntl.LOCK_UN)
    first.leave()
    assert first.enter(time.monotonic() + 10)
    order.append("first")
    thread.join()
    os.close(probe)
    first.close()
    second.close()
    assert order == ["second", "first"]


TAKE_A_TURN = """
import signal, sys, time
from timespine.location.sqlite import WriteLine
line = WriteLine(sys.argv[1])
line.enter(time.monotonic())
print("mine", flush=True)
signal.pause()
"""

INCREMENT = """
import sys
from timespine.location.consensus import Write
from timespine.location.sqlite import SqliteConsensus
log = SqliteConsensus(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
expected, value = None, 0
for _ in range(int(sys.argv[2])):
    while (lost := log.compare_and_set([Write("a", expected, b"%d" % (value + 1))])) is not None:
        expected = lost["a"]
        value = int(log.scan("a", expected)[0].data)
    expected, value = value, value + 1
    print(expected, flush=True)
"""


def start(script: str, *args: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def line_of(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


def test_the_turn_of_a_killed_process_is_free(path: Path, hasty: SqliteConsensus) -> None:
    with start(TAKE_A_TURN, path) as child:
        assert line_of(child) == b"mine\n"
        with pytest.raises(Determinate):
            fill(hasty, "a", 1)
        os.kill(child.pid, signal.SIGKILL)
    fill(hasty, "a", 1)


def test_four_processes_increment_without_losing_an_update(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(start(INCREMENT, path, 50)) for _ in range(4)]
        assert {line_of(child) for child in children} == {b"ready\n"}
        outputs = [child.communicate(b"go\n")[0] for child in children]
        assert [child.returncode for child in children] == [0, 0, 0, 0]
    won = sorted(int(number) for output in outputs for number in output.split())
    assert won == list(range(200))
    with contextlib.closing(SqliteConsensus(path)) as log:
        assert log.scan("a") == [Entry(number, b"%d" % (number + 1)) for number in range(200)]


def test_acknowledged_commits_survive_kill_9(path: Path) -> None:
    with start(INCREMENT, path, 1_000_000) as child:
        assert line_of(child) == b"ready\n"
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        acknowledged = [int(line_of(child)) for _ in range(100)]
        os.kill(child.pid, signal.SIGKILL)
    with contextlib.closing(SqliteConsensus(path)) as log:
        entries = log.scan("a")
        assert entries[acknowledged[-1]] == Entry(acknowledged[-1], b"%d" % (acknowledged[-1] + 1))


# Forks.


def in_child(action: Callable[[], None]) -> int:
    """Run the action in a forked child; its process id. The exit status says whether it worked."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            action()
            os._exit(0)
        os._exit(1)
    return pid


def succeeded(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_loses_no_commit_when_its_parent_closes(path: Path, log: SqliteConsensus) -> None:
    fill(log, "a", 1)
    (to_parent, from_child), (to_child, from_parent) = os.pipe(), os.pipe()

    def commit_twice() -> None:
        fill(log, "a", 1)
        os.write(from_child, b"1")
        os.read(to_child, 1)  # until the parent has closed, and with it, it thinks, the last connection
        fill(log, "a", 1)

    pid = in_child(commit_twice)
    os.read(to_parent, 1)
    log.close()
    os.write(from_parent, b"1")
    assert succeeded(pid)
    for fd in (to_parent, from_child, to_child, from_parent):
        os.close(fd)
    with contextlib.closing(SqliteConsensus(path)) as again:
        assert again.head("a") == Entry(2, b"2")


def test_parent_and_child_both_go_on_after_a_fork(log: SqliteConsensus) -> None:
    fill(log, "a", 1)
    pid = in_child(lambda: fill(log, "child", 20))
    fill(log, "parent", 20)
    assert succeeded(pid)
    assert [entry and entry.seqno for entry in map(log.head, ("a", "child", "parent"))] == [0, 19, 19]


def test_a_fork_in_the_middle_of_a_call_leaves_the_child_refused(hasty: SqliteConsensus) -> None:
    fill(hasty, "a", 1)

    def be_refused() -> None:
        with pytest.raises(UsageError, match="fork"):
            hasty.head("a")
        with pytest.raises(UsageError, match="fork"):
            hasty.truncate("a", 0)
        hasty.close()

    with hasty._database.writing():
        pid = in_child(be_refused)
    assert succeeded(pid)
    fill(hasty, "a", 1)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_an_adapter_that_is_forgotten_closes_its_files(path: Path) -> None:
    written(path)
    before = os.listdir("/proc/self/fd")
    forgotten = SqliteConsensus(path)
    fill(forgotten, "a", 1)
    assert len(os.listdir("/proc/self/fd")) > len(before)
    del forgotten
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)
