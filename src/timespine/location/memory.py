"""Both ports in memory: the reference that other adapters are compared with.

Nothing here outlives the object, so "durable" means "as long as the object".
Threads may share it; processes cannot. The checks of arguments are functions
of their own because every adapter has to refuse the same calls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from timespine.errors import CorruptionError, UsageError
from timespine.ids import check_segment, parse_blob_key, parse_blob_prefix
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, Entry, Write

SEQNO_MAX = (1 << 63) - 1
"""The largest sequence number: int64, so that every database can hold it."""


def check_bytes(value: bytes, bytes_max: int, what: str) -> bytes:
    """The value itself, if it is `bytes` of at most `bytes_max`."""
    if not isinstance(value, bytes):
        raise UsageError(f"{what} is {type(value).__name__}, not bytes")
    if len(value) > bytes_max:
        raise UsageError(f"{what} has {len(value)} bytes, more than {bytes_max}")
    return value


def check_number(number: int, what: str) -> int:
    """The number itself, if it is an int from 0 to SEQNO_MAX."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= SEQNO_MAX:
        raise UsageError(f"{what} {number!r:.80} is not an int from 0 to {SEQNO_MAX}")
    return number


def check_limit(limit: int | None) -> int | None:
    """The limit of a scan itself: None, or a number."""
    return None if limit is None else check_number(limit, "limit")


def check_text(text: str, what: str) -> str:
    """The text itself, if it is a `str`."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is {type(text).__name__}, not str")
    return text


def check_writes(writes: Sequence[Write]) -> tuple[Write, ...]:
    """The writes of one compare-and-set, if they keep every rule that needs no reading."""
    if not isinstance(writes, Sequence) or not all(isinstance(write, Write) for write in writes):
        raise UsageError("compare_and_set takes a sequence of Write")
    if not 1 <= len(writes) <= WRITES_MAX:
        raise UsageError(f"compare_and_set takes 1 to {WRITES_MAX} writes, not {len(writes)}")
    keys = set()
    for write in writes:
        keys.add(check_segment(write.key, "consensus key"))
        check_bytes(write.data, ENTRY_BYTES_MAX, f"the entry for {write.key}")
        if write.expected is not None and check_number(write.expected, "expected") == SEQNO_MAX:
            raise UsageError(f"expected {SEQNO_MAX} leaves no number for the next entry")
    if len(keys) != len(writes):
        raise UsageError("compare_and_set takes each key once")
    return tuple(writes)


class MemoryBlob:
    """The Blob port as a dictionary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._closed = False

    def put(self, key: str, value: bytes) -> None:
        parse_blob_key(key)
        check_bytes(value, BLOB_BYTES_MAX, f"the value of {key}")
        with self._lock:
            if self._live().setdefault(key, value) != value:
                raise UsageError(f"blob {key} exists with other bytes: keys are write-once")

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        parse_blob_key(key)
        check_number(max_bytes, "max_bytes")
        with self._lock:
            value = self._live().get(key)
        if value is not None and len(value) > max_bytes:
            raise CorruptionError(f"blob {key} has {len(value)} bytes, more than the {max_bytes} expected")
        return value

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
        if self._closed:
            raise UsageError("this blob adapter is closed")
        return self._values


class _Log:
    """The live entries of one key: never empty, so that the head is never lost."""

    __slots__ = ("entries", "first")

    def __init__(self, data: bytes) -> None:
        self.first = 0
        """The sequence number of entries[0]."""
        self.entries = [data]
        """What was written, oldest first."""

    @property
    def head(self) -> int:
        return self.first + len(self.entries) - 1


class MemoryConsensus:
    """The Consensus port as a dictionary of lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}
        self._closed = False

    def head(self, key: str) -> Entry | None:
        check_segment(key, "consensus key")
        with self._lock:
            log = self._live().get(key)
            return None if log is None else Entry(log.head, log.entries[-1])

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[Entry]:
        check_segment(key, "consensus key")
        check_number(from_seqno, "from_seqno")
        check_limit(limit)
        with self._lock:
            log = self._live().get(key)
            if log is None:
                return []
            start = max(from_seqno, log.first)
            stop = log.head + 1 if limit is None else min(log.head + 1, start + limit)
            return [Entry(seqno, log.entries[seqno - log.first]) for seqno in range(start, stop)]

    def compare_and_set(self, writes: Sequence[Write]) -> Mapping[str, int | None] | None:
        writes = check_writes(writes)
        with self._lock:
            logs = self._live()
            heads = {write.key: logs[write.key].head if write.key in logs else None for write in writes}
            differing = {write.key: heads[write.key] for write in writes if heads[write.key] != write.expected}
            if differing:
                return differing
            for write in writes:
                if write.key in logs:
                    logs[write.key].entries.append(write.data)
                else:
                    logs[write.key] = _Log(write.data)
            return None

    def truncate(self, key: str, below: int) -> int:
        check_segment(key, "consensus key")
        check_number(below, "below")
        with self._lock:
            log = self._live().get(key)
            if log is None:
                return 0
            dropped = max(0, min(below, log.head) - log.first)
            del log.entries[:dropped]
            log.first += dropped
            return dropped

    def list_keys(self, prefix: str = "") -> list[str]:
        check_text(prefix, "prefix")
        with self._lock:
            return sorted(key for key in self._live() if key.startswith(prefix))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _live(self) -> dict[str, _Log]:
        if self._closed:
            raise UsageError("this consensus adapter is closed")
        return self._logs
