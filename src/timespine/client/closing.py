"""The end of a store: what works in the background stops, and what the process holds is given back."""

from __future__ import annotations

import contextlib
import time

from timespine.client.access import Shared
from timespine.client.committer import Committer
from timespine.client.heart import Heart
from timespine.client.listening import end_listeners
from timespine.client.maintenance import Maintenance
from timespine.errors import Determinate


def end_background(
    shared: Shared, maintenance: Maintenance, heart: Heart, upkeep: Committer, timeout_s: float
) -> float:
    """Stop the background step by step, and give back leases and ids; the seconds that are left, at least one.

    Each step may be done twice: what was interrupted is done again by the next close.
    """
    deadline = time.monotonic() + timeout_s

    def left() -> float:
        return max(deadline - time.monotonic(), 0)

    end_listeners(shared)
    maintenance.finish()
    heart.stop()
    ends = {"its maintenance": maintenance.stop(left()), "its heartbeat": heart.join(left())}
    busy = " and ".join(what for what, is_over in ends.items() if not is_over)
    if busy:
        raise Determinate(f"the store is not closed: {busy} is still at work after {timeout_s:.0f} s; close it again")
    for end in (shared.leases.close, shared.committer.close, upkeep.close):
        with contextlib.suppress(Exception):  # storage is away: what stays behind expires by itself
            end()
    shared.committed.ring()  # a thread that waits for a time to be complete is told now, not later
    return max(left(), 1.0)
