"""The contents of a collection in one state: its sealed rows, and its unsealed updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from timespine.client.arguments.time_args import TimeLike, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import acquire, check_multiplicity, read_plan, scan_request
from timespine.client.read.rows import Snapshot, Updates
from timespine.columnar.predicate.where import Where
from timespine.columnar.scan.visibility import Window
from timespine.core.read_plan import plan_runs, plan_unsealed
from timespine.model.frontier import CLOSED, Frontier


@dataclass(frozen=True, slots=True)
class Contents:
    """The sealed and the unsealed part of a collection, both of one state and held by one lease."""

    sealed: Snapshot
    """The rows as of the newest complete time, or of the time that the caller named."""
    unsealed: Updates
    """Every unsealed update, with its time."""
    since: Frontier
    """The frontier from which on history is exact."""
    upper: Frontier
    """The frontier that separates both: updates before it are sealed."""
    seqno: int
    """The number of the state that both are of."""

    def close(self) -> None:
        """Release history."""
        self.sealed.close()
        self.unsealed.close()

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def contents(
    handle: CollectionHandle,
    as_of: TimeLike | None,
    columns: Sequence[str] | None,
    where: Where | None,
    multiplicity: str,
    timeout: float | None,
) -> Contents:
    """Plan both reads on one state."""
    check_multiplicity(multiplicity)
    with acquire(handle, as_of, timeout, unsealed=True) as (leased, time):
        state = leased.state
        plan = read_plan(state, time) if time is not None else None
        wanted = scan_request(handle, state, columns, where, Window(until=time))
        wanted = replace(wanted, allow_duplicates=multiplicity == "rows")
        with_times = scan_request(handle, state, columns, where, Window(since=state.since), keep_times=True)
        ahead = plan_runs(state, plan_unsealed(state, Frontier.minimum(state.arity), CLOSED))
        unsealed = Updates(handle, leased.share(), ahead, with_times, "column", one_state=True)
        sealed = Snapshot(handle, leased, plan, wanted, multiplicity)
        sealed.as_of = unwrap_time(time) if time is not None else None
        return Contents(sealed, unsealed, state.since, state.upper, state.seqno)
