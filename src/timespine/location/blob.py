"""The port for immutable bytes: parts, hollow runs, rollups.

Contract, checked for every adapter by `timespine.testing.conformance`:

- Keys are write-once. `put` is atomic: a reader sees the whole value or none.
  Putting the same bytes again is a success (so a put can be retried after a
  lost reply); other bytes under a key that exists are a UsageError.
- When `put` returns, the value survives a crash of the process and, where the
  adapter says so, of the machine.
- `get` of a missing key is None. An adapter refuses a value larger than `max_bytes`
  before it reads it into memory; a `max_bytes` above BLOB_BYTES_MAX means
  BLOB_BYTES_MAX, and is no mistake of the caller.
- `get_range` reads exactly the requested bytes, without the rest of the value.
  The caller knows the size of the value from elsewhere, so a range that is not
  inside of it is a CorruptionError, never fewer bytes.
- `delete` is idempotent. It tells whether the key existed, or None where storage does
  not say. When it returns, the key is free: it may be put again, with any bytes.
- An adapter may have the methods of `BulkBlob`, which do in one call what others do in many.
- `list_keys` gives every key that existed during the whole call. A key that was
  put or deleted during the call may or may not be listed.
- Failures are `Determinate` (nothing happened) or `Indeterminate` (may have).

An adapter may have `delete_many(keys)`, which deletes blobs in as few requests as the place allows, missing ones
included. Callers use `delete_blobs`, which deletes one by one where an adapter has no such method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol, runtime_checkable

from timespine.pool import failure

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
        """Return the value, or None if the key does not exist; raise CorruptionError for more than `max_bytes`."""
        ...

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return the bytes [start, stop) of the value, or None if the key does not exist.

        A range that is not inside of the value is a CorruptionError.
        """
        ...

    def delete(self, key: str) -> bool | None:
        """Remove the key; return whether it existed, or None if storage does not say."""
        ...

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield all keys below '', 'collection/' or 'collection/writer/', in order of the key."""
        ...

    def close(self) -> None:
        """Release the adapter's resources. Twice is fine."""
        ...


@runtime_checkable
class BulkBlob(Protocol):
    """What an adapter has beyond `Blob` if its storage deletes several keys in one request."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove all keys; those that do not exist are no error."""
        ...


def delete_blobs(blob: Blob, keys: Sequence[str], pool: Executor | None) -> None:
    """Delete blobs, missing ones included: at once if the adapter can, or else with the threads of a pool.

    The first failure is raised after all were tried.
    """
    if isinstance(blob, BulkBlob):
        blob.delete_many(keys)
    elif pool is None or len(keys) == 1:
        for key in keys:
            blob.delete(key)
    else:
        errors = [failure(task) for task in [pool.submit(blob.delete, key) for key in keys]]
        for error in errors:
            if error is not None:
                raise error
