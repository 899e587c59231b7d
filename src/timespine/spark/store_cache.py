"""Stores that a Python worker of Spark keeps open.

Spark plans and commits Python sources and sinks in processes beside the driver, which
it uses again and again. Opening a store for every micro-batch would cost more than
the commit, so each process keeps what it has opened until it ends, or until another
store is found in the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from dataclasses import dataclass

from timespine.client.collection import Collection
from timespine.client.open_store import CONSENSUS
from timespine.client.open_store import open as open_store
from timespine.client.store import Store
from timespine.errors import TimespineError
from timespine.spark.options import Target


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    file: tuple[int, int] | None
    """Which file its logs were in when it was opened: device and inode."""


_stores: dict[tuple[int, str], _Opened] = {}
_lock = threading.Lock()


def store_of(location: str, *, create: bool = False) -> Store:
    """The store in a folder, open in this process. It must be there, unless it is to be created: a read makes none.

    SUBTLE: a folder may have been deleted and made again meanwhile. Whoever went on with the store that was opened
    before would read what is gone, and write to files outside of the folder (test_store_cache.py). An inode tells them
    apart, since that of a file that is open is not given to another one.
    """
    key = (os.getpid(), location)
    with _lock:
        file = _file_of(location)
        found = _stores.get(key)
        if found is not None and found.file != file:
            _close(_stores.pop(key).store)
        if key not in _stores:
            _stores[key] = _open(location, file, create=create)
            atexit.register(_stores[key].store.close)
        return _stores[key].store


def _open(location: str, file: tuple[int, int] | None, *, create: bool) -> _Opened:
    """Open the store in a folder; a new one is known by the file that its logs are in from now on."""
    store = open_store(location, create=create, maintenance=False)
    return _Opened(store, file or _file_of(location))


def _file_of(location: str) -> tuple[int, int] | None:
    """Which file the logs of a store are in; None if it is not there."""
    try:
        found = os.stat(os.path.join(location, CONSENSUS))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _close(store: Store) -> None:
    """Close a store whose folder is not there any more."""
    atexit.unregister(store.close)
    with contextlib.suppress(TimespineError, OSError):
        store.close()


def collection_of(target: Target) -> Collection:
    """The collection that options name."""
    return store_of(target.store).collection(target.collection)
