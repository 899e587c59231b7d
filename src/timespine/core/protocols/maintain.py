"""The protocols of maintenance: merges, rollups, expiry, finalizing.

Any number of processes may run them at any time.
"""

from __future__ import annotations

from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.effects import DeleteBlobs, FreshId, MergeRuns, Now, Output, Protocol, PutBlob
from timespine.core.encoding.codec import encode_state
from timespine.core.group import Refused
from timespine.core.protocols.commit import commit
from timespine.core.protocols.garbage import delete_written
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session, retry
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.state import State, is_last, rewrite_time_ms
from timespine.core.transitions import (
    AddRollup,
    ApplyMerge,
    ClaimMerge,
    Drain,
    Evict,
    ExpireLeases,
    ExpireWriter,
    RegisterWriter,
    Trim,
)
from timespine.core.transitions.merges import is_at_work
from timespine.core.transitions.trace_push import truncate_batch
from timespine.errors import Fenced, TimespineError, Unavailable
from timespine.model.description import Description
from timespine.model.frontier import Frontier

TRIMS_MAX = 8
"""Unsealed batches that one commit narrows, at most: each costs in proportion to all of them, and it is not urgent."""


def merge_once(
    session: Session, collection: str, id: tuple[int, int] | None = None
) -> Protocol[MergeApplication | None]:
    """Do one unclaimed merge (that of `id`, if named); return its application, or None if there is none.

    A merge that failed is skipped while its claim lasts, unless it is named. The merge runs as a writer of its own, so
    that the sweep removes its blobs if it dies, and so that a late result cannot pass for a new one.
    """
    state = yield from refresh_state(session, collection)
    request = _find_unclaimed(state, id, (yield Now())) if state is not None else None
    if request is None:
        return None
    unchanged = _batch_if_unchanged(request)
    if unchanged is not None:
        # SUBTLE: declare all of it as passed through. It may be a part of this session's own writer, which would
        # pass for a new one after another merge has dropped it (test_garbage_policy.py).
        offer = ApplyMerge(unchanged, session.writer, passed=tuple(unchanged.keys))
        return (yield from _offer_result(session, collection, offer))
    writer: str = yield FreshId("m")
    register = RegisterWriter(writer, session.config.writer_lease_ms)
    claim = ClaimMerge(request.id, writer, session.config.claim_ms)
    claimed = yield from commit(session, collection, register, claim)
    if isinstance(claimed, Refused) or not claimed[1]:
        yield from commit(session, collection, ExpireWriter(writer))
        return None
    return (yield from _merge_as(session, collection, request, writer))


def _batch_if_unchanged(request: MergeRequest) -> HollowBatch | None:
    """Return the batch of a merge that would move no row: one sorted run beside empty batches, with no time to advance.

    So sealing an idle collection, which adds empty batches, never rewrites a row.
    """
    full = [batch for batch in request.inputs if not batch.is_empty]
    if len(full) != 1 or not full[0].is_sorted or any(part.is_truncated for part in full[0].parts):
        return None
    desc, (only,) = request.desc, full
    if request.rope.count == 1 or not (desc.since <= only.desc.since or desc.since <= only.desc.lower):
        return None
    return HollowBatch(desc, only.len, only.runs)


def _offer_result(session: Session, collection: str, offer: ApplyMerge) -> Protocol[MergeApplication | None]:
    """Offer a result without new blobs."""
    replies = yield from commit(session, collection, offer)
    if isinstance(replies, Refused):
        return None
    session.count("merges applied" if replies[0].is_applied else "merges dropped")
    applied: MergeApplication = replies[0]
    return applied


def _merge_as(
    session: Session, collection: str, request: MergeRequest, writer: str
) -> Protocol[MergeApplication | None]:
    """Merge, offer the result, and clean up if it is refused."""
    try:
        output: Output = yield MergeRuns(collection, request, writer)
    except TimespineError:
        # Storage is unavailable, or the rows cannot be merged (a count overflows): skip this merge
        # for as long as its claim lasts, and nothing else.
        session.count("merges failed")
        yield from commit(session, collection, ExpireWriter(writer))
        return None
    if output is None:
        yield from commit(session, collection, ExpireWriter(writer))
        return None
    offer = ApplyMerge(
        output.batch,
        writer,
        session.config.inline_total_bytes,
        output.passed,
        output.rows,
        output.size,
        output.ms,
    )
    replies = yield from commit(session, collection, offer, ExpireWriter(writer))
    if isinstance(replies, Refused):
        yield from commit(session, collection, ExpireWriter(writer))
    elif replies[0].is_applied:
        session.count("merges applied")
        applied: MergeApplication = replies[0]
        return applied
    session.count("merges dropped")
    yield from _delete_orphans(session, output.batch, writer)
    return None if isinstance(replies, Refused) else replies[0]


def _delete_orphans(session: Session, output: HollowBatch, writer: str) -> Protocol[None]:
    """Delete the orphaned blobs of a writer."""
    listed = {part.key: part.hollow for part in output.parts if part.key}
    try:
        yield from delete_written(session, listed, writer)
    except Unavailable:
        session.count("left to the sweep", sum(key.split("/")[1] == writer for key in listed))


def _find_unclaimed(state: State, id: tuple[int, int] | None, now_ms: int) -> MergeRequest | None:
    """Return the smallest request without a claim, or the one with that id if no process works on it."""
    free = []
    for request in state.trace.requests():
        claim = state.claims.get(request.id)
        if id is None:
            is_free = claim is None or claim.until_ms < now_ms
        else:
            is_free = request.id == id and (claim is None or not is_at_work(state, claim, now_ms))
        if is_free:
            free.append(request)
    return min(free, key=lambda request: request.rope.len, default=None)


def is_rollup_due(config: Config, state: State, times: int = 1) -> bool:
    """Tell whether enough commits came since the last rollup to pay for another: `times` the configured number.

    A rollup costs in proportion to the state, so the larger the state, the more commits must share the cost: at least a
    quarter as many as there are batches.
    """
    newest = max(state.rollups, default=0)
    return state.seqno - newest >= max(times * config.rollup_seqnos, state.trace.hollow_count // 4)


def next_rollup_seqno(config: Config, state: State, times: int = 1) -> int:
    """Return a sequence number before which `is_rollup_due` says no, whatever commits follow this state."""
    return max(state.rollups, default=0) + times * config.rollup_seqnos


def roll_up(session: Session, collection: str) -> Protocol[bool]:
    """Write the whole state to a blob, so that older diffs can go; return whether it was recorded."""
    state = yield from refresh_state(session, collection)
    if state is None:
        return False
    key = f"{collection}/{session.writer}/{(yield FreshId('s'))}"
    data = encode_state(state)
    yield from retry(session, PutBlob(key, data))
    add = AddRollup(state.seqno, key, len(data), state.totals.dropped_bytes, rewrite_time_ms(state), is_last(state))
    try:
        replies = yield from commit(session, collection, add)
    except Fenced as fenced:
        # SUBTLE: if the collection was dropped and another process has emptied it, no sweep follows
        # (test_maintain.py).
        if not fenced.in_doubt:
            yield from delete_unreferenced(session, (key,))
        raise
    if isinstance(replies, Refused) or not replies[0]:
        yield from delete_unreferenced(session, (key,))
        return False
    return True


def expire_lapsed_leases(session: Session, collection: str) -> Protocol[int]:
    """Remove the leases that lapsed by this process's clock; return how many."""
    replies = yield from commit(session, collection, ExpireLeases())
    return 0 if isinstance(replies, Refused) else int(replies[0])


def tidy_unsealed(session: Session, collection: str) -> Protocol[None]:
    """Drain sealed batches, evict drained ones, narrow partly drained ones. Any process may do or repeat each step."""
    yield from commit(session, collection, Drain())
    yield from commit(session, collection, Evict())
    state = session.state(collection)
    begun = [batch for batch in state.unsealed if batch.has_times_below(state.trace.upper)]
    if begun:
        yield from commit(session, collection, *(Trim(batch.seqno) for batch in begun[:TRIMS_MAX]))


def rewrite_unsealed(session: Session, collection: str, seqno: int) -> Protocol[bool]:
    """Rewrite an unsealed batch without the updates that are in the trace; return whether the result was accepted.

    As for a merge, it runs as a writer of its own.
    """
    state = yield from refresh_state(session, collection)
    batch = next((each for each in state.unsealed if each.seqno == seqno), None) if state is not None else None
    if state is None or batch is None or batch.is_wholly_below(state.trace.upper):
        return False
    if batch.rows > state.totals.budget_rows:
        return False
    upper = state.trace.upper
    writer: str = yield FreshId("m")
    yield from commit(session, collection, RegisterWriter(writer, session.config.writer_lease_ms))
    run = Run(tuple(truncate_batch(part, upper, None) for part in batch.parts), Order.UNORDERED, batch.schema)
    # No time is advanced: unsealed updates are exact.
    whole = HollowBatch(Description(upper, Frontier(), Frontier.minimum(state.arity)), batch.rows, (run,))
    request = MergeRequest(whole.desc, ropes.leaf(0, 1, whole))
    try:
        output: Output = yield MergeRuns(collection, request, writer)
    except TimespineError:
        output = None
    if output is None:
        yield from commit(session, collection, ExpireWriter(writer))
        return False
    # A truncated part cannot be passed through, and `Trim` could not see parts of others inside a run of the result.
    assert not output.passed
    batch_parts = tuple(output.batch.parts)
    schema = output.batch.runs[0].schema if output.batch.runs else None
    trim = Trim(seqno, batch_parts, upper, schema, session.config.inline_total_bytes)
    replies = yield from commit(session, collection, trim, ExpireWriter(writer))
    if not isinstance(replies, Refused) and replies[0]:
        session.count("unsealed batches rewritten")
        return True
    if isinstance(replies, Refused):
        yield from commit(session, collection, ExpireWriter(writer))
    yield from _delete_orphans(session, output.batch, writer)
    return False


def delete_unreferenced(session: Session, keys: tuple[str, ...]) -> Protocol[None]:
    """Delete orphaned blobs. If that fails, the sweep finds them once the writer is gone."""
    try:
        yield DeleteBlobs(keys)
    except Unavailable:
        session.count("left to the sweep", len(keys))
