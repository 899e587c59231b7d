"""A change feed: a snapshot, then changes and progress as times become complete.

The lease of a feed follows its reader: when the reader asks for the next event, the
feed releases the history of the last one. So the next event can be read, whatever
compaction does in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import read_plan
from timespine.client.read.follow.log_follower import Follower
from timespine.client.read.leases import LeasedState, close_on_error
from timespine.client.read.rows import Rows, Updates, check_columns_unchanged
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.core.state import State
from timespine.errors import LeaseExpired, NotSealed, SinceError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

NOTHING = -1
"""The time before all others: the feed has given no event yet."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event of a change feed: rows, changes, or progress."""

    kind: str
    """snapshot: the rows at the beginning; changes: updates after that; progress: more times are complete."""
    rows: pa.Table | None
    """The rows with `_diff`; updates with `_time` and `_diff`; None for progress."""
    through: int
    """The events so far contain every update at or before this time."""


class ChangeFeed(Follower[FeedEvent]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to release history."""

    def __init__(
        self,
        handle: CollectionHandle,
        state: State,
        as_of: Time | None,
        request: ScanRequest,
        *,
        snapshot: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(handle, request, timeout_s)
        self._through = self._taken = NOTHING
        self._is_due = False
        """Whether the feed has yet to begin: a caller expired times ahead that are not complete."""
        self._snapshot = snapshot
        self._leased = self._begin(state, as_of)

    def __next__(self) -> FeedEvent:
        """Give the next event. Ends when the collection is closed, or when no event came for the timeout.

        Raise NotSealed if the feed could not begin within the timeout: a caller expired times ahead.
        """
        was_open = not self._closed
        try:
            event = super().__next__()
        except StopIteration:
            if self._is_due and was_open:
                raise NotSealed(self._through + 1, self._handle.known().upper, expired=True) from None
            raise
        if event.kind != "snapshot":
            self._taken = event.through
        return event

    def poll(self) -> list[FeedEvent]:
        """Give all present events, without waiting. An empty list once the feed is closed."""
        if self._closed:
            return []
        self._release()
        self._look(self._handle.state())
        events = list(self._pending)
        self._pending.clear()
        if events:
            self._taken = events[-1].through
        return events

    @property
    def through(self) -> int:
        """The time up to which the events so far are complete."""
        return self._taken

    def _begin(self, state: State, as_of: Time | None) -> LeasedState:
        """Take the lease, then plan: the lease keeps the blobs of the plan."""
        leases = self._handle.context.leases
        start = as_of if as_of is not None else (_last_complete(state),)
        wanted = Frontier((start,)) if start[0] > NOTHING else state.since
        with close_on_error(leases.take(state.collection, wanted, own=True)) as leased:
            since = leased.lease.since
            if not since.less_equal((max(start[0], 0),)):
                if as_of is not None or since.is_closed:
                    raise SinceError(start[0], since)
                # The newest complete time was expired: the feed begins when a later one is complete.
                self._is_due = True
                self._through = since.time - 1
            elif start[0] > NOTHING:
                with leases.pinned(leased.lease, leased.state) as pinned:
                    self._start(leased, pinned, start)
            elif self._snapshot:
                rows = Rows(self._handle, leased, None, self._request, "column").to_arrow()
                self._pending.append(FeedEvent("snapshot", rows, NOTHING))
            return leased

    def _start(self, leased: LeasedState, state: State, start: Time) -> None:
        """Queue the rows as of a time, if the caller wants them; the feed goes on from there."""
        plan = read_plan(state, start)
        if self._snapshot:
            request = replace(self._request, window=Window(until=start))
            rows = Rows(self._handle, leased, plan, request, "column", state=state).to_arrow()
            self._pending.append(FeedEvent("snapshot", rows, start[0]))
        self._through = self._taken = start[0]

    @property
    def _is_over(self) -> bool:
        return self._closed or self._through >= INT64_MAX

    def _advance(self, left_s: float) -> bool:
        found = self._wait_for_state(lambda state: _last_complete(state) > self._through, left_s)
        if found is not None:
            self._look(found)
        return found is not None

    def _look(self, state: State) -> None:
        """Read the updates that became complete since the last look."""
        if _last_complete(state) <= self._through:
            return
        # SUBTLE: the heartbeat may have released the state just before it is pinned. Its blobs may be deleted, so a
        # newer state is read (test_change_feed.py).
        with self._handle.context.leases.pinned(self._leased.lease, state) as pinned:
            if self._closed:
                return
            self._check_lease(pinned)
            check_columns_unchanged(self._request, self._handle.schema(pinned)[1], f"a feed of {self._handle.name}")
            until = _last_complete(pinned)
            if self._is_due:
                self._start(self._leased, pinned, (until,))
                self._is_due = False
                return
            rows = self._read(pinned, until)
        self._through = until
        if rows.num_rows:
            self._pending.append(FeedEvent("changes", rows, until))
        self._pending.append(FeedEvent("progress", None, until))

    def _read(self, state: State, until: int) -> pa.Table:
        """Read the updates after the last event, up to a time."""
        plan = read_plan(state, (until,), (self._through,) if self._through > NOTHING else None)
        request = replace(self._request, window=Window(after=plan.after, until=plan.until), keep_times=True)
        return Updates(self._handle, self._leased, plan, request, "column", state=state).to_arrow()

    @property
    def _is_behind(self) -> bool:
        since = self._leased.lease.since
        return self._taken > NOTHING and not since.is_closed and since.time < self._taken

    def _move_lease(self) -> None:
        self._handle.context.leases.advance(self._leased.lease, (self._taken,))

    def _lease_expired_error(self) -> LeaseExpired:
        return LeaseExpired(
            f"the lease of a feed of {self._handle.name} expired after {self._through}: subscribe again"
        )


def _last_complete(state: State) -> int:
    """Return the last complete time; NOTHING if there is none."""
    last = state.upper.last_complete()
    return last if last is not None else NOTHING
