"""Wake processes that wait for commits: NOTIFY, after the commit and beside it.

SUBTLE: not in the commit. A transaction with a notification takes a lock of the whole server when it commits, which
cost two thirds of the commits per second. A notice that is left out or lost costs its receiver one poll.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from timespine.errors import Determinate, TimespineError
from timespine.location.postgres.connections import Connections
from timespine.pool import Pool

NOTICE_S = 0.05
"""The least time between two notices of one process."""

LISTEN_S = 1.0
"""How long the listening thread waits before it looks whether the store was closed, or connects again."""


class ChangeNotices:
    """The notices of one store: sent and heard by threads of their own, which begin when they are needed."""

    def __init__(
        self,
        connections: Connections,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connections = connections
        self._monotonic, self._sleep = monotonic, sleep
        self._sent = -NOTICE_S
        self._is_pending = False
        """Whether a notice is on its way that covers every commit up to now."""
        self._is_heard = False
        self._pool = Pool(2, "timespine-notices", "the logs are closed: open the store again")

    def announce(self, channel: str) -> None:
        """Tell other processes soon that there is a commit. Never an error."""
        if not self._is_pending:
            self._is_pending = True
            with contextlib.suppress(TimespineError):
                self._pool.submit(self._send, channel)

    def listen(self, channel: str, ring: Callable[[], None]) -> None:
        """Call `ring` whenever another process announces a commit, from now on until the logs are closed."""
        if not self._is_heard:
            self._is_heard = True
            self._pool.submit(self._listen, channel, ring)

    def close(self) -> None:
        """Let the threads end. The one that listens looks once a second whether the logs are closed."""
        self._pool.shutdown(wait=False)

    def _send(self, channel: str) -> None:
        early_s = self._sent + NOTICE_S - self._monotonic()
        if early_s > 0:
            self._sleep(early_s)
        self._is_pending = False  # before the notice: a commit after this point needs another one
        self._sent = self._monotonic()
        statement = sql.SQL("NOTIFY {}").format(sql.Identifier(channel))
        with contextlib.suppress(TimespineError):
            self._connections.run(lambda connection: connection.execute(statement), Determinate)

    def _listen(self, channel: str, ring: Callable[[], None]) -> None:
        statement = sql.SQL("LISTEN {}").format(sql.Identifier(channel))
        while not self._connections.closed:
            with contextlib.suppress(TimespineError, psycopg.Error), self._connections.connect_alone() as connection:
                if connection.is_pooled:  # LISTEN belongs to a session: readers look once a second
                    return
                connection.execute(statement)
                ring()  # for what was announced before this thread listened
                while not self._connections.closed:
                    for _ in connection.notifies(timeout=LISTEN_S, stop_after=1):
                        ring()
            if not self._connections.closed:
                self._sleep(LISTEN_S)
