"""The checks of arguments that every adapter of the two ports makes, with the same messages.

A call that breaks a rule is a UsageError before it touches storage, where the rule needs no read. Each check returns
the value that the adapter uses, so that a checked call reads as one line.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from timespine.errors import CorruptionError, StoreClosed, UsageError
from timespine.ids import BlobKey, check_segment, parse_blob_key
from timespine.location.blob import BLOB_BYTES_MAX
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, LogWrite

SEQNO_MAX = (1 << 63) - 1
"""The largest sequence number: int64, so that every database can hold it."""


def check_bytes(value: bytes, bytes_max: int, what: str) -> bytes:
    """Return the value if it is `bytes` of at most `bytes_max`, or raise UsageError."""
    if not isinstance(value, bytes):
        raise UsageError(f"{what} is {type(value).__name__}, not bytes")
    if len(value) > bytes_max:
        raise UsageError(f"{what} has {len(value)} bytes, more than {bytes_max}")
    return value


def check_number(number: int, what: str) -> int:
    """Return the number if it is an int from 0 to SEQNO_MAX, or raise UsageError."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= SEQNO_MAX:
        raise UsageError(f"{what} {number!r:.80} is not an int from 0 to {SEQNO_MAX}")
    return number


def check_text(text: str, what: str) -> str:
    """Return the text if it is a `str`, or raise UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is {type(text).__name__}, not str")
    return text


def check_open(closed: bool, port: str) -> None:
    """Raise StoreClosed if the adapter was closed."""
    if closed:
        raise StoreClosed(f"this {port} adapter is closed: open it, or the store that it belongs to, again")


# Blobs.


def check_put(key: str, value: bytes) -> BlobKey:
    """Check the arguments of a put, and return the parsed key."""
    parsed = parse_blob_key(key)
    check_bytes(value, BLOB_BYTES_MAX, f"the value of {key}")
    return parsed


def check_get(key: str, max_bytes: int) -> tuple[BlobKey, int]:
    """Check the arguments of a get, and return the parsed key and the most bytes to return."""
    return parse_blob_key(key), min(check_number(max_bytes, "max_bytes"), BLOB_BYTES_MAX)


def check_get_range(key: str, start: int, stop: int) -> BlobKey:
    """Check the arguments of a get_range, and return the parsed key."""
    parsed = parse_blob_key(key)
    if check_number(start, "start") > check_number(stop, "stop"):
        raise UsageError(f"a range from {start} to {stop} ends before it starts")
    return parsed


def check_inside(key: str, stop: int, size: int) -> None:
    """Raise CorruptionError if a value ends before a range that its reader expects."""
    if stop > size:
        raise CorruptionError(f"blob {key} has {size} bytes, less than the {stop} expected")


def check_size(key: str, size: int, bytes_max: int) -> None:
    """Raise CorruptionError if a value is larger than its reader expects."""
    if size > bytes_max:
        raise CorruptionError(f"blob {key} has {size} bytes, more than the {bytes_max} expected")


def check_same(key: str | BlobKey, same: bool) -> None:
    """Raise UsageError if a put of an existing key has other bytes: only a retry has the same."""
    if not same:
        raise UsageError(f"blob {key} exists with other bytes: keys are write-once")


# Consensus.


def check_key(key: str) -> str:
    """Return the key of a log if it is valid, or raise UsageError."""
    return _check_log_name(key) if type(key) is str else check_segment(key, "consensus key")


@functools.lru_cache(maxsize=1024)
def _check_log_name(key: str) -> str:
    """Check a text by the grammar once: a process uses the same few logs again and again."""
    return check_segment(key, "consensus key")


def check_scan(key: str, from_seqno: int, limit: int | None) -> None:
    """Check the arguments of a scan."""
    check_key(key)
    check_number(from_seqno, "from_seqno")
    if limit is not None:
        check_number(limit, "limit")


def check_truncate(key: str, below: int) -> None:
    """Check the arguments of a truncate."""
    check_key(key)
    check_number(below, "below")


def check_writes(writes: Sequence[LogWrite]) -> tuple[LogWrite, ...]:
    """Return the writes of one compare-and-set if they keep every rule that needs no read, or raise UsageError."""
    if not isinstance(writes, Sequence) or not all(isinstance(write, LogWrite) for write in writes):
        raise UsageError("compare_and_set takes a sequence of LogWrite")
    if not 1 <= len(writes) <= WRITES_MAX:
        raise UsageError(f"compare_and_set takes 1 to {WRITES_MAX} writes, not {len(writes)}")
    for write in writes:
        check_key(write.key)
        check_bytes(write.data, ENTRY_BYTES_MAX, f"the entry for {write.key}")
        if write.expected is not None and check_number(write.expected, "expected") == SEQNO_MAX:
            raise UsageError(f"expected {SEQNO_MAX} leaves no number for the next entry")
    if len({write.key for write in writes}) != len(writes):
        raise UsageError("compare_and_set takes each key once")
    bytes_total = sum(len(write.data) for write in writes)
    if bytes_total > ENTRY_BYTES_MAX:
        raise UsageError(f"compare_and_set takes {ENTRY_BYTES_MAX} bytes in all, not {bytes_total}")
    return tuple(writes)
