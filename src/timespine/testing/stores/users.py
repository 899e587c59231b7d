"""One thread of a user: one call after the other, chosen by the seed, and only errors that have a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from timespine.client.catalog.catalog import CANCELLED
from timespine.client.collection import Collection
from timespine.client.read.leases import LeasedState
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
    VersionError,
)
from timespine.testing.simulator.violation import BrokenPromise, name_of_check
from timespine.testing.stores.check_answers import StoreAnswerChecks, last_time
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.user_calls import UserCall

KEYS = 6
"""The number of keys of rows."""

EXTRAS = ("x0", "x1", "x2")
"""Names of collections that come and go."""

Kinds = dict[Callable[[], None], int]
"""The possible calls, each with its weight."""


class Caller:
    """One thread of a process that uses its store."""

    def __init__(self, history: StoreHistory, process: StoreProcess) -> None:
        self.history = history
        self.process = process
        self.world = history.world
        self.chance = history.scheduler.random
        self.answers = StoreAnswerChecks(history.world)

    @property
    def store(self) -> Store:
        """The store of its process."""
        assert self.process.store is not None
        return self.process.store

    def kinds(self) -> Kinds:
        """Return the possible calls, each with its weight."""
        return {}

    def run(self, left: list[int]) -> None:
        """Make one call after the other, until enough calls were made or the store is closed."""
        kinds = {work: weight * self.history.favour(work.__name__) for work, weight in self.kinds().items()}
        kinds[self.usual] = max(sum(kinds.values()), 1) if self.history.config.relay_appends else 1
        works, weights = list(kinds), list(kinds.values())
        while left[0] > 0 and not self.process.is_closing:
            left[0] -= 1
            if self.chance.random() < 0.2:
                self.history.scheduler.sleep(self.chance.choice((0.001, 0.1, 0.1, 1.0, 1.0, 3.0, 3.0, 65.0)))
            self.chance.choices(works, weights)[0]()
        self.finish()

    def usual(self) -> None:
        """Make the calls of every history."""

    def finish(self) -> None:
        """Close the feeds and listeners that are still open."""

    def some(self) -> Collection:
        """Choose one of the collections; now and then one of those that come and go."""
        extras = [name for name in self.world.names[-1][1].entries if name in EXTRAS]
        if extras and self.chance.random() < 0.3:
            return self.store[self.chance.choice(extras)]
        return self.store[self.chance.choice(list(self.history.timelines))]

    def time_of(self, collection: Collection) -> int:
        """Return a readable time, as far as is known; -1 if there is none."""
        state = collection._handle.known()
        last = last_time(state)
        first = state.since.time if state.since.elements else 0
        return self.chance.randint(max(first, last - 6), last) if first <= last else last

    def upper_of(self, collection: Collection) -> int:
        """Return the upper of a collection, as far as is known; 0 if it was dropped and is closed."""
        state = collection._handle.known()
        return 0 if state.upper.is_closed else last_time(state) + 1

    def dawdle(self) -> None:
        """Let time pass in the middle of a call."""
        if self.chance.random() < 0.3:
            self.history.scheduler.sleep(self.chance.choice((0.01, 1.0, 4.0, 7.0)))

    def check_held(self, held: LeasedState | None, as_of: int | None = None, seqno: int | None = None) -> None:
        """Check that a read is leased: its lease lives, and covers the time and the state that it reads."""
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

    def call(self, kind: str, work: Callable[[UserCall], Any], *expected: type[TimespineError]) -> UserCall:
        """Make a call; an error must have a reason. `expected` are the errors that the call permits."""
        call = self.history.call(self.process, kind, work)
        if call.error is not None and not isinstance(call.error, expected):
            self.check_reason(call)
        return call

    def check_reason(self, call: UserCall) -> None:
        """Check that an error has a reason."""
        if not self._has_reason(call):
            self.world.violate(f"{call} raised {call.error!r}", call.error)
            self.history.scheduler.switch("violated")

    def violate(self, call: UserCall, what: str) -> None:
        """Report that a promise was broken, and stop."""
        self.world.violate(f"{call} {what}", call.error, name_of_check(sys._getframe(1)))
        self.history.scheduler.switch("violated")

    def _has_reason(self, call: UserCall) -> bool:
        """Tell whether an event explains the failure of a call."""
        error, history = call.error, self.history
        if isinstance(error, CorruptionError | VersionError):
            return False
        if isinstance(error, Unavailable):
            is_given_up = CANCELLED in str(error) and self.world.counts["suspensions"] > 0
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
        if isinstance(error, HandleExpired):
            return "column" in str(error) and history.is_evolving
        return isinstance(error, NotSealed) and self._was_dropped()

    def _was_dropped(self) -> bool:
        """Tell whether some collection was dropped before this moment."""
        return any(names.dropped or names.tombstones for _, names in self.world.names)

    def _was_missing(self, call: UserCall, name: str) -> bool:
        """Tell whether a name was not in the catalog at some moment of a call."""
        return any(name not in names.entries for names in self.names_between(call))

    def names_between(self, call: UserCall) -> list[Any]:
        """Return every catalog that there was at some moment of a call."""
        before = [names for event, names in self.world.names if event <= call.since_event][-1:]
        return before + [names for event, names in self.world.names if call.since_event < event <= call.until_event]


def uppers_of(call: UserCall, caller: Caller, collection: str) -> list[int]:
    """Return every upper that a collection had at some moment of a call."""
    states = caller.world.states_between(collection, call.since_event, call.until_event)
    return [last_time(state) + 1 for state in states]


__all__ = ["EXTRAS", "KEYS", "Caller", "Kinds", "UpperMismatch", "uppers_of"]
