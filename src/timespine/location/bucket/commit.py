"""Compare-and-sets: put the next slot if it is absent, then read the base.

A put counts if it was the first of its slot. That is so if the base, read after the put, does not declare the slot
dead: an earlier object of the slot would have been deleted only after a base that does. So the writer of slot n has
read exactly the slots before it, and its expectations hold where its slot stands.

A call that finds another's object in its slot reads on and puts the next slot, without a look at the base: the look
after that put covers both. Slots are chained by their checksums. If the lost slot is dead after all, and what was read
there came too late, then all slots read after it did, and the next slot is dead or taken (design 0022).

A call is refused, or said not to have happened, only after a base showed that none of its slots is dead. Otherwise it
is in doubt until the logs tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from timespine.errors import Contention, Determinate, Indeterminate, StoreFenced, Unavailable
from timespine.location.bucket.effects import GetObjects, ObjectProtocol, Pause, PutIfAbsent
from timespine.location.bucket.formats import SlotEntry, WriteGroup, decode_slot, encode_slot, slot_name
from timespine.location.bucket.replica import (
    ATTEMPTS,
    LOADS_MAX,
    PAUSE_MS,
    Replica,
    catch_up,
    load,
    load_newer,
    read_base,
    read_entries,
)
from timespine.location.consensus import EPOCH, differing_heads, store_fenced

WINDOW_LOST = 3
"""Slots that a call reads at once when another process was first: it is behind by one, and perhaps by more."""

SLOTS_MAX = 128
"""Slots that a call tries before it gives up, because other processes were first in each."""


class Outcome(NamedTuple):
    """The answer to one group."""

    heads: Mapping[str, int | None] | None = None
    """The true heads that differ; None if the group is in, or failed."""
    dropped: int = 0
    """Entries that its cuts dropped."""
    error: Unavailable | StoreFenced | None = None
    """Why the group is not known to be in."""


def commit_groups(replica: Replica, groups: Sequence[WriteGroup]) -> ObjectProtocol[dict[bytes, Outcome]]:
    """Append each group, all or nothing, in as few slots as possible; return the outcome of each by its id.

    No two groups may write the same key.
    """
    outcomes: dict[bytes, Outcome] = {}
    pending = list(groups)
    ahead = Ahead(replica)
    try:
        is_fresh = replica.loaded is None
        if is_fresh:
            yield from catch_up(replica)
        for _ in range(SLOTS_MAX):
            if is_epoch_raised(replica, ahead) or any(ahead.differing(group) for group in pending):
                # SUBTLE: only logs that were read during this call, and verified, may refuse a group
                # (planted: a_mismatch_is_answered_by_old_logs).
                if ahead.entries or not is_fresh:
                    pending = yield from verify(replica, ahead, pending, outcomes)
                    yield from catch_up(replica)
                    is_fresh = True
                # SUBTLE: by verified logs, as above (planted: a_fence_is_not_looked_for).
                if is_epoch_raised(replica, ahead):
                    fenced = store_fenced(replica.epoch or 0, replica.logs.epoch)
                    outcomes.update({group.id: Outcome(error=fenced) for group in pending})
                    return outcomes
                pending = answer_mismatches(replica, pending, outcomes)
            if pending:
                pending = yield from try_slot(replica, ahead, pending, outcomes)
            if not pending:
                return outcomes
        pending = yield from verify(replica, ahead, pending, outcomes)
        raise Contention(f"other processes were first in {SLOTS_MAX} slots: try again later")
    except Unavailable as error:
        if ahead.entries and isinstance(error, Determinate):
            # SUBTLE: a lost slot may be dead, and the group in (planted: a_slot_lost_unseen_means_not_put).
            error = Indeterminate(f"the commit may be in: {error.message}")
        outcomes.update({group.id: Outcome(error=error) for group in pending})
    return outcomes


def is_epoch_raised(replica: Replica, ahead: Ahead) -> bool:
    """Tell whether the epoch was raised after this process opened the logs, by all slots that it has read."""
    return replica.epoch is not None and ahead.epoch != replica.epoch


class Ahead:
    """Slots that were read after the logs, and that no base has verified yet."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.entries: list[SlotEntry] = []
        """The slots, each of which follows the one before it."""
        self.heads: dict[str, int | None] = {}
        """The heads that they move; None for logs that they remove."""

    @property
    def slot(self) -> int:
        """The last slot that was read."""
        return self._replica.logs.slot + len(self.entries)

    @property
    def checksum(self) -> int:
        """The checksum of that slot."""
        return self.entries[-1].checksum if self.entries else self._replica.logs.checksum

    @property
    def epoch(self) -> int:
        """The epoch after these slots."""
        head = self.head(EPOCH)
        return 0 if head is None else head + 1

    def head(self, key: str) -> int | None:
        """Return the head of a key after these slots."""
        return self.heads[key] if key in self.heads else self._replica.logs.head(key)

    def differing(self, group: WriteGroup) -> dict[str, int | None] | None:
        """Return the heads that a group does not expect after these slots, or None if it fits."""
        return differing_heads(group.log_writes, {key: self.head(key) for key, _, _ in group.writes})

    def add(self, entries: list[SlotEntry]) -> bool:
        """Add slots that follow; return False at the first that does not follow or fit, because it came too late."""
        for entry in entries:
            if entry.previous != self.checksum or any(self.differing(group) for group in entry.groups):
                return False
            for group in entry.groups:
                self.heads |= {write.key: write.seqno for write in group.log_writes}
                # SUBTLE: a slot that expects the head of a removed log would fit no log
                # (planted: a_removed_log_is_written_on).
                self.heads |= {key: None for key, head in group.gone if self.head(key) == head}
            self.entries.append(entry)
        return True

    def take(self) -> list[SlotEntry]:
        """Return the slots, and begin again after the logs."""
        entries, self.entries, self.heads = self.entries, [], {}
        return entries


def answer_mismatches(replica: Replica, pending: list[WriteGroup], outcomes: dict[bytes, Outcome]) -> list[WriteGroup]:
    """Answer the groups that do not fit; return the others."""
    fitting = []
    for group in pending:
        heads = replica.logs.differing(group)
        if heads is None:
            fitting.append(group)
        else:
            outcomes[group.id] = Outcome(heads=heads)
    return fitting


def try_slot(
    replica: Replica, ahead: Ahead, groups: list[WriteGroup], outcomes: dict[bytes, Outcome]
) -> ObjectProtocol[list[WriteGroup]]:
    """Put groups into the next slot; return those that are not in, as far as is known, and did not fail.

    Determinate: none is in this slot, and none will be. Indeterminate: each may be in.
    """
    slot = ahead.slot + 1
    data = encode_slot(slot, ahead.checksum, tuple(groups))
    is_ours, entries = yield from put_slot(slot, data)
    follows = ahead.add(entries)
    if is_ours:
        return (yield from verify(replica, ahead, groups, outcomes, slot))
    if not follows or len(entries) == WINDOW_LOST:  # dead slots, or more to read
        groups = yield from verify(replica, ahead, groups, outcomes)
        yield from catch_up(replica)
    return groups


def verify(
    replica: Replica,
    ahead: Ahead,
    groups: list[WriteGroup],
    outcomes: dict[bytes, Outcome],
    own_slot: int | None = None,
) -> ObjectProtocol[list[WriteGroup]]:
    """Read the base, and take over the slots that were read ahead if none of them is dead; return the groups left.

    The groups are in `own_slot`, unless it is None or dead.
    """
    if not ahead.entries and own_slot is None:
        return groups
    entries = ahead.take()
    try:
        yield from read_base(replica)  # SUBTLE: after the put (planted: base_is_not_read_after_the_put)
    except Unavailable as error:
        raise Indeterminate(f"the commit was put, and may not count: {error.message}") from error
    if is_dead(replica, replica.logs.slot + 1):
        return (yield from settle_dead_slot(replica, groups, outcomes))
    for entry in entries:
        dropped = replica.logs.apply(entry)
        if entry.slot == own_slot:
            outcomes.update({group.id: Outcome(dropped=dropped[group.id]) for group in groups})
    return groups if own_slot is None else []


def is_dead(replica: Replica, slot: int) -> bool:
    """Tell whether the base declares a slot dead."""
    return slot <= replica.base.dead


def put_slot(slot: int, data: bytes) -> ObjectProtocol[tuple[bool, list[SlotEntry]]]:
    """Put a slot; return whether the object there is ours, and that object with slots after it.

    Determinate: ours is not there, and will not be. Indeterminate: it is not known.
    """
    name = slot_name(slot)
    is_in_doubt = False
    for attempt in range(ATTEMPTS):
        if attempt:
            yield Pause(PAUSE_MS << (attempt - 1))
        try:
            if (yield PutIfAbsent(name, data)):
                return True, [decode_slot(slot, data)]
            is_in_doubt = True  # what exists may be ours, or nothing
        except Determinate as error:
            failure: Unavailable = error
            if not is_in_doubt:
                continue
        except Unavailable as error:
            failure, is_in_doubt = error, True
        try:
            found = yield GetObjects(tuple(map(slot_name, range(slot, slot + WINDOW_LOST))))
        except Unavailable as error:
            failure = error
            continue
        there = list(takewhile(lambda each: each is not None, found))
        if there:
            entries = [decode_slot(slot + place, each.data) for place, each in enumerate(there)]
            return there[0].data == data, entries  # the ids of its groups are in it: no other call has the same bytes
        failure = Indeterminate(f"{name} was reported to exist, and is not there")
    if is_in_doubt:
        raise Indeterminate(f"slot {slot} may have been put: {failure.message}") from failure
    raise Determinate(f"slot {slot} was not put: {failure.message}") from failure


def settle_dead_slot(
    replica: Replica, groups: list[WriteGroup], outcomes: dict[bytes, Outcome]
) -> ObjectProtocol[list[WriteGroup]]:
    """Find out about groups that were put into a slot that is dead; return those that are not in.

    SUBTLE: a dead slot says nothing. The put may have counted and be in a checkpoint since, or have come too late
    (planted: a_dead_slot_means_lost). A truncation need not be found: it may be done twice.
    """
    left = []
    try:
        yield from load(replica)
        yield from catch_up(replica)
        for group in groups:
            is_in = (yield from find_group(replica, group)) if group.writes else False
            if is_in is None:
                doubt = Indeterminate("the commit may be in: the entries that would tell were truncated or removed")
                outcomes[group.id] = Outcome(error=doubt)
            elif is_in:
                outcomes[group.id] = Outcome()
            else:
                left.append(group)
    except Unavailable as error:
        # SUBTLE: Determinate here is about a read, and not about the put (planted: a_failed_look_means_not_put).
        raise Indeterminate(f"the commit may be in: {error.message}") from error
    return left


def find_group(replica: Replica, group: WriteGroup) -> ObjectProtocol[bool | None]:
    """Tell whether a group is in the logs; None if the entry that would tell was truncated, or its log removed."""
    for _ in range(LOADS_MAX):
        # SUBTLE: a log that is not there may have been removed with the entry (planted: a_removed_log_never_was).
        write = next((each for each in group.log_writes if each.key in replica.logs.logs), None)
        if write is None:
            return None
        log = replica.logs.logs[write.key]
        if log.head < write.seqno:
            return False
        if write.seqno < log.first:
            return None
        entries = yield from read_entries(replica, write.key, write.seqno, write.seqno + 1)
        if entries is not None:
            return bool(entries[0].id == group.id)
        yield from load_newer(replica)
        yield from catch_up(replica)
    raise Determinate("checkpoints of the log were faster than its reader: try again")
