"""Stores that a Python worker of Spark keeps open.

Spark plans and commits Python sources and sinks in processes beside the driver, which
it uses again and again. Opening a store for every micro-batch would cost more than
the commit, so each process keeps what it has opened until it ends.
"""

from __future__ import annotations

import atexit
import os
import threading

from timespine.client.collection import Collection
from timespine.client.opening import open as open_store
from timespine.client.store import Store
from timespine.spark.options import Target

_stores: dict[tuple[int, str], Store] = {}
_lock = threading.Lock()


def store_of(location: str) -> Store:
    """The store in a folder, open in this process. It must be there: a job that reads makes none."""
    key = (os.getpid(), location)
    with _lock:
        if key not in _stores:
            _stores[key] = open_store(location, create=False, maintenance=False)
            atexit.register(_stores[key].close)
        return _stores[key]


def collection_of(target: Target) -> Collection:
    """The collection that options name."""
    return store_of(target.store).collection(target.collection)
