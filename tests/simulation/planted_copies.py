"""Planted bugs in copies, restores and fences."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from mutations import bug, in_copies, patched

from timespine.client.backup import copy_store, restore_to_commit, store_cut
from timespine.client.backup.copy_blobs import NeededBlob
from timespine.client.backup.copy_target import CopyTarget
from timespine.errors import Contention
from timespine.location.consensus import read_heads


@in_copies
@bug
def a_cut_takes_one_log_after_the_other() -> Iterator[None]:
    def read_heads_at_once(consensus, keys):
        return read_heads(consensus, keys)

    with patched(store_cut, "read_heads_at_once", read_heads_at_once):
        yield


@in_copies
@bug
def a_cut_does_not_look_at_the_catalog_again() -> Iterator[None]:
    real = store_cut.read_heads_at_once

    def read_heads_at_once(consensus, keys):
        return {**real(consensus, keys), store_cut.LOG: ANY}

    with patched(store_cut, "read_heads_at_once", read_heads_at_once):
        yield


@in_copies
@bug
def a_copy_forgets_what_is_inside_hollow_runs() -> Iterator[None]:
    def reachable_blobs(cut, blob):
        return {
            part.key: NeededBlob(part, state, schema)
            for state in cut.states.values()
            for schema, part in state.parts_with_schemas()
            if part.key
        }

    with patched(copy_store, "reachable_blobs", reachable_blobs):
        yield


@in_copies
@bug
def a_run_of_copy_goes_on_after_another_began() -> Iterator[None]:
    real = CopyTarget._store

    def store(self, names, more=()):
        while True:
            try:
                return real(self, names, more)
            except Contention:
                seqno = self._read().seqno
                heads = read_heads(self.driver.consensus, [id for id, _, _ in more])
                if any(heads[id] != expected for id, expected, _ in more):
                    raise
                names = msgspec.structs.replace(names, seqno=seqno)

    with patched(CopyTarget, "_store", store):
        yield


@in_copies
@bug
def a_copy_deletes_what_it_needs_no_longer_before_it_is_placed() -> Iterator[None]:
    real, pruned = CopyTarget.place, CopyTarget.prune
    begun = CopyTarget.begin

    def begin(self, origin, epoch, location):
        there = begun(self, origin, epoch, location)
        self.driver.there = there
        return there

    def place(self, cut):
        kept = {key for state in cut.states.values() for part in state.parts() if (key := part.key)}
        if not any(part.hollow for state in cut.states.values() for part in state.parts()):
            pruned(self, self.driver.there, dict.fromkeys(kept))
        return real(self, cut)

    with patched(CopyTarget, "begin", begin), patched(CopyTarget, "place", place):
        yield


@in_copies
@bug
def a_copy_leaves_what_it_needs_no_longer() -> Iterator[None]:
    def prune(self, there, needed):
        return 0

    with patched(CopyTarget, "prune", prune):
        yield


@in_copies
@bug
def a_restore_in_place_does_not_fence() -> Iterator[None]:
    def raise_epoch(store):
        return 0

    with patched(restore_to_commit, "raise_epoch", raise_epoch):
        yield


@in_copies
@bug
def a_restore_in_place_takes_the_newest_state() -> Iterator[None]:
    def state_after(head, state):
        return msgspec.structs.replace(head, seqno=head.seqno + 1)

    with patched(restore_to_commit, "state_after", state_after):
        yield


class _Any(int):
    """A number that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


ANY = _Any()
