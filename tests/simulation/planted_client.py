"""Planted bugs of the client, which histories of real stores are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from mutations import bug, in_stores, patched

from timespine.client.catalog import catalog, drop_and_purge
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.maintenance.maintenance import Maintenance
from timespine.client.read import leases
from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.client.read.follow.commit_stream import CommitStream
from timespine.client.read.leases import Leases
from timespine.client.write import (
    group_small_appends,
    prepare_unsealed,
    read_current,
    stage_rows,
    step_commit,
)
from timespine.client.write.small_appends import group_append_step
from timespine.client.write.transaction import Transaction
from timespine.core.group import Refused
from timespine.core.transitions import ExpireReader
from timespine.errors import Determinate, Indeterminate, UpperMismatch

# Leases.


@in_stores
@bug
def a_lease_is_taken_after_the_plan() -> Iterator[None]:
    real = Leases.take

    def take(self, collection, since, *, own, term_ms=None, listens=False):
        planned_on = self._committer.known(collection)
        held = real(self, collection, since, own=own, term_ms=term_ms, listens=listens)
        held.state = planned_on
        return held

    with patched(Leases, "take", take):
        yield


@in_stores
@bug
def a_lease_that_is_used_counts_as_idle() -> Iterator[None]:
    def is_idle(self, lease, now):
        return now - lease.used >= leases.LINGER_S

    with patched(Leases, "_is_idle", is_idle):
        yield


@in_stores
@bug
def leases_are_given_back_though_they_are_used() -> Iterator[None]:
    def idle(self, collection):
        with self._lock:
            found = list(self._leases.get(collection, ()))
            for lease in found:
                self._forget(lease)
            return [ExpireReader(lease.reader) for lease in found]

    with patched(Leases, "idle", idle):
        yield


@in_stores
@bug
def a_reader_shares_a_lease_that_begins_later() -> Iterator[None]:
    def may_share(self, lease, state, wanted):
        return not lease.own and lease.reader in state.readers

    with patched(Leases, "_may_share", may_share):
        yield


@in_stores
@bug
def leases_are_not_kept_alive() -> Iterator[None]:
    def heartbeat_once(self, collection, leases):
        return 0

    with patched(Leases, "_beat", heartbeat_once):
        yield


@in_stores
@bug
def the_end_of_a_store_gives_no_lease_back() -> Iterator[None]:
    def close(self):
        self._leases = {}

    with patched(Leases, "close", close):
        yield


# Committing.


@in_stores
@bug
def a_group_gives_its_answers_to_the_wrong_waiters() -> Iterator[None]:
    real = GroupCommitter._commit_group

    def commit_group(self, transactions):
        replies = real(self, transactions)
        kinds = {tuple((name, type(command)) for name, command in each.commands) for each in transactions}
        return tuple(reversed(replies)) if len(kinds) == 1 else replies

    with patched(GroupCommitter, "_commit_group", commit_group):
        yield


@in_stores
@bug
def a_commit_in_doubt_is_said_to_have_failed() -> Iterator[None]:
    real = GroupCommitter._commit_transactions

    def committed(self, transactions, extra_writes=()):
        try:
            return real(self, transactions, extra_writes)
        except Indeterminate as error:
            raise Determinate(f"nothing was committed: {error}") from error

    with patched(GroupCommitter, "_commit_transactions", committed):
        yield


@in_stores
@bug
def a_commit_in_doubt_is_tried_once_more() -> Iterator[None]:
    real = GroupCommitter._commit_transactions

    def committed(self, transactions, extra_writes=()):
        try:
            return real(self, transactions, extra_writes)
        except Indeterminate:
            self.renew()
            return real(self, transactions, extra_writes)

    with patched(GroupCommitter, "_commit_transactions", committed):
        yield


@in_stores
@bug
def blobs_are_put_under_an_unregistered_writer() -> Iterator[None]:
    def writer(self, collection):
        real(self, collection)
        return fresh_id("w")

    real = GroupCommitter.writer
    with patched(GroupCommitter, "writer", writer):
        yield


@in_stores
@bug
def the_end_of_a_store_leaves_its_ids_registered() -> Iterator[None]:
    def give_up(self):
        self._entered.clear()

    with patched(GroupCommitter, "_give_up", give_up):
        yield


# Writing.


@in_stores
@bug
def blobs_are_deleted_though_their_commit_is_in_doubt() -> Iterator[None]:
    def did_not_commit(error):
        return True

    with (
        patched(step_commit, "did_not_commit", did_not_commit),
        patched(stage_rows, "did_not_commit", did_not_commit),
    ):
        yield


@in_stores
@bug
def small_appends_are_told_the_times_of_others() -> Iterator[None]:
    real = group_append_step._at_times

    def at_times(converted, times, time_name):
        places = sorted(times)
        swapped = dict(zip(places, [times[place] for place in reversed(places)], strict=True))
        return real(converted, swapped, time_name)

    with patched(group_append_step, "_at_times", at_times):
        yield


@in_stores
@bug
def small_appends_that_lost_to_others_count_as_in() -> Iterator[None]:
    real = group_small_appends._replies_of

    def replies_of(reply):
        is_outrun = isinstance(reply, Refused) and isinstance(reply.reason, UpperMismatch)
        return () if is_outrun else real(reply)

    with patched(group_small_appends, "_replies_of", replies_of):
        yield


@in_stores
@bug
def a_small_append_drops_a_row_of_its_neighbour() -> Iterator[None]:
    real = group_small_appends._convert_together

    def convert_together(entries, places, schema):
        found = real(entries, places, schema)
        if len(places) == 1:
            return found
        rows = found.rows.copy()
        rows[-1] -= 1
        return found._replace(table=found.table.slice(0, found.table.num_rows - 1), rows=rows)

    with patched(group_small_appends, "_convert_together", convert_together):
        yield


@in_stores
@bug
def a_change_does_not_notice_what_others_appended() -> Iterator[None]:
    def news(self, state, time, keys=None, where=None):
        return self._none()

    with patched(read_current.CurrentRows, "news", news):
        yield


@in_stores
@bug
def a_change_counts_what_was_written_ahead_twice() -> Iterator[None]:
    def plan_unsealed(state, lower, upper):
        return ()

    with patched(read_current, "plan_unsealed", plan_unsealed):
        yield


@in_stores
@bug
def moving_late_rows_loses_one_of_them() -> Iterator[None]:
    real = prepare_unsealed.apply_late_policy

    def apply_late_policy(table, name, first, late):
        kept, rows = real(table, name, first, late)
        return (kept.slice(0, max(kept.num_rows - 1, 0)), rows) if rows and late == "move" else (kept, rows)

    with patched(prepare_unsealed, "apply_late_policy", apply_late_policy):
        yield


# Transactions.


@in_stores
@bug
def a_transaction_is_committed_step_by_step() -> Iterator[None]:
    def commit(self, *commands, reads=(), patience=None):
        answers = [real(self, each, reads=reads) for each in commands]
        return type(answers[-1])((reply for each in answers for reply in each), answers[-1].seqnos)

    real = GroupCommitter.commit
    with patched(GroupCommitter, "commit", commit):
        yield


@in_stores
@bug
def a_transaction_does_not_check_what_it_has_read() -> Iterator[None]:
    def expect(self, collection, upper):
        self._handle(collection)

    with patched(Transaction, "expect", expect):
        yield


@in_stores
@bug
def the_reads_of_a_transaction_are_checked_before_its_commit_only() -> Iterator[None]:
    real = step_commit.StepCommit._transaction

    def whole(self, commands):
        return step_commit.group.CommandTransaction(real(self, commands).commands, ())

    with patched(step_commit.StepCommit, "_transaction", whole):
        yield


# Names.


@in_stores
@bug
def a_new_collection_takes_a_name_that_is_taken() -> Iterator[None]:
    real = catalog.Catalog.create

    def create(self, name, entry, schema, arity, *, replace):
        return real(self, name, entry, schema, arity, replace=True)

    with patched(catalog.Catalog, "create", create):
        yield


@in_stores
@bug
def a_drop_forgets_whose_data_is_still_there() -> Iterator[None]:
    real = drop_and_purge.with_dropped

    def dropped(id, name, force, names):
        changed = real(id, name, force, names)
        if changed is None:
            return None
        left = tuple(each for each in changed.dropped if each != id)
        return msgspec.structs.replace(changed, dropped=left, forced=())

    with patched(drop_and_purge, "with_dropped", dropped):
        yield


@in_stores
@bug
def a_dropped_collection_is_emptied_while_it_is_read() -> Iterator[None]:
    def purge(self, handle, freed=()):
        keys = [info.key for info in handle.context.blob.list_keys(f"{handle.id}/")]
        for key in keys:
            handle.context.blob.delete(key)
        return True, len(keys)

    with patched(Maintenance, "purge", purge):
        yield


# Reading.


@in_stores
@bug
def a_listener_does_not_hear_what_is_written_ahead() -> Iterator[None]:
    real = CommitStream._read

    def read(self, state, found):
        return real(self, state, found) if found.upper is not None else None

    with patched(CommitStream, "_read", read):
        yield


@in_stores
@bug
def a_listener_hears_a_commit_twice() -> Iterator[None]:
    real = CommitStream._hear

    def hear(self, change):
        before = len(self._pending)
        real(self, change)
        told = [event for event in list(self._pending)[before:] if event.kind == "updates"]
        self._pending.extend(told if change.n % 3 == 0 else [])

    with patched(CommitStream, "_hear", hear):
        yield


@in_stores
@bug
def a_feed_gives_its_lease_back_when_it_begins() -> Iterator[None]:
    real = ChangeFeed._begin

    def begin(self, state, as_of):
        leased = real(self, state, as_of)
        self._handle.committer.commit((self._handle.id, ExpireReader(leased.lease.reader)))
        return leased

    with patched(ChangeFeed, "_begin", begin):
        yield


@in_stores
@bug
def a_feed_tells_the_last_time_again() -> Iterator[None]:
    real = ChangeFeed._read

    def read(self, state, until):
        through, self._through = self._through, max(self._through - 1, -1)
        try:
            return real(self, state, until)
        finally:
            self._through = through

    with patched(ChangeFeed, "_read", read):
        yield
