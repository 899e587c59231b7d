"""Several processes with one SQLite file: updates, crashes and forks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from children import line_of, start, tell

from timespine.errors import Determinate, UsageError
from timespine.location.consensus import Entry
from timespine.location.sqlite import SqliteConsensus
from timespine.testing.conformance_consensus import fill

TAKE_A_TURN = """
import signal, sys, time
from timespine.location.turns import WriteLine
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
        tell(child, b"go\n")
        acknowledged = [int(line_of(child)) for _ in range(100)]
        os.kill(child.pid, signal.SIGKILL)
    with contextlib.closing(SqliteConsensus(path)) as log:
        entries = log.scan("a")
        assert entries[acknowledged[-1]] == Entry(acknowledged[-1], b"%d" % (acknowledged[-1] + 1))


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

    with hasty._file.writing():
        pid = in_child(be_refused)
    assert succeeded(pid)
    fill(hasty, "a", 1)
