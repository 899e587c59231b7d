"""The knowledge of one process: cached states, and the numbering of its commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from timespine.config import DEFAULT, Config
from timespine.core.effects import Effect, Protocol, Sleep
from timespine.core.group import Evaluated, Group
from timespine.core.state import State
from timespine.errors import Determinate, NoSpace, Unavailable

T = TypeVar("T")


@dataclass(slots=True)
class InDoubt:
    """A group whose outcome is unknown, with exactly the bytes that were sent."""

    group: Group
    judged: Evaluated
    writes: tuple[tuple[str, int | None, bytes], ...]


@dataclass(slots=True)
class Session:
    """One process and store.

    Not for several threads at once: `client.commit.shared_session` shares one among threads.
    """

    committer: str
    """Its committer id: fresh for every session."""
    writer: str
    """The writer id under which it puts its own blobs: fresh for every session."""
    config: Config = DEFAULT
    """Limits and defaults."""
    states: dict[str, State] = field(default_factory=dict)
    """The newest state it has seen, by collection."""
    group: int = 0
    """The number of its last group."""
    frozen: InDoubt | None = None
    """The group that must be resolved before the next commit."""
    counters: dict[str, int] = field(default_factory=dict)
    """Counts of events: commits, compare-and-sets lost, retries, reloads."""

    def count(self, what: str, by: int = 1) -> None:
        """Count an event."""
        self.counters[what] = self.counters.get(what, 0) + by

    def state(self, collection: str) -> State:
        """Return the cached state; the caller has opened the collection."""
        return self.states[collection]

    def remember_state(self, state: State) -> None:
        """Keep a state, unless a newer one is known."""
        known = self.states.get(state.collection)
        if known is None or known.seqno <= state.seqno:
            self.states[state.collection] = state

    def remember_commit(self, states: Iterable[State]) -> None:
        """Count a commit of this session, and keep the states that it made."""
        self.count("commits")
        for state in states:
            self.remember_state(state)


def retry(session: Session, effect: Effect) -> Protocol[Any]:
    """Carry out an effect that may be repeated, with a bounded number of retries while storage is unavailable."""
    return _try_effect(session, effect, Unavailable)


def retry_determinate(session: Session, effect: Effect) -> Protocol[Any]:
    """Carry out an effect that must not be repeated unless it surely did not happen."""
    return _try_effect(session, effect, Determinate)


def _try_effect(session: Session, effect: Effect, failure: type[Unavailable]) -> Protocol[Any]:
    """Carry out an effect, again after one kind of failure; the last attempt raises it."""
    for attempt in range(session.config.storage_attempts - 1):
        try:
            return (yield effect)
        except NoSpace:
            raise  # a short pause does not free space
        except failure:
            session.count("retries")
            yield Sleep(pause_ms(session.config, attempt))
    return (yield effect)


def pause_ms(config: Config, attempt: int) -> int:
    """Return the pause before the next attempt: doubling, bounded."""
    return min(config.retry_pause_ms << min(attempt, 16), config.retry_pause_max_ms)
