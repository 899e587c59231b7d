"""What a state says about what is due: which merges are taken, which batches wait to be drained."""

from __future__ import annotations

from timespine.client.context import Access
from timespine.core.spine.layers import MergeRequest
from timespine.core.state import State
from timespine.core.transitions.merges import is_at_work
from timespine.model.frontier import Frontier


def is_claimed(state: State, request: MergeRequest, access: Access, *, at_once: bool) -> bool:
    """Whether a process has claimed a merge; `at_once`: whether it may still be at work on it."""
    claim = state.claims.get(request.id)
    if claim is None:
        return False
    return is_at_work(state, claim, access.now_ms()) if at_once else claim.until_ms >= access.now_ms()


def is_one_run(state: State, goal: Frontier) -> bool:
    """Whether everything before a frontier is one run."""
    first = next(iter(state.hollow_batches()), None)
    return first is None or (goal <= first.desc.upper and len(first.runs) <= 1)


def is_untidy(state: State) -> bool:
    """Whether there are unsealed batches that could be in the trace, or are."""
    if not len(state.unsealed):
        return False
    if state.trace.upper != state.upper:
        return True
    return any(True for _ in state.unsealed.between(Frontier.minimum(state.arity), state.trace.upper))


def size_of(request: MergeRequest) -> int:
    """Bytes of what a request asks to merge."""
    return sum(part.total_bytes for batch in request.inputs for part in batch.parts)
