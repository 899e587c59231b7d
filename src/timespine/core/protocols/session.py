"""What one process knows: cached states, and the numbering of its commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from timespine.config import DEFAULT, Config
from timespine.core.effects import Effect, Protocol, Sleep
from timespine.core.group import Group, Judged
from timespine.core.state import State
from timespine.errors import Determinate, NoSpace, Unavailable

T = TypeVar("T")


@dataclass(slots=True)
class Frozen:
    """A group whose outcome is unknown, with exactly the bytes that were sent."""

    group: Group
    judged: Judged
    writes: tuple[tuple[str, int | None, bytes], ...]


@dataclass(slots=True)
class Session:
    """One process and store. Not for several threads at once: `client.commit.session` has one that is."""

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
    frozen: Frozen | None = None
    """What must be resolved before anything else is committed."""
    counters: dict[str, int] = field(default_factory=dict)
    """How often what happened: commits, compare-and-sets lost, retries, reloads."""

    def count(self, what: str, by: int = 1) -> None:
        """Count an event."""
        self.counters[what] = self.counters.get(what, 0) + by

    def state(self, collection: str) -> State:
        """The cached state; whoever calls this has opened the collection."""
        return self.states[collection]

    def learn(self, state: State) -> None:
        """Keep a state, unless a newer one is known."""
        known = self.states.get(state.collection)
        if known is None or known.seqno <= state.seqno:
            self.states[state.collection] = state


def retried(session: Session, effect: Effect) -> Protocol[Any]:
    """An effect that may be repeated, tried again a bounded number of times while storage is unavailable."""
    return _tried(session, effect, Unavailable)


def determinately_retried(session: Session, effect: Effect) -> Protocol[Any]:
    """An effect that must not be repeated unless it surely did not happen."""
    return _tried(session, effect, Determinate)


def _tried(session: Session, effect: Effect, failure: type[Unavailable]) -> Protocol[Any]:
    """An effect, again after one kind of failure; the last try fails for good."""
    for attempt in range(session.config.storage_attempts - 1):
        try:
            return (yield effect)
        except NoSpace:
            raise  # it takes more than a moment until there is space
        except failure:
            session.count("retries")
            yield Sleep(pause_ms(session.config, attempt))
    return (yield effect)


def pause_ms(config: Config, attempt: int) -> int:
    """How long to wait before the next try: doubling, bounded."""
    return min(config.retry_pause_ms << min(attempt, 16), config.retry_pause_max_ms)
