"""Following a log: what a change feed and a commit stream have in common.

A follower is an iterator of events. It has a lease of its own, waits for the log to
go on, and reads what is new when it is asked for the next event. What its reader has
taken it releases, now and then: each release is a commit. A follower whose lease is
gone raises LeaseExpired, because what it would read next may be gone.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from timespine.client.context import Access
from timespine.client.process_guard import OneProcess
from timespine.client.read.leases import LeasedState
from timespine.columnar.scan.request import Wanted
from timespine.core.state import State
from timespine.errors import LeaseExpired, Unavailable

E = TypeVar("E")

RELEASE_S = 1.0
"""How often a follower releases what is behind it, at most: each time is a commit."""


class Follower(OneProcess, Iterator[E]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to release its lease."""

    leased: LeasedState
    """The lease that keeps what comes next."""

    def __init__(self, access: Access, request: Wanted, timeout_s: float | None) -> None:
        self.access = access
        """The collection that is followed."""
        self.request = request
        """Which rows and columns are read."""
        self._timeout_s = timeout_s if timeout_s is not None else float("inf")
        self._pending: deque[E] = deque()
        self._released = access.shared.monotonic()
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        """Give the next event. Ends when the collection is closed, or when nothing came for the timeout."""
        if not self._pending and not self._wait_for_event():
            self.close()
            raise StopIteration
        return self._pending.popleft()

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped following."""
        return self._closed

    def close(self) -> None:
        """Stop following and release the lease. A thread that waits for the next event is woken at once."""
        if not self._closed:
            self._closed = True
            self.access.shared.committed.ring()
            self.leased.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What differs.

    @property
    @abstractmethod
    def _is_over(self) -> bool:
        """Whether no event will ever come."""

    @abstractmethod
    def _advance(self, left_s: float) -> bool:
        """Wait for the log to go on and read some of what is new; False if nothing came in time."""

    @property
    @abstractmethod
    def _is_behind(self) -> bool:
        """Whether the lease keeps more than the reader needs."""

    @abstractmethod
    def _move_lease(self) -> None:
        """Move the lease to where the reader is."""

    @abstractmethod
    def _lost(self) -> LeaseExpired:
        """What to raise when the lease is gone."""

    # Waiting, and letting go.

    def _wait_for_event(self) -> bool:
        """Wait until an event is pending; False if there is none in time, or never again."""
        monotonic = self.access.shared.monotonic
        deadline = monotonic() + self._timeout_s
        try:
            while not self._pending:
                if self._is_over or not self._advance(deadline - monotonic()):
                    return False
        except Exception:
            if self._closed:  # perhaps with the whole store, while something was being read
                return False
            raise
        return True

    def _wait_for_state(self, is_new: Callable[[State], bool], left_s: float) -> State | None:
        """Wait for a state with something new; None if there is none in time, or if this was closed."""
        self._release()
        found = self.access.wait(lambda state: self._closed or is_new(state), left_s)
        return None if self._closed else found

    def _release(self) -> None:
        """Release what the reader has taken, at most every RELEASE_S."""
        now = self.access.shared.monotonic()
        if not self.leased.is_leased or now - self._released < RELEASE_S or not self._is_behind:
            return
        self._released = now
        try:
            with contextlib.suppress(Unavailable):  # the next release does it
                self._move_lease()
        except LeaseExpired as error:
            raise self._lost() from error

    def _check_lease(self, state: State) -> None:
        """Raise LeaseExpired if a state does not have the lease."""
        if self.leased.is_leased and self.leased.lease.reader not in state.readers:
            raise self._lost()
