"""What one process knows of the logs of a bucket, and how it learns what is new.

Slots are put in order and deleted only after a base is durable that declares them dead. So a reader first reads slots
until one is missing, and then the base: if the base declares none of these slots dead, the reader has seen the first
object that each slot ever had, and the end of the log was the end when it looked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timespine.errors import CorruptionError, Determinate, Unavailable
from timespine.location.bucket.effects import (
    UNCHANGED,
    GetObject,
    GetObjectRange,
    GetObjects,
    ListObjects,
    ObjectEffect,
    ObjectProtocol,
    Pause,
    PutIfAbsent,
)
from timespine.location.bucket.formats import (
    BASE_NAME,
    LOG_PREFIX,
    Base,
    PackedEntry,
    SlotEntry,
    decode_base,
    decode_frames,
    decode_index,
    decode_slot,
    encode_base,
    slot_name,
)
from timespine.location.bucket.logs import Logs

ATTEMPTS = 5
"""How often a request is sent before its call gives up."""

PAUSE_MS = 40
"""The pause after the first failure; each later one is twice as long."""

LOADS_MAX = 16
"""How often a call begins again because checkpoints overtook it."""

WINDOW_COLD, WINDOW_WARM, WINDOW_MAX = 32, 1, 32
"""Slots that are read at once: by a process that knows nothing, by one that was up to date, and at most."""


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """When a checkpoint is due, and how large its packs are. Processes of one bucket may have different ones."""

    slots: int = 256
    """Slots after which a checkpoint is due: more of them cost readers that open the bucket, fewer cost writers."""
    tail_bytes: int = 64 << 20
    """Bytes of entries after which a checkpoint is due: processes hold them in memory until then."""
    pack_bytes_small: int = 1 << 20
    """A pack with fewer live bytes is written again, together with the new entries: so there are few packs."""
    pack_bytes_max: int = 64 << 20
    """The size from which on a checkpoint begins another pack."""


class Replica:
    """The logs as of the newest slot that this process has verified."""

    def __init__(self, fresh: Callable[[], bytes], limits: CheckpointLimits) -> None:
        self.fresh = fresh
        """Makes an id that was never used before."""
        self.limits = limits
        """When a checkpoint is due."""
        self.base = Base()
        """The newest base that this process has read."""
        self.base_tag: str | None = None
        """The tag of that base; None before the first one was read."""
        self.loaded: Logs | None = None
        """The logs, or None before the first load."""
        self.epoch: int | None = None
        """The epoch in which this process may commit; None: in any."""

    @property
    def logs(self) -> Logs:
        """The logs. Before the first load there are none."""
        if self.loaded is None:
            self.loaded = Logs()
        return self.loaded

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether there are enough slots or bytes after the newest checkpoint."""
        behind = self.logs.slot - self.base.slot
        return behind >= self.limits.slots or (behind > 0 and self.logs.tail_bytes >= self.limits.tail_bytes)


def read_patiently(effect: ObjectEffect) -> ObjectProtocol[Any]:
    """Send a request that only reads until it is answered; raise Determinate after some attempts."""
    for attempt in range(ATTEMPTS):
        if attempt:
            yield Pause(PAUSE_MS << (attempt - 1))
        try:
            return (yield effect)
        except Unavailable as error:
            failure = error
    raise Determinate(f"the bucket does not answer: {failure.message}") from failure


def open_bucket(replica: Replica) -> ObjectProtocol[None]:
    """Find the base of the logs, or make the first one where there are no logs."""
    for _ in range(ATTEMPTS):
        yield from read_base(replica)
        if replica.base_tag is not None:
            return
        names: list[str] = yield from read_patiently(ListObjects(LOG_PREFIX))
        if names:
            # SUBTLE: another process may have made the base and put slots in the meantime.
            yield from read_base(replica)
            if replica.base_tag is None:
                raise CorruptionError(f"{BASE_NAME} is missing although the log has slots: restore it from a copy")
            return
        try:
            yield PutIfAbsent(BASE_NAME, encode_base(Base()))
        except Unavailable:
            yield Pause(PAUSE_MS)
    raise Determinate("the bucket did not take the first object of its log")


def read_base(replica: Replica) -> ObjectProtocol[None]:
    """Learn the newest base. One that goes back, or is gone, is a CorruptionError."""
    found = yield from read_patiently(GetObject(BASE_NAME, replica.base_tag))
    if found is UNCHANGED:
        return
    if found is None:
        if replica.base_tag is not None:
            raise CorruptionError(f"{BASE_NAME} is gone: the bucket lost its log, or it was deleted")
        return
    base = decode_base(found.data)
    if base.slot < replica.base.slot or base.dead < replica.base.dead:
        raise CorruptionError(f"the log went back from slot {replica.base.slot} to {base.slot}: was it restored?")
    replica.base, replica.base_tag = base, found.tag


def load(replica: Replica, *, knows_base: bool = False) -> ObjectProtocol[None]:
    """Begin with the newest index, and keep the verified slots after it.

    With `knows_base` begin with the index of the base that was read last. Later ones may have replaced it: the caller
    reads the base again, after the slots.
    """
    missing = ""
    for _ in range(LOADS_MAX):
        if not knows_base:
            yield from read_base(replica)
        knows_base = False
        name = replica.base.index
        if not name:
            return  # no checkpoint yet: the log is whole, from slot 1 on
        found = yield from read_patiently(GetObject(name))
        if found is not None:
            index = decode_index(name, found.data)
            if index.slot != replica.base.slot:
                raise CorruptionError(f"{name} is the index of slot {index.slot}, not of {replica.base.slot}")
            replica.loaded = replica.logs.after(index)
            return
        # An index is deleted only after the base refers to another one.
        if name == missing:
            raise CorruptionError(f"{name} is missing, and the base of the log refers to it")
        missing = name
    raise Determinate("checkpoints of the log were faster than its reader: try again")


def catch_up(replica: Replica) -> ObjectProtocol[None]:
    """Learn all slots up to some moment after this call began."""
    window = WINDOW_WARM
    if replica.loaded is None:
        window = WINDOW_COLD
        yield from load(replica, knows_base=replica.base_tag is not None)
    gap = 0
    for _ in range(LOADS_MAX):
        began = replica.logs.slot
        entries, is_gap = yield from read_slots(began, window)
        yield from read_base(replica)  # SUBTLE: after the slots were read (planted: base_is_read_before_the_slots)
        if not is_verified(replica, began):
            yield from load(replica)  # what was read may have been put into dead slots
            continue
        for entry in entries:
            replica.logs.apply(entry)
        if replica.base.slot > replica.logs.index_slot:
            yield from load(replica)
        if not is_gap:
            return
        if gap == replica.logs.slot + 1:
            raise CorruptionError(f"slot {gap} of the log is missing, and a later one is there")
        gap = replica.logs.slot + 1
    raise Determinate("checkpoints of the log were faster than its reader: try again")


def is_verified(replica: Replica, began: int) -> bool:
    """Tell whether slots that were read after slot `began`, before the base was read, are all of them and count."""
    return replica.base.dead <= began


def read_slots(after: int, window: int) -> ObjectProtocol[tuple[list[SlotEntry], bool]]:
    """Read the slots after one until one is missing; tell whether a later slot was there."""
    entries: list[SlotEntry] = []
    while True:
        first = after + len(entries) + 1
        slots = range(first, first + window)
        found = yield from read_patiently(GetObjects(tuple(map(slot_name, slots))))
        there = next((place for place, each in enumerate(found) if each is None), window)
        entries += [decode_slot(slot, each.data) for slot, each in zip(slots[:there], found[:there], strict=True)]
        if there < window:
            return entries, any(each is not None for each in found[there:])
        window = min(window * 4, WINDOW_MAX)


def read_entries(replica: Replica, key: str, start: int, stop: int) -> ObjectProtocol[list[PackedEntry] | None]:
    """Read live entries [start, stop) of a log; None if a pack is gone, because a checkpoint replaced it."""
    log = replica.logs.logs[key]
    entries: list[PackedEntry] = []
    for stretch in log.packed:
        first, last = max(start, stretch.seqno), min(stop, stretch.stop)
        if first < last:
            part = stretch.part(first, last)
            end = part.offset + sum(part.lengths)
            data: bytes | None = yield from read_patiently(GetObjectRange(part.pack, part.offset, end))
            if data is None:
                return None
            entries += decode_frames(key, part, data)
    if stop > log.recent_seqno:
        entries += log.recent[max(start - log.recent_seqno, 0) : stop - log.recent_seqno]
    return entries


def scan_log(
    replica: Replica, key: str, from_seqno: int, limit: int | None, *, is_fresh: bool = False
) -> ObjectProtocol[tuple[int, list[PackedEntry]]]:
    """Read the entries of a log from a number on, as of one moment; return the number of the first, and all of them.

    With `is_fresh` the caller has caught up.
    """
    for _ in range(LOADS_MAX):
        if not is_fresh:
            yield from catch_up(replica)
        log = replica.logs.logs.get(key)
        if log is None:
            return 0, []
        start = max(from_seqno, log.first)
        stop = log.head + 1 if limit is None else min(log.head + 1, start + limit)
        if start >= stop:
            return 0, []
        entries = yield from read_entries(replica, key, start, stop)
        if entries is not None:
            return start, entries
        yield from load_newer(replica)
        is_fresh = False
    raise Determinate("checkpoints of the log were faster than its reader: try again")


def load_newer(replica: Replica) -> ObjectProtocol[None]:
    """Load the index that replaced the one of a missing pack; CorruptionError if none did."""
    before = replica.logs.index_slot
    yield from load(replica)
    if replica.logs.index_slot == before:
        raise CorruptionError("a pack of the log is missing, and the newest index refers to it")
