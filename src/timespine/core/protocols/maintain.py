"""Merging, rollups, expiry, finalizing: what may run at any time, in any number of processes."""

from __future__ import annotations

from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.effects import DeleteBlobs, FreshId, MergeRuns, Now, Output, Protocol, PutBlob
from timespine.core.encoding.codec import encode_state
from timespine.core.group import Refused
from timespine.core.protocols.commit import commit
from timespine.core.protocols.garbage import delete_written
from timespine.core.protocols.load_state import refresh
from timespine.core.protocols.session import Session, retried
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.core.spine.merge_result import Applied
from timespine.core.state import State, is_last, rewritten_ms
from timespine.core.transitions import (
    AddRollup,
    ApplyMerge,
    ClaimMerge,
    Drain,
    Evict,
    ExpireLeases,
    ExpireWriter,
    Finalize,
    RegisterWriter,
    Trim,
)
from timespine.core.transitions.merges import is_at_work
from timespine.core.transitions.trace_push import truncated
from timespine.errors import Fenced, TimespineError, Unavailable
from timespine.model.description import Description
from timespine.model.frontier import Frontier

TRIMS_MAX = 8
"""Unsealed batches that one commit narrows, at most: each costs in proportion to all of them, and it is not urgent."""


def merge_once(session: Session, collection: str, id: tuple[int, int] | None = None) -> Protocol[Applied | None]:
    """Do one merge that nobody else is at (that of `id`, if named); what became of it, or None if there is none.

    A merge that came to nothing is left alone while its claim lasts, unless it is named.
    The merge runs as a writer of its own, so that what it leaves behind if it dies
    is swept, and so that a late result cannot pass for a new one.
    """
    state = yield from refresh(session, collection)
    request = _unclaimed(state, id, (yield Now())) if state is not None else None
    if request is None:
        return None
    unchanged = _unchanged(request)
    if unchanged is not None:
        # SUBTLE: all of it is passed on. It may be a part of this session's own writer, which would pass for a new
        # one after another merge has dropped it (test_upkeep.py).
        offer = ApplyMerge(unchanged, session.writer, passed=tuple(unchanged.keys))
        return (yield from _applied(session, collection, offer))
    writer: str = yield FreshId("m")
    register = RegisterWriter(writer, session.config.writer_lease_ms)
    claim = ClaimMerge(request.id, writer, session.config.claim_ms)
    claimed = yield from commit(session, collection, register, claim)
    if isinstance(claimed, Refused) or not claimed[1]:
        yield from commit(session, collection, ExpireWriter(writer))
        return None
    return (yield from _merge_as(session, collection, request, writer))


def _unchanged(request: MergeRequest) -> HollowBatch | None:
    """What a merge would only describe anew: one sorted run beside empty batches, none of whose times would move.

    So to say that nothing happened, as sealing an idle collection does, never rewrites a row.
    """
    full = [batch for batch in request.inputs if not batch.is_empty]
    if len(full) != 1 or not full[0].is_sorted or any(part.is_truncated for part in full[0].parts):
        return None
    desc, (only,) = request.desc, full
    if request.rope.count == 1 or not (desc.since <= only.desc.since or desc.since <= only.desc.lower):
        return None
    return HollowBatch(desc, only.len, only.runs)


def _applied(session: Session, collection: str, offer: ApplyMerge) -> Protocol[Applied | None]:
    """Offer a result that no blob was written for."""
    replies = yield from commit(session, collection, offer)
    if isinstance(replies, Refused):
        return None
    session.count("merges applied" if replies[0].is_applied else "merges dropped")
    applied: Applied = replies[0]
    return applied


def _merge_as(session: Session, collection: str, request: MergeRequest, writer: str) -> Protocol[Applied | None]:
    """Merge, offer the result, and clean up if it is not taken."""
    try:
        output: Output = yield MergeRuns(collection, request, writer)
    except TimespineError:
        # Storage is away, or the rows cannot be merged (a count that overflows): this merge is
        # skipped, for as long as its claim lasts, and nothing else is.
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
        applied: Applied = replies[0]
        return applied
    session.count("merges dropped")
    yield from _deleted(session, output.batch, writer)
    return None if isinstance(replies, Refused) else replies[0]


def _deleted(session: Session, output: HollowBatch, writer: str) -> Protocol[None]:
    """Delete what a writer wrote in vain."""
    listed = {part.key: part.hollow for part in output.parts if part.key}
    try:
        yield from delete_written(session, listed, writer)
    except Unavailable:
        session.count("left to the sweep", sum(key.split("/")[1] == writer for key in listed))


def _unclaimed(state: State, id: tuple[int, int] | None, now_ms: int) -> MergeRequest | None:
    """The smallest request that nobody claims, or the one with that id if nobody is at work on it."""
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
    """Whether enough was committed since the last rollup to pay for another: so many times over what is configured.

    A rollup costs in proportion to the state, so the larger the state, the more
    commits must share the cost: at least a quarter as many as there are batches.
    """
    newest = max(state.rollups, default=0)
    return state.seqno - newest >= max(times * config.rollup_seqnos, state.trace.hollow_count // 4)


def roll_up(session: Session, collection: str) -> Protocol[bool]:
    """Write the whole state to a blob, so that older diffs can go; whether it was recorded."""
    state = yield from refresh(session, collection)
    if state is None:
        return False
    key = f"{collection}/{session.writer}/{(yield FreshId('s'))}"
    data = encode_state(state)
    yield from retried(session, PutBlob(key, data))
    add = AddRollup(state.seqno, key, len(data), state.totals.dropped_bytes, rewritten_ms(state), is_last(state))
    try:
        replies = yield from commit(session, collection, add)
    except Fenced as fenced:
        # SUBTLE: no sweep comes after this if the collection was dropped, and another process has emptied it
        # (test_maintain.py).
        if not fenced.in_doubt:
            yield from forget(session, (key,))
        raise
    if isinstance(replies, Refused) or not replies[0]:
        yield from forget(session, (key,))
        return False
    return True


def expire_leases(session: Session, collection: str) -> Protocol[int]:
    """Remove what lapsed by this process's clock; how many that were."""
    replies = yield from commit(session, collection, ExpireLeases())
    return 0 if isinstance(replies, Refused) else int(replies[0])


def tidy_unsealed(session: Session, collection: str) -> Protocol[None]:
    """Drain what is sealed, evict what is drained, narrow what partly is. Each may be done, or redone, by anybody."""
    yield from commit(session, collection, Drain())
    yield from commit(session, collection, Evict())
    state = session.state(collection)
    begun = [batch for batch in state.unsealed if batch.has_times_below(state.trace.upper)]
    if begun:
        yield from commit(session, collection, *(Trim(batch.seqno) for batch in begun[:TRIMS_MAX]))


def rewrite_unsealed(session: Session, collection: str, seqno: int) -> Protocol[bool]:
    """Write what of an unsealed batch is not in the trace anew, without the rest; whether it was taken.

    As with a merge, it is done as a writer of its own.
    """
    state = yield from refresh(session, collection)
    batch = next((each for each in state.unsealed if each.seqno == seqno), None) if state is not None else None
    if state is None or batch is None or batch.is_wholly_below(state.trace.upper):
        return False
    if batch.rows > state.totals.budget_rows:
        return False
    upper = state.trace.upper
    writer: str = yield FreshId("m")
    yield from commit(session, collection, RegisterWriter(writer, session.config.writer_lease_ms))
    run = Run(tuple(truncated(part, upper, None) for part in batch.parts), Order.UNORDERED, batch.schema)
    # No time is advanced: what is not sealed is exact.
    whole = HollowBatch(Description(upper, Frontier(), Frontier.minimum(state.arity)), batch.rows, (run,))
    request = MergeRequest(whole.desc, ropes.leaf(0, 1, whole))
    try:
        output: Output = yield MergeRuns(collection, request, writer)
    except TimespineError:
        output = None
    if output is None:
        yield from commit(session, collection, ExpireWriter(writer))
        return False
    # What is cut cannot be passed through, and `Trim` could not see what a run of the result takes from others.
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
    yield from _deleted(session, output.batch, writer)
    return False


def finalize(session: Session, collection: str) -> Protocol[bool]:
    """Turn a closed and released collection into a tombstone; whether it is one."""
    replies = yield from commit(session, collection, Finalize())
    return not isinstance(replies, Refused)


def forget(session: Session, keys: tuple[str, ...]) -> Protocol[None]:
    """Delete blobs that were put in vain. If that fails, the sweep finds them once the writer is gone."""
    try:
        yield DeleteBlobs(keys)
    except Unavailable:
        session.count("left to the sweep", len(keys))
