"""Reads of a collection: which time they are of, which lease holds it, and how long they wait for it.

A read without a time is of the newest complete time that is still readable. It takes
one lease, at most, and then only looks at the log: waiting writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from timespine.client.access import Access
from timespine.client.leases import Held
from timespine.client.moments import to_user
from timespine.client.rows import Shape
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.columnar.where import as_predicate
from timespine.core.plan import Plan
from timespine.core.state import State
from timespine.errors import AskElsewhere, NotSealed, SinceError, UsageError, shown
from timespine.model.time import INT64_MAX, Time

WAIT_S = 10.0
"""How long a read waits for its time to become complete, unless the caller says otherwise."""


def hold_for(access: Access, time: Time | None, timeout: float | None, first: Time | None = None) -> tuple[Held, Time]:
    """Take a lease from a time on (from `first` on, if given), and wait until the time is complete; the time.

    Without a time it is the newest complete one, whatever others append and expire meanwhile.
    """
    return _hold_newest(access, timeout, first) if time is None else _hold_at(access, time, timeout, first)


def _hold_at(access: Access, time: Time, timeout: float | None, first: Time | None) -> tuple[Held, Time]:
    held = access.shared.leases.hold(access.id, first if first is not None else time)
    try:
        if held.state.upper.less_equal(time):
            there = access.wait(lambda state: not state.upper.less_equal(time), seconds_of(timeout))
            if there is None:
                raise NotSealed(to_user(time), access.known().upper)
            held.state = there
        _check_since(held.state, first if first is not None else time)
    except BaseException:
        held.close()
        raise
    return held, time


def _hold_newest(access: Access, timeout: float | None, first: Time | None) -> tuple[Held, Time]:
    """Hold the newest complete time.

    SUBTLE: the lease comes first, and the newest time is looked up in the state that has the lease: other writers
    may append and expire in between (test_reading.py). What was expired ahead is not complete yet: then the read
    keeps its one lease and waits. Another lease for each look would write to the log in a loop (test_reading.py).
    """
    state = access.state()
    wanted = first if first is not None else last_complete(state)
    if wanted is not None and first is None and not state.since.less_equal(wanted):
        wanted = None  # from since on, so that the next read can share the lease
    held = access.shared.leases.hold(access.id, wanted)
    try:
        if first is not None:
            _check_since(held.state, first)
        if not _is_readable(held.state):
            there = access.wait(_is_readable, seconds_of(timeout))
            if there is None:
                known = access.known()
                raise NotSealed(to_user(known.since.elements[0]), known.upper, expired=True)
            held.state = there
        newest = last_complete(held.state)
        assert newest is not None
        _check_since(held.state, newest)
    except BaseException:
        held.close()
        raise
    return held, newest


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
        raise UsageError("with several coordinates there is no newest time: say as_of=(...)")
    if state.upper.is_closed:
        return (INT64_MAX,)
    upper = state.upper.elements[0][0]
    return (upper - 1,) if upper > 0 else None


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


def shape_of(multiplicity: str) -> Shape:
    """How rows are given that count more than once, or a UsageError."""
    if multiplicity not in ("rows", "column"):
        raise UsageError(f"multiplicity is 'rows' or 'column', not {shown(multiplicity)}")
    return Shape(multiplicity)


def planned(plan: Plan | AskElsewhere) -> Plan:
    """The plan; what refuses it is raised."""
    if isinstance(plan, Plan):
        return plan
    raise plan


def seconds_of(timeout: float | None) -> float:
    """How long to wait; None: for ever."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise UsageError(f"timeout is a number of seconds, or None to wait for ever, not {shown(timeout)}")
    return float(timeout)
