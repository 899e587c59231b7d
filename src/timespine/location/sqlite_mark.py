"""The mark of a SQLite file: the file must contain every entry that the mark counts.

SQLite ends the recovery of its write-ahead log at the first frame that is damaged,
and takes the rest for what was never committed. A log that is truncated or gone is
no error to it either. The mark (`timespine.location.marks`) is in a file of its own
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
"""What the name of the mark has after that of the database."""

_TOTAL = """WITH RECURSIVE found (key) AS (
    SELECT min(key) FROM entries
    UNION ALL
    SELECT (SELECT min(key) FROM entries WHERE key > found.key) FROM found WHERE found.key IS NOT NULL
) SELECT coalesce(sum((SELECT max(seqno) + 1 FROM entries WHERE key = found.key)), 0) FROM found
WHERE key IS NOT NULL"""  # from key to key: a GROUP BY would read every entry
_HEAD = "SELECT max(seqno) FROM entries WHERE key = ?"
_CHECKSUM = "SELECT checksum FROM entries WHERE key = ? AND seqno = ?"


class Appended(NamedTuple):
    """What a transaction appended."""

    entries: int
    """How many entries."""
    key: str
    """The key of one of them."""
    seqno: int
    """Its number."""
    checksum: int
    """Its checksum."""


class SqliteMark:
    """Compares a database with its mark, and counts what is appended to it."""

    def __init__(self, path: str, *, accepting: bool = False) -> None:
        self.path = path + SUFFIX
        self._accepting = accepting
        """Whether a database that lost entries is accepted: for whoever moves the mark back."""
        self._file: MarkFile | None = None
        self._base = 0
        """The entries that a new connection for writing has found, until they are in the mark."""

    def found(self) -> Mark | None:
        """The mark that is there; None if there is none."""
        try:
            with contextlib.closing(MarkFile(self.path, read_only=True)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def create(self, mode: int) -> None:
        """Make a mark that counts nothing, unless there is one."""
        marks.create(self.path, NOTHING, mode)

    def check(self, connection: sqlite3.Connection) -> None:
        """A CorruptionError if the database does not contain what the mark counts.

        SUBTLE: the mark is read first. What it counts was committed before, so a statement that begins now sees it,
        whatever other processes commit meanwhile (test_marks.py).
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
        """Look how many entries there are: a process may have died between its commit and its mark. In a turn."""
        (self._base,) = connection.execute(_TOTAL).fetchone()

    def count(self, appended: Appended) -> None:
        """Count what was committed. Holds the turn.

        SUBTLE: only after the commit. Its sync makes durable what processes before it may have left in the log,
        so that the mark is never ahead of what survives power loss (test_marks.py).
        """
        self._opened().advance(self._base, *appended)
        self._base = 0

    def accept(self, connection: sqlite3.Connection, mode: int) -> tuple[int | None, int]:
        """Count what is there and no more. How many were counted, if that is known, and how many are there."""
        try:
            mark = self.found()
        except CorruptionError:
            mark = None
        self.create(mode)
        (found,) = connection.execute(_TOTAL).fetchone()
        self._opened().reset(Mark(found))
        return None if mark is None else mark.entries, int(found)

    def sync(self) -> None:
        """Make durable what this process has counted."""
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
