"""The maintenance thread of a process: it works if no other process of the machine does.

One process per store and machine has the role of the maintainer (`location.machine.role`). The maintenance threads of
the others try to take it now and then, so one of them goes on when the maintainer ends. Until then their processes do
only what their own commits require (`Maintenance.bound`).

A maintainer that hangs keeps its role. So every other thread works for one round after `STALLED_S`, whatever the
role: maintenance by two processes at once costs lost compare-and-sets, and no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from timespine.location.machine.role import Role
from timespine.locks import Flag

PAUSE_S = 0.5
"""First pause in seconds of the maintenance thread between two looks: it grows while no process writes."""

PAUSE_MAX_S = 30.0
"""The longest pause between two looks."""

TRY_S = 5.0
"""Seconds between two tries to take the role of the maintainer."""

STALLED_S = 600.0
"""Seconds after which a process without the role works for one round: the maintainer may hang."""


class MaintenanceThread:
    """The thread, and the role of its process."""

    def __init__(
        self,
        work: Callable[[], tuple[bool, bool]],
        look: Callable[[], object],
        rest: Callable[[], object],
        role: Role,
        monotonic: Callable[[], float],
    ) -> None:
        self._work = work
        """Does one round; returns whether there was anything to do, and whether collections are being written to."""
        self._look = look
        """What a process without the role does: it learns of changes to the catalog."""
        self._rest = rest
        """What the maintainer does when there was nothing to do."""
        self._role = role
        self._monotonic = monotonic
        self._worked = monotonic()
        self._wake = Flag()
        self.stopping = Flag()
        """Set when the thread is to end."""
        self.is_maintainer = False
        """Whether this process had the role at its last try, and the thread runs."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, and take the role if it is free."""
        self.take_role()
        self._thread = threading.Thread(target=self._loop, name="timespine-maintenance", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Let the maintainer look at once."""
        self._wake.set()

    def take_role(self) -> bool:
        """Take the role if it is free; return whether this process has it."""
        self.is_maintainer = self._role.take()
        return self.is_maintainer

    def stop(self, limit_s: float) -> bool:
        """Stop after the present step, and give the role back; return whether it ended within the limit."""
        self.stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
        self._thread = None
        self.is_maintainer = False
        self._role.release()
        return True

    def _loop(self) -> None:
        """Work while there is work; then wait for a commit, or look again after a pause that grows."""
        pause = PAUSE_S
        while not self.stopping.is_set():
            if not self.take_role() and self._monotonic() - self._worked < STALLED_S:
                self._look()
                self.stopping.wait(TRY_S)
                continue
            self._wake.clear()
            busy, is_written = self._work()
            self._worked = self._monotonic()
            if not busy:
                self._rest()
            pause = PAUSE_S if busy or is_written else min(pause * 2, PAUSE_MAX_S)
            if not busy and self._wake.wait(pause):
                pause = PAUSE_S
                # Let writers commit some more: a few commits together are one merge.
                self.stopping.wait(0.02)
