"""What every adapter of the two ports refuses, each in the same words.

A call that breaks a rule which can be seen without reading storage is a
UsageError before anything is touched. Each check returns what the adapter
goes on with, so that a checked call reads as one line.
"""

from __future__ import annotations

from collections.abc import Sequence

from timespine.errors import CorruptionError, StoreClosed, UsageError
from timespine.ids import BlobKey, check_segment, parse_blob_key
from timespine.location.blob import BLOB_BYTES_MAX
from timespine.location.consensus import ENTRY_BYTES_MAX, WRITES_MAX, Write

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


def check_text(text: str, what: str) -> str:
    """The text itself, if it is a `str`."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is {type(text).__name__}, not str")
    return text


def check_open(closed: bool, port: str) -> None:
    """An adapter that was closed stays closed."""
    if closed:
        raise StoreClosed(f"this {port} adapter is closed: open it, or the store that it belongs to, again")


# Blobs.


def check_put(key: str, value: bytes) -> BlobKey:
    """The arguments of a put: the key, taken apart."""
    parsed = parse_blob_key(key)
    check_bytes(value, BLOB_BYTES_MAX, f"the value of {key}")
    return parsed


def check_get(key: str, max_bytes: int) -> tuple[BlobKey, int]:
    """The arguments of a get: the key, taken apart, and the bytes that it may return."""
    return parse_blob_key(key), min(check_number(max_bytes, "max_bytes"), BLOB_BYTES_MAX)


def check_get_range(key: str, start: int, stop: int) -> BlobKey:
    """The arguments of a get_range: the key, taken apart."""
    parsed = parse_blob_key(key)
    if check_number(start, "start") > check_number(stop, "stop"):
        raise UsageError(f"a range from {start} to {stop} ends before it starts")
    return parsed


def check_inside(key: str, stop: int, size: int) -> None:
    """A value that ends before the range that its reader knows to be there is not what was written."""
    if stop > size:
        raise CorruptionError(f"blob {key} has {size} bytes, less than the {stop} expected")


def check_size(key: str, size: int, bytes_max: int) -> None:
    """A value that is larger than the reader of it says it can be is not what was written."""
    if size > bytes_max:
        raise CorruptionError(f"blob {key} has {size} bytes, more than the {bytes_max} expected")


def check_same(key: str | BlobKey, same: bool) -> None:
    """A put of a key that exists is a retry with the same bytes, or a mistake."""
    if not same:
        raise UsageError(f"blob {key} exists with other bytes: keys are write-once")


# Consensus.


def check_key(key: str) -> str:
    """The key of a log itself."""
    return check_segment(key, "consensus key")


def check_scan(key: str, from_seqno: int, limit: int | None) -> None:
    """The arguments of a scan."""
    check_key(key)
    check_number(from_seqno, "from_seqno")
    if limit is not None:
        check_number(limit, "limit")


def check_truncate(key: str, below: int) -> None:
    """The arguments of a truncate."""
    check_key(key)
    check_number(below, "below")


def check_writes(writes: Sequence[Write]) -> tuple[Write, ...]:
    """The writes of one compare-and-set, if they keep every rule that needs no reading."""
    if not isinstance(writes, Sequence) or not all(isinstance(write, Write) for write in writes):
        raise UsageError("compare_and_set takes a sequence of Write")
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
