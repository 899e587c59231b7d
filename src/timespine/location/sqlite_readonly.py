"""Reading a SQLite file of ours without making or changing anything, in a folder that need not be writable.

SQLite reads a file that has a write-ahead log through two more files, `-wal` and
`-shm`. Who may not write can use those that are there, but where there are none,
SQLite makes them, and leaves them behind; where it may not, it gives up, unless
it is told that the file is immutable (sqlite.org/wal.html, "Read-Only Databases").
That is right only while nobody writes: locks and the log are ignored then.

So, before every read:

- There is a `-wal`: somebody has the file open for writing, or crashed. It is read
  with mode=ro, through the log.
- There is none: all that was committed is in the file itself, since whoever closes it
  last moves the log into it first. It is read as immutable, *and looked at again
  afterwards*: if a log has appeared, or size or time of the file are others, what was
  read does not count, and is read again.

The time of a file says that it was changed only if that was some clock ticks ago:
one that was changed just now is given a moment to settle.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from timespine.errors import CorruptionError, Determinate, ReadOnlyStore, TimespineError, UsageError
from timespine.location.sqlite_file import SqliteFile

T = TypeVar("T")

LOOKS = 64
"""How often a read begins again because somebody began or ended to write meanwhile."""

SETTLED_S = 0.05
"""A file that was changed less than this ago may be changed again without a trace in its time: some clock ticks."""

Rest = tuple[int, int, int]
"""Which file it is, its size, when it was changed: of one that nobody has open for writing."""


class SqliteFileAtRest(SqliteFile):
    """The file, for readers that leave no trace."""

    _rest: Rest | None = None

    def _prepare(self) -> None:
        if not os.path.exists(self.path):
            raise UsageError(f"{self.path} is not there, and nothing is made where only reading is allowed")

    def write(self, work: object) -> NoReturn:
        """Refused."""
        raise ReadOnlyStore(f"{self.path} is open for reading only")

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for _ in range(LOOKS):
            rest = self._at_rest()
            if rest != self._rest:
                self._close_reader()  # it may remember pages of before
                self._rest = rest
            try:
                found = super()._read(work)
            except TimespineError:
                if self._at_rest() == rest:
                    raise
                continue
            # SUBTLE: without a log nothing kept others from writing while this was read (test_sqlite_readonly.py).
            if rest is None or self._at_rest() == rest:
                return found
        raise Determinate(f"{self.path} was not read: others began and ended to write {LOOKS} times meanwhile")

    def _at_rest(self) -> Rest | None:
        """What the file looks like if nobody has it open for writing; None if somebody has."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            # SUBTLE: the log is looked for first. It is there before the file is changed (test_sqlite_readonly.py).
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
        """A connection that changes nothing, to a file that has lost nothing."""
        connection = self._configured(*pragmas)
        try:
            self.mark.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_log(self, connection: sqlite3.Connection) -> None:
        """There is one, or none is needed."""
