"""A live feed: a snapshot, then changes and progress, for as long as somebody listens.

The feed has a lease of its own, which follows what the listener has taken: an
event that was given is released when the next one is asked for, so whatever
compaction does meanwhile, the next event can be read.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from timespine.client.access import Access
from timespine.client.leases import Held
from timespine.client.one_process import OneProcess
from timespine.client.rows import Rows, Shape, Updates, check_schema
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.core.plan import Plan, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.errors import LeaseExpired, NotSealed, SinceError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

RELEASE_S = 1.0
"""How often a feed lets go of history behind it, at most: each time is a commit."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a feed tells."""

    kind: str
    """snapshot: the rows at the beginning; changes: updates after that; progress: nothing new, but complete so far."""
    rows: pa.Table | None
    """The rows with `_diff`; updates with `_time` and `_diff`; None for progress."""
    through: int
    """Everything at or before this time has been told."""


class Subscription(OneProcess, Iterator[Event]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to release history."""

    def __init__(
        self,
        access: Access,
        as_of: Time | None,
        wanted: Wanted,
        *,
        snapshot: bool = True,
        timeout_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._released = monotonic()
        self._pending: list[Event] = []
        self._closed = False
        self._through = self._taken = -1
        self._is_due = False
        """Whether the feed has yet to begin: times that are not complete were expired ahead."""
        self._snapshot = snapshot
        self._held: Held = self._begin(as_of)
        # A feed that is dropped and never closed must not hold history for ever.
        weakref.finalize(self, self._held.abandon).atexit = False

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        """The next event. Ends when the collection is closed, or when nothing came for the timeout.

        NotSealed if it could not even begin within the timeout: times that are not complete were expired ahead.
        """
        while not self._pending:
            if self._closed or self._through >= INT64_MAX or not self._poll():
                was_open = not self._closed
                self.close()
                if self._is_due and was_open:
                    raise NotSealed(self._through + 1, self._access.known().upper, expired=True)
                raise StopIteration
        event = self._pending.pop(0)
        if event.kind != "snapshot":
            self._taken = event.through
        return event

    def poll(self) -> list[Event]:
        """All events that are there now, without waiting. None once the feed is closed."""
        if self._closed:
            return []
        self._release()
        self._look(self._access.state())
        events, self._pending = self._pending, []
        if events:
            self._taken = events[-1].through
        return events

    @property
    def through(self) -> int:
        """Everything at or before this time has been told."""
        return self._taken

    def close(self) -> None:
        """Stop listening and release history. Another thread that waits for the next event is told at once."""
        if not self._closed:
            self._closed = True
            self._held.close()
            self._access.shared.committed.ring()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, as_of: Time | None) -> Held:
        """Take the lease, then plan: what is planned under a lease stays."""
        access = self._access
        state = access.state()
        start = as_of if as_of is not None else (_last_complete(state),)
        held = access.shared.leases.take(access.id, Frontier((start,)) if start[0] >= 0 else state.since, own=True)
        try:
            since = held.lease.since
            if not since.less_equal((max(start[0], 0),)):
                if as_of is not None or since.is_closed:
                    raise SinceError(start[0], since)
                # The newest complete time was expired: the feed begins when a later one is complete.
                self._is_due = True
                self._through = since.elements[0][0] - 1
            elif start[0] >= 0:
                with access.shared.leases.pinned(held.lease, held.state.seqno):
                    self._start(held, held.state, start)
            elif self._snapshot:
                rows = Rows(access, None, None, self._wanted, Shape("column")).to_arrow()
                self._pending.append(Event("snapshot", rows, -1))
        except BaseException:
            held.close()
            raise
        return held

    def _start(self, held: Held, state: State, start: Time) -> None:
        """Tell the rows as of a time, if they are wanted; the feed goes on from there."""
        plan = plan_snapshot(state, start)
        if not isinstance(plan, Plan):
            raise plan
        if self._snapshot:
            wanted = replace(self._wanted, window=Window(until=start))
            rows = Rows(self._access, held, plan, wanted, Shape("column"), state=state, owned=False).to_arrow()
            self._pending.append(Event("snapshot", rows, start[0]))
        self._through = self._taken = start[0]

    def _poll(self) -> bool:
        """Wait until there is something to tell; False if that took too long."""
        self._release()
        timeout_s = self._timeout_s if self._timeout_s is not None else float("inf")
        found = self._access.wait(lambda state: self._closed or _last_complete(state) > self._through, timeout_s)
        if found is None or self._closed:
            return False
        self._look(found)
        return True

    def _look(self, state: State) -> None:
        """Read what became complete since the last look."""
        until = _last_complete(state)
        if until <= self._through:
            return
        lease = self._held.lease
        if lease.reader not in state.readers:
            if self._closed:
                return
            raise LeaseExpired(
                f"the lease of a feed of {self._access.name} expired after {self._through}: subscribe again"
            )
        check_schema(self._wanted, self._access.schema(state)[1], f"a feed of {self._access.name}")
        with self._access.shared.leases.pinned(lease, state.seqno) as is_covered:
            if is_covered and self._is_due:
                self._start(self._held, state, (until,))
                self._is_due = False
                return
            rows = self._read(state, until) if is_covered else None
        if rows is None:
            # SUBTLE: the heartbeat let go of this state just before it was pinned; what it refers to may be
            # gone, so a newer one is looked at (test_subscription.py).
            self._look(self._access.state())
            return
        self._through = until
        if rows.num_rows:
            self._pending.append(Event("changes", rows, until))
        self._pending.append(Event("progress", None, until))

    def _read(self, state: State, until: int) -> pa.Table:
        """The updates after what was told, up to a time."""
        if self._through < 0:
            plan = plan_snapshot(state, (until,))
        else:
            plan = plan_changes(state, (self._through,), (until,))
        if not isinstance(plan, Plan):
            raise plan
        window = Window(after=plan.after, until=plan.until)
        wanted = replace(self._wanted, window=window, timed=True)
        return Updates(self._access, self._held, plan, wanted, Shape("column"), state=state, owned=False).to_arrow()

    def _release(self) -> None:
        """Let go of history that the listener has taken."""
        now = self._monotonic()
        behind = self._held.lease.since.elements and self._held.lease.since.elements[0][0] < self._taken
        if self._taken >= 0 and behind and now - self._released >= RELEASE_S:
            self._released = now
            self._access.shared.leases.advance(self._held.lease, (self._taken,))


def _last_complete(state: State) -> int:
    """The last time that is complete; -1 if there is none."""
    return INT64_MAX if state.upper.is_closed else state.upper.elements[0][0] - 1
