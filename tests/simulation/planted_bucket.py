"""Planted bugs in the consensus of a bucket alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mutations import bug, in_bucket, patched

from timespine.errors import Determinate, Indeterminate, Unavailable
from timespine.location.bucket import checkpoint, commit
from timespine.location.bucket import replica as replica_module
from timespine.location.bucket.effects import GetObject, GetObjects, ListObjects, PutIfAbsent, PutIfMatch
from timespine.location.bucket.formats import (
    BASE_NAME,
    INDEX_PREFIX,
    LOG_PREFIX,
    PACK_PREFIX,
    SlotEntry,
    checksum_of,
    decode_slot,
    encode_base,
    encode_slot,
    slot_name,
    slot_of,
)
from timespine.location.bucket.logs import Log, Logs
from timespine.location.consensus import differing_heads


@in_bucket
@bug
def a_fence_is_not_looked_for() -> Iterator[None]:
    def is_epoch_raised(replica, ahead):
        return False

    with patched(commit, "is_epoch_raised", is_epoch_raised):
        yield


@in_bucket
@bug
def a_fence_is_looked_for_in_old_logs() -> Iterator[None]:
    def is_epoch_raised(replica, ahead):
        return replica.epoch is not None and not ahead.entries and replica.logs.epoch != replica.epoch

    def epoch(self):
        return self._replica.logs.epoch

    with patched(commit, "is_epoch_raised", is_epoch_raised), patched(commit.Ahead, "epoch", property(epoch)):
        yield


@in_bucket
@bug
def base_is_not_read_after_the_put() -> Iterator[None]:
    def read_base(replica):
        yield from ()

    with patched(commit, "read_base", read_base):
        yield


@in_bucket
@bug
def base_is_read_before_the_put() -> Iterator[None]:
    real = commit.try_slot

    def read_base(replica):
        yield from ()

    def try_slot(replica, ahead, groups, outcomes):
        yield from replica_module.read_base(replica)
        return (yield from real(replica, ahead, groups, outcomes))

    with patched(commit, "read_base", read_base), patched(commit, "try_slot", try_slot):
        yield


@in_bucket
@bug
def slots_are_read_without_a_look_at_the_base() -> Iterator[None]:
    def is_verified(replica, began):
        return True

    with patched(replica_module, "is_verified", is_verified):
        yield


@in_bucket
@bug
def a_dead_slot_means_lost() -> Iterator[None]:
    def settle_dead_slot(replica, groups, outcomes):
        yield from commit.load(replica)
        yield from commit.catch_up(replica)
        return groups

    with patched(commit, "settle_dead_slot", settle_dead_slot):
        yield


@in_bucket
@bug
def truncated_means_lost() -> Iterator[None]:
    real = commit.find_group

    def find_group(replica, group):
        return bool((yield from real(replica, group)))

    with patched(commit, "find_group", find_group):
        yield


@in_bucket
@bug
def a_failed_look_means_not_put() -> Iterator[None]:
    real = commit.settle_dead_slot

    def settle_dead_slot(replica, groups, outcomes):
        try:
            return (yield from real(replica, groups, outcomes))
        except Indeterminate as error:
            raise Determinate("the bucket does not answer") from error

    with patched(commit, "settle_dead_slot", settle_dead_slot):
        yield


@in_bucket
@bug
def exists_means_lost() -> Iterator[None]:
    real = commit.put_slot

    def put_slot(slot, data):
        sent, value, is_reported = real(slot, data), None, False
        while True:
            try:
                effect = sent.send(value)
            except StopIteration as ended:
                return ended.value[0] and not is_reported, ended.value[1]
            try:
                value = yield effect
            except Unavailable as error:
                raise Indeterminate("no answer") from error
            is_reported = isinstance(effect, GetObjects) or (isinstance(effect, PutIfAbsent) and not value)

    with patched(commit, "put_slot", put_slot):
        yield


def _skipping(ahead, groups, is_skipped):
    """Put a slot, and go on to the next one without a look at it if an answer says so."""
    slot, data = ahead.slot + 1, encode_slot(ahead.slot + 1, ahead.checksum, tuple(groups))
    try:
        created = yield PutIfAbsent(slot_name(slot), data)
        found = None if created else (yield GetObject(slot_name(slot)))
        answer = "created" if created else "nothing there" if found is None else "there"
    except Indeterminate:
        answer = "no answer"
    except Determinate:
        answer = "refused"
    if answer == is_skipped:
        ahead.entries.append(SlotEntry(slot, ahead.checksum, (), checksum_of(data)))
    return answer == is_skipped


@in_bucket
@bug
def a_conflict_without_a_write_skips_the_slot() -> Iterator[None]:
    real = commit.try_slot

    def try_slot(replica, ahead, groups, outcomes):
        if (yield from _skipping(ahead, groups, "nothing there")):
            return groups
        return (yield from real(replica, ahead, groups, outcomes))

    with patched(commit, "try_slot", try_slot):
        yield


@in_bucket
@bug
def no_answer_leads_to_the_next_slot() -> Iterator[None]:
    real = commit.try_slot

    def try_slot(replica, ahead, groups, outcomes):
        if (yield from _skipping(ahead, groups, "no answer")):
            return groups
        return (yield from real(replica, ahead, groups, outcomes))

    with patched(commit, "try_slot", try_slot):
        yield


@in_bucket
@bug
def a_slot_lost_to_other_keys_is_a_mismatch() -> Iterator[None]:
    real = commit.try_slot

    def try_slot(replica, ahead, groups, outcomes):
        for group in (yield from real(replica, ahead, groups, outcomes)):
            heads = {key: ahead.head(key) for key, _, _ in group.writes}
            outcomes[group.id] = commit.Outcome(heads=heads)
        return []

    with patched(commit, "try_slot", try_slot):
        yield


@in_bucket
@bug
def only_the_first_key_is_checked() -> Iterator[None]:
    def differing(self, group):
        return differing_heads(group.log_writes[:1], {key: self.head(key) for key, _, _ in group.writes})

    with patched(Logs, "differing", differing), patched(commit.Ahead, "differing", differing):
        yield


@in_bucket
@bug
def a_slot_lost_unseen_means_not_put() -> Iterator[None]:
    real = commit.commit_groups

    def commit_without_doubt(replica, groups):
        outcomes = yield from real(replica, groups)
        for id, (_, _, error) in outcomes.items():
            if isinstance(error, Indeterminate) and error.__cause__ is None:  # it was Determinate of a later slot
                outcomes[id] = commit.Outcome(error=Determinate("not put"))
        return outcomes

    with patched(commit, "commit_groups", commit_without_doubt):
        yield


@in_bucket
@bug
def a_mismatch_is_answered_by_old_logs() -> Iterator[None]:
    real = commit.commit_groups

    def commit_by_old_logs(replica, groups):
        outcomes: dict[bytes, commit.Outcome] = {}
        left = commit.answer_mismatches(replica, list(groups), outcomes)
        if left:
            outcomes |= yield from real(replica, left)
        return outcomes

    with patched(commit, "commit_groups", commit_by_old_logs):
        yield


@in_bucket
@bug
def slots_are_deleted_before_the_base_moves() -> Iterator[None]:
    real = checkpoint.move_base

    def move_base(replica, target, tag):
        slots = range(replica.base.dead + 1, target.dead + 1)
        yield from checkpoint.delete([slot_name(slot) for slot in slots])
        return (yield from real(replica, target, tag))

    with patched(checkpoint, "move_base", move_base):
        yield


@in_bucket
@bug
def the_old_index_is_deleted_before_the_base_moves() -> Iterator[None]:
    real = checkpoint.move_base

    def move_base(replica, target, tag):
        yield from checkpoint.delete([replica.base.index] if replica.base.index else [])
        return (yield from real(replica, target, tag))

    with patched(checkpoint, "move_base", move_base):
        yield


@in_bucket
@bug
def the_base_is_replaced_whatever_its_tag_is() -> Iterator[None]:
    def move_base(replica, target, tag):
        found = yield from checkpoint.read_patiently(GetObject(BASE_NAME))
        try:
            return (yield PutIfMatch(BASE_NAME, encode_base(target), found.tag))
        except Unavailable:
            return False

    with patched(checkpoint, "move_base", move_base):
        yield


@in_bucket
@bug
def a_lost_checkpoint_deletes_its_index() -> Iterator[None]:
    def move_base(replica, target, tag):
        try:
            if (yield PutIfMatch(BASE_NAME, encode_base(target), tag)):
                yield from checkpoint.read_base(replica)
                return replica.base == target
        except Unavailable:
            return False
        yield from checkpoint.delete([target.index])
        return False

    with patched(checkpoint, "move_base", move_base):
        yield


@in_bucket
@bug
def a_lost_checkpoint_deletes_its_packs() -> Iterator[None]:
    real = checkpoint.move_base

    def move_base(replica, target, tag):
        if (yield from real(replica, target, tag)):
            return True
        own = PACK_PREFIX + target.index.removeprefix(INDEX_PREFIX).rpartition("-")[0]
        packs = yield from checkpoint.read_patiently(ListObjects(PACK_PREFIX))
        yield from checkpoint.delete([name for name in packs if name.startswith(own)])
        return False

    with patched(checkpoint, "move_base", move_base):
        yield


@in_bucket
@bug
def the_sweep_takes_slots_up_to_the_checkpoint() -> Iterator[None]:
    real = checkpoint.sweep_objects

    def sweep(replica):
        swept = yield from real(replica)
        names = yield from checkpoint.read_patiently(ListObjects(LOG_PREFIX))
        yield from checkpoint.delete([name for name in names if slot_of(name) <= replica.base.slot])
        return swept

    with patched(checkpoint, "sweep_objects", sweep):
        yield


@in_bucket
@bug
def the_sweep_takes_packs_of_checkpoints_under_way() -> Iterator[None]:
    real = checkpoint.sweep_objects

    def sweep(replica):
        swept = yield from real(replica)
        names = yield from checkpoint.read_patiently(ListObjects(PACK_PREFIX))
        yield from checkpoint.delete([name for name in names if name not in replica.logs.index_packs])
        return swept

    with patched(checkpoint, "sweep_objects", sweep):
        yield


@in_bucket
@bug
def packs_go_once_later_slots_cut_their_entries() -> Iterator[None]:
    real = checkpoint.load

    def load(replica, *, knows_base=False):
        yield from real(replica, knows_base=knows_base)
        live = replica.logs.live_bytes()
        replica.logs.index_packs = {name: size for name, size in replica.logs.index_packs.items() if live[name]}

    with patched(checkpoint, "load", load):
        yield


@in_bucket
@bug
def packs_count_without_a_look_whether_they_are_there() -> Iterator[None]:
    def put_fresh(name, data):
        with contextlib.suppress(Unavailable):
            yield PutIfAbsent(name, data)
        return True

    with patched(checkpoint, "put_fresh", put_fresh):
        yield


@in_bucket
@bug
def an_index_hides_the_slots_after_it() -> Iterator[None]:
    def after(self, index):
        return Logs(index)

    with patched(Logs, "after", after):
        yield


@in_bucket
@bug
def slots_read_ahead_hide_a_missing_one() -> Iterator[None]:
    def read_slots(after, window):
        slots = range(after + 1, after + 9)
        found = yield from replica_module.read_patiently(GetObjects(tuple(map(slot_name, slots))))
        there = [(slot, each) for slot, each in zip(slots, found, strict=True) if each is not None]
        return [decode_slot(slot, each.data) for slot, each in there], False

    with patched(replica_module, "read_slots", read_slots):
        yield


@in_bucket
@bug
def a_cut_takes_the_head() -> Iterator[None]:
    def droppable(self, below):
        return max(0, min(below + 1, self.head + 1) - self.first)

    with patched(Log, "droppable", droppable):
        yield


@in_bucket
@bug
def a_removed_log_is_written_on() -> Iterator[None]:
    real = commit.Ahead.add

    def add(self, entries):
        follows = real(self, entries)
        self.heads = {key: head for key, head in self.heads.items() if head is not None}
        return follows

    with patched(commit.Ahead, "add", add):
        yield


@in_bucket
@bug
def a_removed_log_never_was() -> Iterator[None]:
    real = commit.find_group

    def find_group(replica, group):
        is_in = yield from real(replica, group)
        return False if is_in is None and not any(each.key in replica.logs.logs for each in group.log_writes) else is_in

    with patched(commit, "find_group", find_group):
        yield


@in_bucket
@bug
def a_log_is_removed_whatever_its_head_is() -> Iterator[None]:
    real = Logs.apply

    def apply(self, entry):
        dropped = real(self, entry)
        for group in entry.groups:
            for key, _ in group.gone:
                self.logs.pop(key, None)
        return dropped

    with patched(Logs, "apply", apply):
        yield
