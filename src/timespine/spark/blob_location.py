"""The location of the blobs of a store, for tasks. Executors never open the consensus store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from timespine.client.engine_interface import CollectionHandle
from timespine.client.open_store import BLOBS
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.scan.slice import CACHE_BYTES
from timespine.config import Config
from timespine.errors import UsageError
from timespine.location.blob import Blob
from timespine.location.local import LocalBlob


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """The location of a store, pickled into every task."""

    location: str
    """The absolute path of the folder of the store."""
    config: Config
    """The limits and defaults of the store."""

    def blob(self, *, read_only: bool = True) -> Blob:
        """Give the blob store, which a process opens once."""
        return _opened(self.location, read_only)

    def cache(self) -> PartCache:
        """Give the part cache of this process for the store."""
        return _cached(self.location)

    def path(self, key: str) -> str:
        """Return the path of the file of a blob, so that Spark can read it directly."""
        return os.path.join(self.location, BLOBS, *key.split("/"))


def blob_location_of(handle: CollectionHandle) -> BlobLocation:
    """Return the location of the blobs of a collection."""
    if not handle.context.location:
        raise UsageError("executors cannot open this store: it is not in a folder")
    return BlobLocation(os.path.abspath(handle.context.location), handle.config)


@lru_cache(maxsize=64)
def _opened(location: str, read_only: bool) -> Blob:
    root = os.path.join(location, BLOBS)
    if not os.path.isdir(root):
        raise UsageError(
            f"the store {location} does not exist on this machine: driver and executors need one shared file system"
        )
    return LocalBlob(root, read_only=read_only)


@lru_cache(maxsize=8)
def _cached(location: str) -> PartCache:
    return PartCache(CACHE_BYTES)
