"""Planted bugs of maintenance and heartbeats, which histories of real stores are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa
from mutations import bug, in_stores, patched

from timespine.client.catalog import create_in_transaction, drop_and_purge
from timespine.client.collection import Collection
from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.maintenance import maintenance
from timespine.client.maintenance.heartbeat import HeartbeatThread
from timespine.client.maintenance.maintenance_thread import MaintenanceThread
from timespine.client.read.follow.commit_stream import CommitStream
from timespine.client.write import (
    read_current,
    upsert_update_delete,
)
from timespine.client.write.merge_builder import Merge
from timespine.core.encoding.state_diff import apply_diff
from timespine.errors import Unavailable


@in_stores
@bug
def the_end_of_a_store_does_not_wait_for_its_background() -> Iterator[None]:
    def stop(self, limit_s):
        self.stopping.set()
        self._wake.set()
        self._thread = None
        self._role.release()
        return True

    def join(self, limit_s):
        return True

    with patched(MaintenanceThread, "stop", stop), patched(HeartbeatThread, "join", join):
        yield


@in_stores
@bug
def a_change_is_made_by_one_key_more() -> Iterator[None]:
    real = upsert_update_delete.parse_keys

    def keys_of(rows, schema, names=None):
        keys = real(rows, schema, names)
        if keys.column_names == ["k"] and keys.num_rows == 1:
            one = keys.column(0)[0].as_py()
            return pa.table({"k": pa.array([one, one + 1], pa.int64())})
        return keys

    with patched(upsert_update_delete, "parse_keys", keys_of):
        yield


@in_stores
@bug
def an_id_that_was_given_up_is_announced_again() -> Iterator[None]:
    def check_expected(catalog, id):
        def expect(names):
            if id in names.reserved or any(entry.id == id for entry in names.entries.values()):
                return None
            cancelled = {each: since for each, since in names.cancelled.items() if each != id}
            expected = {**names.reserved, id: names.cancelled.get(id, 0)}
            return msgspec.structs.replace(names, reserved=expected, cancelled=cancelled)

        catalog.change(expect)

    with patched(create_in_transaction, "check_reserved", check_expected):
        yield


@in_stores
@bug
def blobs_are_put_before_their_collection_is_announced() -> Iterator[None]:
    real = GroupCommitter.writer

    def writer(self, collection):
        reserve = self._reserving.pop(collection, None)
        try:
            return real(self, collection)
        finally:
            if reserve is not None:
                self._reserving[collection] = reserve

    with patched(GroupCommitter, "writer", writer):
        yield


@in_stores
@bug
def ids_that_were_given_up_are_forgotten_at_once() -> Iterator[None]:
    with patched(drop_and_purge, "REMEMBERED_MS", 0):
        yield


@in_stores
@bug
def a_look_at_the_log_after_a_commit_may_fail_it() -> Iterator[None]:
    real = GroupCommitter._notify

    def tell(self, about):
        real(self, about)
        for each in sorted(about):
            self.state(each)

    with patched(GroupCommitter, "_notify", tell):
        yield


@in_stores
@bug
def a_change_does_not_say_which_unsealed_writes_it_saw() -> Iterator[None]:
    real = read_current.LocalDelta.command

    def command(self, runs):
        return msgspec.structs.replace(real(self, runs), written=None)

    with patched(read_current.LocalDelta, "command", command):
        yield


@in_stores
@bug
def the_newest_rows_are_read_without_a_look_at_the_log() -> Iterator[None]:
    real = Collection.snapshot

    def snapshot(self, as_of=None, *, columns=None, where=None, multiplicity="rows", timeout=10.0):
        state = self._handle.known()
        newest = state.upper.last_complete() if as_of is None else None
        if newest is not None and state.since.less_equal((newest,)):
            as_of = newest
        return real(self, as_of, columns=columns, where=where, multiplicity=multiplicity, timeout=timeout)

    with patched(Collection, "snapshot", snapshot):
        yield


@in_stores
@bug
def a_listener_passes_over_what_it_could_not_read() -> Iterator[None]:
    real = CommitStream._hear

    def hear(self, change):
        try:
            real(self, change)
        except Unavailable:
            self._cursor = apply_diff(self._cursor, change)
            self._follow(self._cursor)

    with patched(CommitStream, "_hear", hear):
        yield


@in_stores
@bug
def expired_history_is_never_forgotten() -> Iterator[None]:
    def is_forgetting_due(state, now_ms, forget_within_ms):
        return False

    with patched(maintenance, "is_forgetting_due", is_forgetting_due):
        yield


@in_stores
@bug
def a_merge_leaves_rows_that_it_should_delete() -> Iterator[None]:
    def when_matched_delete(self, where=None):
        return self

    with patched(Merge, "when_matched_delete", when_matched_delete):
        yield


@in_stores
@bug
def a_replacement_keeps_the_rows_that_it_replaces() -> Iterator[None]:
    real = upsert_update_delete.replace_delta

    def replacing(where, rows):
        compute = real(where, rows)

        def without(schema):
            look = compute(schema)
            return replace(look, difference=lambda old: look.difference(old.slice(0, 0)))

        return without

    with patched(upsert_update_delete, "replace_delta", replacing):
        yield
