"""A commit stream: every commit as it is committed, from one state on.

A change feed (`client.read.change_feed`) tells net changes of times that are complete. A
commit stream tells each commit by itself: its updates, also at times that are not
sealed yet, and then the upper, if it moved.

There is no queue between writers and streams. A stream has a cursor, the state that it
has told up to, and reads on in the log of the collection, one commit at a time and
when it is asked for the next event. So no writer waits for a stream, and a slow stream
keeps nothing in memory. Its lease is on states and not on history: what came after the
cursor stays until it is told, and since moves as if there were no stream. A stream may
be behind by a bounded number of commits (`Config.listener_seqnos`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.context import POLL_MAX_S, Access, Shared
from timespine.client.read.follow import Follower
from timespine.client.read.leases import closed_on_error
from timespine.client.read.rows import REPLANS, Updates, check_schema
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.hollow_run import count
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.visibility import ALL_TIMES, Window
from timespine.columnar.schema.schema import DIFF
from timespine.core.batch import Run
from timespine.core.commit_delta import Heard, heard
from timespine.core.encoding.state_diff import StateDiff, apply_diff
from timespine.core.protocols.load_state import follow
from timespine.core.read_plan import plan_all, plan_runs
from timespine.core.state import State
from timespine.errors import CorruptionError, LeaseExpired, TimespineError, Unavailable, UsageError, shown
from timespine.model.frontier import Frontier

AHEAD = 16
"""Entries of the log that are read at once. Their rows are read one commit at a time."""

POLL_EVENTS = 256
"""Events that one `poll` gives, at most."""

LOG = logging.getLogger("timespine")


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """One event of a commit stream."""

    kind: str
    """snapshot: all updates at the beginning; updates: those of one commit; sealed: that the upper moved."""
    rows: pa.Table | None
    """Updates with `_time` and `_diff`, equal ones added up; None for sealed."""
    upper: Frontier
    """All updates at times below this were told by now, and no more will come there."""
    seqno: int
    """The number of the commit."""


class CommitStream(Follower[CommitEvent]):
    """An iterator of events that waits for the next one. Close it, or leave its `with`, to stop listening."""

    error: BaseException | None = None
    """What ended a stream with a callback, if that was an error: of the callback, or of listening."""

    def __init__(
        self,
        access: Access,
        state: State,
        request: Wanted,
        *,
        snapshot: bool = True,
        timeout_s: float | None = None,
        callback: Callable[[CommitEvent], object] | None = None,
    ) -> None:
        super().__init__(access, request, timeout_s)
        self._coming: deque[StateDiff] = deque()
        self._has_told = False
        with closed_on_error(access.shared.leases.listen(state)) as self.leased:
            self._cursor = self._begin(snapshot)
        self._thread: threading.Thread | None = None
        with access.shared.listening:
            access.shared.listeners[self] = None
        if callback is not None:
            self._thread = threading.Thread(
                target=self._call, args=(callback,), name=f"timespine-listener-{access.name}", daemon=True
            )
            self._thread.start()

    def __next__(self) -> CommitEvent:
        """Give the next event. Ends when the collection is closed, or when nothing came for the timeout."""
        self._check_thread()
        return super().__next__()

    def poll(self, limit: int = POLL_EVENTS) -> list[CommitEvent]:
        """Give the events that are there now, without waiting, not more than `limit`: the next call gives the rest.

        Once it is closed, only what was read before.
        """
        self._check_thread()
        if type(limit) is not int or limit < 1:
            raise UsageError(f"limit is a number of events from 1 on, not {shown(limit)}")
        if not self._closed:
            self._release()
            while len(self._pending) < limit and self._step():
                pass
            if self._is_over:
                self.close()
        return [self._pending.popleft() for _ in range(min(limit, len(self._pending)))]

    def close(self) -> None:
        """Stop listening. A thread that waits for the next event is woken; a callback under way is not waited for."""
        with self.access.shared.listening:
            self.access.shared.listeners.pop(self, None)
        super().close()

    def _check_thread(self) -> None:
        """A UsageError if the events belong to a callback."""
        if self._thread is not None and self._thread is not threading.current_thread():
            raise UsageError("the callback of this listener gets its events: listen again, without one, to take them")

    # Hearing.

    @property
    def _is_over(self) -> bool:
        """Whether nothing more will ever come."""
        return self._closed or self._cursor.upper.is_closed

    def _begin(self, snapshot: bool) -> State:
        """The state to listen from. With all updates in it, if they are wanted."""
        for _ in range(REPLANS):
            state = self.leased.state
            if state.since.is_closed:
                raise self.access.closed()
            try:
                if snapshot:
                    window = Window(since=state.since)
                    rows = self._table(state, plan_all(state).runs, window)
                    self._pending.append(CommitEvent("snapshot", rows, state.upper, state.seqno))
            except LeaseExpired:
                if self.leased.is_leased:
                    raise
                # Without a lease, what a state refers to may be merged away while it is read: then from a newer one.
                self.leased.state = self.access.state()
                if self.leased.state.seqno == state.seqno:
                    raise CorruptionError(f"a blob of {self.access.name} is missing") from None
                continue
            self._follow(state)
            return state
        raise LeaseExpired("what was being read keeps going away: listen without a snapshot, or open to write")

    def _advance(self, left_s: float) -> bool:
        if not self._coming:
            is_new = self._wait_for_state(lambda state: state.seqno > self._cursor.seqno, left_s)
            if is_new is None:
                return False
        self._step()
        return True

    def _step(self) -> bool:
        """Hear the next commit, whether it tells anything or not; False if there is none."""
        if self._is_over:
            return False
        if not self._coming:
            committer = self.access.committer
            diffs = committer.look(lambda session: follow(session, self.access.id, self._cursor.seqno, AHEAD))
            if diffs is None:
                raise self._lost()
            self._coming.extend(diffs)
        if not self._coming:
            return False
        # Only what was heard is taken off: if reading it fails, the next call tries again.
        self._hear(self._coming[0])
        self._coming.popleft()
        return True

    def _hear(self, change: StateDiff) -> None:
        """Hear one commit."""
        old = self._cursor
        # The state that the whole process knows is not kept twice.
        known = self.access.committer.session.states.get(self.access.id)
        new = known if known is not None and known.seqno == change.n else apply_diff(old, change)
        self._check_lease(new)
        found = heard(old, change, new)
        rows = self._read(new, found)
        if rows is not None and rows.num_rows:
            self._pending.append(CommitEvent("updates", rows, old.upper, new.seqno))
        if found.upper is not None:
            self._pending.append(CommitEvent("sealed", None, found.upper, new.seqno))
        self._has_told = self._has_told or bool(self._pending)
        self._cursor = new
        self._follow(new)

    def _read(self, state: State, found: Heard) -> pa.Table | None:
        """The updates of a commit; None if it has none."""
        if not found.runs and not found.without:
            return None
        try:
            rows = self._table(state, found.runs, ALL_TIMES)
            if not found.without:
                return rows
            told = self._table(state, found.without, ALL_TIMES)
        except LeaseExpired as error:
            raise self._lost() from error
        place = told.column_names.index(DIFF)
        taken_off = told.set_column(place, told.schema.field(DIFF), pc.negate(told.column(DIFF)))
        names = [name for name in rows.column_names if name != DIFF]
        return consolidate(pa.concat_tables([rows, taken_off]), names).select(rows.column_names)

    def _table(self, state: State, runs: tuple[Run, ...], window: Window) -> pa.Table:
        """The updates of some runs."""
        access = self.access
        check_schema(self.request, access.schema(state)[1], f"listening to {access.name}")
        request = replace(self.request, window=window)
        plan = plan_runs(state, runs)
        return Updates(access, self.leased, plan, request, "column", state=state, one_state=True).to_arrow()

    # Holding on, and letting go.

    def _follow(self, state: State) -> None:
        """Move the cursor of the lease: what came before it may go."""
        if self.leased.is_leased:
            self.access.shared.leases.follow(self.leased.lease, state.seqno)

    @property
    def _is_behind(self) -> bool:
        # SUBTLE: not whenever the cursor moved. That it let go is a commit too, which the stream passes over: it would
        # go on like that for ever, and an idle collection would be written to (test_commit_stream.py).
        return self._has_told

    def _move_lease(self) -> None:
        self._has_told = False
        self.access.shared.leases.let_go(self.leased.lease)

    def _lost(self) -> LeaseExpired:
        name, seqno = self.access.name, self._cursor.seqno
        if not self.leased.is_leased:
            return LeaseExpired(
                f"a listener of {name} fell behind: what was committed after state {seqno} is gone, since a store that "
                "is open for reading only holds nothing back; listen again"
            )
        return LeaseExpired(f"a listener of {name} slept or fell behind, and lost its lease at {seqno}: listen again")

    # Calling back.

    def _call(self, callback: Callable[[CommitEvent], object]) -> None:
        """Call back with every event, until there are no more or something fails. Runs in a thread of its own."""
        try:
            while (event := self._patiently()) is not None and not self._closed:
                callback(event)
        except BaseException as error:
            self.error = error
            count(self.access.shared.counters, "listeners failed")
            LOG.error("a listener of %s ended: %s", self.access.name, type(error).__name__, exc_info=error)
            with contextlib.suppress(TimespineError):
                self.close()

    def _patiently(self) -> CommitEvent | None:
        """The next event, however long storage is away; None if there are no more."""
        told = self.access.shared.committed
        while True:
            try:
                return next(self, None)
            except Unavailable:
                # Nothing was told, and the next try begins where this one did.
                LOG.warning("a listener of %s waits: storage is unavailable", self.access.name)
                told.wait(told.count, POLL_MAX_S)


def end_listeners(shared: Shared) -> None:
    """Tell all listeners of a store that there is nothing more to hear."""
    with shared.listening:
        listeners = list(shared.listeners)
    for listener in listeners:
        with contextlib.suppress(Exception):  # storage is away: its lease expires by itself
            listener.close()
