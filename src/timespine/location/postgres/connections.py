"""Connections to PostgreSQL: a fixed number of lanes, each with a connection that is made when it is needed.

A lane belongs to one call at a time, by a lock that an interrupt cannot leak. There is no thread behind the lanes, so
that a fork finds none. Every wait for the server has a limit on this side: a server behind a proxy that keeps the
connection open and answers nothing would otherwise hold its caller for ever.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import errors as failures

from timespine.errors import Determinate, Indeterminate, StoreFenced, TimespineError, UsageError, WrongProcess
from timespine.location.checks import check_open
from timespine.location.postgres.schema import FENCED, WRONG_ISOLATION
from timespine.locks import Lock

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

LANES = 8
"""Calls of one process that run at once; others wait."""

CONNECT_S = 10.0
"""How long a connection may take."""

CLOSE_S = 1.0
"""How long closing waits for a call of another thread."""

CALL_S = 60.0
"""How long a call waits for the server, at most: enough for an entry of the largest size on a slow network."""

SETTINGS = {
    "default_transaction_isolation": r"read\ committed",
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
"""What the adapter sets on its connections, whatever the defaults of the server are. At READ COMMITTED a statement that
waited for a lock sees the newest head; at SERIALIZABLE it would fail. A pooler drops them, so the functions that change
logs set for themselves what commits depend on (`schema.py`)."""

_ROLLED_BACK = ("40001", "40P01", "55P03", "57014", "53", "25006")
"""How the SQLSTATE of a failure begins after which the transaction was rolled back: a conflict, a lock or a statement
that took too long, a server without disk, memory or connections, a server that only reads."""


class LimitedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait for the server ends."""

    limit_s = CALL_S
    """How long one wait may take."""
    warned = False
    """Whether the server warned about the last statement: it may not have reached the standby."""
    expired = False
    """Whether a wait took longer than the limit."""
    is_pooled = False
    """Whether a pooler is between this process and the server: the next statement may go to another session."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        started = time.monotonic()
        try:
            return super().wait(gen, interval, self.limit_s if timeout is None else min(timeout, self.limit_s))
        except failures.OperationalError:
            self.expired = time.monotonic() - started >= self.limit_s
            raise


class _Lane:
    """One connection, and the lock of the call that uses it."""

    def __init__(self, number: int) -> None:
        self.lock = Lock(f"connection {number} to the logs", CALL_S)
        self.connection: LimitedConnection | None = None
        self.made_in = -1
        """The generation in which the connection was made."""


class Connections:
    """The connections of one adapter."""

    def __init__(
        self, conninfo: str, *, call_s: float = CALL_S, lanes: int = LANES, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._call_s = call_s
        self._lanes = [_Lane(number) for number in range(lanes)]
        self._turns = itertools.count()
        self._pid = os.getpid()
        self._generation = 0
        """A number that a lost connection raises: those made before it are probably lost, too."""
        self.closed = False

    def run(self, work: Callable[[LimitedConnection], T], kind: type[Determinate] | type[Indeterminate]) -> T:
        """Run statements on a connection. A failure that leaves their outcome open is of `kind`.

        With Determinate, the statements change nothing, and a connection that was lost is replaced once.
        """
        self.check()
        lane = next((each for each in self._lanes if not each.lock.is_held), None)
        if lane is None:
            lane = self._lanes[next(self._turns) % len(self._lanes)]
        with lane.lock.within(self._call_s):
            self.check()
            try:
                return self._run_in(lane, work, kind)
            finally:
                if self.closed:  # meanwhile, by another thread
                    _drop(lane)

    def _run_in(
        self, lane: _Lane, work: Callable[[LimitedConnection], T], kind: type[Determinate] | type[Indeterminate]
    ) -> T:
        may_repeat = kind is Determinate and lane.connection is not None
        while True:
            connection = self._connected(lane)
            try:
                result = self._run_on(lane, connection, work)
                break
            except psycopg.Error as error:
                failure = error
            if not may_repeat or lane.connection is not None or connection.expired:
                raise statement_failure(failure, kind)
            may_repeat = False
        if connection.warned and kind is Indeterminate:
            raise Indeterminate("the server warned about the commit: it may not be on its standby")
        return result

    def connect_alone(self) -> contextlib.closing[LimitedConnection]:
        """Make a connection beside the lanes, for a thread that listens."""
        self.check()
        return contextlib.closing(connect(self._conninfo, self._call_s, self._settings))

    def check(self) -> None:
        """Refuse a call after `close`, or in a forked child."""
        check_open(self.closed, "consensus")
        if self._pid != os.getpid():
            raise WrongProcess("the connections to the logs belong to the parent of this process: open the store again")

    def close(self) -> None:
        """Close all connections. In a forked child, leave them to its parent: closing would end its session."""
        if self.closed or self._pid != os.getpid():
            self.closed = True
            return
        self.closed = True
        for lane in self._lanes:
            with contextlib.suppress(TimespineError):  # busy: its call closes the connection when it ends
                _close(lane)

    def _run_on(self, lane: _Lane, connection: LimitedConnection, work: Callable[[LimitedConnection], T]) -> T:
        connection.warned = False
        try:
            return work(connection)
        except psycopg.Error as error:
            if connection.closed or error.sqlstate is None:
                _drop(lane)
                self._generation += 1
            raise
        except BaseException:  # an interrupt: the connection may be in the middle of a statement
            _drop(lane)
            raise

    def _connected(self, lane: _Lane) -> LimitedConnection:
        if lane.connection is not None and (lane.connection.closed or lane.made_in != self._generation):
            _drop(lane)
        if lane.connection is None:
            made = connect(self._conninfo, self._call_s, self._settings)
            lane.connection, lane.made_in = made, self._generation
        return lane.connection


def connect(conninfo: str, call_s: float, settings: Mapping[str, str] = SETTINGS) -> LimitedConnection:
    """Make a connection with the settings of the adapter; raise Determinate if there is none to be had."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    try:
        made = LimitedConnection.connect(
            conninfo,
            autocommit=True,
            connect_timeout=int(CONNECT_S),
            options=options,
            target_session_attrs="read-write",
            application_name="timespine",
            prepare_threshold=2,
        )
        made.limit_s = call_s
        _find_pooler(made)
    except psycopg.Error as error:
        raise connection_failure(error) from None

    def warn(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            made.warned = True

    made.add_notice_handler(warn)
    return made


def _find_pooler(connection: LimitedConnection) -> None:
    """Notice a pooler: what it says about the session when a connection begins is not what the server says.

    SUBTLE: behind it a statement that is prepared, a lock or a LISTEN may be left in the session of another client
    (test_pgbouncer.py).
    """
    found = connection.execute(b"SELECT pg_backend_pid()", binary=True).fetchone()
    if found != (connection.info.backend_pid,):
        connection.is_pooled, connection.prepare_threshold = True, None


def connection_failure(error: psycopg.Error) -> TimespineError:
    """Make the error for a connection that could not be made. The text of libpq names hosts and users, no passwords."""
    text = " ".join(str(error).split())[:300]
    if "unsupported startup parameter" in text:
        return UsageError(
            "a pooler before the database refuses the settings of a connection: add options to "
            "ignore_startup_parameters of pgbouncer"
        )
    return Determinate(f"no connection to the logs: {text}")


def statement_failure(error: psycopg.Error, kind: type[Determinate] | type[Indeterminate]) -> TimespineError:
    """Make the error of a port from the failure of a statement."""
    what = f"{type(error).__name__} {error.sqlstate or ''}".strip()
    if error.sqlstate == FENCED:
        return StoreFenced("the epoch of this store was raised: it was fenced or restored; close it and open it again")
    if error.sqlstate == WRONG_ISOLATION:
        return UsageError(
            "a pooler before the database drops the settings of a connection, and the database has another isolation "
            "than the logs need: ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
        )
    if error.sqlstate is not None and error.sqlstate.startswith(_ROLLED_BACK):
        return Determinate(f"the logs refused a statement: {what}")
    if isinstance(error, failures.InsufficientPrivilege):
        return UsageError(
            "this role may not use the logs in this way: grant it with timespine migrate --writer ROLE or --reader ROLE"
        )
    if isinstance(error, failures.UndefinedTable | failures.UndefinedFunction | failures.InvalidSchemaName):
        return UsageError("the database has no tables of Timespine: create them with timespine migrate ADDRESS")
    reason = "it broke, or the server did not answer" if error.sqlstate is None else f"the server failed with {what}"
    return kind(f"the connection to the logs was lost: {reason}")


def _close(lane: _Lane) -> None:
    """Close the connection of a lane that no call uses.

    SUBTLE: libpq crashes the process if one thread closes a connection while another one uses it.
    """
    with lane.lock.within(CLOSE_S):
        _drop(lane)


def _drop(lane: _Lane) -> None:
    found, lane.connection = lane.connection, None
    if found is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            found.close()
