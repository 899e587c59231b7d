"""The Consensus port on PostgreSQL: one function, and one round trip, for a compare-and-set over any number of keys."""

from __future__ import annotations

import uuid
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg.types.numeric import Int8

from timespine.errors import CorruptionError, Determinate, Indeterminate, ReadOnlyStore, UsageError, VersionError
from timespine.location.checks import check_key, check_scan, check_text, check_truncate, check_writes
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.machine.channel import Channel
from timespine.location.machine.remote_roles import RemoteRoles
from timespine.location.machine.role import Role
from timespine.location.postgres.change_notices import ChangeNotices
from timespine.location.postgres.connections import CALL_S, Connection, Connections
from timespine.location.postgres.migration import version_of
from timespine.location.postgres.schema import VERSION
from timespine.location.postgres.tickets import Tickets

CONFLICT_ATTEMPTS = 8
"""How often a compare-and-set is tried that the server aborts because of another one."""

_COMPARE_AND_SET = """SELECT key, head FROM timespine.compare_and_set(
    %b::int, %b::bigint, %b::text[], %b::bigint[], %b::bytea[], %b::bigint[])"""
_TRUNCATE = "SELECT timespine.truncate_log(%b::int, %b::bigint, %b::text, %b::bigint)"
_FENCE = "SELECT timespine.fence_store(%b::int, %b::bigint)"
_FORGET = "SELECT timespine.forget_log(%b::int, %b::bigint, %b::text, %b::bigint)"
_SCAN = """SELECT l.first, l.head, e.seqno, e.checksum, e.data FROM timespine.logs l LEFT JOIN LATERAL (
    SELECT seqno, checksum, data FROM timespine.entries
    WHERE store = l.store AND key = l.key AND seqno >= {start} ORDER BY seqno LIMIT %b::bigint
) e ON true WHERE l.store = %b::int AND l.key = %b::text AND l.head >= 0 ORDER BY e.seqno"""
_SCAN_FROM = _SCAN.format(start="%b::bigint")
_HEAD = _SCAN.format(start="l.head")
_HEADS = """SELECT key, head FROM timespine.logs
    WHERE store = %b::int AND key = ANY (%b::text[]) AND head >= 0"""
_KEYS = """SELECT key FROM timespine.logs
    WHERE store = %b::int AND head >= 0 AND key >= %b::text AND starts_with(key, %b::text) ORDER BY key"""


class PostgresConsensus:
    """Consensus for processes on any machines, as durable as the database."""

    def __init__(
        self, conninfo: str, store: str, epoch: int | None = 0, *, read_only: bool = False, call_s: float = CALL_S
    ) -> None:
        self._connections = Connections(conninfo, call_s=call_s)
        # SUBTLE: before the finalizer. At the end of the process the last one runs first: connections close, so that
        # the listening thread ends, and only then its pool waits for it.
        self._notices = ChangeNotices(self._connections)
        self._tickets = Tickets(conninfo, call_s)
        weakref.finalize(self, self._connections.close)
        weakref.finalize(self, self._tickets.close)
        self._roles = RemoteRoles(store)
        self._read_only = read_only
        self._heads: dict[str, int] = {}
        """The newest head of each key that this process has seen."""
        try:
            self._store, self._epoch, self._forgotten = self._connections.run(
                lambda connection: _identify(connection, store, epoch), Determinate
            )
        except BaseException:
            self._connections.close()
            raise

    def head(self, key: str) -> LogEntry | None:
        check_key(key)
        entries = self._read(key, 0, _HEAD, (1, self._store, key))
        return entries[-1] if entries else None

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        check_scan(key, from_seqno, limit)
        return self._read(key, from_seqno, _SCAN_FROM, (Int8(from_seqno), limit, self._store, key), limit)

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        writes = sorted(check_writes(writes), key=lambda write: write.key)
        self._check_writable()
        floors = {write.key: self._heads.get(write.key) for write in writes}
        arguments = (
            self._store,
            Int8(self._epoch),
            [write.key for write in writes],
            [None if write.expected is None else Int8(write.expected) for write in writes],
            [write.data for write in writes],
            [Int8(_checksum(write.key, write.seqno, write.data)) for write in writes],
        )
        rows = self._call(_COMPARE_AND_SET, arguments)
        if not rows:
            self._heads.update({write.key: write.seqno for write in writes})
            self._tickets.won(write.key for write in writes)
            self._notices.announce(self._channel)
            return None
        lost = dict(rows)
        for key, head in lost.items():
            self._check_forward(key, head, floors[key])
        self._tickets.lost(self._store, lost)
        return lost

    def truncate(self, key: str, below: int) -> int:
        check_truncate(key, below)
        self._check_writable()
        dropped: int = self._call(_TRUNCATE, (self._store, Int8(self._epoch), key, Int8(below)))[0][0]
        return dropped

    @property
    def epoch(self) -> int:
        return self._epoch

    def fence(self) -> int:
        self._check_writable()
        self._epoch = int(self._call(_FENCE, (self._store, Int8(self._epoch)))[0][0])
        return self._epoch

    def forget(self, key: str, expected: int) -> bool:
        check_key(key)
        self._check_writable()
        is_gone = bool(self._call(_FORGET, (self._store, Int8(self._epoch), key, Int8(expected)))[0][0])
        if is_gone:
            self._heads.pop(key, None)
            self._forgotten += 1
        return is_gone

    def heads(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the newest number of each key, None for those never written, as of one moment."""
        floors = {key: self._heads.get(check_key(key)) for key in keys}
        found = dict(self._query(_HEADS, (self._store, list(keys))))
        for key, floor in floors.items():
            self._check_forward(key, found.get(key), floor)
        return {key: found.get(key) for key in keys}

    def list_keys(self, prefix: str = "") -> list[str]:
        if not check_text(prefix, "prefix").isascii() or "\0" in prefix:
            self._connections.check()
            return []  # keys are ASCII without NUL
        return [key for (key,) in self._query(_KEYS, (self._store, prefix, prefix))]

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:
        """Do nothing: the database has its own disk."""

    def listen(self, ring: Callable[[], None]) -> None:
        """Call `ring` soon after another process has committed. A notice may get lost."""
        self._connections.check()
        self._notices.listen(self._channel, ring)

    def role(self, name: str) -> Role:
        """Return a role among the processes of this machine that have these logs open."""
        return self._roles.role(check_text(name, "role"))

    def channel(self, name: str) -> Channel | None:
        """Return a role with requests to the process of this machine that has it."""
        return self._roles.channel(check_text(name, "role"))

    def close(self) -> None:
        self._connections.close()
        self._tickets.close()
        self._notices.close()

    @property
    def _channel(self) -> str:
        return f"timespine_{self._store}"

    def _read(
        self, key: str, start: int, statement: str, arguments: tuple[Any, ...], limit: int | None = None
    ) -> list[LogEntry]:
        """Read entries of a log as of one moment, and check that they are what was written, without gaps."""
        floor = self._heads.get(key)  # SUBTLE: before the statement; another thread may learn a later head meanwhile
        rows = self._query(statement, arguments)
        head = rows[0][1] if rows else None
        self._check_forward(key, head, floor)
        if head is None:
            return []
        entries = [_entry(key, *row[2:]) for row in rows if row[2] is not None]
        first = head if statement is _HEAD else max(start, rows[0][0])
        wanted = range(first, head + 1)[:limit]
        if [entry.seqno for entry in entries] != list(wanted):
            raise CorruptionError(f"the log of {key} has gaps: entries {first} to {head} are not all there")
        return entries

    def _check_forward(self, key: str, head: int | None, floor: int | None) -> None:
        """Refuse a log that went back; otherwise remember its head."""
        if floor is not None and head is None and self._has_forgotten():
            self._heads.pop(key, None)
            return
        if floor is not None and (head is None or head < floor):
            raise CorruptionError(
                f"the log of {key} went back from entry {floor} to {head}: the database was restored, or a standby "
                "without the last commits took over; stop all processes, and restore the blobs of that time too"
            )
        if head is not None and head > self._heads.get(key, -1):
            self._heads[key] = head

    def _has_forgotten(self) -> bool:
        """Tell whether logs were removed since this process looked: a log that is gone need not be lost then."""
        ((count,),) = self._query("SELECT forgotten FROM timespine.stores WHERE id = %b::int", (self._store,))
        before, self._forgotten = self._forgotten, count
        return bool(count > before)

    def _query(self, statement: str, arguments: tuple[Any, ...]) -> list[Any]:
        return self._connections.run(lambda connection: _rows(connection, statement, arguments), Determinate)

    def _call(self, statement: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Run a statement that changes logs; try again if the server aborted it because of another one."""
        for attempt in range(CONFLICT_ATTEMPTS):
            try:
                return self._connections.run(lambda connection: _rows(connection, statement, arguments), Indeterminate)
            except Determinate as error:
                is_conflict = "SerializationFailure" in str(error) or "DeadlockDetected" in str(error)
                if not is_conflict or attempt == CONFLICT_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _check_writable(self) -> None:
        self._connections.check()
        if self._read_only:
            raise ReadOnlyStore("the logs are open for reading only")


def register_store(conninfo: str, store: str) -> None:
    """Make a new store known to the database."""
    connections = Connections(conninfo, lanes=1)
    try:
        connections.run(_check_version, Determinate)
        statement = "SELECT timespine.register_store(%b::uuid)"
        connections.run(lambda connection: _rows(connection, statement, (uuid.UUID(store),)), Indeterminate)
    finally:
        connections.close()


def _rows(connection: Connection, statement: str, arguments: tuple[Any, ...]) -> list[Any]:
    return connection.execute(statement.encode(), arguments, binary=True).fetchall()


def _check_version(connection: Connection) -> None:
    """Refuse tables of another version, and a server that would lose commits."""
    found = version_of(connection)
    if found > VERSION:
        raise VersionError(f"the tables of the logs are of version {found}: this version of Timespine knows {VERSION}")
    if found < VERSION:
        raise UsageError("the database has no tables of this version: create them with timespine migrate ADDRESS")
    if connection.execute("SHOW fsync").fetchone() == ("off",):
        raise UsageError("the server runs with fsync = off and would lose commits in a crash: turn it on")


def _identify(connection: Connection, store: str, epoch: int | None) -> tuple[int, int, int]:
    """Return the number of a store in this database, its epoch, and how many of its logs were removed.

    Refuse a database of other stores, and another epoch than the given one.
    """
    _check_version(connection)
    statement = "SELECT id, epoch, forgotten FROM timespine.stores WHERE store = %b::uuid"
    found = _rows(connection, statement, (uuid.UUID(store),))
    if not found:
        raise UsageError(f"this database does not have the logs of store {store}: give the address of the one that has")
    number, known, forgotten = found[0]
    if epoch is not None and known != epoch:
        raise UsageError(
            f"the descriptor of store {store} is of epoch {epoch}, and its logs are of epoch {known}: one of them was "
            "restored without the other, or a fence was interrupted; run `timespine fence` once they belong together"
        )
    return int(number), int(known), int(forgotten)


def _checksum(key: str, seqno: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{key}/{seqno}/".encode()))


def _entry(key: str, seqno: int, checksum: int, data: bytes) -> LogEntry:
    if checksum != _checksum(key, seqno, data):
        raise CorruptionError(f"entry {seqno} of {key} is not what was written")
    return LogEntry(seqno, bytes(data))
