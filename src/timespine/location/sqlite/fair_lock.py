"""The queue of writers to one file: which writer has the turn, and which is next.

One file lock is the turn, another the place of the next in line. A writer that finishes and wants another turn finds
that place taken and cannot push in. With one lock alone it could: the writer that never slept wins
(`bench/consensus.py` measures both, and neither).

Waiting is polling, because it must end in time and a blocking flock does not. Only the next in line asks often, so the
cost is that of one poller. The kernel frees the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import io
import os
import time

from timespine.location.folder.durable import PRIVATE_FILE, open_regular

BEHIND_S = 3e-4
"""The pause between two looks at the place of the next in line; the same for all, so that none is favoured."""

NEXT_S = 2e-5
"""The pause between two looks of the next in line at the turn, while it can come any moment."""

SLOW_S = 1e-3
"""The same pause, once the turn takes long."""


class FairFileLock:
    """The line in which the writers of all processes wait for their turn."""

    def __init__(self, path: str, mode: int = PRIVATE_FILE) -> None:
        self.turn = _opened(path + ".lock", mode)
        """The file whose lock is the turn."""
        try:
            self._next = _opened(path + ".next", mode)
        except OSError:
            self.turn.close()
            raise

    def enter(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (of time.monotonic); return whether it came."""
        try:
            return poll(self._next, deadline, BEHIND_S, BEHIND_S) and poll(self.turn, deadline, NEXT_S, SLOW_S)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close both files. Twice is fine, so that an interrupted close can be repeated."""
        self.turn.close()
        self._next.close()


def _opened(path: str, mode: int) -> io.FileIO:
    """Open the file of a lock, and make it if there is none.

    SUBTLE: a number alone could be closed twice, the second time as the file of another thread (test_interrupts.py).
    """
    return io.FileIO(path, "r+", opener=lambda path, _: open_regular(path, os.O_RDWR | os.O_CREAT, mode))


def poll(file: io.FileIO, deadline: float, pause_s: float, slow_s: float) -> bool:
    """Try to take the lock until the deadline: every `pause_s`, and after some 20 ms every `slow_s`."""
    asked = 0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        asked += 1
        time.sleep(pause_s if asked < 200 else slow_s)
