"""Roles: work that one process of a machine does for all of them.

A role saves work and decides nothing. Two processes that have the same role at once, on two machines or after a crash,
do no harm: compare-and-sets order what they commit. So a port may offer roles or not, and `role_of` has a default.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import weakref
from typing import Protocol

from timespine.errors import CorruptionError
from timespine.location.folder.durable import mode_of, open_regular

MAINTAINER = "maintainer"
"""The role of the process whose maintenance thread works for all processes of the machine."""

APPENDER = "appender"
"""The role of the process that commits the appends of all processes of the machine."""


class Role(Protocol):
    """The right to do some work for all processes."""

    def take(self) -> bool:
        """Take the role without waiting; return whether this process has it."""
        ...

    def release(self) -> None:
        """Give the role back. Twice is fine."""
        ...


class EveryProcess:
    """The role of storage that has none: every process does the work."""

    def take(self) -> bool:
        """Return True: no other process is asked."""
        return True

    def release(self) -> None:
        """Do nothing."""


def role_of(consensus: object, name: str) -> Role:
    """Return a role of the storage behind a Consensus; without one there, every process has it."""
    make = getattr(consensus, "role", None)
    return EveryProcess() if make is None else make(name)


class FileRole:
    """A role as the lock of a file: the kernel releases it when the process ends, however it ends."""

    def __init__(self, path: str, beside: str) -> None:
        self._path = path
        self._beside = beside
        """The file whose permissions a new lock file gets."""
        self._file: io.FileIO | None = None
        """The locked file, while this process has the role."""
        self._pid = os.getpid()
        _roles.add(self)

    def take(self) -> bool:
        """Take the role without waiting; return whether this process has it. False if the file cannot be locked."""
        if self._pid != os.getpid():
            return False
        if self._file is not None:
            return True
        try:
            file = io.FileIO(self._path, "r+", opener=self._opened)
        except (OSError, CorruptionError):
            return False  # a folder that cannot be written, or a link: the work is left to others
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._file = file
        return True

    def _opened(self, path: str, _: int) -> int:
        return open_regular(path, os.O_RDWR | os.O_CREAT, mode_of(self._beside, 0o666))

    def release(self) -> None:
        """Give the role back. Twice is fine; in a forked child nothing happens."""
        if self._pid == os.getpid() and self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            file.close()

    def leave_to_parent(self) -> None:
        """Close the file in a forked child.

        SUBTLE: without LOCK_UN, which would take the role from the parent. And at once: a lock lasts until the last
        descriptor is closed, so a child that kept one would keep the role of a parent that died (test_role.py).
        """
        if self._file is not None:
            self._file.close()
            self._file = None


_roles: weakref.WeakSet[FileRole] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for role in list(_roles):
        role.leave_to_parent()
    _roles.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
