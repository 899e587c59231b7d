"""Both ports in memory: the reference for the tests of other adapters.

Nothing here outlives the object, so "durable" means "as long as the object". Threads may share it; processes cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from timespine.ids import parse_blob_key, parse_blob_prefix
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.checks import (
    check_get,
    check_get_range,
    check_inside,
    check_key,
    check_open,
    check_put,
    check_same,
    check_scan,
    check_size,
    check_text,
    check_truncate,
    check_writes,
)
from timespine.location.consensus import EPOCH, LogEntry, LogWrite, append_epoch, differing_heads, store_fenced
from timespine.locks import Lock


class MemoryBlob:
    """The Blob port as a dictionary."""

    def __init__(self) -> None:
        self._lock = Lock("the blobs in memory")
        self._values: dict[str, bytes] = {}
        self._closed = False

    def share(self) -> MemoryBlob:
        """Return another adapter for the same blobs, as another opening has it."""
        other = MemoryBlob()
        other._lock, other._values = self._lock, self._values
        return other

    def put(self, key: str, value: bytes) -> None:
        check_put(key, value)
        with self._lock:
            check_same(key, self._live().setdefault(key, value) == value)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        _, bytes_max = check_get(key, max_bytes)
        with self._lock:
            value = self._live().get(key)
        if value is not None:
            check_size(key, len(value), bytes_max)
        return value

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        check_get_range(key, start, stop)
        with self._lock:
            value = self._live().get(key)
        if value is None:
            return None
        check_inside(key, stop, len(value))
        return value[start:stop]

    def delete(self, key: str) -> bool:
        parse_blob_key(key)
        with self._lock:
            return self._live().pop(key, None) is not None

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        parse_blob_prefix(prefix)
        with self._lock:
            found = [BlobInfo(k, len(v)) for k, v in self._live().items() if k.startswith(prefix)]
        return iter(sorted(found))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _live(self) -> dict[str, bytes]:
        check_open(self._closed, "blob")
        return self._values


class _Log:
    """The live entries of one key: never empty, so that the head is never lost."""

    __slots__ = ("entries", "first")

    def __init__(self, first: int, entries: list[bytes]) -> None:
        self.first = first
        """The sequence number of entries[0]."""
        self.entries = entries
        """The bytes of the entries, oldest first."""

    @property
    def head(self) -> int:
        return self.first + len(self.entries) - 1


class MemoryConsensus:
    """The Consensus port as a dictionary of lists."""

    def __init__(self) -> None:
        self._lock = Lock("the logs in memory")
        self._logs: dict[str, _Log] = {}
        self._undone: list[tuple[str, int]] = []
        """The keys under change and how many entries each had: the next call undoes an interrupted change."""
        self._closed = False
        self._epoch = 0

    def share(self) -> MemoryConsensus:
        """Return another adapter for the same logs, as another opening has it."""
        other = MemoryConsensus()
        other._lock, other._logs, other._undone = self._lock, self._logs, self._undone
        other._epoch = _epoch_of(self._logs)
        return other

    @property
    def epoch(self) -> int:
        return self._epoch

    def fence(self) -> int:
        self._epoch = append_epoch(self, self._epoch)
        return self._epoch

    def forget(self, key: str, expected: int) -> bool:
        check_key(key)
        with self._lock:
            logs = self._writable()
            if key not in logs or logs[key].head != expected:
                return False
            del logs[key]
            return True

    def head(self, key: str) -> LogEntry | None:
        check_key(key)
        with self._lock:
            log = self._live().get(key)
            return None if log is None else LogEntry(log.head, log.entries[-1])

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        check_scan(key, from_seqno, limit)
        with self._lock:
            log = self._live().get(key)
            if log is None:
                return []
            start = max(from_seqno, log.first)
            stop = log.head + 1 if limit is None else min(log.head + 1, start + limit)
            return [LogEntry(seqno, log.entries[seqno - log.first]) for seqno in range(start, stop)]

    def heads(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the newest number of each key, None for those never written, as of one moment."""
        for key in keys:
            check_key(key)
        with self._lock:
            logs = self._live()
            return {key: logs[key].head if key in logs else None for key in keys}

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        writes = check_writes(writes)
        with self._lock:
            logs = self._writable()
            heads = {write.key: logs[write.key].head if write.key in logs else None for write in writes}
            lost = differing_heads(writes, heads)
            if lost is not None:
                return lost
            self._undone[:] = [(each.key, len(logs[each.key].entries) if each.key in logs else 0) for each in writes]
            for write in writes:
                if write.key in logs:
                    logs[write.key].entries.append(write.data)
                else:
                    logs[write.key] = _Log(0, [write.data])
            self._undone[:] = []  # from here on the change is complete
            return None

    def truncate(self, key: str, below: int) -> int:
        check_truncate(key, below)
        with self._lock:
            log = self._writable().get(key)
            if log is None:
                return 0
            dropped = max(0, min(below, log.head) - log.first)
            self._logs[key] = _Log(log.first + dropped, log.entries[dropped:])
            return dropped

    def list_keys(self, prefix: str = "") -> list[str]:
        check_text(prefix, "prefix")
        with self._lock:
            return sorted(key for key in self._live() if key.startswith(prefix))

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:
        """Do nothing: there is no reserve."""

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _writable(self) -> dict[str, _Log]:
        """Return the logs to change; refuse a process of an earlier epoch."""
        logs = self._live()
        if (found := _epoch_of(logs)) != self._epoch:
            raise store_fenced(self._epoch, found)
        return logs

    def _live(self) -> dict[str, _Log]:
        check_open(self._closed, "consensus")
        for key, length in self._undone:
            if key in self._logs:
                del self._logs[key].entries[length:]
                if length == 0:
                    del self._logs[key]
        self._undone[:] = []
        return self._logs


def _epoch_of(logs: Mapping[str, _Log]) -> int:
    return logs[EPOCH].head + 1 if EPOCH in logs else 0
