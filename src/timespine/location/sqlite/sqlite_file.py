"""One SQLite file that processes, threads and forked children share safely.

WAL with synchronous=FULL: a commit is one append and one fsync, and readers
never wait for writers. Three things are not obvious:

- *Turns.* SQLite's own waiting (busy_timeout) lets the most frequent poller win:
  with four processes some wait for seconds. So writers take turns on two file
  locks (`timespine.location.sqlite.fair_lock`). All checkpoints run inside a turn too,
  which keeps clear of a race between them that can corrupt the file before
  SQLite 3.51.3 (sqlite.org/wal.html#walresetbug).
- *Forks.* A forked child inherits SQLite's belief that the process holds its
  locks; a connection opened there can lose acknowledged commits when the parent
  closes. So all connections are closed before a fork. The parent opens new ones
  when it needs them; the child opens the store again. Handles that it inherited
  refuse every call before they ask for a lock.
- *Locks of POSIX.* Closing any descriptor of the database file drops all locks
  of the process on it. SUBTLE: never open the file except through SQLite.

SQLite keeps no checksums, so opening checks the structure of the whole file
(1.5 ms per MB; truncation keeps it small), and entries have checksums of their
own (`timespine.location.sqlite.sqlite_consensus`).

There is one connection for reading and one for writing, each behind a lock of
its own: readers do not wait for turns, and no connection belongs to a thread. An
interrupted call leaves its connection marked as used: the next call closes it,
which rolls back, and opens another one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sqlite3
import sys
import time
import urllib.parse
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from timespine.errors import (
    CorruptionError,
    Determinate,
    Indeterminate,
    Unavailable,
    UsageError,
    VersionError,
    WrongProcess,
)
from timespine.location.checks import check_open
from timespine.location.folder.durable import PRIVATE_FILE, SPACE, mode_of, no_space, open_regular, sync_path
from timespine.location.folder.network_fs import mount_table, refuse_network_file_system
from timespine.location.sqlite.fair_lock import FairFileLock
from timespine.location.sqlite.sqlite_mark import AppendedEntries, SqliteMark
from timespine.locks import Lock, QueueSlot, can_hold

T = TypeVar("T")

CLOSE_S = 60.0
"""How long closing waits for running calls."""

FORK_WAITS = 6
"""How long a fork waits for running calls, as a multiple of how long such a call waits for its own turn."""

APPLICATION_ID = 0x54535043
"""The application id in the header of every consensus file: "TSPC"."""

FORMAT_VERSION = 1
"""The user_version in the header. A higher one is refused; there is no lower one yet."""

SCHEMA = """CREATE TABLE entries (
    key TEXT NOT NULL,
    seqno INTEGER NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (key, seqno)
) STRICT, WITHOUT ROWID"""
"""The only table. `checksum` is the CRC-32 of key, seqno and data.

WITHOUT ROWID: with 200-byte entries, and 10 MB now and then, commits cost the
same as with a rowid, scans about a third and truncation a fifth.
"""

_CREATE = (
    "PRAGMA synchronous = FULL",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
    SCHEMA,
    "PRAGMA journal_mode = WAL",
)
_CONFIGURE = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS; elsewhere without effect
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
    f"PRAGMA journal_size_limit = {16 << 20}",  # one huge entry must not leave a huge log behind
)
_CONFIGURE_READER = ("PRAGMA query_only = ON", "PRAGMA wal_autocheckpoint = 0")

_TABLES = "SELECT rootpage, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_stat*'"  # ANALYZE does no harm

_ERRORS = (sqlite3.Error, MemoryError, UnicodeDecodeError)  # every error of the sqlite3 module
_NOT_OURS = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_CONSTRAINT,  # the head that was read is not the head that is indexed
        sqlite3.SQLITE_ERROR,  # the statements are right, so the table is damaged
    }
)


class SqliteFile:
    """The file, its connections, and the rules for calls that use them."""

    def __init__(self, path: str, wait_s: float, mode: int = PRIVATE_FILE, *, accepting_loss: bool = False) -> None:
        self.path = path
        self.wait_s = wait_s
        self.mark = SqliteMark(path, accepting=accepting_loss)
        self.appended: AppendedEntries | None = None
        """The entries that the running transaction appends: the mark counts them after the commit."""
        self._new_mode = mode
        self._reading = Lock(path)
        self._writing = Lock(path)
        self._reader: sqlite3.Connection | None = None
        self._is_reading = False
        """Whether a call uses the reader, or was interrupted while it did."""
        self._writer: sqlite3.Connection | None = None
        self._is_writing = False
        """Whether a call uses the writer, or was interrupted while it did."""
        self._line: FairFileLock | None = None
        self._pid = os.getpid()
        self._is_paused = False
        self._closed = False
        if not os.path.isdir(os.path.dirname(path)):
            raise UsageError(f"the folder of {path} does not exist: create it first")
        if path in _inherited:
            raise WrongProcess(f"{path} was in use while this process was forked: start processes with spawn instead")
        refuse_network_file_system(path, mount_table())
        _files.add(self)  # before anything is open: a fork in another thread waits, or closes it (test_fork.py)
        self._prepare()
        (report,) = self.read(lambda connection: connection.execute("PRAGMA integrity_check(1)").fetchone())
        if report != "ok":
            self.close()
            raise CorruptionError(f"{path} is damaged: {report:.200}")

    def _prepare(self) -> None:
        """Make the file if there is none."""
        try:
            _create_if_missing(self.path, self.mark, self._new_mode)
            sync_path(os.path.dirname(self.path))
        except (OSError, sqlite3.Error) as error:
            raise Determinate(f"cannot open {self.path}: {error}") from error

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of work on the connection for reading.

        Outside a transaction, a statement sees one moment.
        """
        self._check_process()
        with self._reading.within(self.wait_s):
            check_open(self._closed, "consensus")
            return self._read(work)

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_reading:  # an interrupted call may have left a statement open, which sees an old moment
            self._close_reader()
        self._is_reading = True
        try:
            self._reader = self._reader or self._connect(*_CONFIGURE_READER)
            found = work(self._reader)
        except BaseException as error:
            self._close_reader()
            if isinstance(error, _ERRORS):
                raise self._failure(error, Determinate) from error
            raise
        self._is_reading = False
        return found

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work as one transaction in one turn: commit when it ends, roll back when it raises."""
        self._check_process()
        deadline = time.monotonic() + self.wait_s
        with self._writing.within(self.wait_s):
            check_open(self._closed, "consensus")
            try:
                line = self._line = self._line or FairFileLock(self.path, mode_of(self.path, 0o666))
                try:
                    if not line.enter(deadline):
                        raise Determinate(f"{self.path} was not written: no turn within {self.wait_s} s")
                    return self._transaction(work)
                finally:
                    # SUBTLE: a call of C: Python looks for no signal before it. Otherwise an interrupt could leave the
                    # turn taken, and all other processes would wait for the next write of this one (test_interrupts.py)
                    fcntl.flock(line.turn, fcntl.LOCK_UN)
            except OSError as error:
                if error.errno in SPACE:
                    raise no_space(f"{self.path} was not written", str(error.strerror)) from error
                raise Determinate(f"cannot lock {self.path}: {error}") from error

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        kind: type[Unavailable] = Determinate
        if self._is_writing:  # an interrupted call may have left a transaction open
            self._close_writer()
        self._is_writing = True
        try:
            is_new = self._writer is None
            self._writer = self._writer or self._connect()
            self.appended = None
            self._writer.execute("BEGIN IMMEDIATE")
            if is_new:
                self.mark.catch_up(self._writer)
            done = work(self._writer)
            kind = Indeterminate  # SUBTLE: a commit record may be in the log although its fsync failed
            self._writer.execute("COMMIT")
            self._count_appended()
        except BaseException as error:
            self._close_writer()  # which rolls back
            if isinstance(error, _ERRORS):
                raise self._failure(error, kind) from error
            raise
        self._is_writing = False
        return done

    def _check_process(self) -> None:
        """Raise WrongProcess in a forked child.

        SUBTLE: before any lock, whose owner may not exist here.
        """
        if self._pid != os.getpid():
            raise WrongProcess(f"{self.path} was opened before this process was forked: open it again in this process")

    def _count_appended(self) -> None:
        """Count the entries of the last commit in the mark."""
        if self.appended is None:
            return
        try:
            self.mark.count(self.appended)
        except (OSError, CorruptionError, VersionError) as error:
            # SUBTLE: it is committed. An error that says otherwise would make the caller commit again (test_marks.py).
            raise Indeterminate(f"{self.mark.path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the connections once no call uses them. Twice is fine; in a forked child nothing happens."""
        if self._pid != os.getpid():
            return  # not ours: the locks and connections of another process
        self._closed = True
        with self._writing.within(CLOSE_S), self._reading.within(CLOSE_S):
            self._close_all()

    def pause(self, frame: FrameType) -> None:
        """Close everything before a fork, and admit no call until `resume`. `frame` is the call that forks."""
        with contextlib.suppress(Determinate, UsageError):  # it is in use: the child may not open it at all
            self._writing.take(QueueSlot(frame), FORK_WAITS * self.wait_s)
            try:
                self._reading.take(QueueSlot(frame), FORK_WAITS * self.wait_s)
            except BaseException:
                self._writing.leave()
                raise
            self._close_all()
            self._is_paused = True

    def resume(self) -> None:
        """Admit calls again after a fork, in the parent."""
        if self._is_paused:
            self._is_paused = False
            self._reading.leave()
            self._writing.leave()

    @property
    def is_paused(self) -> bool:
        """Whether everything is closed because of a fork."""
        return self._is_paused

    def _close_all(self) -> None:
        self._close_reader()
        self._close_writer()
        if self._line is not None:
            self._line.close()
            with contextlib.suppress(OSError):  # as if this process had been killed
                self.mark.sync()
        self.mark.close()
        self._line = None

    def _close_reader(self) -> None:
        _close(self._reader)
        self._reader = None

    def _close_writer(self) -> None:
        _close(self._writer)
        self._writer = None

    def _connect(self, *pragmas: str) -> sqlite3.Connection:
        """Open a connection to the existing file, after the checks that it is a consensus file and lost nothing."""
        with contextlib.ExitStack() as stack:
            if self._reader is None and self._writer is None:
                # SUBTLE: read-only, and open until the other one is. The last connection that may write moves the
                # log into the database when it is closed, and what is left of a damaged log would be gone
                # (test_marks.py).
                guard = stack.enter_context(contextlib.closing(self._opened("mode=ro")))
                _require_ours(guard, self.path)
                self.mark.check(guard)
            return self._configured(*pragmas)

    def _opened(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{urllib.parse.quote(os.fsencode(self.path))}?{mode}"
        return sqlite3.connect(uri, uri=True, timeout=self.wait_s, isolation_level=None, check_same_thread=False)

    def _configured(self, *pragmas: str) -> sqlite3.Connection:
        """Open a connection, and set its pragmas."""
        connection = self._opened(self._mode())
        try:
            _require_ours(connection, self.path)
            self._require_log(connection)
            for pragma in _CONFIGURE + pragmas:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def _mode(self) -> str:
        """Return the mode in which SQLite opens the file."""
        return "mode=rw&psow=1"

    def _require_log(self, connection: sqlite3.Connection) -> None:
        """Raise UsageError where SQLite cannot keep a write-ahead log."""
        if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise UsageError(f"{self.path} is in a place where SQLite cannot keep a write-ahead log")

    def _failure(self, error: Exception, kind: type[Unavailable]) -> Exception:
        """Translate an error of SQLite for the caller; `kind` if a retry may work."""
        if isinstance(error, sqlite3.ProgrammingError):
            return error  # our own bug
        code = getattr(error, "sqlite_errorcode", None)
        message = f"{self.path}: {getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
        if isinstance(error, MemoryError):
            return kind(message)
        if code is None or code & 0xFF in _NOT_OURS:  # no code: text that is not UTF-8
            return CorruptionError(message)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Determinate(message)
        if code & 0xFF == sqlite3.SQLITE_FULL:
            # SUBTLE: also of a COMMIT. SQLite gives this code when a write to the log was short, and it writes the
            # record of the commit last (psow=1: no padding follows). So the record is not whole, and its checksum
            # keeps every reader and every recovery from taking it. A failure to sync or index the log has other codes
            # (test_disk_full.py).
            return no_space(f"{self.path} was not written", os.strerror(errno.ENOSPC))
        return kind(message)


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _require_ours(connection: sqlite3.Connection, path: str) -> None:
    """Raise an error for a file that is not a consensus file, before a statement changes it."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version < FORMAT_VERSION:
        raise CorruptionError(f"{path} is not a consensus file of Timespine")
    if version > FORMAT_VERSION:
        raise VersionError(f"{path} has format {version}, newer than {FORMAT_VERSION}: upgrade to read it")
    if connection.execute(_TABLES).fetchall() != [(2, SCHEMA)]:
        raise CorruptionError(f"{path} does not have the tables of a consensus file")


def _create_if_missing(path: str, mark: SqliteMark, mode: int) -> None:
    """Make the file elsewhere and link it into place, so that an empty file here is never a new one.

    Its mark exists before it. So a file without a mark has lost it.
    """
    log = path + "-wal"
    orphaned = os.path.lexists(log)  # SUBTLE: look first, or another creator's log looks orphaned
    is_missing = not os.path.lexists(path)
    counted = mark.found() if is_missing else None
    if os.path.lexists(path):  # SUBTLE: look last, or entries that another creator counts look lost
        return
    if counted is not None and counted.entries:
        raise CorruptionError(
            f"{path} is gone, and {mark.path} counts {counted.entries} entries of it: "
            "restore the store from a copy, or remove the whole store to start anew"
        )
    if orphaned:
        raise CorruptionError(f"{log} has lost its database: restore {path}, or remove both to start anew")
    mark.create(mode)
    temporary = f"{path}.new-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        os.close(open_regular(temporary, os.O_RDWR | os.O_CREAT, mode))  # SQLite gives its log the same mode
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            for statement in _CREATE:
                connection.execute(statement)
        finally:
            connection.close()
        sync_path(temporary)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()

_inherited: set[str] = set()
"""The files that the parent of a forked child had open: SQLite believes here that it holds the parent's locks."""


def _before_fork() -> None:
    frame: FrameType | None = sys._getframe(1) if sys._getframe().f_back is not None else sys._getframe()
    while frame is not None and not can_hold(frame):
        frame = frame.f_back
    for file in list(_files):
        file.pause(frame or sys._getframe())


def _after_fork_in_parent() -> None:
    for file in list(_files):
        file.resume()


def _after_fork_in_child() -> None:
    """Leave everything to the parent: inherited handles refuse every call, and do nothing when they are dropped."""
    _inherited.update(file.path for file in list(_files) if not file.is_paused)
    _files.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
