"""How every read begins: one look at the log, a lease on what the read needs, and the time that it is of.

A read without a time is of the newest complete time that is still readable. The
state that the look gave is passed down, so nothing looks again. A read registers one
lease, at most, and then only looks at the log: waiting writes nothing.

The lease comes before the plan: what is planned on a leased state is there until it
was read. `acquire` and `lease_newest` are context managers. The block plans and hands
the leased state to a reader; if the block fails, the lease is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from timespine.client.context import Access
from timespine.client.read.leases import LeasedState, closed_on_error
from timespine.client.time_args import Moment, to_user
from timespine.columnar.predicate.column import as_predicate
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.visibility import Window
from timespine.core.read_plan import Plan, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.errors import Conflict, NotSealed, SinceError, UsageError, shown
from timespine.hints import Hint
from timespine.model.time import Time

WAIT_S = 10.0
"""How long a read waits for its time to become complete, unless the caller says otherwise."""

Hold = Callable[[State, Time | None], LeasedState]
"""How a state that was just read is leased, from a time on or from its since; gives the state that has the lease."""


@contextlib.contextmanager
def acquire(
    access: Access,
    as_of: Moment | None,
    timeout: float | None,
    *,
    after: Moment | None = None,
    unsealed: bool = False,
    hold: Hold | None = None,
    state: State | None = None,
) -> Iterator[tuple[LeasedState, Time | None]]:
    """Lease a state in which a time is complete, from that time on, or from `after` on; and give the time.

    Without a time it is the newest complete one, whatever others append and expire in between. It is None if no time
    is complete; then there is nothing to read and no lease, unless `unsealed` updates are read too. `hold` leases the
    state in another way than this process does for its own reads. `state` is the newest one, if the caller has just
    read it.
    """
    state = state if state is not None else access.state()
    asked = access.time_of(as_of) if as_of is not None else None
    first = access.time_of(after) if after is not None else None
    wanted = asked if asked is not None else last_complete(state)
    if wanted is None and not unsealed:
        yield access.shared.leases.unleased(state), None
        return
    if asked is None and first is None and wanted is not None and not state.since.less_equal(wanted):
        wanted = None  # from since on, so that the next read can share the lease
    lease = hold if hold is not None else access.shared.leases.hold
    with closed_on_error(lease(state, first if first is not None else wanted)) as leased:
        if asked is None:
            yield leased, _wait_for_newest(access, leased, timeout, first)
        else:
            _wait_for(access, leased, timeout, asked)
            _check_since(leased.state, first if first is not None else asked)
            yield leased, asked


@contextlib.contextmanager
def lease_newest(access: Access) -> Iterator[LeasedState]:
    """Lease the newest state from its since on: for reads that are of that state and of no time."""
    with closed_on_error(access.shared.leases.hold(access.state(), None)) as leased:
        yield leased


def _wait_for(access: Access, leased: LeasedState, timeout: float | None, time: Time) -> None:
    """Wait until a time is complete."""
    if leased.state.upper.less_equal(time):
        there = access.wait(lambda state: not state.upper.less_equal(time), seconds_of(timeout))
        if there is None:
            raise NotSealed(to_user(time), access.known().upper)
        leased.state = there


def _wait_for_newest(access: Access, leased: LeasedState, timeout: float | None, first: Time | None) -> Time | None:
    """Wait until the newest complete time is readable; the time.

    SUBTLE: the lease comes first, and the newest time is looked up in the state that has the lease: other writers
    may append and expire in between (test_to_spark.py). What was expired ahead is not complete yet: then the read
    keeps its one lease and waits. Another lease for each look would write to the log in a loop (test_to_spark.py).
    """
    if first is not None:
        _check_since(leased.state, first)
    if last_complete(leased.state) is None:
        return None
    if not _is_readable(leased.state):
        there = access.wait(_is_readable, seconds_of(timeout))
        if there is None:
            known = access.known()
            raise NotSealed(known.since.time, known.upper, expired=True)
        leased.state = there
    newest = last_complete(leased.state)
    assert newest is not None
    _check_since(leased.state, newest)
    return newest


def _is_readable(state: State) -> bool:
    """Whether the newest complete time can be read; also if it never will be, which waiting does not change."""
    newest = last_complete(state)
    return state.since.is_closed or (newest is not None and state.since.less_equal(newest))


def _check_since(state: State, time: Time) -> None:
    if not state.since.less_equal(time):
        raise SinceError(to_user(time), state.since)


def last_complete(state: State) -> Time | None:
    """The newest complete time; None if there is none. Of one coordinate only."""
    if state.arity != 1:
        raise UsageError("with several coordinates there is no newest time", hint=Hint("give-as-of"))
    last = state.upper.last_complete()
    return (last,) if last is not None else None


def wanted_of(
    access: Access, state: State, columns: Sequence[str] | None, where: Any, window: Window, *, timed: bool = False
) -> Wanted:
    """What a user asks for, checked against the newest schema of a state."""
    _, schema = access.schema(state)
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


def check_multiplicity(multiplicity: str) -> None:
    """Raise a UsageError if there is no such way to give rows that count more than once."""
    if multiplicity not in ("rows", "column"):
        raise UsageError(f"multiplicity is 'rows' or 'column', not {shown(multiplicity)}")


def plan_of(state: State, until: Time, after: Time | None = None) -> Plan:
    """Plan a snapshot, or the changes after a time; a refusal is raised."""
    return planned(plan_snapshot(state, until) if after is None else plan_changes(state, after, until))


def planned(plan: Plan | Conflict) -> Plan:
    """Give the plan; a refusal is raised."""
    if isinstance(plan, Plan):
        return plan
    raise plan


def seconds_of(timeout: float | None) -> float:
    """How long to wait; None: for ever."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise UsageError(f"{shown(timeout)} is not a timeout", hint=Hint("give-seconds"))
    return float(timeout)
