"""The folders whose entry in the folder above is known to be durable, so that it need not be synced again.

A blob survives power loss if its bytes, its entry in the folder of its writer, and the entries of the two folders on
the way are synced. The last two are the same for every blob of a writer:

    the entry of a folder is durable from the first sync of the folder above it on, for as long as the folder exists

A process cannot tell by a name whether a folder still is the one whose entry it synced: others may have removed it
while it was empty, and made another one. So it keeps the folder open. While it does, no other folder has the same
inode, and a folder that was removed never gets a name again. If the folder at the path is the one that is open, its
entry is the synced one.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import OrderedDict

from timespine.locks import Lock

HELD_MAX = 32
"""Folders that are kept open, at most: writers of this process come and go, and file descriptors are few."""


class DurableFolders:
    """Folders that are kept open because their entries are durable, the ones used last."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._lock = Lock("the list of durable folders")
        weakref.finalize(self, _close_all, self._held)

    def has(self, folder: int) -> bool:
        """Tell whether the entry of an open folder is known to be durable."""
        identity = _identity(folder)
        with self._lock:
            if identity not in self._held:
                return False
            self._held.move_to_end(identity)
            return True

    def add(self, folder: int) -> None:
        """Remember an open folder whose entry was synced after it was opened."""
        identity = _identity(folder)
        with self._lock:
            if identity in self._held:
                return
            try:
                self._held[identity] = os.dup(folder)
            except OSError:
                return  # no descriptor is left: it is synced again the next time
            if len(self._held) > HELD_MAX:
                os.close(self._held.popitem(last=False)[1])

    def close(self) -> None:
        """Forget all of them."""
        with self._lock:
            _close_all(self._held)


def _identity(folder: int) -> tuple[int, int]:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


def _close_all(held: OrderedDict[tuple[int, int], int]) -> None:
    while held:
        with contextlib.suppress(OSError):
            os.close(held.popitem()[1])
