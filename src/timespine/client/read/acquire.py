"""Acquire what a read needs: one look at the log, a lease, and the time of the read.

A read without a time is of the newest complete time that is still readable. The
state that the look gave is passed down, so no function looks again. A read registers
at most one lease, and then only looks at the log: waiting writes nothing.

The lease comes before the plan, so that the blobs of the plan stay until the read
ends. A state without blobs has all rows in memory: a read of it takes no lease and
writes nothing, unless it waits for a later state, which may have blobs.
`acquire` and `lease_newest` are context managers. The block plans and hands
the leased state to a reader; if the block fails, the lease is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from timespine.client.arguments.time_args import TimeLike, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.leases import LeasedState, close_on_error
from timespine.columnar.predicate.where import Where, as_predicate
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.read_plan import NewestTime, Plan, newest_time, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.errors import Conflict, NotSealed, SinceError, UsageError, short_repr
from timespine.hints import Hint
from timespine.model.time import Time

WAIT_S = 10.0
"""Seconds that a read waits for its time to become complete, unless the caller gives a timeout."""

HoldState = Callable[[State, Time | None], LeasedState]
"""A function that leases a state from a time on, or from its since; it returns the state that has the lease."""


@contextlib.contextmanager
def acquire(
    handle: CollectionHandle,
    as_of: TimeLike | None,
    timeout: float | None,
    *,
    after: TimeLike | None = None,
    unsealed: bool = False,
    hold: HoldState | None = None,
    state: State | None = None,
) -> Iterator[tuple[LeasedState, Time | None]]:
    """Lease a state in which a time is complete, from that time on, or from `after` on; give both.

    The default is the newest complete time, also if other processes append and expire in between. It is None if no
    time is complete; then there is no lease, unless the caller reads `unsealed` updates too. A state without blobs
    needs no lease either. `hold` replaces the leases of this process. `state` is the newest one, if the caller has
    just read it.
    """
    state = state if state is not None else handle.state()
    asked = handle.time_of(as_of) if as_of is not None else None
    first = handle.time_of(after) if after is not None else None
    newest = newest_of(state) if asked is None else None
    wanted = asked if newest is None else newest.time
    if wanted is None and not unsealed:
        yield handle.context.leases.unleased(state), None
        return
    if newest is not None and first is None and not newest.is_readable:
        wanted = None  # from since on, so that the next read can share the lease
    if hold is None and state.is_inline and not _has_to_wait(state, asked, newest):
        held = handle.context.leases.unleased(state)
    else:
        held = (hold or handle.context.leases.hold)(state, first if first is not None else wanted)
    with close_on_error(held) as leased:
        if asked is None:
            leased_newest = newest if newest is not None and leased.state is state else newest_of(leased.state)
            yield leased, _wait_for_newest(handle, leased, leased_newest, timeout, first)
        else:
            _wait_for(handle, leased, timeout, asked)
            _check_since(leased.state, first if first is not None else asked)
            yield leased, asked


@contextlib.contextmanager
def lease_newest(handle: CollectionHandle, *, holds_since: bool = False) -> Iterator[LeasedState]:
    """Lease the newest state from its since on: for reads that are of that state and of no time.

    A state without blobs needs no lease, unless the caller needs later states from the same since on (`holds_since`).
    """
    state, leases = handle.state(), handle.context.leases
    needs_none = state.is_inline and not holds_since
    with close_on_error(leases.unleased(state) if needs_none else leases.hold(state, None)) as leased:
        yield leased


def _has_to_wait(state: State, asked: Time | None, newest: NewestTime | None) -> bool:
    """Return whether a read needs a later state than this one.

    SUBTLE: such a read has a lease while it waits: other processes could expire its time (test_read_without_blobs.py).
    """
    if asked is not None:
        return state.upper.less_equal(asked)
    return newest is not None and newest.time is not None and not newest.is_readable


def _wait_for(handle: CollectionHandle, leased: LeasedState, timeout: float | None, time: Time) -> None:
    """Wait until a time is complete."""
    if leased.state.upper.less_equal(time):
        there = handle.wait(lambda state: not state.upper.less_equal(time), seconds_of(timeout))
        if there is None:
            raise NotSealed(unwrap_time(time), handle.known().upper)
        leased.state = there


def _wait_for_newest(
    handle: CollectionHandle, leased: LeasedState, newest: NewestTime, timeout: float | None, first: Time | None
) -> Time | None:
    """Wait until the newest complete time is readable; return the time. `newest` is that of the leased state.

    SUBTLE: the lease comes first, and the newest time is looked up in the state that has the lease: other writers
    may append and expire in between (test_to_spark.py). If a caller has expired times ahead, they are not complete:
    the read keeps its one lease and waits. A lease for each look would write to the log in a loop (test_to_spark.py).
    """
    if first is not None:
        _check_since(leased.state, first)
    if newest.time is None:
        return None
    if not newest.is_readable and not newest.is_final:
        there = handle.wait(_is_readable, seconds_of(timeout))
        if there is None:
            known = handle.known()
            raise NotSealed(known.since.time, known.upper, expired=True)
        leased.state, newest = there, newest_of(there)
    assert newest.time is not None  # a complete time stays complete
    if not newest.is_readable:
        raise SinceError(unwrap_time(newest.time), leased.state.since)
    return newest.time


def _is_readable(state: State) -> bool:
    """Return whether the newest complete time can be read, or never can be: then waiting changes nothing."""
    newest = newest_of(state)
    return newest.is_readable or newest.is_final


def _check_since(state: State, time: Time) -> None:
    if not state.since.less_equal(time):
        raise SinceError(unwrap_time(time), state.since)


def newest_of(state: State) -> NewestTime:
    """Find the newest complete time of a state. For one coordinate only."""
    if state.arity != 1:
        raise UsageError("with several coordinates there is no newest time", hint=Hint("give-as-of"))
    return newest_time(state)


def scan_request(
    handle: CollectionHandle,
    state: State,
    columns: Sequence[str] | None,
    where: Where | None,
    window: Window,
    *,
    keep_times: bool = False,
) -> ScanRequest:
    """Check columns and condition of a user against the newest schema of a state; return the request."""
    _, schema = handle.schema(state)
    predicate = None
    if where is not None:
        predicate = as_predicate(where)
        predicate.check(schema)
    names = schema.names if columns is None else _check_columns(columns, schema)
    return ScanRequest(schema, names, window, keep_times=keep_times, where=predicate)


def _check_columns(columns: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Return the columns that a user gave; raise a UsageError if they are not some columns of a schema, each once."""
    names = tuple(columns) if isinstance(columns, Iterable) and not isinstance(columns, str | bytes) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError("`columns` must name at least one column")
    for name in names:
        schema.field(name)
    if len(set(names)) != len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UsageError(f"`columns` names {short_repr(twice)} twice")
    return names


def check_multiplicity(multiplicity: str) -> None:
    """Raise a UsageError if there is no such way to give rows that count more than once."""
    if multiplicity not in ("rows", "column"):
        raise UsageError(f"multiplicity is 'rows' or 'column', not {short_repr(multiplicity)}")


def read_plan(state: State, until: Time, after: Time | None = None) -> Plan:
    """Plan a snapshot, or the changes after a time; raise a refusal."""
    return require_plan(plan_snapshot(state, until) if after is None else plan_changes(state, after, until))


def require_plan(plan: Plan | Conflict) -> Plan:
    """Return the plan; raise a refusal."""
    if isinstance(plan, Plan):
        return plan
    raise plan


def seconds_of(timeout: float | None) -> float:
    """Return a timeout in seconds; infinity for None."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise UsageError(f"{short_repr(timeout)} is not a timeout", hint=Hint("give-seconds"))
    return float(timeout)
