"""Read updates that are durable, and not sealed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timespine.client.context import Access
from timespine.client.read.acquire import lease_newest, wanted_of
from timespine.client.read.rows import Updates
from timespine.client.time_args import Moment
from timespine.columnar.scan.visibility import Window
from timespine.core.read_plan import plan_runs, plan_unsealed
from timespine.model.frontier import CLOSED, Frontier


def unsealed(
    access: Access, lower: Moment | None, upper: Moment | None, columns: Sequence[str] | None, where: Any
) -> Updates:
    """The updates that are durable at times from `lower` to before `upper`, and not sealed yet."""
    with lease_newest(access) as leased:
        state = leased.state
        first = Frontier((access.time_of(lower),)) if lower is not None else Frontier.minimum(state.arity)
        last = Frontier((access.time_of(upper),)) if upper is not None else CLOSED
        plan = plan_runs(state, plan_unsealed(state, first, last))
        wanted = wanted_of(access, state, columns, where, Window(since=state.since), timed=True)
        return Updates(access, leased, plan, wanted, "column", one_state=True)
