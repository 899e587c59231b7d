"""All logs as one process knows them: those of an index, and the slots after it. Pure."""

from __future__ import annotations

from timespine.errors import CorruptionError
from timespine.location.bucket.formats import LogIndex, PackedEntry, PackStretch, SlotEntry, WriteGroup
from timespine.location.consensus import EPOCH, differing_heads


class Log:
    """The live entries of one key: stretches in packs, then entries in memory. Never empty."""

    __slots__ = ("packed", "recent", "recent_seqno")

    def __init__(self, packed: tuple[PackStretch, ...] = ()) -> None:
        self.packed = packed
        """The entries that lie in packs, oldest first."""
        self.recent: list[PackedEntry] = []
        """The entries of the slots after the index."""
        self.recent_seqno = packed[-1].stop if packed else 0
        """The number of the first of these, or of the next entry."""

    @property
    def first(self) -> int:
        """The number of the oldest live entry."""
        return self.packed[0].seqno if self.packed else self.recent_seqno

    @property
    def head(self) -> int:
        """The number of the newest entry."""
        return self.recent_seqno + len(self.recent) - 1

    def droppable(self, below: int) -> int:
        """Count the entries that a cut would drop: those below a number, and never the head."""
        return max(0, min(below, self.head) - self.first)

    def cut(self, below: int) -> int:
        """Drop entries below a number, but never the head; return how many."""
        dropped = self.droppable(below)
        if dropped:
            first = self.first + dropped
            kept = [each for each in self.packed if each.stop > first]
            if kept and kept[0].seqno < first:
                kept[0] = kept[0].part(first, kept[0].stop)
            self.packed = tuple(kept)
            if first > self.recent_seqno:
                del self.recent[: first - self.recent_seqno]
                self.recent_seqno = first
        return dropped


class Logs:
    """All logs as of a slot."""

    def __init__(self, index: LogIndex | None = None) -> None:
        self.index_slot = 0 if index is None else index.slot
        """The slot of the index that these logs began with."""
        self.slot = self.index_slot
        """The last slot that is in them."""
        self.checksum = 0 if index is None else index.checksum
        """The checksum of that slot."""
        self.tail: list[SlotEntry] = []
        """The slots after the index."""
        self.tail_bytes = 0
        """The bytes of data in these slots."""
        self.logs = {} if index is None else {key: Log(packed) for key, packed in index.logs.items()}
        """The log of each key."""
        self.index_packs = {} if index is None else index.packs
        """The packs that the index refers to, with their sizes."""

    def head(self, key: str) -> int | None:
        """Return the newest number of a key, or None if it was never written."""
        log = self.logs.get(key)
        return None if log is None else log.head

    @property
    def epoch(self) -> int:
        """The epoch of the store: how often it was fenced."""
        head = self.head(EPOCH)
        return 0 if head is None else head + 1

    def differing(self, group: WriteGroup) -> dict[str, int | None] | None:
        """Return the heads that a group does not expect, or None if it fits."""
        return differing_heads(group.log_writes, {key: self.head(key) for key, _, _ in group.writes})

    def apply(self, entry: SlotEntry) -> dict[bytes, int]:
        """Add the next slot; return per group how many entries its cuts dropped.

        A slot that does not follow this one, or does not fit, is a CorruptionError, and changes nothing.
        """
        if (entry.slot, entry.previous) != (self.slot + 1, self.checksum):
            raise CorruptionError(f"slot {entry.slot} of the log does not follow slot {self.slot}")
        if any(self.differing(group) for group in entry.groups):
            raise CorruptionError(f"slot {entry.slot} of the log does not fit the slots before it")
        dropped: dict[bytes, int] = {}
        for group in entry.groups:
            for key, _, data in group.writes:
                self.logs.setdefault(key, Log()).recent.append(PackedEntry(group.id, data))
                self.tail_bytes += len(data)
            logs = [(self.logs.get(key), below) for key, below in group.cuts]
            dropped[group.id] = sum(log.cut(below) for log, below in logs if log is not None)
            for key, head in group.gone:
                if self.head(key) == head:
                    del self.logs[key]
                    dropped[group.id] += 1
        self.slot, self.checksum = entry.slot, entry.checksum
        self.tail.append(entry)
        return dropped

    def after(self, index: LogIndex) -> Logs:
        """Return the same logs beginning with a newer index: what it has in packs leaves memory."""
        logs = Logs(index)
        for entry in self.tail:
            if entry.slot > index.slot:
                logs.apply(entry)
        return logs

    def live_bytes(self) -> dict[str, int]:
        """Return per pack the bytes that live entries have there."""
        live = dict.fromkeys(self.index_packs, 0)
        for log in self.logs.values():
            for stretch in log.packed:
                live[stretch.pack] += sum(stretch.lengths)
        return live
