"""Holds on history: leased readers, critical holds, retention.

    since = join(old since, meet(retention, leases, critical holds))

So since moves by itself when the hold that kept it back goes away.
"""

from __future__ import annotations

import msgspec

from timespine.core.state import Commit, HoldRecord, NoOp, Reader, State, settle_since
from timespine.core.transitions.command import Command
from timespine.core.transitions.writers import check_term, extend, without
from timespine.errors import Fenced, LeaseExpired, UsageError
from timespine.ids import check_segment
from timespine.model.frontier import Frontier, check_arity_of


class RegisterReader(Command, frozen=True, array_like=True):
    """Take a lease on history from `since` on (from the collection's since if None)."""

    reader: str
    since: Frontier | None
    term_ms: int


class DowngradeReader(Command, frozen=True, array_like=True):
    """Release history before `since` and states before `seqno`, and keep the lease alive."""

    reader: str
    since: Frontier | None
    seqno: int | None


class ExpireReader(Command, frozen=True, array_like=True):
    """Release the lease."""

    reader: str


class RegisterHold(Command, frozen=True, array_like=True):
    """Take a critical hold from `since` on. It stays until its owner releases it with its token."""

    name: str
    since: Frontier | None
    token: str


class CompareAndDowngrade(Command, frozen=True, array_like=True):
    """Move a critical hold, if it still has the expected token, and change the token."""

    name: str
    expected: str
    token: str
    since: Frontier


class ReleaseHold(Command, frozen=True, array_like=True):
    """Remove a critical hold, if it still has the token."""

    name: str
    token: str


class Retain(Command, frozen=True, array_like=True):
    """Move the retention hold, for `expire`."""

    since: Frontier


class ExpireLeases(Command, frozen=True, array_like=True):
    """Remove every lease that lapsed by the caller's clock."""


class Grant(msgspec.Struct, frozen=True):
    """A lease or hold, as it was granted."""

    since: Frontier
    """The frontier from which on reading is possible: the requested one, or the collection's since if that is later."""
    seqno: int
    """The first protected state: no blob that it refers to is deleted."""


class ExpireResult(msgspec.Struct, frozen=True):
    """The requested frontier of an `expire`, the effective one, and the holders that keep back the rest."""

    asked: Frontier
    """The first times that were to stay readable."""
    since: Frontier
    """The first times that can be read now."""
    held_by: tuple[str, ...]
    """What keeps earlier times readable: "retention", readers and holds."""


def register_reader(state: State, command: RegisterReader, now_ms: int) -> Commit[Grant] | NoOp[Grant]:
    """Add a reader, clamped to the collection's since."""
    check_segment(command.reader, "reader id")
    known = state.readers.get(command.reader)
    if known is not None:
        return NoOp(Grant(known.since, known.seqno))
    since = _clamped(state, command.since)
    term_ms = check_term(command.term_ms)
    reader = Reader(since, state.seqno, now_ms + term_ms, term_ms)
    readers = {**state.readers, command.reader: reader}
    return Commit(msgspec.structs.replace(state, readers=readers), Grant(since, state.seqno))


def downgrade_reader(state: State, command: DowngradeReader, now_ms: int) -> Commit[Grant] | NoOp[Grant | LeaseExpired]:
    """Move a reader forward, never back. Also its heartbeat."""
    reader = state.readers.get(command.reader)
    if reader is None:
        return NoOp(LeaseExpired(f"reader {command.reader} of {state.collection} expired: take a new lease"))
    since = reader.since
    if command.since is not None and since <= check_arity_of(command.since, state.arity, "since"):
        since = command.since
    seqno = max(reader.seqno, min(command.seqno, state.seqno)) if command.seqno is not None else reader.seqno
    moved = extend(msgspec.structs.replace(reader, since=since, seqno=seqno), now_ms)
    if moved == reader:
        return NoOp(Grant(since, seqno))
    readers = {**state.readers, command.reader: moved}
    return Commit(settle_since(msgspec.structs.replace(state, readers=readers), now_ms), Grant(since, seqno))


def expire_reader(state: State, command: ExpireReader, now_ms: int) -> Commit[None] | NoOp[None]:
    """Remove a reader; fine if it is not there."""
    if command.reader not in state.readers:
        return NoOp(None)
    readers = without(state.readers, command.reader)
    return Commit(settle_since(msgspec.structs.replace(state, readers=readers), now_ms), None)


def register_hold(state: State, command: RegisterHold, now_ms: int) -> Commit[Grant] | NoOp[Grant | Fenced]:
    """Add a critical hold, clamped to the collection's since."""
    check_segment(command.name, "name of a hold")
    known = state.holds.get(command.name)
    if known is not None:
        if known.token == command.token:
            return NoOp(Grant(known.since, state.seqno))
        return NoOp(Fenced(f"hold {command.name} of {state.collection} belongs to another owner"))
    since = _clamped(state, command.since)
    holds = {**state.holds, command.name: HoldRecord(since, command.token)}
    return Commit(msgspec.structs.replace(state, holds=holds), Grant(since, state.seqno))


def compare_and_downgrade(
    state: State, command: CompareAndDowngrade, now_ms: int
) -> Commit[Grant] | NoOp[Grant | Fenced]:
    """Move a critical hold forward under its token."""
    hold = state.holds.get(command.name)
    if hold is None or hold.token not in (command.expected, command.token):
        return NoOp(Fenced(f"hold {command.name} of {state.collection} was released or taken over"))
    check_arity_of(command.since, state.arity, "since")
    since = command.since if hold.since <= command.since else hold.since
    moved = HoldRecord(since, command.token)
    if moved == hold:
        return NoOp(Grant(since, state.seqno))
    holds = {**state.holds, command.name: moved}
    return Commit(settle_since(msgspec.structs.replace(state, holds=holds), now_ms), Grant(since, state.seqno))


def release_hold(state: State, command: ReleaseHold, now_ms: int) -> Commit[None] | NoOp[Fenced | None]:
    """Remove a critical hold under its token; fine if it is not there."""
    hold = state.holds.get(command.name)
    if hold is None:
        return NoOp(None)
    if hold.token != command.token:
        return NoOp(Fenced(f"hold {command.name} of {state.collection} was taken over"))
    holds = without(state.holds, command.name)
    return Commit(settle_since(msgspec.structs.replace(state, holds=holds), now_ms), None)


def retain(state: State, command: Retain, now_ms: int) -> Commit[ExpireResult] | NoOp[ExpireResult]:
    """Move the retention hold forward, and since with it as far as other holds allow."""
    asked = check_arity_of(command.since, state.arity, "since")
    moved = settle_since(msgspec.structs.replace(state, retention=state.retention.join(asked)), now_ms)
    held_by = tuple(who for who, since in moved.holders() if not asked <= since)
    reply = ExpireResult(asked, moved.since, held_by)
    return NoOp(reply) if moved.retention == state.retention else Commit(moved, reply)


def expire_leases(state: State, command: ExpireLeases, now_ms: int) -> Commit[int] | NoOp[int]:
    """Remove every reader, writer and committer whose lease lapsed; reply how many."""
    readers = {id: reader for id, reader in state.readers.items() if reader.until_ms >= now_ms}
    writers = {id: lease for id, lease in state.writers.items() if lease.until_ms >= now_ms}
    committers = {id: each for id, each in state.committers.items() if each.until_ms >= now_ms}
    before = len(state.readers) + len(state.writers) + len(state.committers)
    gone = before - len(readers) - len(writers) - len(committers)
    if gone == 0:
        return NoOp(0)
    pruned = msgspec.structs.replace(state, readers=readers, writers=writers, committers=committers)
    return Commit(settle_since(pruned, now_ms), gone)


def _clamped(state: State, since: Frontier | None) -> Frontier:
    """Return the requested frontier, moved to the collection's since: history before that is gone already."""
    own = state.trace.since
    if since is None:
        return own
    check_arity_of(since, state.arity, "since")
    if since.is_closed and not own.is_closed:
        raise UsageError("a hold needs a time: a closed frontier holds nothing")
    return own.join(since)
