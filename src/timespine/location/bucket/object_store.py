"""The port for the objects of a bucket.

Contract: names are texts of the formats page. Reads after writes are strong. `put_if_absent` and `put_if_match` are
atomic, and keep their condition; the answer False proves nothing (`effects`). Failures are `Determinate` (nothing
happened) or `Indeterminate` (it may have happened, or may still happen). Every call ends in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from timespine.location.bucket.effects import StoredObject, Unchanged


class ObjectStore(Protocol):
    """Objects with conditional writes."""

    def get(self, name: str, unless: str | None = None) -> StoredObject | Unchanged | None:
        """Return an object, None if there is none, or UNCHANGED if its tag is still `unless`."""
        ...

    def get_many(self, names: Sequence[str]) -> list[StoredObject | None]:
        """Return objects, read at once."""
        ...

    def get_range(self, name: str, start: int, stop: int) -> bytes | None:
        """Return the bytes [start, stop) of an object, fewer if it is shorter, or None if there is none."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object that must not exist; return whether it was written."""
        ...

    def put_if_match(self, name: str, data: bytes, tag: str) -> bool:
        """Replace an object that must have this tag; return whether it was replaced."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, missing ones included."""
        ...

    def list_names(self, prefix: str) -> list[str]:
        """Return all names that begin with a prefix, which ends with a slash or is empty."""
        ...

    def close(self) -> None:
        """Release the resources. Twice is fine."""
        ...
