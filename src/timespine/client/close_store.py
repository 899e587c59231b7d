"""The end of a store: what works in the background stops, and what the process holds is given back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from timespine.client.commit.group_commit import Committer
from timespine.client.context import Shared
from timespine.client.maintenance.heartbeat import Heart
from timespine.client.maintenance.scheduler import Maintenance
from timespine.client.read.commit_stream import end_listeners
from timespine.errors import Determinate

SLICE_S = 5.0
"""How long a thread is waited for before it is asked again."""


def end_background(shared: Shared, maintenance: Maintenance, heart: Heart, upkeep: Committer, timeout_s: float) -> None:
    """Stop the background step by step, and give back leases and ids; Determinate if one step takes too long.

    Each step may be done twice: what was interrupted is done again by the next close.
    """
    end_listeners(shared)
    maintenance.finish()
    heart.stop()
    for what, is_over in (("maintenance", maintenance.stop), ("the heartbeat", heart.join)):
        if not _ended(is_over, timeout_s):
            raise Determinate(f"the store is not closed: {what} still works after {timeout_s:.0f} s; close it again")
    for end in (shared.leases.close, shared.committer.close, upkeep.close):
        with contextlib.suppress(Exception):  # storage is away: what stays behind expires by itself
            end()
    shared.committed.ring()  # a thread that waits for a time to be complete is told now, not later


def _ended(is_over: Callable[[float], bool], limit_s: float) -> bool:
    """Whether something ended within a limit. In slices, because a process that was suspended did not wait."""
    while limit_s > 0:
        if is_over(min(limit_s, SLICE_S)):
            return True
        limit_s -= SLICE_S
    return is_over(0)
