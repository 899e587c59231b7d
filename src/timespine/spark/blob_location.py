"""Where tasks find the blobs of a store. Executors never open consensus."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from timespine.client.engines import Access
from timespine.client.open_store import BLOBS
from timespine.columnar.parts.cache import PartCache
from timespine.columnar.scan.slice import CACHE_BYTES
from timespine.config import Config
from timespine.errors import UsageError
from timespine.location.blob import Blob
from timespine.location.local import LocalBlob


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """A store, as tasks know it. It travels with every task."""

    location: str
    """The folder of the store, absolute."""
    config: Config
    """Limits and defaults."""

    def blob(self, *, read_only: bool = True) -> Blob:
        """Its blobs, opened once per process."""
        return _opened(self.location, read_only)

    def cache(self) -> PartCache:
        """What this process keeps of its parts."""
        return _cached(self.location)

    def path(self, key: str) -> str:
        """The file of a blob, for Spark to read by itself."""
        return os.path.join(self.location, BLOBS, *key.split("/"))


def blob_location_of(access: Access) -> BlobLocation:
    """Where tasks find the blobs of a collection."""
    if not access.shared.location:
        raise UsageError("this store is not in a folder that executors could open")
    return BlobLocation(os.path.abspath(access.shared.location), access.config)


@lru_cache(maxsize=64)
def _opened(location: str, read_only: bool) -> Blob:
    root = os.path.join(location, BLOBS)
    if not os.path.isdir(root):
        raise UsageError(
            f"the store {location} is not there on this machine: "
            "driver and executors need a file system that all of them share"
        )
    return LocalBlob(root, read_only=read_only)


@lru_cache(maxsize=8)
def _cached(location: str) -> PartCache:
    return PartCache(CACHE_BYTES)
