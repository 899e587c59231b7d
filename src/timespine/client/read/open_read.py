"""The reads of a collection: each acquires a leased state, plans on it, and hands both to a reader.

These functions read no rows: `Rows` does, when it is asked to. Engines such as Spark
call them with a lease of their own kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from timespine.client.arguments.time_args import TimeLike, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import WAIT_S, HoldState, acquire, check_multiplicity, read_plan, scan_request
from timespine.client.read.change_set import Changes
from timespine.client.read.rows import Snapshot, Updates
from timespine.columnar.predicate.where import Where
from timespine.columnar.scan.visibility import Window
from timespine.core.state import State


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options that all reads have."""

    columns: Sequence[str] | None = None
    """The columns to read; None for all of them."""
    where: Where | None = None
    """A condition that rows satisfy."""
    timeout: float | None = WAIT_S
    """Seconds to wait for a time to become complete; None: for ever."""
    hold: HoldState | None = None
    """The function that leases a state; None: a lease of this process."""
    state: State | None = None
    """The newest state, if the caller has just read it."""


def open_snapshot(
    handle: CollectionHandle, as_of: TimeLike | None, asked: ReadOptions, multiplicity: str = "rows"
) -> Snapshot:
    """Plan a snapshot as of a time, or as of the newest complete one."""
    check_multiplicity(multiplicity)
    with acquire(handle, as_of, asked.timeout, hold=asked.hold, state=asked.state) as (leased, time):
        plan = read_plan(leased.state, time) if time is not None else None
        request = scan_request(handle, leased.state, asked.columns, asked.where, Window(until=time))
        request = replace(request, allow_duplicates=multiplicity == "rows")
        snapshot = Snapshot(handle, leased, plan, request, multiplicity)
        snapshot.as_of = unwrap_time(time) if time is not None else None
        return snapshot


def open_changes(
    handle: CollectionHandle,
    after: TimeLike | None,
    until: TimeLike | None,
    asked: ReadOptions,
    *,
    images: bool = False,
) -> Changes:
    """Plan the net changes in (after, until]."""
    with acquire(handle, until, asked.timeout, after=after, hold=asked.hold, state=asked.state) as (leased, last):
        first = handle.time_of(after) if after is not None else None
        plan = read_plan(leased.state, last, first) if last is not None else None
        request = scan_request(handle, leased.state, asked.columns, asked.where, Window(first, last))
        return Changes(handle, leased, plan, request, "column", images=images)


def open_updates(
    handle: CollectionHandle, until: TimeLike | None, asked: ReadOptions, *, after: TimeLike | None = None
) -> Updates:
    """Plan all updates up to a time, with their times advanced to since; or those after a time alone."""
    with acquire(handle, until, asked.timeout, after=after, hold=asked.hold, state=asked.state) as (leased, last):
        first = handle.time_of(after) if after is not None else None
        plan = read_plan(leased.state, last, first) if last is not None else None
        window = Window(first, last, since=plan.since if plan is not None and first is None else None)
        request = scan_request(handle, leased.state, asked.columns, asked.where, window, keep_times=True)
        return Updates(handle, leased, plan, request, "column")
