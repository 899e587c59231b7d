"""The objects of a simulated bucket, and the truth about its log.

The truth is the first object that each slot ever had. The world checks every write and every deletion when it happens.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter

from timespine.errors import CorruptionError
from timespine.location.bucket.effects import (
    UNCHANGED,
    DeleteObjects,
    GetObject,
    GetObjectRange,
    ListObjects,
    ObjectEffect,
    PutIfAbsent,
    PutIfMatch,
    StoredObject,
)
from timespine.location.bucket.formats import (
    BASE_NAME,
    INDEX_PREFIX,
    LOG_PREFIX,
    PACK_PREFIX,
    Base,
    PackedEntry,
    SlotEntry,
    decode_base,
    decode_frames,
    decode_index,
    decode_slot,
    slot_of,
)
from timespine.testing.simulator.violation import Violation, is_crash, name_of_check

Bounds = dict[str, tuple[int, int]]
"""Per key the first and the last number of its live entries."""


class BucketWorld:
    """Objects with conditional writes, and what they must mean."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.step = 0
        """The number of things that happened."""
        self.truth: list[SlotEntry] = []
        """The first object of every slot, from slot 1 on."""
        self.landed: dict[bytes, int] = {}
        """By the id of a group: the step at which it became durable."""
        self.entries: dict[str, list[PackedEntry]] = {}
        """All entries that every log ever had."""
        self.bounds: list[Bounds] = [{}]
        """The bounds of all logs after every slot."""
        self.steps: list[int] = [0]
        """The step at which every slot was put."""
        self.base = Base()
        """The newest base."""
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._tags = 0

    def violate(self, what: str, error: BaseException | None = None) -> None:
        """Record a broken promise, with the error that showed it; the check is the caller."""
        check = name_of_check(sys._getframe(1))
        self.violations.append(Violation(f"step {self.step}: {what}", check, is_crash(error)))

    def perform(self, effect: ObjectEffect) -> object:
        """Carry out an effect on one object, or a deletion or a listing."""
        match effect:
            case GetObject(name, unless):
                found = self.objects.get(name)
                return UNCHANGED if found is not None and found.tag == unless else found
            case GetObjectRange(name, start, stop):
                found = self.objects.get(name)
                return None if found is None else found.data[start:stop]
            case PutIfAbsent(name, data):
                return name not in self.objects and self._put(name, data)
            case PutIfMatch(name, data, tag):
                found = self.objects.get(name)
                return found is not None and found.tag == tag and self._put(name, data)
            case DeleteObjects(names):
                self._check_deletion(names)
                for name in names:
                    self.objects.pop(name, None)
                return None
            case ListObjects(prefix):
                return sorted(name for name in self.objects if name.startswith(prefix))
        raise TypeError(f"{effect!r} is no effect on objects")

    def _put(self, name: str, data: bytes) -> bool:
        self._tags += 1
        self.objects[name] = StoredObject(data, str(self._tags))
        if name.startswith(LOG_PREFIX):
            self._check_slot(name, data)
        elif name == BASE_NAME:
            self._check_base(decode_base(data))
        return True

    def _check_slot(self, name: str, data: bytes) -> None:
        """Check that the first object of a slot follows the slots before it, and that no group is in twice."""
        slot = slot_of(name)
        if slot is None or slot <= len(self.truth):
            self.counts["puts into dead slots"] += 1
            return
        if slot > len(self.truth) + 1:
            self.violate(f"{name} was put, and the log ends at slot {len(self.truth)}: a gap")
            return
        entry = decode_slot(slot, data)
        bounds = dict(self.bounds[-1])
        for group in entry.groups:
            if group.id in self.landed and group.writes:  # a truncation may be done twice
                self.violate(f"group {group.id.hex()} is in twice")
            for key, expected, _ in group.writes:
                head = bounds[key][1] if key in bounds else None
                if head != expected:
                    self.violate(f"slot {slot} expects {key} at {expected}, and it is at {head}: torn")
        if self.violations:
            return
        for group in entry.groups:
            self.landed[group.id] = self.step
            for key, expected, value in group.writes:
                first = bounds[key][0] if key in bounds else 0
                bounds[key] = (first, 0 if expected is None else expected + 1)
                self.entries.setdefault(key, []).append(PackedEntry(group.id, value))
            for key, below in group.cuts:
                if key in bounds:
                    first, head = bounds[key]
                    bounds[key] = (max(first, min(below, head)), head)
            for key, head in group.gone:
                if key in bounds and bounds[key][1] == head:
                    del bounds[key]
                    self.counts["logs removed"] += 1
        self.truth.append(entry)
        self.bounds.append(bounds)
        self.steps.append(self.step)

    def _check_base(self, base: Base) -> None:
        """Check that a base never goes back, and that its index and packs are the log up to its slot."""
        if base.slot < self.base.slot or base.dead < self.base.dead:
            self.violate(f"the base went back from {self.base} to {base}")
            return
        self.base = base
        if not base.index:
            return
        self.counts["checkpoints"] += 1
        stored = self.objects.get(base.index)
        if stored is None:
            self.violate(f"the base refers to {base.index}, which is not there")
            return
        try:
            index = decode_index(base.index, stored.data)
            for key, stretches in index.logs.items():
                for stretch in stretches:
                    pack = self.objects.get(stretch.pack)
                    if pack is None:
                        self.violate(f"{base.index} refers to {stretch.pack}, which is not there")
                        return
                    data = pack.data[stretch.offset : stretch.offset + sum(stretch.lengths)]
                    if decode_frames(key, stretch, data) != self.entries[key][stretch.seqno : stretch.stop]:
                        self.violate(f"{stretch.pack} has other entries of {key} than the log")
        except CorruptionError as error:
            self.violate(f"the base moved to an index that no process can read: {error}")
            return
        bounds = {key: (each[0].seqno, each[-1].stop - 1) for key, each in index.logs.items()}
        if index.slot != base.slot or base.slot >= len(self.bounds) or bounds != self.bounds[base.slot]:
            self.violate(f"the checkpoint at slot {base.slot} is not the log up to it")

    def _check_deletion(self, names: tuple[str, ...]) -> None:
        """Check that nothing is deleted that the base needs."""
        needed = self.needed()
        for name in names:
            if name in needed and name in self.objects:
                self.violate(f"{name} was deleted, and the base {self.base} needs it")

    def needed(self) -> set[str]:
        """Return the names of all objects that a process may read."""
        names = {BASE_NAME} | {name for name in self.objects if name.startswith(LOG_PREFIX) and self._is_live(name)}
        stored = self.objects.get(self.base.index)
        if stored is not None:
            names |= {self.base.index, *decode_index(self.base.index, stored.data).packs}
        return names

    def _is_live(self, name: str) -> bool:
        slot = slot_of(name)
        return slot is not None and slot > self.base.dead

    def is_superfluous(self, name: str) -> bool:
        """Tell whether an object of a slot up to that of the base is one that no process will read."""
        slot = slot_of(name)
        is_old = slot is not None and slot <= self.base.slot
        return name not in self.needed() and name.startswith((LOG_PREFIX, INDEX_PREFIX, PACK_PREFIX)) and is_old

    def between(self, start: int, end: int) -> range:
        """Return the slots that were the last one at some moment from step `start` to step `end`."""
        return range(bisect_right(self.steps, start) - 1, bisect_right(self.steps, end))
