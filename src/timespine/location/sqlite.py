"""The Consensus port as one SQLite file: the embedded default.

WAL with synchronous=FULL: a commit is one append and one fsync, and readers
never wait for writers. The table is WITHOUT ROWID: with 200-byte entries, and
10 MB now and then, commits cost the same as with a rowid, scans about a third
and truncation a fifth.

Three things are not obvious:

- *Turns.* SQLite's own waiting (busy_timeout) lets whoever asks most often win:
  with four processes some wait for seconds. So writers take turns on two file
  locks (`WriteLine`). All checkpoints run inside a turn too, which keeps clear
  of a race between them that can corrupt the file before SQLite 3.51.3
  (sqlite.org/wal.html#walresetbug).
- *Forks.* A forked child inherits SQLite's belief that the process holds its
  locks; a connection opened there can lose acknowledged commits when the parent
  closes. So all connections are closed before a fork, and both sides open new
  ones when they need them.
- *Locks of POSIX.* Closing any descriptor of the database file drops all locks
  of the process on it. SUBTLE: never open the file except through SQLite.

SQLite keeps no checksums, so every entry has one, and opening checks the
structure of the whole file (1.5 ms per MB; truncation keeps it small).

There is one connection for reading and one for writing, each behind a lock of
its own: readers do not wait for turns, and nothing is tied to a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import sqlite3
import threading
import time
import urllib.parse
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from timespine.errors import CorruptionError, Determinate, Indeterminate, Unavailable, UsageError, VersionError
from timespine.ids import check_segment
from timespine.location.consensus import Entry, Write
from timespine.location.local import sync, sync_folder
from timespine.location.memory import check_limit, check_number, check_text, check_writes

APPLICATION_ID = 0x54535043
"""In the header of every file of ours: "TSPC"."""

FORMAT_VERSION = 1
"""In the header as user_version. Higher is refused; there is no lower yet."""

WAIT_S = 10.0
"""How long a call waits, by default, for its turn."""

WAIT_S_MAX = 3600.0
"""The longest wait that can be asked for."""

BEHIND_S = 3e-4
"""Between two looks at the place of the next in line; the same for all, so that nobody is favoured."""

NEXT_S = 2e-5
"""Between two looks of the next in line at the turn, while it can come any moment."""

SLOW_S = 1e-3
"""The same, once it is clear that something takes long."""

SCHEMA = """CREATE TABLE entries (
    key TEXT NOT NULL,
    seqno INTEGER NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (key, seqno)
) STRICT, WITHOUT ROWID"""
"""The only table. `checksum` is the CRC-32 of key, seqno and data: SQLite has none of its own."""

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

_ERRORS = (sqlite3.Error, MemoryError, UnicodeDecodeError)  # all that comes out of the sqlite3 module
_NOT_OURS = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_CONSTRAINT,  # the head that was read is not the head that is indexed
        sqlite3.SQLITE_ERROR,  # our statements are right, so the table is not
    }
)

# fmt: off
_NETWORK = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs",
})
_LOCAL_FUSE = frozenset({
    "fuse.bindfs", "fuse.encfs", "fuse.ext4", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs",
    "fuse.ntfs-3g", "fuse.zfs",
})
# fmt: on


class SqliteConsensus:
    """Consensus for the processes of one machine, durable against power loss."""

    def __init__(self, path: str | os.PathLike[str], *, wait_s: float = WAIT_S) -> None:
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise UsageError(f"wait_s {wait_s!r} is not from 0 to {WAIT_S_MAX} seconds")
        if sqlite3.sqlite_version_info < (3, 37):
            raise UsageError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
        self._database = _Database(os.path.realpath(os.fspath(path)), wait_s)
        weakref.finalize(self, self._database.close)

    def head(self, key: str) -> Entry | None:
        check_segment(key, "consensus key")
        with self._database.reading() as connection:
            rows = connection.execute(_NEWEST, (key,)).fetchall()
        return _entries(key, rows)[0] if rows else None

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[Entry]:
        check_segment(key, "consensus key")
        check_number(from_seqno, "from_seqno")
        rows_max = -1 if check_limit(limit) is None else limit
        with self._database.reading() as connection:
            connection.execute("BEGIN")  # both statements see one moment
            rows = connection.execute(_SCAN, (key, from_seqno, rows_max)).fetchall()
            newest = _newest_seqno(connection, key)
            connection.execute("COMMIT")
        entries = _entries(key, rows)
        reached = entries[-1].seqno if entries else from_seqno - 1
        if newest is not None and reached < newest and len(entries) != limit:
            raise CorruptionError(f"the log of {key} breaks off after entry {reached}")
        return entries

    def compare_and_set(self, writes: Sequence[Write]) -> Mapping[str, int | None] | None:
        writes = check_writes(writes)
        with self._database.writing() as connection:
            heads = {write.key: _newest_seqno(connection, write.key) for write in writes}
            differing = {write.key: heads[write.key] for write in writes if heads[write.key] != write.expected}
            if differing:
                return differing
            connection.executemany(_INSERT, map(_row, writes))
        return None

    def truncate(self, key: str, below: int) -> int:
        check_segment(key, "consensus key")
        check_number(below, "below")
        with self._database.writing() as connection:
            newest = _newest_seqno(connection, key)
            if newest is None:
                return 0
            return connection.execute(_TRUNCATE, (key, min(below, newest))).rowcount

    def list_keys(self, prefix: str = "") -> list[str]:
        if not check_text(prefix, "prefix").isascii():
            prefix = "\x7f"  # keys are ASCII, and all below this
        with self._database.reading() as connection:
            found = [key for (key,) in connection.execute(_KEYS, (prefix, prefix + "\x7f"))]
        return sorted(found)

    def close(self) -> None:
        self._database.close()


def _checksum(key: str, seqno: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{key}/{seqno}/".encode()))


def _row(write: Write) -> tuple[str, int, bytes, int]:
    seqno = 0 if write.expected is None else write.expected + 1
    return write.key, seqno, write.data, _checksum(write.key, seqno, write.data)


def _entries(key: str, rows: list[Any]) -> list[Entry]:
    """Rows as entries, if they are what was written: whole, and without gaps."""
    entries = []
    for offset, (seqno, data, checksum) in enumerate(rows):
        if not isinstance(data, bytes) or checksum != _checksum(key, seqno, data):
            raise CorruptionError(f"entry {seqno!r:.40} of {key} is not what was written")
        if seqno != rows[0][0] + offset:
            raise CorruptionError(f"the log of {key} has a gap before entry {seqno}")
        entries.append(Entry(seqno, data))
    return entries


def _newest_seqno(connection: sqlite3.Connection, key: str) -> int | None:
    row = connection.execute(_NEWEST_SEQNO, (key,)).fetchone()
    if row is not None and not isinstance(row[0], int):
        raise CorruptionError(f"the log of {key} has a number that is none")
    return None if row is None else row[0]


class WriteLine:
    """Where the writers of all processes stand in line for their turn.

    One file lock is the turn, another the place of the next in line. Whoever
    finishes and wants another turn finds that place taken and cannot push in,
    as it could with one lock alone, where the one that never slept wins
    (`bench/consensus.py` measures both, and neither).

    Waiting is polling, because it must end in time and a blocking flock does
    not. Only the next in line asks often, so the cost is that of one poller.
    The kernel frees the locks of a process that dies.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = os.open(path + ".lock", flags, 0o666)
        try:
            self._next = os.open(path + ".next", flags, 0o666)
        except OSError:
            os.close(self._turn)
            raise

    def enter(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (of time.monotonic); whether it came."""
        try:
            return _poll(self._next, deadline, BEHIND_S, BEHIND_S) and _poll(self._turn, deadline, NEXT_S, SLOW_S)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def leave(self) -> None:
        """End the turn; without effect if it never came."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._next)


def _poll(fd: int, deadline: float, pause_s: float, slow_s: float) -> bool:
    """Ask for the lock until the deadline: every `pause_s`, and after some 20 ms every `slow_s`."""
    asked = 0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        asked += 1
        time.sleep(pause_s if asked < 200 else slow_s)


class _Database:
    """The file, its connections, and who may use them when."""

    def __init__(self, path: str, wait_s: float) -> None:
        self.path = path
        self.wait_s = wait_s
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._line: WriteLine | None = None
        self._pid = os.getpid()
        self._paused = False
        self._closed = False
        if not os.path.isdir(os.path.dirname(path)):
            raise UsageError(f"the folder of {path} does not exist: create it first")
        refuse_network_file_system(path, mount_table())
        try:
            _create_if_missing(path)
            sync_folder(os.path.dirname(path))
        except (OSError, sqlite3.Error) as error:
            raise Determinate(f"cannot open {path}: {error}") from error
        with self.reading() as connection:
            (report,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if report != "ok":
            self.close()
            raise CorruptionError(f"{path} is damaged: {report:.200}")
        _databases.add(self)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for reading; a statement outside a transaction sees one moment."""
        with self._holding(self._reading):
            try:
                self._reader = self._reader or self._connect(*_CONFIGURE_READER)
                yield self._reader
            except BaseException as error:
                _close(self._reader)
                self._reader = None
                if isinstance(error, _ERRORS):
                    raise self._failure(error, Determinate) from error
                raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction in one turn: committed when the block ends, gone when it raises."""
        deadline = time.monotonic() + self.wait_s
        with self._holding(self._writing):
            try:
                self._line = self._line or WriteLine(self.path)
                if not self._line.enter(deadline):
                    raise Determinate(f"{self.path} was not written: no turn within {self.wait_s} s")
                with self._transaction() as connection:
                    yield connection
            except OSError as error:
                raise Determinate(f"cannot lock {self.path}: {error}") from error
            finally:
                if self._line is not None:
                    self._line.leave()

    @contextlib.contextmanager
    def _holding(self, lock: threading.Lock) -> Iterator[None]:
        """The lock, in the process and for the time that this object is good for."""
        if self._pid != os.getpid():
            raise UsageError(f"{self.path} was in use during a fork: open it again in the child")
        if not lock.acquire(timeout=self.wait_s):
            raise Determinate(f"{self.path} was busy for {self.wait_s} s")
        try:
            if self._closed:
                raise UsageError("this consensus adapter is closed")
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        kind: type[Unavailable] = Determinate
        try:
            self._writer = self._writer or self._connect()
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer
            kind = Indeterminate  # SUBTLE: a commit record may be in the log although its fsync failed
            self._writer.execute("COMMIT")
        except BaseException as error:
            _close(self._writer)  # which rolls back
            self._writer = None
            if isinstance(error, _ERRORS):
                raise self._failure(error, kind) from error
            raise

    def close(self) -> None:
        if self._pid != os.getpid():
            return  # not ours: the locks and connections of another process
        with self._writing, self._reading:
            self._closed = True
            self._close_all()

    def pause(self) -> None:
        """Before a fork: nothing open, nobody inside."""
        if self._writing.acquire(timeout=self.wait_s):
            if self._reading.acquire(timeout=self.wait_s):
                self._close_all()
                self._paused = True
            else:
                self._writing.release()

    def resume(self) -> None:
        """After a fork, on both sides."""
        if self._paused:
            self._paused = False
            self._pid = os.getpid()
            self._reading.release()
            self._writing.release()

    def _close_all(self) -> None:
        _close(self._reader)
        _close(self._writer)
        if self._line is not None:
            self._line.close()
        self._reader = self._writer = self._line = None

    def _connect(self, *pragmas: str) -> sqlite3.Connection:
        """A connection to the file that exists, once it is known to be ours."""
        uri = f"file:{urllib.parse.quote(os.fsencode(self.path))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=self.wait_s, isolation_level=None, check_same_thread=False)
        try:
            _require_ours(connection, self.path)
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise UsageError(f"{self.path} is in a place where SQLite cannot keep a write-ahead log")
            for pragma in _CONFIGURE + pragmas:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failure(self, error: Exception, kind: type[Unavailable]) -> Exception:
        """What an error of SQLite means to the caller; `kind` if it may work later."""
        if isinstance(error, sqlite3.ProgrammingError):
            return error  # our own bug
        code = getattr(error, "sqlite_errorcode", None)
        message = f"{self.path}: {getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
        if isinstance(error, MemoryError):
            return kind(message)
        if code is None or code & 0xFF in _NOT_OURS:  # without a code: text that is no text
            return CorruptionError(message)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Determinate(message)
        return kind(message)


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _require_ours(connection: sqlite3.Connection, path: str) -> None:
    """Refuse files of others before anything is changed in them."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version < FORMAT_VERSION:
        raise CorruptionError(f"{path} is not a consensus file of Timespine")
    if version > FORMAT_VERSION:
        raise VersionError(f"{path} has format {version}, newer than {FORMAT_VERSION}: upgrade to read it")
    if connection.execute(_TABLES).fetchall() != [(2, SCHEMA)]:
        raise CorruptionError(f"{path} does not have the tables of a consensus file")


def _create_if_missing(path: str) -> None:
    """Make the file elsewhere and link it into place, so that an empty file here is never a new one."""
    log = path + "-wal"
    orphaned = os.path.lexists(log)  # SUBTLE: looked at first, or another creator's log looks orphaned
    if os.path.lexists(path):
        return
    if orphaned:
        raise CorruptionError(f"{log} has lost its database: restore {path}, or remove both to start anew")
    temporary = f"{path}.new-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            for statement in _CREATE:
                connection.execute(statement)
        finally:
            connection.close()
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(fd)
        finally:
            os.close(fd)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def mount_table() -> str | None:
    """The text of /proc/self/mountinfo; None where there is none, and then nothing is checked."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return table.read()
    except OSError:
        return None


def refuse_network_file_system(path: str, table: str | None) -> None:
    """WAL needs shared memory, which the clients of a network file system do not have."""
    best, kind = "", ""
    for line in (table or "").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]).rstrip("/") + "/"
        if path.startswith(mount) and len(mount) >= len(best):  # the last mount at one place is on top
            best, kind = mount, after.split(" ")[0]
    fuse = (kind == "fuse" or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE
    if fuse or kind in _NETWORK:
        raise UsageError(
            f"{path} is on a network file system ({kind} at {best}): put the consensus file on a local disk,"
            " or use PostgreSQL or an object store for consensus"
        )


_databases: weakref.WeakSet[_Database] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_databases):
        database.pause()


def _after_fork() -> None:
    for database in list(_databases):
        database.resume()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
