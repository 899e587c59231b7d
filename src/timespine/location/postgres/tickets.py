"""Tickets: processes that keep losing compare-and-sets of one log to each other take turns.

A compare-and-set that lost twice in a row waits for the ticket of its log before it reports the loss. So its caller
reads, judges and tries again while the others wait, and usually wins. A ticket is politeness: it decides nothing, a
process without one may still win, and the compare-and-set stays the truth.

A ticket is a session advisory lock, on a connection of its own. Every wait ends: a process waits for `WAIT_MS` at most,
and the server ends a session that holds a ticket and is silent for `HOLD_MS`, so a process that was suspended holds up
no other one. Only contention costs anything: two statements for each ticket. Behind a pooler, where
a session belongs to no process, there are no tickets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from timespine.errors import Determinate, TimespineError
from timespine.location.postgres.connections import SETTINGS, Connections, LimitedConnection
from timespine.locks import Lock

LOSSES = 2
"""Compare-and-sets of a log that a process loses in a row before it asks for a ticket."""

WAIT_MS = 250
"""The longest wait for a ticket. Then the process goes on without one."""

HOLD_MS = 1000
"""How long a session may be silent while it has a ticket. Then the server ends it, and the ticket is free."""

VERSION_MIN = 140_000
"""The first version of PostgreSQL that ends silent sessions. Older ones have no tickets."""

_TAKE = b"SELECT set_config('idle_session_timeout', %b, false), pg_advisory_lock(%b::int, hashtext(%b::text))"
_RETURN = b"SELECT pg_advisory_unlock_all(), set_config('idle_session_timeout', '0', false)"


class Tickets:
    """The tickets of one adapter. It has one at a time, so that no two processes wait for each other."""

    def __init__(self, conninfo: str, call_s: float) -> None:
        limits = {"lock_timeout": f"{WAIT_MS}ms"}
        self._connections = Connections(conninfo, call_s=call_s, lanes=1, settings=SETTINGS | limits)
        self._lock = Lock("the ticket of this process")
        self._losses: dict[str, int] = {}
        """By log, the compare-and-sets that were lost in a row."""
        self._held: str | None = None
        """The log whose ticket this process has, or had until the server took it back."""
        self._has_tickets = True

    def lost(self, store: int, keys: Iterable[str]) -> None:
        """Note that a compare-and-set of these logs was lost; wait for a ticket if that happens again and again."""
        again = []
        for key in sorted(keys):
            self._losses[key] = self._losses.get(key, 0) + 1
            if self._losses[key] >= LOSSES:
                again.append(key)
        if not again or not self._has_tickets or self._lock.is_held:
            return
        with contextlib.suppress(TimespineError), self._lock.within(WAIT_MS / 1000):
            if self._held != again[0]:
                self._give_back()
            self._has_tickets = self._connections.run(_has_tickets, Determinate)
            if self._has_tickets:
                limit = f"{HOLD_MS}ms"  # of the session, while it has a ticket
                arguments = (limit, store, again[0])
                self._connections.run(lambda each: each.execute(_TAKE, arguments, binary=True), Determinate)
                self._held = again[0]

    def won(self, keys: Iterable[str]) -> None:
        """Note that a compare-and-set of these logs is in; give the ticket back, if this process has one of them."""
        if self._losses:
            for key in keys:
                self._losses.pop(key, None)
        if self._held is not None and self._held not in self._losses:
            with contextlib.suppress(TimespineError), self._lock.within(WAIT_MS / 1000):
                self._give_back()

    def close(self) -> None:
        """End the session, and with it a ticket."""
        self._connections.close()

    def _give_back(self) -> None:
        if self._held is not None:
            self._held = None
            self._connections.run(lambda each: each.execute(_RETURN), Determinate)


def _has_tickets(connection: LimitedConnection) -> bool:
    return connection.info.server_version >= VERSION_MIN and not connection.is_pooled
