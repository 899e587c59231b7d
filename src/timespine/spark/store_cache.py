"""Stores that a Python worker of Spark keeps open.

Spark plans and commits Python sources and sinks in processes beside the driver, which
it reuses. Opening a store for every micro-batch would cost more than the commit, so each
process keeps its stores open until it ends, or until it finds another store in the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from dataclasses import dataclass

from timespine.client.collection import Collection
from timespine.client.open_store import CONSENSUS
from timespine.client.open_store import open as open_store
from timespine.client.store import Store
from timespine.errors import TimespineError
from timespine.locks import Lock
from timespine.spark.options import CollectionAddress


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    file: tuple[int, int] | None
    """The file of its logs when it was opened: device and inode."""


_stores: dict[tuple[int, str], _Opened] = {}
_locks: dict[int, Lock] = {}
"""The locks for opening a store, by process: a forked child does not wait for threads of its parent."""


def store_of(location: str, *, create: bool = False) -> Store:
    """Open the store in a folder, or give the open one. With `create`, create a missing store; a read does not.

    SUBTLE: a user may delete and create the folder again. A process that still used the open store
    would read deleted data, and write to files outside of the folder (test_store_cache.py). The inode detects that,
    since the file system does not reuse the inode of an open file.
    """
    key = (os.getpid(), location)
    with _locks.setdefault(os.getpid(), Lock("the stores of this process")):
        file = _file_of(location)
        found = _stores.get(key)
        if found is not None and found.file != file:
            _close(_stores.pop(key).store)
        if key not in _stores:
            _stores[key] = _open(location, file, create=create)
            atexit.register(_stores[key].store.close)
        return _stores[key].store


def _open(location: str, file: tuple[int, int] | None, *, create: bool) -> _Opened:
    """Open the store in a folder; identify a new one by the file of its logs."""
    store = open_store(location, create=create, maintenance=False)
    return _Opened(store, file or _file_of(location))


def _file_of(location: str) -> tuple[int, int] | None:
    """Return the file of the logs of a store; None if it does not exist."""
    try:
        found = os.stat(os.path.join(location, CONSENSUS))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _close(store: Store) -> None:
    """Close a store whose folder was deleted."""
    atexit.unregister(store.close)
    with contextlib.suppress(TimespineError, OSError):
        store.close()


def collection_of(target: CollectionAddress) -> Collection:
    """The collection that options name."""
    return store_of(target.store).collection(target.collection)
