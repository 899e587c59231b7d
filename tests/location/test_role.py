"""Roles: one process of a machine has one, and the kernel takes it from a process that ends."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from assertions import until
from children import line_of, start

from timespine.location.machine.role import EveryProcess, FileRole, role_of
from timespine.location.memory import MemoryConsensus
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

TAKE = """
import os, sys, time
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
log = SqliteConsensus(sys.argv[1])
role = log.role("maintainer")
print(role.take(), flush=True)
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
time.sleep(60)
"""


def roles(path: Path) -> tuple[FileRole, FileRole]:
    path.touch()
    return FileRole(f"{path}.a", str(path)), FileRole(f"{path}.a", str(path))


def test_one_of_two_has_a_role_until_it_gives_it_back(tmp_path: Path) -> None:
    one, two = roles(tmp_path / "log")
    assert (one.take(), one.take(), two.take()) == (True, True, False)
    two.release()
    assert not two.take()
    one.release()
    one.release()
    assert (two.take(), one.take()) == (True, False)
    two.release()


def test_storage_without_roles_gives_them_to_every_process(tmp_path: Path) -> None:
    role = role_of(MemoryConsensus(), "maintainer")
    assert isinstance(role, EveryProcess)
    assert role.take()
    role.release()
    assert role.take()


def test_a_killed_process_loses_its_role(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with contextlib.closing(SqliteConsensus(path)) as log:
        child = start(TAKE, path)
        assert line_of(child) == b"True\n"
        mine = role_of(log, "maintainer")
        assert not mine.take()
        child.kill()
        child.communicate()
        assert mine.take()
        mine.release()


def test_a_forked_child_keeps_no_role_of_a_parent_that_died(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with contextlib.closing(SqliteConsensus(path)) as log:
        parent = start(TAKE, path, "fork")
        assert line_of(parent) == b"True\n"
        grandchild = int(line_of(parent))
        try:
            mine = log.role("maintainer")
            assert not mine.take(), "the fork did not take it from its parent"
            parent.kill()
            parent.wait()
            until(mine.take)  # the grandchild may not have run yet since the fork
            mine.release()
        finally:
            os.kill(grandchild, signal.SIGKILL)
            parent.communicate()


def test_a_forked_child_does_not_have_the_role_of_its_parent(tmp_path: Path) -> None:
    role, _ = roles(tmp_path / "log")
    assert role.take()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, repr(role.take()).encode())
        role.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"False"
    assert not roles(tmp_path / "log")[1].take(), "the release in the child did nothing"
    role.release()


def test_a_file_that_cannot_be_locked_is_no_role(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    (tmp_path / "log.a").symlink_to(tmp_path / "elsewhere")
    assert not FileRole(f"{path}.a", str(path)).take()
    assert not (tmp_path / "elsewhere").exists()
    assert not FileRole(str(tmp_path / "missing" / "log.a"), str(path)).take()
