"""Collections that need no look at their log, by one call for all of them.

A collection is settled if the last look at its newest state found nothing to do. It stays so while no process commits
to it and no deadline passes. The heads of all settled collections come from one call of consensus, so an idle store
costs the same with ten collections and with a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timespine.client.inner_handles import CollectionHandle
from timespine.core.maintenance_policy import CollectStep, is_forgetting_due, next_collect_step
from timespine.core.state import State, Status
from timespine.errors import TimespineError
from timespine.location.consensus import Consensus, read_heads
from timespine.model.frontier import Frontier


class SettledCollections:
    """The settled collections of a store, each with the sequence number of the state that was judged."""

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self._settled: dict[str, int] = {}

    def mark_settled(self, collection: str, seqno: int) -> None:
        """Note that there is nothing to do for a state."""
        self._settled[collection] = seqno

    def to_check(
        self, handles: Sequence[CollectionHandle], is_due: Callable[[CollectionHandle], bool]
    ) -> list[CollectionHandle]:
        """List the collections to look at: all but those that are settled, unchanged, and not due by time."""
        quiet = [each.id for each in handles if each.id in self._settled and not is_due(each)]
        try:
            heads = read_heads(self._consensus, quiet) if quiet else {}
        except TimespineError:
            heads = {}  # the looks themselves report what is wrong
        unchanged = {id for id in quiet if id in heads and heads[id] == self._settled[id]}
        return [each for each in handles if each.id not in unchanged]


def is_due_by_time(handle: CollectionHandle, state: State) -> bool:
    """Tell whether a state without changes may need a look: a deadline passed, or it waits for a merge or a lease.

    SUBTLE: a merge that another process claimed is retried once the claim lapses (test_settled_collections.py).
    """
    return (
        state.status is Status.FINALIZED
        or bool(state.trace.requests())
        or is_collection_due(handle, state)
        or has_lapsed_leases(handle, state)
        or retention_horizon(handle, state) is not None
        or is_forgetting_due(state, handle.now_ms(), handle.forget_within_ms)
    )


def is_collection_due(handle: CollectionHandle, state: State) -> bool:
    """Tell whether garbage waits for a lease to end, or was kept for long enough."""
    keep_ms = handle.context.keep_deleted_ms
    step = next_collect_step(state, handle.now_ms(), keep_ms)
    return step is CollectStep.WAIT or (keep_ms > 0 and step in (CollectStep.COLLECT, CollectStep.ROLL_UP))


def has_lapsed_leases(handle: CollectionHandle, state: State) -> bool:
    """Tell whether a lease of a reader, a writer or a committer has ended."""
    now_ms = handle.now_ms()
    ends = [lease.until_ms for held in (state.readers, state.writers, state.committers) for lease in held.values()]
    return any(until_ms < now_ms for until_ms in ends)


def retention_horizon(handle: CollectionHandle, state: State) -> Frontier | None:
    """Return the frontier that the retention policy moves to now; None if it stays where it is."""
    retain_ms = handle.entry.retain_ms if handle.entry.retain_ms is not None else handle.context.retain_ms
    if retain_ms is None or handle.entry.timeline != "clock" or state.arity != 1 or not state.upper.elements:
        return None
    # Never past the newest complete time: the present rows stay readable.
    horizon = min(handle.now_ms() - retain_ms, state.upper.time - 1)
    return Frontier.at(horizon) if horizon > 0 and not Frontier.at(horizon) <= state.retention else None
