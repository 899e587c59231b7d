"""The session of a process: one thread commits with it while others read states with it."""

from __future__ import annotations

import re
from collections import deque
from functools import cache

from timespine.client.commit.effect_driver import fresh_id
from timespine.config import Config
from timespine.core.group import CommandTransaction
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.locks import Lock

UNREAD_MAX = 1024
"""Events after which the thread that counts adds them up."""


@cache
def _counter(command: str) -> str:
    """Name the counter of a kind of command: "commands append next" for AppendNext."""
    return "commands " + re.sub(r"(?<!^)(?=[A-Z])", " ", command).lower()


class SharedCounters:
    """Counters of many threads. To count is one call of a deque, which needs no lock; a reader adds up."""

    def __init__(self) -> None:
        self._counted: deque[tuple[str, int]] = deque()
        self._totals: dict[str, int] = {}
        self._adding_up = Lock("the counters of this process", follows_commit=True)

    def count(self, what: str, by: int) -> None:
        """Count an event."""
        self._counted.append((what, by))
        if len(self._counted) > UNREAD_MAX:
            self.totals()

    def totals(self) -> dict[str, int]:
        """Add up, and return all counters."""
        with self._adding_up:
            totals = self._totals
            while self._counted:
                what, by = self._counted.popleft()
                totals[what] = totals.get(what, 0) + by
            return dict(totals)


class SharedSession(Session):
    """A session of many threads: a thread with an old state does not replace a newer one."""

    def __init__(self, config: Config) -> None:
        self._shared_counters = SharedCounters()
        super().__init__(fresh_id("k"), fresh_id("w"), config)
        self._learning = Lock("what this process knows", follows_commit=True)

    @property
    def counters(self) -> dict[str, int]:
        """The counts of events."""
        return self._shared_counters.totals()

    @counters.setter
    def counters(self, counters: dict[str, int]) -> None:
        """Ignore the empty counters of a new session: they are in `SharedCounters`."""

    def count(self, what: str, by: int = 1) -> None:
        """Count an event."""
        self._shared_counters.count(what, by)

    def count_commands(self, transaction: CommandTransaction, *, failed: bool) -> None:
        """Count the commands of a transaction by their kinds, and the failed ones: all of them failed, or none."""
        for _, command in transaction.commands:
            self.count(_counter(type(command).__name__))
        if failed:
            self.count("commands failed", len(transaction.commands))

    def remember_state(self, state: State) -> None:
        """Keep a state, unless a newer one is known."""
        with self._learning:
            known = self.states.get(state.collection)
            if known is None or known.seqno <= state.seqno:
                self.states[state.collection] = state

    def renewed(self) -> SharedSession:
        """Return a session under fresh ids that shares the states of this one."""
        session = self.beside()
        session._shared_counters = self._shared_counters
        return session

    def beside(self) -> SharedSession:
        """Return a session of the same process with ids and counters of its own, which shares its states.

        Otherwise each would replay the commits of the other.
        """
        session = SharedSession(self.config)
        session.states, session._learning = self.states, self._learning
        return session
