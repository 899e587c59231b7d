"""The location of the blobs of a store, for tasks. Executors never open the consensus store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from timespine.client.api_for_engines import context_of
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.scan.worker_slice import CACHE_BYTES
from timespine.config import Config
from timespine.errors import UsageError
from timespine.location.blob import Blob
from timespine.location.opening.descriptor import BLOBS
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import FILE, MEMORY, parse_location

if TYPE_CHECKING:
    from timespine.client.api_for_engines import CollectionHandle
    from timespine.client.store import Store

StorageOptions = tuple[tuple[str, str], ...]
"""How a bucket is reached: the options of `storage`, which are no secrets."""


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """The location of a store, pickled into every task. A task opens it with the credentials of its own process."""

    location: str
    """The absolute path of the folder of the store, or its URL."""
    config: Config
    """The limits and defaults of the store."""
    storage: StorageOptions = ()
    """How its bucket is reached."""

    def blob(self, *, read_only: bool = True) -> Blob:
        """Give the blob store, which a process opens once."""
        return _open_blob(self.location, self.storage, read_only)

    def cache(self) -> PartCache:
        """Give the part cache of this process for the store."""
        return _cache_of(self.location)

    def file_of(self, key: str, scheme: str | None = None) -> str | None:
        """Return the path of the file of a blob, so that Spark can read it directly; None if blobs are no files.

        With the scheme of a Hadoop filesystem, it is a URL if the blobs are objects of a bucket.
        """
        location = parse_location(self.location, dict(self.storage))
        if scheme is not None and location.scheme not in (FILE, MEMORY):
            return "/".join(filter(None, (f"{scheme}:/", location.bucket, location.path, BLOBS + key)))
        return place_of(location).file_of(key)


def blob_location_of(handle: CollectionHandle) -> BlobLocation:
    """Return the location of the blobs of a collection."""
    return _location(handle.context.location, handle.config, handle.context.storage)


def blob_location_of_store(store: Store) -> BlobLocation:
    """Return the location of the blobs of a store."""
    context = context_of(store)
    return _location(store.location, context.config, context.storage)


def _location(location: str, config: Config, storage: StorageOptions) -> BlobLocation:
    if not location or parse_location(location, dict(storage)).scheme == MEMORY:
        raise UsageError("executors cannot open this store: it is not in a folder or bucket")
    return BlobLocation(location, config, storage)


@lru_cache(maxsize=64)
def _open_blob(location: str, storage: StorageOptions, read_only: bool) -> Blob:
    return place_of(parse_location(location, dict(storage))).open_blob(read_only=read_only)


@lru_cache(maxsize=8)
def _cache_of(location: str) -> PartCache:
    return PartCache(CACHE_BYTES)
