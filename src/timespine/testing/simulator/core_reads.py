"""The reads of core histories: lease first, then plan, then fetch.

The smallest client that drives the plans and leases of the core. Users read with
`timespine.client.read.acquire` and `timespine.client.read.rows`, which histories of stores drive.
"""

from __future__ import annotations

from timespine.core.batch import Part
from timespine.core.effects import FreshId, GetBlob, Protocol
from timespine.core.encoding.codec import decode_run
from timespine.core.group import Refused
from timespine.core.protocols.commit import commit, raise_refusal
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session, retry
from timespine.core.read_plan import Plan, apply_parent_bounds, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.core.transitions import DowngradeReader, ExpireReader, RegisterReader
from timespine.errors import CorruptionError, LeaseExpired, NotSealed, SinceError, UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

Fetched = tuple[Plan, list[tuple[Part, bytes]]]
"""A plan and the bytes of each of its parts."""


def take_lease(session: Session, collection: str, as_of: Time) -> Protocol[str]:
    """Lease history from a time on; return the reader's id."""
    reader: str = yield FreshId("r")
    command = RegisterReader(reader, Frontier((as_of,)), session.config.reader_lease_ms)
    replies = yield from commit(session, collection, command)
    if isinstance(replies, Refused):
        raise_refusal(replies)
    return reader


def release_lease(session: Session, collection: str, reader: str) -> Protocol[None]:
    """Release a lease."""
    yield from commit(session, collection, ExpireReader(reader))


def fetch_snapshot(session: Session, collection: str, as_of: Time) -> Protocol[Fetched | SinceError | NotSealed]:
    """Fetch the parts of the collection as of one time, under a lease of their own."""
    reader = yield from take_lease(session, collection, as_of)
    state = session.state(collection)
    plan = plan_snapshot(state, as_of)
    if isinstance(plan, NotSealed):
        # The grant may come from an old state; "not yet" must be the present answer.
        plan = plan_snapshot((yield from refresh_state(session, collection)) or state, as_of)
    if isinstance(plan, Plan):
        plan = plan.summed()
        fetched = yield from fetch_leased(session, collection, reader, plan)
        yield from release_lease(session, collection, reader)
        return plan, fetched
    yield from release_lease(session, collection, reader)
    return plan


def fetch_changes(
    session: Session, collection: str, reader: str, after: Time, until: Time
) -> Protocol[Fetched | SinceError | NotSealed]:
    """Fetch the parts of the changes in (after, until], under a lease that the caller has."""
    state = session.state(collection)
    plan = plan_changes(state, after, until)
    if not isinstance(plan, Plan):
        return plan
    plan = plan.summed()
    return plan, (yield from fetch_leased(session, collection, reader, plan))


def fetch_leased(session: Session, collection: str, reader: str, plan: Plan) -> Protocol[list[tuple[Part, bytes]]]:
    """Fetch the parts of a plan. A missing one means that the lease is gone, or that storage lost it."""
    fetched = yield from _fetch(session, plan)
    if not isinstance(fetched, str):
        return fetched
    state = yield from refresh_state(session, collection)
    if state is None or reader not in state.readers:
        raise LeaseExpired(f"reader {reader} of {collection} expired while it was reading: read again")
    raise CorruptionError(f"blob {fetched} is missing though reader {reader} of {collection} holds it")


def fetch_snapshot_without_lease(
    session: Session, collection: str, as_of: Time
) -> Protocol[Fetched | SinceError | NotSealed]:
    """Fetch a snapshot for a reader that cannot write: if a part is gone, plan again from a newer state."""
    state: State | None = None
    for _ in range(session.config.commit_attempts):
        newest = yield from refresh_state(session, collection)
        if newest is None:
            raise UsageError(f"there is no collection {collection}")
        if state is not None and newest.seqno == state.seqno:
            raise CorruptionError(f"a blob of {collection} is missing though its newest state refers to it")
        state = newest
        plan = plan_snapshot(state, as_of)
        if not isinstance(plan, Plan):
            return plan
        plan = plan.summed()
        fetched = yield from _fetch(session, plan)
        if not isinstance(fetched, str):
            return plan, fetched
        session.count("replans")
    raise CorruptionError(f"blobs of {collection} keep going missing")


def advance_lease(session: Session, collection: str, reader: str, since: Time) -> Protocol[None]:
    """Release history before a time, and older states; keeps the lease alive."""
    state = session.state(collection)
    known = state.readers.get(reader)
    # States are released along with history, and now and then without: naming the newest one every
    # time would make every call of an idle feed a change.
    idle = known is not None and known.since == Frontier((since,))
    recent = known is not None and state.seqno - known.seqno < session.config.rollup_seqnos
    seqno = None if idle and recent else state.seqno
    replies = yield from commit(session, collection, DowngradeReader(reader, Frontier((since,)), seqno))
    if isinstance(replies, Refused):
        raise_refusal(replies)


def fetch_news(
    session: Session, collection: str, reader: str, after: Time
) -> Protocol[Fetched | SinceError | NotSealed | None]:
    """Fetch the updates that became complete after a time, for a reader with a lease there; None if there are none.

    Only for totally ordered times. The feed goes on at the returned plan's `until`; the same `after` again gives the
    same again, and more if there is more.
    """
    # SUBTLE: release history up to what the caller has, never up to what it is about to get:
    # the caller can then repeat the request after a lost answer.
    if collection not in session.states and (yield from refresh_state(session, collection)) is None:
        raise LeaseExpired(f"reader {reader} of {collection} is gone, and so is the collection")
    yield from advance_lease(session, collection, reader, after)
    state = session.state(collection)
    if state.arity != 1:
        raise UsageError("a feed needs totally ordered times: this collection has several coordinates")
    until = (INT64_MAX,) if state.upper.is_closed else (state.upper.time - 1,)
    if until <= after:
        return None
    return (yield from fetch_changes(session, collection, reader, after, until))


def _fetch(session: Session, plan: Plan) -> Protocol[list[tuple[Part, bytes]] | str]:
    """Fetch the bytes of every part, those inside hollow runs included; or return the first missing key."""
    fetched: list[tuple[Part, bytes]] = []
    waiting = list(reversed(list(plan.parts)))
    while waiting:
        part = waiting.pop()
        data = part.inline if part.inline is not None else (yield from retry(session, GetBlob(part.key)))
        if data is None:
            return part.key
        if part.hollow:
            waiting.extend(reversed([apply_parent_bounds(part, child) for child in decode_run(part.key, data)]))
        else:
            fetched.append((part, data))
    return fetched
