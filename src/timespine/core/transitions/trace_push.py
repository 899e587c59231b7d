"""The shared part of all writes: pushing a batch into the trace, with the unsealed updates in its range."""

from __future__ import annotations

import msgspec

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Order, Part, Run, rows_in
from timespine.core.state import Claim, HistoryEntry, State
from timespine.core.unsealed_index import UnsealedIndex
from timespine.model.description import Description
from timespine.model.frontier import Frontier


def push_batch(state: State, runs: list[Run], desc: Description) -> State:
    """Return the state with a batch of these runs in its trace, from the trace's upper on."""
    rows = rows_in(runs)
    batch = HollowBatch(desc, rows, tuple(runs) if rows else ())
    trace = state.trace.insert(batch)
    grown = msgspec.structs.replace(state, trace=trace, inline_bytes=state.inline_bytes + batch.inline_bytes)
    return with_live_claims(grown)


def drain_trace(state: State) -> State:
    """Return the state with all sealed updates in its trace, which may lag behind the upper."""
    if state.trace.upper == state.upper:
        return state
    desc = Description(state.trace.upper, state.upper, Frontier.minimum(state.arity))
    return push_batch(state, drained_runs(state, state.upper), desc)


def drained_runs(state: State, upper: Frontier) -> list[Run]:
    """Return the unsealed updates at times from the trace's upper to `upper`, by reference."""
    return runs_between(state.unsealed, state.trace.upper, upper)


def runs_between(unsealed: UnsealedIndex, lower: Frontier, upper: Frontier) -> list[Run]:
    """Return the unsealed updates at times in [lower, upper), by reference.

    The result has one unordered run per unsealed batch, truncated only if some of it lies outside.
    """
    runs = []
    for batch in unsealed.between(lower, upper):
        inside = not batch.has_times_below(lower) and batch.is_wholly_below(upper)
        parts = batch.parts if inside else tuple(truncate_batch(part, lower, upper) for part in batch.parts)
        runs.append(Run(parts, Order.UNORDERED, batch.schema))
    return runs


def truncate_batch(part: Part, lower: Frontier | None, upper: Frontier | None) -> Part:
    """Return the part seen through [lower, upper), where None is no bound: metadata only."""
    if lower is not None and part.lower is not None:
        lower = part.lower.join(lower)
    if upper is not None and part.upper is not None:
        upper = part.upper.meet(upper)
    return msgspec.structs.replace(
        part,
        lower=part.lower if lower is None else lower,
        upper=part.upper if upper is None else upper,
    )


def rewrite_batch(run: Run, at: Frontier) -> Run:
    """Return the run with all its times advanced: metadata only."""
    return Run(tuple(msgspec.structs.replace(part, rewrite=at) for part in run.parts), run.order, run.schema)


def remember(state: State, entry: HistoryEntry) -> State:
    """Return the state with one more entry of history.

    A full history first loses the entries before since, and then, if that is not enough, its oldest quarter: many at
    once, so that most appends drop nothing.
    """
    history = state.history
    if len(history) >= DEFAULT.history_entries:
        readable = [each for each in history if not each.upper <= state.since]
        history = tuple(readable[-(DEFAULT.history_entries * 3 // 4) :])
    return msgspec.structs.replace(state, history=(*history, entry))


def with_live_claims(state: State) -> State:
    """Return the state without claims on batches that are gone or no longer fueled."""
    if not state.claims:
        return state
    fueled = {batch.id for batch in state.trace.batches() if batch.fueled}
    claims: dict[tuple[int, int], Claim] = {id: claim for id, claim in state.claims.items() if id in fueled}
    return state if len(claims) == len(state.claims) else msgspec.structs.replace(state, claims=claims)
