"""What one thread of a user does: one call after the other, chosen by the seed, and only errors that have a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from timespine.client.collection import Collection
from timespine.client.read.leases import LeasedState
from timespine.client.signatures import Timeline
from timespine.client.store import Store
from timespine.errors import (
    ClosedError,
    CorruptionError,
    Fenced,
    HandleExpired,
    LeaseExpired,
    NotSealed,
    SinceError,
    StoreClosed,
    TimespineError,
    Unavailable,
    UnknownCollection,
    UpperMismatch,
    UsageError,
    VersionError,
)
from timespine.testing.simulator.violation import BrokenPromise, check_name
from timespine.testing.stores.answers import Answers, last_of
from timespine.testing.stores.calls import Call
from timespine.testing.stores.history import History, StoreProcess

KEYS = 6
"""Keys that rows have."""

SHAPE: dict[str, Any] = {"key": {"k": "int64"}, "value": {"v": "string"}}
TIMELINES: dict[str, Timeline] = {"orders": "counter", "events": "clock"}
"""The collections that every history begins with, and that stay."""

EXTRAS = ("x0", "x1", "x2")
"""Names of collections that come and go."""

Kinds = dict[Callable[[], None], int]
"""What there is to call, and how often."""


class Caller:
    """One thread of a process that uses its store."""

    def __init__(self, history: History, process: StoreProcess) -> None:
        self.history = history
        self.process = process
        self.world = history.world
        self.chance = history.scheduler.random
        self.answers = Answers(history.world)

    @property
    def store(self) -> Store:
        """The store of its process."""
        assert self.process.store is not None
        return self.process.store

    def kinds(self) -> Kinds:
        """What it calls."""
        return {}

    def run(self, left: list[int]) -> None:
        """Call one thing after the other, until enough was called in all or the store is closed."""
        kinds = {work: weight * self.history.favour(work.__name__) for work, weight in self.kinds().items()}
        kinds[self.usual] = 1
        works, weights = list(kinds), list(kinds.values())
        while left[0] > 0 and not self.process.is_closing:
            left[0] -= 1
            if self.chance.random() < 0.2:
                self.history.scheduler.sleep(self.chance.choice((0.001, 0.1, 0.1, 1.0, 1.0, 3.0, 3.0, 65.0)))
            self.chance.choices(works, weights)[0]()
        self.finish()

    def usual(self) -> None:
        """What is called in every history."""

    def finish(self) -> None:
        """Close what is still open."""

    def some(self) -> Collection:
        """One of the collections; now and then one of those that come and go."""
        extras = [name for name in self.world.names[-1][1].entries if name in EXTRAS]
        if extras and self.chance.random() < 0.3:
            return self.store[self.chance.choice(extras)]
        return self.store[self.chance.choice(list(TIMELINES))]

    def time_of(self, collection: Collection) -> int:
        """A time that can be read, as far as is known; -1 if there is none."""
        state = collection._access.known()
        last = last_of(state)
        first = state.since.time if state.since.elements else 0
        return self.chance.randint(max(first, last - 6), last) if first <= last else last

    def upper_of(self, collection: Collection) -> int:
        """Up to where it is complete, as far as is known; 0 if it was dropped and is closed."""
        state = collection._access.known()
        return 0 if state.upper.is_closed else last_of(state) + 1

    def dawdle(self) -> None:
        """Take some time in the middle of something."""
        if self.chance.random() < 0.3:
            self.history.scheduler.sleep(self.chance.choice((0.01, 1.0, 4.0, 7.0)))

    def check_held(self, held: LeasedState | None, as_of: int | None = None, seqno: int | None = None) -> None:
        """What is being read is held: its lease lives, and covers the time and the state that are read."""
        if held is None or not held.is_leased or self.history.is_disturbed or self._was_dropped():
            return
        lease = held.lease
        reader = self.world.states[lease.collection][-1].readers.get(lease.reader)
        if self.process.is_closing:
            return
        if reader is None or reader.until_ms < (self.history.scheduler.now + self.process.skew_s) * 1000:
            raise BrokenPromise(f"the lease {lease.reader} of {lease.collection} lapsed while it was used")
        if as_of is not None and not reader.since.less_equal((as_of,)):
            raise BrokenPromise(f"{lease.collection} is read as of {as_of} under a lease from {reader.since} on")
        if seqno is not None and reader.seqno > seqno:
            raise BrokenPromise(f"state {seqno} of {lease.collection} is needed, and its lease is from {reader.seqno}")

    # Calling.

    def call(self, kind: str, work: Callable[[Call], Any], *expected: type[TimespineError]) -> Call:
        """Call something; an error must have a reason. `expected` are those that the call asks for."""
        call = self.history.call(self.process, kind, work)
        if call.error is not None and not isinstance(call.error, expected):
            self.check_reason(call)
        return call

    def check_reason(self, call: Call) -> None:
        """An error has a reason."""
        if not self._has_reason(call):
            self.world.violate(f"{call} raised {call.error!r}", call.error)
            self.history.scheduler.switch("violated")

    def violate(self, call: Call, what: str) -> None:
        """Report that a promise was broken, and stop."""
        self.world.violate(f"{call} {what}", call.error, check_name(sys._getframe(1)))
        self.history.scheduler.switch("violated")

    def _has_reason(self, call: Call) -> bool:
        """Whether something happened for which a call may fail as it did."""
        error, history = call.error, self.history
        if isinstance(error, CorruptionError | VersionError):
            return False
        if isinstance(error, Unavailable):
            is_given_up = "not expected any more" in str(error) and self.world.counts["suspensions"] > 0
            return history.is_failing or is_given_up
        if isinstance(error, LeaseExpired | Fenced):
            return history.is_disturbed or self.process.is_read_only or self._was_dropped()
        if isinstance(error, SinceError):
            return history.is_expiring
        if isinstance(error, UnknownCollection):
            return self._was_missing(call, error.name)
        if isinstance(error, ClosedError):
            return self._was_dropped()
        if isinstance(error, StoreClosed):
            return self.process.is_closing
        if isinstance(error, UsageError):
            return "there is no collection with the id" in str(error) and self._was_dropped()
        if isinstance(error, HandleExpired):
            return "column" in str(error) and history.is_evolving
        return isinstance(error, NotSealed) and self._was_dropped()

    def _was_dropped(self) -> bool:
        """Whether some collection was dropped before this moment."""
        return any(names.dropped or names.graves for _, names in self.world.names)

    def _was_missing(self, call: Call, name: str) -> bool:
        """Whether a name was not in the catalog at some moment of a call."""
        return any(name not in names.entries for names in self.names_between(call))

    def names_between(self, call: Call) -> list[Any]:
        """Every catalog that there was at some moment of a call."""
        before = [names for event, names in self.world.names if event <= call.since_event][-1:]
        return before + [names for event, names in self.world.names if call.since_event < event <= call.until_event]


def uppers_of(call: Call, caller: Caller, collection: str) -> list[int]:
    """Every upper that a collection had at some moment of a call."""
    states = caller.world.states_between(collection, call.since_event, call.until_event)
    return [last_of(state) + 1 for state in states]


__all__ = ["EXTRAS", "KEYS", "SHAPE", "TIMELINES", "Caller", "Kinds", "UpperMismatch", "uppers_of"]
