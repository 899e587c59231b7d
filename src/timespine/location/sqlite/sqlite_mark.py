"""The mark of a SQLite file: the file must contain every entry that the mark counts.

SQLite ends the recovery of its write-ahead log at the first damaged frame, and treats the rest as never committed. A
log that is truncated or gone is no error to it either. The mark (`timespine.location.marks`) is in a file of its own
beside the database, and tells the difference.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import NamedTuple

from timespine.errors import CorruptionError
from timespine.location import marks
from timespine.location.marks import ADVICE, NOTHING, Mark, MarkFile

SUFFIX = ".mark"
"""The suffix of the mark, after the name of the database."""

_TOTAL = """WITH RECURSIVE found (key) AS (
    SELECT min(key) FROM entries
    UNION ALL
    SELECT (SELECT min(key) FROM entries WHERE key > found.key) FROM found WHERE found.key IS NOT NULL
) SELECT coalesce(sum((SELECT max(seqno) + 1 FROM entries WHERE key = found.key)), 0) FROM found
WHERE key IS NOT NULL"""  # from key to key: a GROUP BY would read every entry
_HEAD = "SELECT max(seqno) FROM entries WHERE key = ?"
_CHECKSUM = "SELECT checksum FROM entries WHERE key = ? AND seqno = ?"


class AppendedEntries(NamedTuple):
    """The entries that one transaction appended."""

    entries: int
    """How many entries."""
    key: str
    """The key of one of them."""
    seqno: int
    """Its number."""
    checksum: int
    """Its checksum."""


class SqliteMark:
    """The comparison of a database with its mark, and the count of appended entries."""

    def __init__(self, path: str, *, accepting: bool = False) -> None:
        self.path = path + SUFFIX
        self._accepting = accepting
        """Whether the check accepts a database that lost entries: for the call that moves the mark back."""
        self._file: MarkFile | None = None
        self._base = 0
        """The entries that a new connection for writing has found, until they are in the mark."""

    def found(self) -> Mark | None:
        """Return the mark; None if there is none."""
        try:
            with contextlib.closing(MarkFile(self.path, read_only=True)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def create(self, mode: int) -> None:
        """Make a mark that counts nothing, unless there is one."""
        marks.create_mark_file(self.path, NOTHING, mode)

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise CorruptionError if the database does not contain what the mark counts.

        SUBTLE: read the mark first. The entries that it counts were committed before, so a statement that begins now
        sees them, whatever other processes commit meanwhile (test_marks.py).
        """
        if self._accepting:
            return
        mark = self.found()
        if mark is None:
            raise CorruptionError(f"{self.path} is missing, so nothing says what the log must contain: {ADVICE}")
        (found,) = connection.execute(_TOTAL).fetchone()
        if found < mark.entries:
            raise CorruptionError(
                f"the log lost {mark.entries - found} of {mark.entries} entries that were committed; "
                f"{self.path} counts them: {ADVICE}"
            )
        if mark.key:
            (head,) = connection.execute(_HEAD, (mark.key,)).fetchone()
            row = connection.execute(_CHECKSUM, (mark.key, mark.seqno)).fetchone()
            if head is None or head < mark.seqno or (row is not None and row[0] != mark.checksum):
                raise CorruptionError(f"entry {mark.seqno} of {mark.key} is not the one of {self.path}: {ADVICE}")

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Count the entries of the database: a process may have died between its commit and its mark.

        Caller holds the turn.
        """
        (self._base,) = connection.execute(_TOTAL).fetchone()

    def count(self, appended: AppendedEntries) -> None:
        """Count the entries of a commit. Caller holds the turn.

        SUBTLE: only after the commit. Its sync makes durable what earlier processes may have left in the log, so that
        the mark is never ahead of what survives power loss (test_marks.py).
        """
        self._opened().advance(self._base, *appended)
        self._base = 0

    def accept(self, connection: sqlite3.Connection, mode: int) -> tuple[int | None, int]:
        """Set the mark to the present entries; return how many it counted, if that is known, and how many there are."""
        try:
            mark = self.found()
        except CorruptionError:
            mark = None
        self.create(mode)
        (found,) = connection.execute(_TOTAL).fetchone()
        self._opened().reset(Mark(found))
        return None if mark is None else mark.entries, int(found)

    def sync(self) -> None:
        """Make the counts of this process durable."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _opened(self) -> MarkFile:
        self._file = self._file or MarkFile(self.path)
        return self._file
