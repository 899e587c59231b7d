"""Stores in the memory of this process, by name: for tests of programs that open a store by its location."""

from __future__ import annotations

from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.location.opening.place import OpenedPorts, OpenRequest
from timespine.location.opening.store_location import StoreLocation

_stores: dict[str, tuple[MemoryBlob, MemoryConsensus]] = {}
"""The stores of this process, as long as it lives. Each opening gets ports of its own on their contents."""


class MemoryPlace:
    """A name in memory that holds a store, or can hold one."""

    def __init__(self, location: StoreLocation) -> None:
        self._name = location.url

    def open(self, request: OpenRequest) -> OpenedPorts:
        if request.consensus is not None:
            raise UsageError("a store in memory has its logs there: leave out `consensus`")
        if self._name not in _stores and not request.create:
            raise UsageError(f"there is no store in {self._name}", hint=Hint("create-store"))
        blob, consensus = _stores.setdefault(self._name, (MemoryBlob(), MemoryConsensus()))
        return OpenedPorts(blob.share(), consensus.share())

    def open_blob(self, *, read_only: bool) -> Blob:
        raise UsageError(f"executors cannot open {self._name}: it is in the memory of one process")

    def identity(self) -> tuple[object, ...] | None:
        return (self._name,) if self._name in _stores else None

    def read_file(self, name: str, bytes_max: int) -> bytes | None:
        return None

    def record_epoch(self, epoch: int) -> None:
        """Do nothing: the logs have it."""

    def file_of(self, key: str) -> str | None:
        return None
