"""Objects in memory whose requests fail as a test wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from timespine.errors import Determinate, Indeterminate
from timespine.location.bucket.effects import StoredObject, Unchanged
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST
from timespine.testing.memory_objects import MemoryObjects

T = TypeVar("T")

REQUEST_S = 10.0
"""How long a request takes while storage hangs, until the client gives up on it."""

LIE = "conflict without a write"
RETRIED = "retried below"


class BrokenObjects(MemoryObjects):
    """Objects in memory; the next write, or every request, meets a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.next_write: list[str] = []
        """The faults of the next writes."""
        self.hanging_s: float | None = None
        """The seconds that hanging requests have taken; None while nothing hangs."""
        self.calls: Counter[str] = Counter()

    def get(self, name: str, unless: str | None = None) -> StoredObject | Unchanged | None:
        return self._read("get", lambda: super(BrokenObjects, self).get(name, unless))

    def get_many(self, names: Sequence[str]) -> list[StoredObject | None]:
        self.calls["get in one go"] += len(names)
        return self._read("get_many", lambda: super(BrokenObjects, self).get_many(names))

    def get_range(self, name: str, start: int, stop: int) -> bytes | None:
        return self._read("get_range", lambda: super(BrokenObjects, self).get_range(name, start, stop))

    def list_names(self, prefix: str) -> list[str]:
        return self._read("list", lambda: super(BrokenObjects, self).list_names(prefix))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._write("put", lambda: super(BrokenObjects, self).put_if_absent(name, data))

    def put_if_match(self, name: str, data: bytes, tag: str) -> bool:
        return self._write("put_if_match", lambda: super(BrokenObjects, self).put_if_match(name, data, tag))

    def delete(self, names: Sequence[str]) -> None:
        self.calls["delete"] += 1
        self._hang()
        super().delete(names)

    def _read(self, kind: str, action: Callable[[], T]) -> T:
        self.calls[kind] += 1
        self._hang()
        return action()

    def _write(self, kind: str, action: Callable[[], bool]) -> bool:
        self.calls[kind] += 1
        self._hang()
        fault = self.next_write.pop(0) if self.next_write else ""
        if fault == LIE:
            return False
        if fault == RETRIED:
            action()
        if fault in ("", RETRIED):
            return action()
        if fault == REFUSED:
            raise Determinate("refused")
        if fault == REPLY_LOST:
            action()
        raise Indeterminate(fault)

    def _hang(self) -> None:
        if self.hanging_s is not None:
            self.hanging_s += REQUEST_S
            raise Indeterminate("no answer")
