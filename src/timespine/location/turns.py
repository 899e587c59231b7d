"""The queue of writers: who may write to a file of ours now, and who is next.

One file lock is the turn, another the place of the next in line. Whoever
finishes and wants another turn finds that place taken and cannot push in, as it
could with one lock alone, where the one that never slept wins
(`bench/consensus.py` measures both, and neither).

Waiting is polling, because it must end in time and a blocking flock does not.
Only the next in line asks often, so the cost is that of one poller. The kernel
frees the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import time

from timespine.location.durable import PRIVATE_FILE, open_regular

BEHIND_S = 3e-4
"""Between two looks at the place of the next in line; the same for all, so that nobody is favoured."""

NEXT_S = 2e-5
"""Between two looks of the next in line at the turn, while it can come any moment."""

SLOW_S = 1e-3
"""The same, once it is clear that something takes long."""


class WriteLine:
    """Where the writers of all processes stand in line for their turn."""

    def __init__(self, path: str, mode: int = PRIVATE_FILE) -> None:
        self._turn = open_regular(path + ".lock", os.O_RDWR | os.O_CREAT, mode)
        try:
            self._next = open_regular(path + ".next", os.O_RDWR | os.O_CREAT, mode)
        except OSError:
            os.close(self._turn)
            raise

    def enter(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (of time.monotonic); whether it came."""
        try:
            return poll(self._next, deadline, BEHIND_S, BEHIND_S) and poll(self._turn, deadline, NEXT_S, SLOW_S)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def leave(self) -> None:
        """End the turn; without effect if it never came."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._next)


def poll(fd: int, deadline: float, pause_s: float, slow_s: float) -> bool:
    """Ask for the lock until the deadline: every `pause_s`, and after some 20 ms every `slow_s`."""
    asked = 0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        asked += 1
        time.sleep(pause_s if asked < 200 else slow_s)
