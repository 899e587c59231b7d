"""The objects of a bucket in memory, for tests and for processes of one simulation."""

from __future__ import annotations

from collections.abc import Sequence

from timespine.location.bucket.effects import UNCHANGED, StoredObject, Unchanged
from timespine.locks import Lock


class MemoryObjects:
    """Objects as a dictionary."""

    def __init__(self) -> None:
        self._lock = Lock("the objects in memory")
        self.objects: dict[str, StoredObject] = {}
        """All objects by name."""
        self._puts = 0

    def get(self, name: str, unless: str | None = None) -> StoredObject | Unchanged | None:
        with self._lock:
            found = self.objects.get(name)
        return UNCHANGED if found is not None and found.tag == unless else found

    def get_many(self, names: Sequence[str]) -> list[StoredObject | None]:
        with self._lock:
            return [self.objects.get(name) for name in names]

    def get_range(self, name: str, start: int, stop: int) -> bytes | None:
        with self._lock:
            found = self.objects.get(name)
        return None if found is None else found.data[start:stop]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._lock:
            return name not in self.objects and self._put(name, data)

    def put_if_match(self, name: str, data: bytes, tag: str) -> bool:
        with self._lock:
            found = self.objects.get(name)
            return found is not None and found.tag == tag and self._put(name, data)

    def delete(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self.objects.pop(name, None)

    def list_names(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self.objects if name.startswith(prefix))

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _put(self, name: str, data: bytes) -> bool:
        self._puts += 1
        self.objects[name] = StoredObject(data, str(self._puts))
        return True
