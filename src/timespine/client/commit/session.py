"""The session of a process: one thread commits with it while others read states with it."""

from __future__ import annotations

from timespine.client.commit.driver import fresh_id
from timespine.config import Config
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.locks import Lock


class SharedSession(Session):
    """A session of many threads: whoever comes late with an old state makes nobody forget a newer one."""

    def __init__(self, config: Config) -> None:
        super().__init__(fresh_id("k"), fresh_id("w"), config)
        self._learning = Lock("what this process knows")

    def count(self, what: str, by: int = 1) -> None:
        """Count an event."""
        with self._learning:
            super().count(what, by)

    def learn(self, state: State) -> None:
        """Keep a state, unless a newer one is known."""
        with self._learning:
            super().learn(state)

    def renewed(self) -> SharedSession:
        """A session under fresh ids that knows what this one knows, and goes on sharing it."""
        session = self.beside()
        session.counters = self.counters
        return session

    def beside(self) -> SharedSession:
        """A session of the same process with ids and counters of its own: what the one learns the other knows.

        Otherwise each would replay what the other has committed.
        """
        session = SharedSession(self.config)
        session.states, session._learning = self.states, self._learning
        return session
