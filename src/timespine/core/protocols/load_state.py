"""The protocol by which a process learns the state of a collection: cached state + diffs, or rollup + diffs."""

from __future__ import annotations

from timespine.core.effects import GetBlob, Protocol, Scan
from timespine.core.encoding.codec import decode_diff, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.encoding.state_diff import StateDiff, apply_diff
from timespine.core.protocols.session import Session, retry
from timespine.core.state import SEQNO_NOT_CREATED, Rollup, State
from timespine.errors import CorruptionError, StoreFenced

Entries = list[tuple[int, bytes]]
"""Entries of a log by their numbers, oldest first."""


def refresh_state(session: Session, collection: str) -> Protocol[State | None]:
    """Return the newest state, or None if there is no such collection."""
    known = session.states.get(collection)
    if known is not None:
        entries: Entries = yield from retry(session, Scan(collection, known.seqno + 1))
        if not entries:
            return known
        if entries[0][0] == known.seqno + 1 and known.seqno != SEQNO_NOT_CREATED:
            state = _check_forward(known, replay(known, entries))
            session.remember_state(state)
            return state
        session.count("reloads")
    loaded = yield from load_state(session, collection)
    if loaded is not None:
        session.remember_state(loaded if known is None else _check_forward(known, loaded))
    return loaded


def load_state(session: Session, collection: str) -> Protocol[State | None]:
    """Return the newest state from storage alone."""
    for _ in range(session.config.commit_attempts):
        entries: Entries = yield from retry(session, Scan(collection, 0))
        if not entries:
            return None
        _check_dense(collection, entries)
        rest, base = newest_base(entries)
        if isinstance(base, State):
            return replay(_check_state(base, collection, base.seqno), rest)
        seqno, rollup = base
        data = yield from retry(session, GetBlob(rollup.key))
        if data is not None:
            return replay(_check_state(decode_state(data), collection, seqno), rest)
        # Garbage collection was faster: there must be a newer rollup.
        session.count("reloads")
    raise CorruptionError(f"no rollup of {collection} could be read: its blobs are missing")


def apply_newer_diffs(session: Session, collection: str, seqno: int, limit: int) -> Protocol[list[StateDiff] | None]:
    """Return at most `limit` diffs right after a state, oldest first; None if the log begins later, or anew."""
    entries: Entries = yield from retry(session, Scan(collection, seqno + 1, limit))
    if entries and (entries[0][0] != seqno + 1 or any(_is_state(data) for _, data in entries)):
        return None
    return [_diff_at(collection, number, data) for number, data in entries]


def newest_base(entries: Entries) -> tuple[Entries, State | tuple[int, Rollup]]:
    """Return the newest whole state that live entries know of, and the entries that follow it."""
    for index in range(len(entries) - 1, -1, -1):
        data = entries[index][1]
        if _is_state(data):
            state = decode_state(data)
            if state.seqno != entries[index][0]:
                raise CorruptionError(f"entry {entries[index][0]} holds the state of number {state.seqno}")
            return entries[index + 1 :], state
        added = {seqno: rollup for seqno, rollup in decode_diff(data).rollups.items() if rollup is not None}
        if added:
            seqno = max(added)
            following = entries[max(seqno + 1 - entries[0][0], 0) :]
            if not following or following[0][0] != seqno + 1:
                raise CorruptionError(f"rollup {seqno} is not followed by live entries, they begin at {entries[0][0]}")
            return following, (seqno, added[seqno])
    raise CorruptionError("the live entries of a log know of no rollup")


def diffs_of(entries: Entries) -> list[StateDiff]:
    """Return the diffs among entries."""
    return [decode_diff(data) for _, data in entries if envelope_kind(data) is EnvelopeKind.DIFF]


def states_of(entries: Entries) -> list[State]:
    """Return the whole states among entries: the first one of a log, and those that a copy or a restore placed."""
    return [decode_state(data) for _, data in entries if _is_state(data)]


def replay(state: State, entries: Entries) -> State:
    """Return the state after entries that follow a state: diffs, and whole states in its place."""
    for seqno, data in entries:
        if _is_state(data):
            state = _check_state(decode_state(data), state.collection, seqno)
        else:
            state = apply_diff(state, _diff_at(state.collection, seqno, data))
    return state


def _is_state(data: bytes) -> bool:
    return envelope_kind(data) is EnvelopeKind.STATE


def _check_forward(known: State, newest: State) -> State:
    """Return the newest state; raise StoreFenced if it is behind the known one: the collection was restored.

    SUBTLE: what this process has read, answered or counted is of commits that are undone. It must not go on, not even
    to read (tests/client/backup/test_restore.py).
    """
    if not (known.upper <= newest.upper and known.since <= newest.since):
        raise StoreFenced(
            f"collection {newest.collection} was restored to an earlier commit: close the store, and open it again"
        )
    return newest


def _diff_at(collection: str, seqno: int, data: bytes) -> StateDiff:
    """Decode the diff in an entry, which must lead to the state of that number."""
    change = decode_diff(data)
    if change.n != seqno:
        raise CorruptionError(f"entry {seqno} of {collection} holds a diff to state {change.n}")
    return change


def _check_dense(collection: str, entries: Entries) -> None:
    first = entries[0][0]
    if any(seqno != first + offset for offset, (seqno, _) in enumerate(entries)):
        raise CorruptionError(f"the log of {collection} has gaps")


def _check_state(state: State, collection: str, seqno: int) -> State:
    if state.collection != collection or state.seqno != seqno:
        raise CorruptionError(
            f"a state of {state.collection} at {state.seqno} where one of {collection} at {seqno} should be"
        )
    return state
