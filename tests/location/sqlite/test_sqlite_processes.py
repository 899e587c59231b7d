"""Several processes with one SQLite file: updates, crashes and forks."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from children import line_of, start, tell

from timespine.errors import Determinate, WrongProcess
from timespine.location.consensus import LogEntry
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.conformance.consensus import fill

TAKE_A_TURN = """
import signal, sys, time
from timespine.location.sqlite.fair_lock import FairFileLock
line = FairFileLock(sys.argv[1])
line.enter(time.monotonic())
print("mine", flush=True)
signal.pause()
"""


INCREMENT = """
import sys
from timespine.location.consensus import LogWrite
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
log = SqliteConsensus(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
expected, value = None, 0
for _ in range(int(sys.argv[2])):
    while (lost := log.compare_and_set([LogWrite("a", expected, b"%d" % (value + 1))])) is not None:
        expected = lost["a"]
        value = int(log.scan("a", expected)[0].data)
    expected, value = value, value + 1
    print(expected, flush=True)
"""


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
        assert log.scan("a") == [LogEntry(number, b"%d" % (number + 1)) for number in range(200)]


def test_acknowledged_commits_survive_kill_9(path: Path) -> None:
    with start(INCREMENT, path, 1_000_000) as child:
        assert line_of(child) == b"ready\n"
        tell(child, b"go\n")
        acknowledged = [int(line_of(child)) for _ in range(100)]
        os.kill(child.pid, signal.SIGKILL)
    with contextlib.closing(SqliteConsensus(path)) as log:
        entries = log.scan("a")
        assert entries[acknowledged[-1]] == LogEntry(acknowledged[-1], b"%d" % (acknowledged[-1] + 1))


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
        own = SqliteConsensus(path)
        fill(own, "a", 1)
        os.write(from_child, b"1")
        os.read(to_child, 1)  # until the parent has closed, and with it, it thinks, the last connection
        fill(own, "a", 1)

    pid = in_child(commit_twice)
    os.read(to_parent, 1)
    log.close()
    os.write(from_parent, b"1")
    assert succeeded(pid)
    for fd in (to_parent, from_child, to_child, from_parent):
        os.close(fd)
    with contextlib.closing(SqliteConsensus(path)) as again:
        assert again.head("a") == LogEntry(2, b"2")


def test_what_was_opened_before_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(log: SqliteConsensus) -> None:
    fill(log, "a", 1)

    def be_refused() -> None:
        with pytest.raises(WrongProcess, match="open it again in this process"):
            log.head("a")
        with pytest.raises(WrongProcess, match="open it again in this process"):
            log.truncate("a", 0)
        log.close()  # does nothing

    pid = in_child(be_refused)
    fill(log, "parent", 20)
    assert succeeded(pid)
    assert [entry and entry.seqno for entry in map(log.head, ("a", "parent"))] == [0, 19]


def test_a_fork_in_the_middle_of_a_call_leaves_the_child_refused(path: Path, hasty: SqliteConsensus) -> None:
    fill(hasty, "a", 1)

    def be_refused() -> None:
        with pytest.raises(WrongProcess, match="fork"):
            hasty.head("a")
        with pytest.raises(WrongProcess, match="fork"):
            hasty.truncate("a", 0)
        with pytest.raises(WrongProcess, match="spawn"):  # SQLite believes here that it holds the parent's locks
            SqliteConsensus(path)
        hasty.close()

    inside, forked = threading.Event(), threading.Event()

    def stay_inside(connection: sqlite3.Connection) -> None:
        inside.set()
        assert forked.wait(60)

    thread = threading.Thread(target=hasty._file.write, args=(stay_inside,))
    thread.start()
    assert inside.wait(60)
    pid = in_child(be_refused)
    forked.set()
    thread.join(60)
    assert succeeded(pid)
    fill(hasty, "a", 1)
