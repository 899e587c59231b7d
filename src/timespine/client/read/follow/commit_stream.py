"""A commit stream: every commit as it is committed, from one state on.

A change feed (`client.read.follow.change_feed`) gives net changes of times that are complete. A
commit stream gives each commit by itself: its updates, also unsealed ones, and then the
upper, if it moved.

There is no queue between writers and streams. A stream has a cursor, the state of its
last event, and reads on in the log of the collection, one commit at a time and when its
reader asks for the next event. So no writer waits for a stream, and a slow stream
keeps nothing in memory. Its lease is on states and not on history: blobs of states after
the cursor stay until the stream has read them, and since moves as if there were no stream.
A stream may be behind by a bounded number of commits (`Config.listener_seqnos`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from timespine.client.inner_handles import CollectionHandle, StoreContext
from timespine.client.read.follow.log_follower import Follower
from timespine.client.read.leases import close_on_error
from timespine.client.read.rows import Updates, check_columns_unchanged
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.part_list_tree import add_to_counter
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import ALL_TIMES, Window
from timespine.columnar.schema.schema import DIFF
from timespine.core.batch import Run
from timespine.core.commit_delta import CommitDelta, delta_of_commit
from timespine.core.encoding.state_diff import StateDiff, apply_diff
from timespine.core.protocols.load_state import apply_newer_diffs
from timespine.core.read_plan import REPLANS, plan_all, plan_runs
from timespine.core.state import State
from timespine.errors import CorruptionError, LeaseExpired, TimespineError, Unavailable, UsageError, short_repr
from timespine.libraries import pc
from timespine.model.frontier import Frontier

AHEAD = 16
"""Entries of the log that a stream reads at once. It reads their rows one commit at a time."""

POLL_EVENTS = 256
"""Most events that one `poll` gives."""

LOG = logging.getLogger("timespine")


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """One event of a commit stream."""

    kind: str
    """snapshot: all updates at the beginning; updates: those of one commit; sealed: that the upper moved."""
    rows: pa.Table | None
    """Updates with `_time` and `_diff`, consolidated; None for sealed."""
    upper: Frontier
    """The events so far contain all updates at times below this, and no later event has one there."""
    seqno: int
    """The number of the commit."""


class CommitStream(Follower[CommitEvent]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to stop listening."""

    error: BaseException | None = None
    """The error that ended a stream with a callback: of the callback, or of listening."""

    def __init__(
        self,
        handle: CollectionHandle,
        state: State,
        request: ScanRequest,
        *,
        snapshot: bool = True,
        timeout_s: float | None = None,
        callback: Callable[[CommitEvent], object] | None = None,
    ) -> None:
        super().__init__(handle, request, timeout_s)
        self._coming: deque[StateDiff] = deque()
        self._has_told = False
        with close_on_error(handle.context.leases.listen(state)) as self._leased:
            self._cursor = self._begin(snapshot)
        self._thread: threading.Thread | None = None
        with handle.context.listening:
            handle.context.listeners[self] = None
        if callback is not None:
            self._thread = threading.Thread(
                target=self._call, args=(callback,), name=f"timespine-listener-{handle.name}", daemon=True
            )
            self._thread.start()

    def __next__(self) -> CommitEvent:
        """Give the next event. Ends when the collection is closed, or when no event came for the timeout."""
        self._check_thread()
        return super().__next__()

    def poll(self, limit: int = POLL_EVENTS) -> list[CommitEvent]:
        """Give the present events, without waiting, at most `limit` of them: the next call gives the rest.

        A closed stream gives only events that it had read before.
        """
        self._check_thread()
        if type(limit) is not int or limit < 1:
            raise UsageError(f"limit is a number of events from 1 on, not {short_repr(limit)}")
        if not self._closed:
            self._release()
            while len(self._pending) < limit and self._step():
                pass
            if self._is_over:
                self.close()
        return [self._pending.popleft() for _ in range(min(limit, len(self._pending)))]

    def close(self) -> None:
        """Stop listening. Wakes a thread that waits for the next event; does not wait for a running callback."""
        with self._handle.context.listening:
            self._handle.context.listeners.pop(self, None)
        super().close()

    def _check_thread(self) -> None:
        """Raise a UsageError if the events belong to a callback."""
        if self._thread is not None and self._thread is not threading.current_thread():
            raise UsageError("this commit stream delivers to its callback: open one without a callback to iterate")

    # Reading commits.

    @property
    def _is_over(self) -> bool:
        """Whether no commit will follow."""
        return self._closed or self._cursor.upper.is_closed

    def _begin(self, snapshot: bool) -> State:
        """Return the state to listen from. Queue all updates in it, if the caller wants them."""
        for _ in range(REPLANS):
            state = self._leased.state
            if state.since.is_closed:
                raise self._handle.closed()
            try:
                if snapshot:
                    window = Window(since=state.since)
                    rows = self._table(state, plan_all(state).runs, window)
                    self._pending.append(CommitEvent("snapshot", rows, state.upper, state.seqno))
            except LeaseExpired:
                if self._leased.is_leased:
                    raise
                # Without a lease, maintenance may delete the blobs of a state while it is read: then read a newer one.
                self._leased.state = self._handle.state()
                if self._leased.state.seqno == state.seqno:
                    raise CorruptionError(f"a blob of {self._handle.name} is missing") from None
                continue
            self._follow(state)
            return state
        raise LeaseExpired("merges keep deleting the blobs of this read: listen without a snapshot, or open to write")

    def _advance(self, left_s: float) -> bool:
        if not self._coming:
            is_new = self._wait_for_state(lambda state: state.seqno > self._cursor.seqno, left_s)
            if is_new is None:
                return False
        self._step()
        return True

    def _step(self) -> bool:
        """Read the next commit, also one without an event; return False if there is none."""
        if self._is_over:
            return False
        if not self._coming:
            committer = self._handle.committer
            diffs = committer.look(
                lambda session: apply_newer_diffs(session, self._handle.id, self._cursor.seqno, AHEAD)
            )
            if diffs is None:
                raise self._lease_expired_error()
            self._coming.extend(diffs)
        if not self._coming:
            return False
        # An entry leaves the queue after it was read: if reading it fails, the next call tries again.
        self._hear(self._coming[0])
        self._coming.popleft()
        return True

    def _hear(self, change: StateDiff) -> None:
        """Read one commit and queue its events."""
        old = self._cursor
        # Share the state with the session, if it has the same one.
        known = self._handle.committer.session.states.get(self._handle.id)
        new = known if known is not None and known.seqno == change.n else apply_diff(old, change)
        self._check_lease(new)
        found = delta_of_commit(old, change, new)
        rows = self._read(new, found)
        if rows is not None and rows.num_rows:
            self._pending.append(CommitEvent("updates", rows, old.upper, new.seqno))
        if found.upper is not None:
            self._pending.append(CommitEvent("sealed", None, found.upper, new.seqno))
        self._has_told = self._has_told or bool(self._pending)
        self._cursor = new
        self._follow(new)

    def _read(self, state: State, found: CommitDelta) -> pa.Table | None:
        """Read the updates of a commit; None if it has none."""
        if not found.runs and not found.without:
            return None
        try:
            rows = self._table(state, found.runs, ALL_TIMES)
            if not found.without:
                return rows
            told = self._table(state, found.without, ALL_TIMES)
        except LeaseExpired as error:
            raise self._lease_expired_error() from error
        place = told.column_names.index(DIFF)
        taken_off = told.set_column(place, told.schema.field(DIFF), pc.negate(told.column(DIFF)))
        names = [name for name in rows.column_names if name != DIFF]
        return consolidate(pa.concat_tables([rows, taken_off]), names).select(rows.column_names)

    def _table(self, state: State, runs: tuple[Run, ...], window: Window) -> pa.Table:
        """Read the updates of some runs."""
        handle = self._handle
        check_columns_unchanged(self._request, handle.schema(state)[1], f"listening to {handle.name}")
        request = replace(self._request, window=window)
        plan = plan_runs(state, runs)
        return Updates(handle, self._leased, plan, request, "column", state=state, one_state=True).to_arrow()

    # Moving the lease.

    def _follow(self, state: State) -> None:
        """Move the cursor of the lease: maintenance may delete what older states need."""
        if self._leased.is_leased:
            self._handle.context.leases.advance_cursor(self._leased.lease, state.seqno)

    @property
    def _is_behind(self) -> bool:
        # SUBTLE: not whenever the cursor moved. A release is a commit too, which the stream skips: it would release
        # for ever, and write to an idle collection (test_slow_listeners.py).
        return self._has_told

    def _move_lease(self) -> None:
        self._has_told = False
        self._handle.context.leases.release_states(self._leased.lease)

    def _lease_expired_error(self) -> LeaseExpired:
        name, seqno = self._handle.name, self._cursor.seqno
        if not self._leased.is_leased:
            return LeaseExpired(
                f"a commit stream of {name} fell behind: commits after state {seqno} cannot be read, since a store "
                "that is open for reading only takes no lease; listen again"
            )
        return LeaseExpired(
            f"a commit stream of {name} slept or fell behind, and lost its lease at {seqno}: listen again"
        )

    # Calling back.

    def _call(self, callback: Callable[[CommitEvent], object]) -> None:
        """Call back with every event, until there are no more or an error occurs. Runs in the thread of the stream."""
        try:
            while (event := self._patiently()) is not None and not self._closed:
                callback(event)
        except BaseException as error:
            self.error = error
            add_to_counter(self._handle.context.counters, "listeners failed")
            LOG.error("a commit stream of %s ended: %s", self._handle.name, type(error).__name__, exc_info=error)
            with contextlib.suppress(TimespineError):
                self.close()

    def _patiently(self) -> CommitEvent | None:
        """Return the next event, and wait while storage is unavailable; None if there are no more."""
        context = self._handle.context
        while True:
            try:
                return next(self, None)
            except Unavailable:
                # No event was given, and the next try begins where this one did.
                LOG.warning("a commit stream of %s waits: storage is unavailable", self._handle.name)
                context.committed.wait(context.committed.count, context.look_s)


def end_listeners(context: StoreContext) -> None:
    """Close all listeners of a store."""
    with context.listening:
        listeners = list(context.listeners)
    for listener in listeners:
        with contextlib.suppress(Exception):  # storage is unavailable: the lease expires
            listener.close()
