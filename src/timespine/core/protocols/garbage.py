"""Garbage collection: from states, never from a list; and the sweep of orphaned blobs.

`collect_garbage`: with `base` the newest rollup that no live reader is before,
blobs that only states older than `base` refer to are unreachable for ever:

    garbage = (referred to by states up to base) - (referred to by base or any later state)

Maintenance deletes it and then cuts the log below `base`, in that order: after a
crash in between, the next collection computes the same garbage from the log.

A store may keep what it deletes for a time (`keep_ms`). Then `base` is also older than
that: the log from there on, and every blob that a state since then referred to, stay, so
that each of these states can be restored. Rollups before `base` are deleted at once, as
nothing can begin with them once the log is cut.

`sweep`: a blob that no live state refers to, of a writer that is not registered,
can never be committed: such commits are refused. So maintenance deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from timespine.core.batch import Part
from timespine.core.effects import DeleteBlobs, GetBlob, ListBlobs, Now, Protocol, Scan, Truncate
from timespine.core.encoding.codec import decode_run, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.group import Refused
from timespine.core.maintenance_policy import excess_rollups, is_kept_long_enough
from timespine.core.protocols.commit import commit
from timespine.core.protocols.load_state import Entries, diffs_of, refresh_state, states_of
from timespine.core.protocols.session import Session, retry
from timespine.core.state import State
from timespine.core.transitions import RemoveRollups, ThinRollups
from timespine.errors import UsageError, short_repr
from timespine.ids import is_blob_key, parse_blob_key

References = dict[str, bool]
"""Blob keys, and whether each is a hollow run."""


class ForeignBlob(UsageError):
    """An object below the prefix of a collection has a name that no writer gives. Nothing was deleted."""


def collect_garbage(session: Session, collection: str, keep_ms: int = 0) -> Protocol[int]:
    """Delete the blobs that only old states refer to, and cut the log; return how many were deleted.

    With `keep_ms`, keep everything that a state of the last `keep_ms` milliseconds refers to.
    """
    state = yield from refresh_state(session, collection)
    if state is None:
        return 0
    thinned = 0
    if keep_ms:
        now_ms: int = yield Now()
        thinned = yield from delete_excess_rollups(session, state, now_ms, keep_ms)
        state = session.state(collection)
        old = {seqno for seqno, rollup in state.rollups.items() if is_kept_long_enough(rollup, now_ms, keep_ms)}
    else:
        old = set(state.rollups)
    base = max((seqno for seqno in old if seqno <= state.seqno_since), default=None)
    if base is None:
        return thinned
    return thinned + (yield from _collect_from(session, state, base, deletes_rollups=keep_ms > 0))


def _collect_from(session: Session, state: State, base: int, *, deletes_rollups: bool) -> Protocol[int]:
    """Delete the blobs that only states before a rollup refer to, and cut the log below it; return how many."""
    collection = state.collection
    entries: Entries = yield from retry(session, Scan(collection, 0))
    oldest = yield from _oldest_state(session, state, entries)
    newer = yield from _rollup(session, state, base)
    if oldest is None or newer is None or oldest.seqno > base:
        return 0  # another process collects garbage
    if oldest.seqno == base:
        # The log is cut here already. The process that cut it may have died before it removed the rollups.
        return (yield from _remove_rollups(session, state, base, deletes_rollups=deletes_rollups))
    past = references(oldest)
    past.update(_references_of(entry for entry in entries if entry[0] <= base))
    live = references(newer)
    live.update(_references_of(entry for entry in entries if entry[0] > base))
    deleted = yield from delete_with_children(session, past, live)
    if deleted is None:
        return 0  # another process collects garbage of later states
    yield from retry(session, Truncate(collection, base + 1))
    return deleted + (yield from _remove_rollups(session, state, base, deletes_rollups=deletes_rollups))


def _remove_rollups(session: Session, state: State, base: int, *, deletes_rollups: bool) -> Protocol[int]:
    """Forget the rollups before the one that the log begins after; return how many blobs of them were deleted.

    If the process dies in between, the next collection deletes their blobs: the state of its oldest rollup lists them.
    """
    yield from commit(session, state.collection, RemoveRollups(base))
    left = session.state(state.collection)
    before = [rollup.key for seqno, rollup in state.rollups.items() if seqno < base and seqno not in left.rollups]
    if not deletes_rollups:
        return 0
    yield from _delete(session, before)
    if left.forgetting is not None:
        yield from commit(session, state.collection, RemoveRollups(base, are_deleted=True))
    return len(before)


def delete_excess_rollups(session: Session, state: State, now_ms: int, keep_ms: int) -> Protocol[int]:
    """Delete rollups that are close to others; return how many. A restore replays more of the log instead."""
    excess = excess_rollups(state, now_ms, keep_ms)
    if not excess:
        return 0
    replies = yield from commit(session, state.collection, ThinRollups(tuple(excess)))
    # If the process dies here, the collection of garbage finds them: a diff of the log refers to each.
    gone: tuple[int, ...] = () if isinstance(replies, Refused) else replies[0]
    yield from _delete(session, [state.rollups[seqno].key for seqno in gone])
    return len(gone)


def sweep(session: Session, collection: str) -> Protocol[int]:
    """Delete orphaned blobs: no live state refers to them, and their writer is gone. Return how many."""
    orphans = yield from find_orphans(session, collection)
    yield from _delete(session, orphans)
    return len(orphans)


def find_orphans(session: Session, collection: str) -> Protocol[list[str]]:
    """List the blobs that no live state refers to, of writers that are gone."""
    # SUBTLE: list before reading the state. A writer that registers, puts and commits in between
    # is then either not in the list or in the state (planted.py: sweep_reads_the_state_before_it_lists).
    listed: list[str] = yield from retry(session, ListBlobs(f"{collection}/"))
    state = yield from refresh_state(session, collection)
    if state is None:
        return []
    entries: Entries = yield from retry(session, Scan(collection, 0))
    oldest = yield from _oldest_state(session, state, entries)
    if oldest is None:
        return []
    live = references(state)
    live.update(references(oldest))
    live.update(_references_of(entries))
    inside, gone = yield from _children(session, live)
    if gone:
        # SUBTLE: another process collects garbage. A part inside of a run that it deleted may also be inside of a
        # run that was committed after this state was read (test_sweep_that_finds_a_live_run_gone_deletes_nothing).
        return []
    live.update(inside)
    foreign = next((key for key in listed if not is_blob_key(key)), None)
    if foreign is not None:
        raise ForeignBlob(f"blob key {short_repr(foreign)} is not of the form collection/writer/name: it is not ours")
    return [key for key in listed if key not in live and parse_blob_key(key).writer not in state.writers]


def references(state: State) -> References:
    """Return all blobs that a state refers to directly."""
    found: References = {part.key: part.hollow for part in state.parts() if part.key}
    found.update((rollup.key, False) for rollup in state.rollups.values())
    return found


def _references_of(entries: Iterable[tuple[int, bytes]]) -> References:
    """Return all blobs that the entries of a log refer to.

    SUBTLE: whole states too. A restore places one that refers to blobs of long ago, which no diff after the base names
    (tests/core/protocols/test_keep_deleted.py).
    """
    found: References = {}
    listed = list(entries)
    for state in states_of(listed):
        found.update(references(state))
    for change in diffs_of(listed):
        parts: list[Part] = [part for batch in (change.t.a.values() if change.t else ()) for part in batch.parts]
        parts.extend(part for batch in change.y for part in batch.parts)
        found.update((part.key, part.hollow) for part in parts if part.key)
        found.update((rollup.key, False) for rollup in change.rollups.values() if rollup is not None)
    return found


def _oldest_state(session: Session, state: State, entries: Entries) -> Protocol[State | None]:
    """Return the oldest state that live entries and kept rollups give; None if another process collects garbage."""
    if not entries:
        return None
    first, data = entries[0]
    if envelope_kind(data) is EnvelopeKind.STATE:
        return decode_state(data)
    usable = [seqno for seqno in state.rollups if seqno >= first - 1]
    return (yield from _rollup(session, state, min(usable))) if usable else None


def _rollup(session: Session, state: State, seqno: int) -> Protocol[State | None]:
    data = yield from retry(session, GetBlob(state.rollups[seqno].key))
    return None if data is None else decode_state(data)


def _children(session: Session, runs: References) -> Protocol[tuple[References, list[str]]]:
    """Return the parts inside hollow runs, at any depth; and the runs that are gone.

    A run that is gone left no part behind, except for those that a later run of a live state lists too.
    """
    found: References = {}
    gone: list[str] = []
    waiting = [key for key, hollow in runs.items() if hollow]
    while waiting:
        key = waiting.pop()
        data = yield from retry(session, GetBlob(key))
        if data is None:
            gone.append(key)
            continue
        for part in decode_run(key, data):
            if part.key and part.key not in found:
                found[part.key] = part.hollow
                if part.hollow:
                    waiting.append(part.key)
    return found, gone


def delete_with_children(session: Session, past: References, live: References) -> Protocol[int | None]:
    """Delete the blobs of the past that are not live, inside hollow runs too.

    Return how many; or None, and delete nothing, if a live run is gone. A part may be inside of two runs: a merge
    passes it through from an old one to a new one. It stays for as long as one of them is live.
    """
    garbage = {key: hollow for key, hollow in past.items() if key not in live}
    if not garbage:
        return 0
    # SUBTLE: a part may have had a direct reference before, and be inside a live run now.
    reachable, gone = yield from _children(session, live)
    if gone:
        # SUBTLE: the run was live when the log was read, so another process collected garbage of later states
        # meanwhile. A part of it may be inside of a run that was committed since, and inside of garbage
        # (test_collection_that_finds_a_live_run_gone_deletes_nothing).
        return None
    inside, _ = yield from _children(session, garbage)
    unreachable = {key: hollow for key, hollow in {**garbage, **inside}.items() if key not in reachable | live}
    yield from _delete_inside_first(session, unreachable, inside)
    return len(unreachable)


def delete_written(session: Session, listed: References, writer: str) -> Protocol[None]:
    """Delete the blobs that a writer put for a refused batch, inside hollow runs too.

    SUBTLE: only its own blobs. Parts that were passed through by reference belong to others, also those that a run of
    this writer lists (planted.py: a_dropped_merge_deletes_what_it_passed_through_in_runs).
    """
    inside, _ = yield from _children(session, {key: run for key, run in listed.items() if _is_of(key, writer)})
    own = {key: hollow for key, hollow in {**listed, **inside}.items() if _is_of(key, writer)}
    yield from _delete_inside_first(session, own, inside)


def _is_of(key: str, writer: str) -> bool:
    return parse_blob_key(key).writer == writer


def _delete_inside_first(session: Session, unreachable: References, inside: References) -> Protocol[None]:
    """Delete parts, then the runs that list them."""
    yield from _delete(session, [key for key, hollow in unreachable.items() if not hollow])
    # SUBTLE: children first, and inner runs before outer ones: a run that is gone must have no
    # children left, or no collection would ever find them again (planted.py: run_before_children).
    runs = [key for key, hollow in unreachable.items() if hollow]
    for key in (*(each for each in reversed(runs) if each in inside), *(each for each in runs if each not in inside)):
        yield from _delete(session, [key])


def _delete(session: Session, keys: list[str]) -> Protocol[None]:
    """Delete blobs, a bounded number at once."""
    size = session.config.delete_batch
    for start in range(0, len(keys), size):
        yield from retry(session, DeleteBlobs(tuple(keys[start : start + size])))
