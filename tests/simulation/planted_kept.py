"""Planted bugs in what a store keeps of deleted data."""

from __future__ import annotations

from collections.abc import Iterator

from mutations import bug, in_kept, patched, patched_entry

from timespine.core.effects import Truncate
from timespine.core.protocols import garbage
from timespine.core.protocols.session import retry
from timespine.core.transitions import TRANSITIONS, AddRollup


@in_kept
@bug
def deleted_data_go_at_once() -> Iterator[None]:
    def is_kept_long_enough(rollup, now_ms, keep_ms):
        return True

    with patched(garbage, "is_kept_long_enough", is_kept_long_enough):
        yield


@in_kept
@bug
def deleted_data_never_go() -> Iterator[None]:
    def is_kept_long_enough(rollup, now_ms, keep_ms):
        return not keep_ms

    with patched(garbage, "is_kept_long_enough", is_kept_long_enough):
        yield


@in_kept
@bug
def a_rollup_says_that_it_is_older_than_it_is() -> Iterator[None]:
    real = TRANSITIONS[AddRollup]

    def add(state, command, now_ms):
        return real(state, command, now_ms - 10_000)

    with patched_entry(TRANSITIONS, AddRollup, add):
        yield


@in_kept
@bug
def the_rollup_that_the_log_begins_with_is_deleted_too() -> Iterator[None]:
    real = garbage._remove_rollups

    def remove(session, state, base, *, deletes_rollups):
        gone = yield from real(session, state, base, deletes_rollups=deletes_rollups)
        if deletes_rollups:
            yield from garbage._delete(session, [state.rollups[base].key])
        return gone

    with patched(garbage, "_remove_rollups", remove):
        yield


@in_kept
@bug
def the_log_is_cut_further_than_blobs_are_deleted() -> Iterator[None]:
    real = garbage._remove_rollups

    def remove(session, state, base, *, deletes_rollups):
        if deletes_rollups:
            yield from retry(session, Truncate(state.collection, state.seqno))
        return (yield from real(session, state, base, deletes_rollups=deletes_rollups))

    with patched(garbage, "_remove_rollups", remove):
        yield
