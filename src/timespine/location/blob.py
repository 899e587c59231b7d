"""The port for immutable bytes: parts, hollow runs, rollups.

Contract, checked for every adapter by `timespine.testing.conformance`:

- Keys are write-once. `put` is atomic: a reader sees the whole value or none.
  Putting the same bytes again is a success (so a put can be retried after a
  lost reply); other bytes under a key that exists are a UsageError.
- When `put` returns, the value survives a crash of the process and, where the
  adapter says so, of the machine.
- `get` of a missing key is None. A value larger than `max_bytes` is refused
  before it is read into memory; a `max_bytes` above BLOB_BYTES_MAX means
  BLOB_BYTES_MAX, and is no mistake of the caller.
- `get_range` reads exactly the bytes asked for, without the rest of the value.
  Whoever asks knows the size of the value from elsewhere, so a range that is not
  inside of it is a CorruptionError, never fewer bytes.
- `delete` is idempotent and says whether something was there. When it returns,
  the key is free: it may be put again, with any bytes.
- `list_keys` gives what was there before the call began and not deleted since;
  what comes or goes meanwhile may or may not be listed.
- Failures are `Determinate` (nothing happened) or `Indeterminate` (may have).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

BLOB_BYTES_MAX = 1 << 31
"""The largest value that any adapter accepts or returns."""


class BlobInfo(NamedTuple):
    """One line of a listing."""

    key: str
    """The whole key."""
    size: int
    """Bytes of the value."""


class Blob(Protocol):
    """Immutable, named bytes."""

    def put(self, key: str, value: bytes) -> None:
        """Make `value` durable under `key`, atomically."""
        ...

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        """The value, or None if there is none. Larger than `max_bytes` is a CorruptionError."""
        ...

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """The bytes [start, stop) of the value, or None if there is none. Outside of it is a CorruptionError."""
        ...

    def delete(self, key: str) -> bool:
        """Remove the key; whether it was there."""
        ...

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        """All keys below '', 'collection/' or 'collection/writer/', in order of the key."""
        ...

    def close(self) -> None:
        """Release what the adapter holds open. Twice is fine."""
        ...
