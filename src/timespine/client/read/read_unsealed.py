"""Read unsealed updates."""

from __future__ import annotations

from collections.abc import Sequence

from timespine.client.arguments.time_args import TimeLike
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import lease_newest, scan_request
from timespine.client.read.rows import Updates
from timespine.columnar.predicate.where import Where
from timespine.columnar.scan.visibility import Window
from timespine.core.read_plan import plan_runs, plan_unsealed
from timespine.model.frontier import CLOSED, Frontier


def read_unsealed(
    handle: CollectionHandle,
    lower: TimeLike | None,
    upper: TimeLike | None,
    columns: Sequence[str] | None,
    where: Where | None,
) -> Updates:
    """Plan a read of the unsealed updates at times from `lower` to before `upper`."""
    with lease_newest(handle) as leased:
        state = leased.state
        first = Frontier((handle.time_of(lower),)) if lower is not None else Frontier.minimum(state.arity)
        last = Frontier((handle.time_of(upper),)) if upper is not None else CLOSED
        plan = plan_runs(state, plan_unsealed(state, first, last))
        wanted = scan_request(handle, state, columns, where, Window(since=state.since), keep_times=True)
        return Updates(handle, leased, plan, wanted, "column", one_state=True)
