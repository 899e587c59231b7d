"""What a collection contains at one moment: what is sealed, and what was written ahead of the seal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from timespine.client.context import Access
from timespine.client.read.acquire import acquire, check_multiplicity, plan_of, wanted_of
from timespine.client.read.rows import Snapshot, Updates
from timespine.client.time_args import Moment, to_user
from timespine.columnar.scan.visibility import Window
from timespine.core.read_plan import plan_runs, plan_unsealed
from timespine.model.frontier import CLOSED, Frontier


@dataclass(frozen=True, slots=True)
class Contents:
    """The sealed and the unsealed part of a collection, both of one state and held by one lease."""

    sealed: Snapshot
    """The rows as of the newest complete time, or the one that was asked for."""
    unsealed: Updates
    """Every update at a time that is not sealed, with its time."""
    since: Frontier
    """History is exact from here on."""
    upper: Frontier
    """Updates before this are sealed, the others are not."""
    seqno: int
    """The number of the state that both are of."""

    def close(self) -> None:
        """Let history go."""
        self.sealed.close()
        self.unsealed.close()

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def contents(
    access: Access,
    as_of: Moment | None,
    columns: Sequence[str] | None,
    where: Any,
    multiplicity: str,
    timeout: float | None,
) -> Contents:
    """Plan both reads on one state."""
    check_multiplicity(multiplicity)
    with acquire(access, as_of, timeout, unsealed=True) as (leased, time):
        state = leased.state
        plan = plan_of(state, time) if time is not None else None
        wanted = wanted_of(access, state, columns, where, Window(until=time))
        wanted = replace(wanted, repeats=multiplicity == "rows")
        timed = wanted_of(access, state, columns, where, Window(since=state.since), timed=True)
        ahead = plan_runs(state, plan_unsealed(state, Frontier.minimum(state.arity), CLOSED))
        unsealed = Updates(access, leased.share(), ahead, timed, "column", one_state=True)
        sealed = Snapshot(access, leased, plan, wanted, multiplicity)
        sealed.as_of = to_user(time) if time is not None else None
        return Contents(sealed, unsealed, state.since, state.upper, state.seqno)
