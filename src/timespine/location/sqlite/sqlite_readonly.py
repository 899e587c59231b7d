"""Reads of a SQLite consensus file that change nothing, in a folder that need not be writable.

SQLite reads a file that has a write-ahead log through two more files, `-wal` and
`-shm`. A process without the right to write can use existing ones. Where there are none,
SQLite makes them, and leaves them behind. Where it cannot, it fails, unless the
connection declares the file immutable (sqlite.org/wal.html, "Read-Only Databases").
That is right only while no process writes: SQLite then ignores locks and the log.

So, before every read:

- There is a `-wal`: a process has the file open for writing, or crashed. The reader
  reads with mode=ro, through the log.
- There is none: every commit is in the file itself, since the process that closes it
  last moves the log into it first. The reader reads it as immutable, *and looks
  again afterwards*: if a log has appeared, or size or time of the file have changed,
  it drops the result and reads again.

The time of a file shows a change only if that was some clock ticks ago: the reader
waits a moment for a file that was changed just now.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from timespine.errors import CorruptionError, Determinate, ReadOnlyStore, TimespineError, UsageError
from timespine.location.sqlite.sqlite_file import SqliteFile

T = TypeVar("T")

LOOKS = 64
"""How often a read begins again because a writer opened or closed the file meanwhile."""

SETTLED_S = 0.05
"""The age of a change, in seconds, from which on a second change shows in the time of the file: some clock ticks."""

FileAtRest = tuple[int, int, int]
"""Inode, size and time of change of a file that no process has open for writing."""


class ReadOnlySqliteFile(SqliteFile):
    """The file, for readers that leave no trace."""

    _rest: FileAtRest | None = None

    def _prepare(self) -> None:
        if not os.path.exists(self.path):
            raise UsageError(f"{self.path} does not exist, and a store that is open for reading only makes no files")

    def write(self, work: object) -> NoReturn:
        """Refuse every write."""
        raise ReadOnlyStore(f"{self.path} is open for reading only")

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for _ in range(LOOKS):
            rest = self._at_rest()
            if rest != self._rest:
                self._close_reader()  # its cache may hold old pages
                self._rest = rest
            try:
                found = super()._read(work)
            except TimespineError:
                if self._at_rest() == rest:
                    raise
                continue
            # SUBTLE: without a log nothing kept writers from changing the file meanwhile (test_sqlite_readonly.py).
            if rest is None or self._at_rest() == rest:
                return found
        raise Determinate(f"{self.path} was not read: writers opened and closed it {LOOKS} times meanwhile")

    def _at_rest(self) -> FileAtRest | None:
        """Return what the file looks like if no process has it open for writing; None if one has."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            # SUBTLE: look for the log first. It exists before the file is changed (test_sqlite_readonly.py).
            if os.path.lexists(self.path + "-wal"):
                return None
            try:
                info = os.stat(self.path)
            except FileNotFoundError:
                raise CorruptionError(f"{self.path} is gone") from None
            if abs(time.time() - info.st_mtime) > SETTLED_S or time.monotonic() > deadline:
                return info.st_ino, info.st_size, info.st_mtime_ns
            time.sleep(SETTLED_S / 8)

    def _mode(self) -> str:
        return "mode=ro" if self._rest is None else "mode=ro&immutable=1"

    def _connect(self, *pragmas: str) -> sqlite3.Connection:
        """Open a connection that changes nothing, after the check that the file lost nothing."""
        connection = self._configured(*pragmas)
        try:
            self.mark.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_log(self, connection: sqlite3.Connection) -> None:
        """Do nothing: there is a log, or the connection needs none."""
