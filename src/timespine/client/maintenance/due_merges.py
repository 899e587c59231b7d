"""Due maintenance of a state: merges that are worth it, claimed merges, and unsealed batches to drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from timespine.client.inner_handles import CollectionHandle
from timespine.config import Config
from timespine.core.batch import HollowBatch
from timespine.core.spine.layers import MergeRequest
from timespine.core.state import State
from timespine.core.transitions.merges import is_at_work
from timespine.model.frontier import Frontier

GATHER = 128
"""Weight of hollow batches of one request that is worth a merge while writers are at work. A merge costs three commits
whatever it merges, and a reader decodes this many inline parts in a millisecond (`docs/benchmarks.md`)."""

BLOB_WEIGHT = 16
"""What a batch weighs whose rows are in blobs, which a reader opens one by one: eight of them are worth a merge."""

FOLD_ROWS = 1 << 18
"""Rows that a writer merges to make room in a state where no process maintains a collection, at most: its append waits
for them."""

NEARLY_FULL = 6
"""Eighths of the room for inline parts from which on a process folds them: beyond the room, each commit puts a blob."""

OVERDUE_FULL = 7
"""The same for appends of a process whose maintenance thread has not folded them: it may be in a long merge."""

SPARE_BYTES = 64 << 20
"""What a merge leaves free on the disk, at least; a small one leaves as much as it writes."""


def requests_worth_merging(
    state: State, handle: CollectionHandle, *, least: int, before: int | None = None, most: int | None = None
) -> list[MergeRequest]:
    """Return the requests that are worth a merge: the one that makes room in a full state, then the smallest first.

    `before` restricts them to batches inserted before it, `most` to requests of at most this many rows.
    """
    # A rewrite of expired history does not wait for company.
    owed = state.forgetting.below if state.forgetting is not None else 0
    folded = fold_request(state, handle, most)
    fold = None if folded is None else folded.id
    found = [
        request
        for request in state.trace.requests()
        if (before is None or request.id[1] <= before)
        and (most is None or request.rope.len <= most)
        and (request.id[0] < owed or request.id == fold or has_gathered(request, least))
    ]
    return sorted(found, key=lambda request: (request.id != fold, request.rope.len))


def has_gathered(request: MergeRequest, least: int = GATHER) -> bool:
    """Return whether enough batches wait in a request, by weight, for a merge."""
    if request.rope.count >= least:
        return True
    weight = 0
    for batch in request.inputs:
        weight += 1 if _is_inline(batch) else BLOB_WEIGHT
        if weight >= least:
            return True
    return False


def _is_inline(batch: HollowBatch) -> bool:
    return all(part.inline is not None for part in batch.parts)


def is_nearly_full(state: State, config: Config, eighths: int = NEARLY_FULL) -> bool:
    """Tell whether inline parts take this share of what they may take, or more."""
    return 8 * state.inline_bytes >= eighths * config.inline_total_bytes


def fold_request(
    state: State, handle: CollectionHandle, most: int | None = None, eighths: int = NEARLY_FULL
) -> MergeRequest | None:
    """Return the request of at most `most` rows whose merge makes the most room in a nearly full state.

    None if no request holds a quarter of what is inline: then merges would be many and make little room.
    """
    if not is_nearly_full(state, handle.config, eighths):
        return None
    room = {
        request.id: sum(batch.inline_bytes for batch in request.inputs)
        for request in state.trace.requests()
        if request.rope.count > 1 and (most is None or request.rope.len <= most)
    }
    free = [each for each in state.trace.requests() if each.id in room]
    free = [each for each in free if not is_claimed(state, each, handle, at_once=False)]
    best = max(free, key=lambda each: room[each.id], default=None)
    return best if best is not None and 4 * room[best.id] >= state.inline_bytes else None


def worth_folding(handle: CollectionHandle, eighths: int) -> Iterator[MergeRequest]:
    """Yield what a writer merges if no other thread does it in time: inline parts, then blobs that came of that.

    Nothing as long as the state has room, so what an append pays for this is shared by those that filled it.
    """
    fold = fold_request(handle.known(), handle, FOLD_ROWS, eighths)
    if fold is None:
        return
    yield fold
    state = handle.known()
    for request in requests_worth_merging(state, handle, least=GATHER, most=FOLD_ROWS)[:1]:
        if not is_claimed(state, request, handle, at_once=False):
            yield request


def is_claimed(state: State, request: MergeRequest, handle: CollectionHandle, *, at_once: bool) -> bool:
    """Return whether a process has claimed a merge; with `at_once`, whether it may still be working on it."""
    claim = state.claims.get(request.id)
    if claim is None:
        return False
    return is_at_work(state, claim, handle.now_ms()) if at_once else claim.until_ms >= handle.now_ms()


def is_one_run(state: State, goal: Frontier) -> bool:
    """Return whether all batches before a frontier are one run, and perhaps a past run."""
    first = next(iter(state.hollow_batches()), None)
    return first is None or (goal <= first.desc.upper and first.is_sorted)


def is_untidy(state: State) -> bool:
    """Return whether unsealed batches could be drained to the trace, or are drained and can be evicted."""
    if not len(state.unsealed):
        return False
    if state.trace.upper != state.upper:
        return True
    return any(True for _ in state.unsealed.between(Frontier.minimum(state.arity), state.trace.upper))


def size_of(request: MergeRequest) -> int:
    """Return the bytes of the inputs of a merge request."""
    return sum(part.total_bytes for batch in request.inputs for part in batch.parts)


def fits(request: MergeRequest, free_bytes: Callable[[], int | None]) -> bool:
    """Tell whether the disk has room for the result of a merge beside its inputs."""
    try:
        free = free_bytes()
    except OSError:
        return True  # the merge finds out
    return free is None or free >= size_of(request) + min(size_of(request), SPARE_BYTES)
