"""The common part of a change feed and a commit stream: both follow a log.

A follower is an iterator of events. It has a lease of its own, waits for the log to
grow, and reads new entries when its reader asks for the next event. It releases
past events once in a while: each release is a commit. A follower whose lease is
gone raises LeaseExpired, because the blobs of its next event may be deleted.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.leases import LeasedState
from timespine.client.refuse_pickle import OneProcess
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.core.state import State
from timespine.errors import LeaseExpired, Unavailable

E = TypeVar("E")

RELEASE_S = 1.0
"""Least seconds between two releases of a follower: each is a commit."""


class Follower(OneProcess, Iterator[E]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to release its lease."""

    _leased: LeasedState
    """The lease that keeps the blobs of coming events."""

    def __init__(self, handle: CollectionHandle, request: ScanRequest, timeout_s: float | None) -> None:
        self._handle = handle
        """The collection that it follows."""
        self._request = request
        """The rows and columns to read."""
        self._timeout_s = timeout_s if timeout_s is not None else float("inf")
        self._pending: deque[E] = deque()
        self._released = handle.context.monotonic()
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        """Give the next event. Ends when the collection is closed, or when no event came for the timeout."""
        if not self._pending and not self._wait_for_event():
            self.close()
            raise StopIteration
        return self._pending.popleft()

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped following."""
        return self._closed

    def close(self) -> None:
        """Stop following and release the lease. Wakes a thread that waits for the next event."""
        if not self._closed:
            self._closed = True
            self._handle.context.committed.ring()
            self._leased.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The parts that differ.

    @property
    @abstractmethod
    def _is_over(self) -> bool:
        """Whether no event will ever come."""

    @abstractmethod
    def _advance(self, left_s: float) -> bool:
        """Wait for new entries and read some of them; return False if none came in time."""

    @property
    @abstractmethod
    def _is_behind(self) -> bool:
        """Whether the lease keeps more than the reader needs."""

    @abstractmethod
    def _move_lease(self) -> None:
        """Move the lease to the position of the reader."""

    @abstractmethod
    def _lease_expired_error(self) -> LeaseExpired:
        """Make the error for a lost lease."""

    # Waiting and releasing.

    def _wait_for_event(self) -> bool:
        """Wait until an event is pending; return False if none comes in time, or ever."""
        monotonic = self._handle.context.monotonic
        deadline = monotonic() + self._timeout_s
        try:
            while not self._pending:
                if self._is_over or not self._advance(deadline - monotonic()):
                    return False
        except Exception:
            if self._closed:  # perhaps with the whole store, during a read
                return False
            raise
        return True

    def _wait_for_state(self, is_new: Callable[[State], bool], left_s: float) -> State | None:
        """Wait for a state that is new; return None if none comes in time, or if the follower was closed."""
        self._release()
        found = self._handle.wait(lambda state: self._closed or is_new(state), left_s)
        return None if self._closed else found

    def _release(self) -> None:
        """Release past events, at most every RELEASE_S."""
        now = self._handle.context.monotonic()
        if not self._leased.is_leased or now - self._released < RELEASE_S or not self._is_behind:
            return
        self._released = now
        try:
            with contextlib.suppress(Unavailable):  # the next release does it
                self._move_lease()
        except LeaseExpired as error:
            raise self._lease_expired_error() from error

    def _check_lease(self, state: State) -> None:
        """Raise LeaseExpired if a state lacks the lease."""
        if self._leased.is_leased and self._leased.lease.reader not in state.readers:
            raise self._lease_expired_error()
