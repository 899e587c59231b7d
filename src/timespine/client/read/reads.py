"""The reads of a collection: each acquires a leased state, plans on it, and hands both to a reader.

Nothing is read yet: `Rows` reads when it is asked to. Engines such as Spark call these
functions with a lease of their own kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from timespine.client.context import Access
from timespine.client.read.acquire import WAIT_S, Hold, acquire, check_multiplicity, plan_of, wanted_of
from timespine.client.read.change_set import Changes
from timespine.client.read.rows import Snapshot, Updates
from timespine.client.time_args import Moment, to_user
from timespine.columnar.scan.visibility import Window
from timespine.core.state import State


@dataclass(frozen=True, slots=True)
class Asked:
    """What all reads are asked for."""

    columns: Sequence[str] | None = None
    """The columns to give; None for all of them."""
    where: Any = None
    """A condition that rows satisfy."""
    timeout: float | None = WAIT_S
    """How many seconds to wait for a time to become complete; None: for ever."""
    hold: Hold | None = None
    """How a state is leased; None: under a lease of this process."""
    state: State | None = None
    """The newest state, if the caller has just read it."""


def read_snapshot(access: Access, as_of: Moment | None, asked: Asked, multiplicity: str = "rows") -> Snapshot:
    """Plan a snapshot as of a time, or as of the newest complete one."""
    check_multiplicity(multiplicity)
    with acquire(access, as_of, asked.timeout, hold=asked.hold, state=asked.state) as (leased, time):
        plan = plan_of(leased.state, time) if time is not None else None
        request = wanted_of(access, leased.state, asked.columns, asked.where, Window(until=time))
        request = replace(request, repeats=multiplicity == "rows")
        snapshot = Snapshot(access, leased, plan, request, multiplicity)
        snapshot.as_of = to_user(time) if time is not None else None
        return snapshot


def read_changes(
    access: Access, after: Moment | None, until: Moment | None, asked: Asked, *, images: bool = False
) -> Changes:
    """Plan the net changes in (after, until]."""
    with acquire(access, until, asked.timeout, after=after, hold=asked.hold, state=asked.state) as (leased, last):
        first = access.time_of(after) if after is not None else None
        plan = plan_of(leased.state, last, first) if last is not None else None
        request = wanted_of(access, leased.state, asked.columns, asked.where, Window(first, last))
        return Changes(access, leased, plan, request, "column", images=images)


def read_updates(access: Access, until: Moment | None, asked: Asked) -> Updates:
    """Plan all updates up to a time, with their times advanced to since."""
    with acquire(access, until, asked.timeout, hold=asked.hold, state=asked.state) as (leased, last):
        plan = plan_of(leased.state, last) if last is not None else None
        window = Window(until=last, since=plan.since if plan is not None else None)
        request = wanted_of(access, leased.state, asked.columns, asked.where, window, timed=True)
        return Updates(access, leased, plan, request, "column")
