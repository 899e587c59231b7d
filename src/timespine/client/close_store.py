"""Close a store: stop its threads, and return the leases and ids of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.context import StoreContext
from timespine.client.maintenance.heartbeat import HeartbeatThread
from timespine.client.maintenance.scheduler import Maintenance
from timespine.client.read.commit_stream import end_listeners
from timespine.errors import Determinate

SLICE_S = 5.0
"""Seconds of one wait for a thread, before the caller checks it again."""


def end_background(
    context: StoreContext,
    maintenance: Maintenance,
    heartbeat_thread: HeartbeatThread,
    upkeep: GroupCommitter,
    timeout_s: float,
) -> None:
    """Stop the threads step by step, and return leases and ids; raise Determinate if one step takes too long.

    Each step may be done twice: the next close repeats an interrupted one.
    """
    for arrangement in list(context.arrangements):
        arrangement.end()
    end_listeners(context)
    if context.committer.relay is not None:
        context.committer.relay.close()
    maintenance.finish()
    heartbeat_thread.stop()
    for what, is_over in (("maintenance", maintenance.stop), ("the heartbeat", heartbeat_thread.join)):
        if not _ends_within(is_over, timeout_s):
            raise Determinate(f"the store is not closed: {what} still works after {timeout_s:.0f} s; close it again")
    for end in (context.leases.close, context.committer.close, upkeep.close):
        with contextlib.suppress(Exception):  # storage is unavailable: leases and ids expire
            end()
    context.committed.ring()  # wake threads that wait for a time to be complete


def _ends_within(is_over: Callable[[float], bool], limit_s: float) -> bool:
    """Return whether a thread ended within a limit. Waits in slices, because a suspended process did not wait."""
    while limit_s > 0:
        if is_over(min(limit_s, SLICE_S)):
            return True
        limit_s -= SLICE_S
    return is_over(0)
