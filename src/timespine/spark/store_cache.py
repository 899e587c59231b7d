"""Stores that a Python worker of Spark keeps open.

Spark plans and commits Python sources and sinks in processes beside the driver, which
it reuses. Opening a store for every micro-batch would cost more than the commit, so each
process keeps its stores open until it ends, or until it finds another store at the location.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from dataclasses import dataclass, replace

from timespine.client.api_for_engines import StoreContext
from timespine.client.collection import Collection
from timespine.client.opening.open_store import open as open_store
from timespine.client.store import Store
from timespine.errors import TimespineError
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location
from timespine.locks import Lock
from timespine.spark.options import CollectionAddress


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    identity: tuple[object, ...] | None
    """What told it from other stores at its location when it was opened."""


_stores: dict[tuple[int, CollectionAddress], _Opened] = {}
_locks: dict[int, Lock] = {}
"""The locks for opening a store, by process: a forked child does not wait for threads of its parent."""


def store_of(target: CollectionAddress, *, create: bool = False) -> Store:
    """Open the store of an address, or give the open one. With `create`, create a missing store; a read does not.

    SUBTLE: a user may delete a store and create it again at the same location. A process that still used the open
    one would read deleted data, and write to files outside of the folder (test_store_cache.py). So each call looks
    at the identity of the store: the inode of its logs, or the id in its descriptor.
    """
    key = (os.getpid(), replace(target, collection=""))
    with _locks.setdefault(os.getpid(), Lock("the stores of this process")):
        identity = _identity_of(target)
        found = _stores.get(key)
        if found is not None and found.identity != identity:
            _close(_stores.pop(key).store)
        if key not in _stores:
            store = open_store(
                target.store,
                create=create,
                maintenance=False,
                storage=dict(target.storage),
                consensus=target.consensus or None,
            )
            _stores[key] = _Opened(store, identity or _identity_of(target))
            atexit.register(store.close)
        return _stores[key].store


def _identity_of(target: CollectionAddress) -> tuple[object, ...] | None:
    """Return what tells the store at a location from others; None if there is none."""
    return place_of(parse_location(target.store, dict(target.storage))).identity()


def address_of(context: StoreContext, collection: str = "") -> CollectionAddress:
    """Return the address by which another process beside the driver opens an open store, or a collection of it."""
    return CollectionAddress(context.location, collection, context.storage, context.consensus_address)


def _close(store: Store) -> None:
    """Close a store that was deleted."""
    atexit.unregister(store.close)
    with contextlib.suppress(TimespineError, OSError):
        store.close()


def collection_of(target: CollectionAddress) -> Collection:
    """Return the collection that options name."""
    return store_of(target).collection(target.collection)
