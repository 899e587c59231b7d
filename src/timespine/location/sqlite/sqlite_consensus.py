"""The Consensus port as one SQLite file: the embedded default.

`timespine.location.sqlite.sqlite_file` makes processes share the file; here are the statements. SQLite keeps no
checksums, so every entry has one, and a read checks that each entry is what was written, and where.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from timespine.errors import CorruptionError, UsageError
from timespine.location.checks import check_key, check_scan, check_text, check_truncate, check_writes
from timespine.location.consensus import EPOCH, LogEntry, LogWrite, append_epoch, differing_heads, store_fenced
from timespine.location.folder import reserve
from timespine.location.folder.durable import PRIVATE_FILE, mode_of
from timespine.location.machine.role import FileRole
from timespine.location.machine.socket_channel import SocketChannel
from timespine.location.sqlite.sqlite_file import SqliteFile
from timespine.location.sqlite.sqlite_mark import AppendedEntries
from timespine.location.sqlite.sqlite_readonly import ReadOnlySqliteFile

WAIT_S = 10.0
"""How long a call waits for its turn, by default."""

WAIT_S_MAX = 3600.0
"""The longest wait that a caller can set."""

FORGOTTEN = "forgotten"
"""The key of the log that counts the entries of logs that were removed: its last entry is kept, and no other."""

_NEWEST = "SELECT seqno, data, checksum FROM entries WHERE key = ? ORDER BY seqno DESC LIMIT 1"
_NEWEST_SEQNO = "SELECT seqno FROM entries WHERE key = ? ORDER BY seqno DESC LIMIT 1"
_SCAN = "SELECT seqno, data, checksum FROM entries WHERE key = ? AND seqno >= ? ORDER BY seqno LIMIT ?"
_INSERT = "INSERT INTO entries (key, seqno, data, checksum) VALUES (?, ?, ?, ?)"
_TRUNCATE = "DELETE FROM entries WHERE key = ? AND seqno < ?"
_KEYS = """WITH RECURSIVE found (key) AS (
    SELECT min(key) FROM entries WHERE key >= ?
    UNION ALL
    SELECT (SELECT min(key) FROM entries WHERE key > found.key) FROM found WHERE found.key IS NOT NULL
) SELECT key FROM found WHERE key < ?"""  # from key to key: a DISTINCT would read every entry


class SqliteConsensus:
    """Consensus for the processes of one machine, durable against power loss.

    With `read_only` the adapter makes and changes nothing in the folder, which need not be writable. `mode` is that of
    a new file; files beside an existing one get its permissions.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait_s: float = WAIT_S,
        read_only: bool = False,
        mode: int = PRIVATE_FILE,
    ) -> None:
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise UsageError(f"wait_s {wait_s!r} is not from 0 to {WAIT_S_MAX} seconds")
        if sqlite3.sqlite_version_info < (3, 37):
            raise UsageError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
        kind = ReadOnlySqliteFile if read_only else SqliteFile
        self._file = kind(os.path.realpath(os.fspath(path)), wait_s, mode)
        weakref.finalize(self, _close_unreachable, self._file)
        self._read_only = read_only
        self._epoch = self._file.read(_epoch_of)
        self.restore_reserve()

    @property
    def epoch(self) -> int:
        return self._epoch

    def fence(self) -> int:
        self._epoch = append_epoch(self, self._epoch)
        return self._epoch

    def forget(self, key: str, expected: int) -> bool:
        check_key(key)
        if self._file.write(lambda connection: self._begin_forgetting(connection, key, expected)):
            return self._file.write(lambda connection: self._forget(connection, key, expected))
        return False

    def _begin_forgetting(self, connection: sqlite3.Connection, key: str, expected: int) -> bool:
        """Append to the log of forgotten entries, so that the mark names it and not a log that is about to go.

        SUBTLE: a commit of its own. The mark is written after a commit: a process that dies in between would leave a
        mark that names an entry which is gone (test_forget_logs.py).
        """
        self._check_epoch(connection)
        if _newest_seqno(connection, key) != expected:
            return False
        self._append_forgotten(connection, 0, key)
        return True

    def _forget(self, connection: sqlite3.Connection, key: str, expected: int) -> bool:
        """Remove a log. The log of forgotten entries counts what went, so that the sum of all heads stays the same."""
        self._check_epoch(connection)
        if _newest_seqno(connection, key) != expected:
            return False
        connection.execute("DELETE FROM entries WHERE key = ?", (key,))
        self._append_forgotten(connection, expected + 1, key)
        return True

    def _append_forgotten(self, connection: sqlite3.Connection, skipped: int, key: str) -> None:
        newest = _newest_seqno(connection, FORGOTTEN)
        write = LogWrite(FORGOTTEN, (-1 if newest is None else newest) + skipped, key.encode())
        row = _row(write)
        connection.execute(_INSERT, row)
        connection.execute(_TRUNCATE, (FORGOTTEN, write.seqno))
        self._file.appended = AppendedEntries(1, FORGOTTEN, write.seqno, row[3])

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        """Refuse a process of an earlier epoch. Caller is in a transaction that writes."""
        if (found := _epoch_of(connection)) != self._epoch:
            raise store_fenced(self._epoch, found)

    def head(self, key: str) -> LogEntry | None:
        check_key(key)
        rows = self._file.read(lambda connection: connection.execute(_NEWEST, (key,)).fetchall())
        return _entries(key, rows)[0] if rows else None

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        check_scan(key, from_seqno, limit)
        rows_max = -1 if limit is None else limit

        def read(connection: sqlite3.Connection) -> tuple[list[Any], int | None]:
            connection.execute("BEGIN")  # both statements see one moment
            rows = connection.execute(_SCAN, (key, from_seqno, rows_max)).fetchall()
            newest = _newest_seqno(connection, key)
            connection.execute("COMMIT")
            return rows, newest

        rows, newest = self._file.read(read)
        entries = _entries(key, rows) if rows else []
        reached = entries[-1].seqno if entries else from_seqno - 1
        if newest is not None and reached < newest and len(entries) != limit:
            raise CorruptionError(f"the log of {key} breaks off after entry {reached}")
        return entries

    def heads(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the newest number of each key, None for those never written, as of one moment."""
        for key in keys:
            check_key(key)

        def read(connection: sqlite3.Connection) -> dict[str, int | None]:
            connection.execute("BEGIN")  # all statements see one moment
            found = {key: _newest_seqno(connection, key) for key in keys}
            connection.execute("COMMIT")
            return found

        return self._file.read(read)

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        writes = check_writes(writes)

        def write(connection: sqlite3.Connection) -> Mapping[str, int | None] | None:
            self._check_epoch(connection)
            heads = {each.key: _newest_seqno(connection, each.key) for each in writes}
            lost = differing_heads(writes, heads)
            if lost is None:
                rows = list(map(_row, writes))
                connection.executemany(_INSERT, rows)
                key, seqno, _, checksum = rows[-1]
                self._file.appended = AppendedEntries(len(rows), key, seqno, checksum)
            return lost

        return self._file.write(write)

    def truncate(self, key: str, below: int) -> int:
        check_truncate(key, below)

        def write(connection: sqlite3.Connection) -> int:
            self._check_epoch(connection)
            newest = _newest_seqno(connection, key)
            if newest is None:
                return 0
            return connection.execute(_TRUNCATE, (key, min(below, newest))).rowcount

        return self._file.write(write)

    def list_keys(self, prefix: str = "") -> list[str]:
        if not check_text(prefix, "prefix").isascii():
            prefix = "\x7f"  # keys are ASCII, and all below this
        found = self._file.read(lambda connection: connection.execute(_KEYS, (prefix, prefix + "\x7f")).fetchall())
        return sorted(key for (key,) in found if key != FORGOTTEN)

    def release_reserve(self) -> bool:
        return not self._read_only and reserve.release_reserve(self._file.path)

    def restore_reserve(self) -> None:
        if not self._read_only:
            reserve.restore_reserve(self._file.path)

    def role(self, name: str) -> FileRole:
        """Return the role of that name among the processes that have this file open (`location.machine.role`)."""
        return FileRole(f"{self._file.path}.{check_text(name, 'role')}", self._file.path)

    def channel(self, name: str) -> SocketChannel:
        """Return the role of that name, with requests to the process that has it (`location.machine.channel`)."""
        return SocketChannel(f"{self._file.path}.{check_text(name, 'role')}", self._file.path)

    def close(self) -> None:
        self._file.close()


def accept_log_loss(path: str | os.PathLike[str]) -> tuple[int | None, int]:
    """Set the mark to the entries that the log still has, so that a store with losses opens.

    Return how many entries the mark counted before (None: it was lost or damaged), and how many there are.
    """
    real = os.path.realpath(os.fspath(path))
    if not os.path.exists(real):
        raise UsageError(f"{real} is not there: restore it from a copy, or remove the whole store to start anew")
    file = SqliteFile(real, WAIT_S, accepting_loss=True)
    try:
        return file.write(lambda connection: file.mark.accept(connection, mode_of(real, 0o666)))
    finally:
        file.close()


def _checksum(key: str, seqno: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{key}/{seqno}/".encode()))


def _row(write: LogWrite) -> tuple[str, int, bytes, int]:
    return write.key, write.seqno, write.data, _checksum(write.key, write.seqno, write.data)


def _entries(key: str, rows: list[Any]) -> list[LogEntry]:
    """Decode rows as entries; raise CorruptionError if one is damaged or missing."""
    entries = []
    for offset, (seqno, data, checksum) in enumerate(rows):
        if not isinstance(data, bytes) or checksum != _checksum(key, seqno, data):
            raise CorruptionError(f"entry {seqno!r:.40} of {key} is not what was written")
        if seqno != rows[0][0] + offset:
            raise CorruptionError(f"the log of {key} has a gap before entry {seqno}")
        entries.append(LogEntry(seqno, data))
    return entries


def _epoch_of(connection: sqlite3.Connection) -> int:
    newest = _newest_seqno(connection, EPOCH)
    return 0 if newest is None else newest + 1


def _newest_seqno(connection: sqlite3.Connection, key: str) -> int | None:
    row = connection.execute(_NEWEST_SEQNO, (key,)).fetchone()
    if row is not None and not isinstance(row[0], int):
        raise CorruptionError(f"the log of {key} has a sequence number that is not an integer")
    return None if row is None else row[0]


def _close_unreachable(file: SqliteFile) -> None:
    """Close the file of an adapter that the garbage collector found. It may run inside of a fork of this thread, which
    holds the locks and has closed the connections: they stay closed."""
    with contextlib.suppress(UsageError):
        file.close()
