"""A collection, as a user holds it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from timespine.client import changing, gathering, holds, unsealed
from timespine.client.access import Access
from timespine.client.changes import Changes
from timespine.client.evolving import evolve
from timespine.client.handing import handed, is_spark_frame
from timespine.client.inspecting import Inspection, inspect
from timespine.client.leases import Held
from timespine.client.listening import Event, Listener
from timespine.client.merge_into import Merge
from timespine.client.moments import Moment, to_ms, to_user
from timespine.client.rows import Rows, Shape, Snapshot, Updates
from timespine.client.subscription import Subscription
from timespine.client.unsealed import REFUSE, Sealed, Written
from timespine.client.writer import Writer
from timespine.client.writing import Committed
from timespine.columnar.keyset import KeySet
from timespine.columnar.schema import Schema
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.columnar.where import as_predicate
from timespine.core.plan import Plan, plan_changes, plan_snapshot
from timespine.core.state import HistoryEntry, State
from timespine.core.transitions import AdvanceUpper, Command, Expired, Retain, RollUpAll
from timespine.errors import AskElsewhere, NotSealed, SinceError, UsageError, shown
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

WAIT_S = 10.0
"""How long a read waits for its time to become complete, if nobody says otherwise."""


class Collection:
    """A named, schema-checked, durable history. Handles are cheap and may be used by many threads."""

    def __init__(self, access: Access, maintain: Any) -> None:
        self._access = access
        self._maintain = maintain

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._access.name

    @property
    def id(self) -> str:
        """Its id: the folder of its blobs."""
        return self._access.id

    @property
    def schema(self) -> Schema:
        """Its newest schema."""
        return self._access.schema(self._access.state())[1]

    @property
    def since(self) -> Frontier:
        """History is exact from here on."""
        return self._access.state().since

    @property
    def upper(self) -> Frontier:
        """It is complete below this."""
        return self._access.state().upper

    def __repr__(self) -> str:
        return f"<collection {self.name}>"

    # Writing.

    def append(
        self, rows: Any, *, at: Moment | None = None, upper: Moment | None = None, expected_upper: Moment | None = None
    ) -> Committed:
        """Add updates. Rows may carry `_time` and `_diff`; without, they get `at` (or the next free time) and +1.

        Columns of the key must be there; values that are not are null, or the default of their column.
        """
        if is_spark_frame(rows):
            committed: Committed = handed("writing").append(self._access, rows, at, upper, expected_upper)
            return committed
        return gathering.append(self._access, rows, at, upper, expected_upper)

    def write(self, rows: Any, *, at: Moment | None = None, times: str | None = None, late: str = REFUSE) -> Written:
        """Make updates durable ahead of the seal: at any times that are not complete yet, in any order, by anybody.

        Their times are in `_time`, or in a column that `times` names, or `at`. They become part of the collection
        when somebody seals those times. What is `late` is refused, or dropped, or moved to the earliest time that
        is still open: "refuse", "drop", "move".
        """
        if is_spark_frame(rows):
            written: Written = handed("ahead").write(self._access, rows, at, times, late)
            return written
        return unsealed.write(self._access, rows, at, times, late)

    def seal(self, upper: Moment) -> Sealed:
        """Say that nothing more comes before a time: what was written before it is part of the collection now.

        The same time again is fine; an earlier one is an error. Many collections at once: `store.seal`.
        """
        return unsealed.seal(self._access, upper)

    def upsert(self, rows: Any) -> Committed:
        """Rows take the place of those with the same key, or are added.

        Without key columns a row is known by all of its columns: those that are not there yet are added, once.
        """
        if is_spark_frame(rows):
            committed: Committed = handed("changing").upsert(self._access, rows)
            return committed
        return changing.upsert(self._access, rows)

    def delete(self, keys: Any = None, *, where: Any = None) -> Committed:
        """Rows with these keys, or for which a condition holds, go.

        Keys may be given as whole rows: values are passed over, and rows go whatever theirs are. Only without key
        columns a row is known by all of its columns, and all of them are needed.
        """
        if is_spark_frame(keys) and where is None:
            committed: Committed = handed("changing").delete(self._access, keys)
            return committed
        return changing.change(self._access, changing.deleting(keys, where), "delete")

    def update(self, *, where: Any = None, set: Mapping[str, Any]) -> Committed:
        """Rows for which a condition holds get other values; all rows without one."""
        return changing.change(self._access, changing.updating(where, set), "update")

    def replace(self, rows: Any, *, where: Any = None) -> Committed:
        """Rows for which a condition holds (all, without one) go, and these come instead."""
        return changing.change(self._access, changing.replacing(where, rows), "replace")

    def merge(self, source: Any) -> Merge[Committed]:
        """Begin a merge with matched and not matched clauses; `.execute()` carries it out."""
        return Merge(partial(changing.change, self._access), source)

    def advance(self, upper: Moment) -> Sealed:
        """Say that nothing more comes before a time."""
        answers = self._access.committer.commit((self.id, AdvanceUpper(Frontier((self._access.time_of(upper),)))))
        return Sealed(Frontier(answers[0].elements), answers.seqno(self.id))

    def close_for_good(self) -> None:
        """Say that nothing more will ever come."""
        self._access.committer.commit((self.id, AdvanceUpper(Frontier())))

    def writer(self) -> Writer:
        """A handle for those who build batches themselves."""
        return Writer(self._access)

    # Reading.

    def snapshot(
        self,
        as_of: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        multiplicity: str = "rows",
        timeout: float | None = WAIT_S,
    ) -> Snapshot:
        """The collection as of a time; the newest complete one if none is named. Waits while it is not complete.

        Not longer than `timeout` seconds; None: for ever.
        """
        shape = _shape(multiplicity)
        if as_of is None and not self._last_complete(self._access.state()):
            wanted = self._wanted(self._access.state(), columns, where, Window())
            return Snapshot(self._access, None, None, wanted, shape)
        time = self._access.time_of(as_of) if as_of is not None else None
        held, time = self._held(time, timeout)
        try:
            plan = _planned(plan_snapshot(held.state, time))
            wanted = self._wanted(held.state, columns, where, Window(until=time))
            wanted = replace(wanted, repeats=multiplicity == "rows")
        except BaseException:
            held.close()
            raise
        snapshot = Snapshot(self._access, held, plan, wanted, shape)
        snapshot.as_of = to_user(time)
        return snapshot

    def changes(
        self,
        after: Moment | None = None,
        until: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        images: bool = False,
        timeout: float | None = WAIT_S,
    ) -> Changes:
        """The net changes in (after, until]. `images=True` pairs them by key, with `_change_type`.

        `where` is about rows, before they are paired: an update by which a row begins to satisfy it is an insert,
        one by which it ceases to is a delete.
        """
        first = self._access.time_of(after) if after is not None else None
        last = self._access.time_of(until) if until is not None else None
        if last is None and not self._last_complete(self._access.state()):
            wanted = self._wanted(self._access.state(), columns, where, Window())
            return Changes(self._access, None, None, wanted, Shape("column"), images=images)
        held, last = self._held(last, timeout, first)
        try:
            plan = _planned(plan_snapshot(held.state, last) if first is None else plan_changes(held.state, first, last))
            wanted = self._wanted(held.state, columns, where, Window(first, last))
        except BaseException:
            held.close()
            raise
        return Changes(self._access, held, plan, wanted, Shape("column"), images=images)

    def unsealed(
        self,
        lower: Moment | None = None,
        upper: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
    ) -> Updates:
        """Every update that was written at a time from `lower` to before `upper`, and that is not sealed yet."""
        state = self._access.state()
        window = Window(since=state.since)
        return unsealed.unsealed(self._access, lower, upper, self._wanted(state, columns, where, window, timed=True))

    def updates(
        self, *, until: Moment | None = None, columns: Sequence[str] | None = None, where: Any = None
    ) -> Updates:
        """Every (row, time, diff), times advanced to since, not accumulated. Only what is complete."""
        state = self._access.state()
        time = self._access.time_of(until) if until is not None else None
        if time is None and not self._last_complete(state):
            wanted = self._wanted(state, columns, where, Window(), timed=True)
            return Updates(self._access, None, None, wanted, Shape("column"))
        held, time = self._held(time, WAIT_S)
        try:
            plan = _planned(plan_snapshot(held.state, time))
            window = Window(until=time, since=plan.since)
            wanted = self._wanted(held.state, columns, where, window, timed=True)
        except BaseException:
            held.close()
            raise
        return Updates(self._access, held, plan, wanted, Shape("column"))

    def subscribe(
        self,
        as_of: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: bool = True,
        timeout: float | None = None,
    ) -> Subscription:
        """A feed: the rows as of a time, then changes and progress as they come."""
        self._access.committer.check_writable(
            ", and a feed holds history while it is read: listen(), or ask for changes(after=...) now and then instead"
        )
        state = self._access.state()
        if state.arity != 1:
            raise UsageError("a feed needs totally ordered times: this collection has several coordinates")
        time = self._access.time_of(as_of) if as_of is not None else None
        wanted = self._wanted(state, columns, where, Window())
        seconds = seconds_of(timeout) if timeout is not None else None
        return Subscription(self._access, time, wanted, snapshot=snapshot, timeout_s=seconds)

    def listen(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: bool = True,
        timeout: float | None = None,
        callback: Callable[[Event], object] | None = None,
    ) -> Listener:
        """Every commit as it is committed: all updates that there are, then those that come, and each new upper.

        Unlike a feed it does not wait until times are complete. With `callback`, that is called with each event, by
        a thread of its own.
        """
        state = self._access.state()
        wanted = self._wanted(state, columns, where, Window(), timed=True)
        seconds = seconds_of(timeout) if timeout is not None else None
        if callback is not None and not callable(callback):
            raise UsageError(f"callback is a function of one event, not {shown(callback)}")
        return Listener(self._access, wanted, snapshot=snapshot, timeout_s=seconds, callback=callback)

    def lookup(
        self, keys: Any, as_of: Moment | None = None, *, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]] | pa.Table:
        """The rows of a key (a dictionary: a list of rows comes back) or of many (a table comes back).

        As with `delete`, keys may be given as whole rows, and without key columns they must be.
        """
        with self.snapshot(as_of, columns=columns) as rows:
            # Under the schema that is read: somebody else may have renamed the key.
            rows.only(KeySet(changing.keys_of(keys, rows.columns_of)))
            table = rows.to_arrow()
        return table.to_pylist() if isinstance(keys, Mapping) else table

    def count(self, as_of: Moment | None = None, *, where: Any = None) -> int:
        """How many rows there are as of a time."""
        with self.snapshot(as_of, where=where) as rows:
            return rows.count()

    # Holding and forgetting.

    def hold(
        self,
        as_of: Moment | None = None,
        *,
        ttl: str | float | datetime.timedelta | None = None,
        critical: str | None = None,
        token: str | None = None,
    ) -> holds.Hold | holds.CriticalHold:
        """Keep history readable from a time on: while this process lives, or under a name until it is released."""
        time = self._access.time_of(as_of) if as_of is not None else None
        if critical is not None and ttl is not None:
            raise UsageError("a critical hold has no ttl: it stays until it is released")
        if critical is None and token is not None:
            raise UsageError("a token belongs to a critical hold: name it with critical=")
        if critical is not None:
            return holds.take_critical(self._access, critical, time, token)
        return holds.take_hold(self._access, time, to_ms(ttl) if ttl is not None else None)

    def expire(self, before: Moment, *, ahead: bool = False) -> Expired:
        """Let history before a time go: reads before it fail from now on, unless somebody holds it.

        The newest complete time stays readable, whatever is asked, unless `ahead` says that times which are not
        complete yet need no history either: then nothing can be read until they are. Of several coordinates there is
        no newest time: there it is refused to let go of all that is complete, unless `ahead`.
        """
        *commands, retain = expiring(self._access, before, ahead=ahead)
        *_, reply = self._access.committer.commit(*((self.id, each) for each in (*commands, retain)))
        return Expired(Frontier((self._access.time_of(before),)), reply.since, reply.held_by)

    def retain(self, duration: str | float | datetime.timedelta | None) -> None:
        """Keep history for so long, as a standing policy that maintenance carries out; None: for ever.

        Only with times of the wall clock: a counter says nothing about age.
        """
        self._maintain.set_retention(self.name, to_ms(duration) if duration is not None else None)

    def compact(self, *, wait: bool = False) -> None:
        """Ask for everything to become one run; wait until it is."""
        self._access.committer.commit((self.id, RollUpAll()))
        if wait:
            self._maintain.compact(self.id)

    # Looking.

    def history(self) -> list[HistoryEntry]:
        """What was committed when, oldest first; bounded."""
        return list(self._access.state().history)

    def inspect(self, *, parts: bool = False) -> Inspection:
        """How it is stored: since, upper, batches, levels, holds, sizes."""
        return inspect(self._access, self._access.state(), parts=parts)

    # Schema.

    def evolve(
        self,
        *,
        add: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> int:
        """Change the schema; the id of the new one. `add` takes a type, or (type, default).

        Nothing is rewritten. With `expected`, the id of the schema you have seen, it is
        refused if somebody else was first; without, it is tried again on theirs.
        """
        return evolve(self._access, add or {}, drop, rename or {}, widen or {}, expected)

    # Inside.

    def _wanted(
        self, state: State, columns: Sequence[str] | None, where: Any, window: Window, *, timed: bool = False
    ) -> Wanted:
        _, schema = self._access.schema(state)
        predicate = None
        if where is not None:
            predicate = as_predicate(where)
            predicate.check(schema)
        if columns is not None and (isinstance(columns, str | bytes) or not isinstance(columns, Iterable)):
            raise UsageError("columns is a list of names, at least one")
        names = schema.names if columns is None else tuple(columns)
        if not names or not all(isinstance(name, str) for name in names):
            raise UsageError("columns is a list of names, at least one")
        for name in names:
            schema.field(name)
        if len(set(names)) != len(names):
            raise UsageError("columns names one of them twice")
        return Wanted(schema, names, window, timed=timed, where=predicate)

    def _held(self, time: Time | None, timeout: float | None, first: Time | None = None) -> tuple[Held, Time]:
        """A lease from a time on (from `first` on, if that is earlier), and the time, once it is complete.

        If no time is asked for it is the newest one, whatever others append and expire meanwhile.
        """
        if time is not None:
            return self._held_at(time, timeout, first)
        while True:
            newest = self._last_complete(self._access.state())
            assert newest is not None
            try:
                return self._held_at(newest, timeout, first)
            except SinceError:
                # SUBTLE: what was the newest time when it was looked up may be forgotten by now (test_reading.py).
                since = self._access.known().since
                if since.less_equal(newest) or (first is not None and not since.less_equal(first)):
                    raise

    def _held_at(self, time: Time, timeout: float | None, first: Time | None) -> tuple[Held, Time]:
        access = self._access
        held = access.shared.leases.hold(access.id, first if first is not None else time)
        if held.state.upper.less_equal(time):
            try:
                there = access.wait(lambda state: not state.upper.less_equal(time), seconds_of(timeout))
            except BaseException:
                held.close()
                raise
            if there is None:
                held.close()
                raise NotSealed(to_user(time), access.known().upper)
            held.state = there
        wanted = first if first is not None else time
        if not held.state.since.less_equal(wanted):
            since = held.state.since
            held.close()
            raise SinceError(to_user(wanted), since)
        return held, time

    def _last_complete(self, state: State) -> Time | None:
        """The newest complete time; None if there is none. Of one coordinate only."""
        if state.arity != 1:
            raise UsageError("with several coordinates there is no newest time: say as_of=(...)")
        if state.upper.is_closed:
            return (INT64_MAX,)
        upper = state.upper.elements[0][0]
        return (upper - 1,) if upper > 0 else None


def expiring(access: Access, before: Moment, *, ahead: bool) -> list[Command]:
    """The commands that let history before a time go: leases that nobody uses are given back on the way."""
    state = access.state()
    moved = access.time_of(before)
    if not ahead and state.arity == 1 and state.upper.elements:
        moved = (max(min(moved[0], state.upper.elements[0][0] - 1), 0),)
    reached = state.retention.join(Frontier((moved,)))
    if not ahead and state.arity != 1 and state.upper <= reached != state.retention:
        raise UsageError(f"nothing could be read any more: the collection is complete up to {state.upper}")
    return [*access.shared.leases.idle(access.id), Retain(Frontier((moved,)))]


def seconds_of(timeout: float | None) -> float:
    """How long to wait; None: for ever."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise UsageError(f"timeout is a number of seconds, or None to wait for ever, not {shown(timeout)}")
    return float(timeout)


def _planned(plan: Plan | AskElsewhere) -> Plan:
    if isinstance(plan, Plan):
        return plan
    raise plan


def _shape(multiplicity: str) -> Shape:
    if multiplicity not in ("rows", "column"):
        raise UsageError(f"multiplicity is 'rows' or 'column', not {shown(multiplicity)}")
    return Shape(multiplicity)


__all__ = ["Collection", "Rows"]
