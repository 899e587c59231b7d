"""Close a store: stop its threads, and return the leases and ids of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.inner_handles import StoreContext
from timespine.client.maintenance.heartbeat import HeartbeatThread
from timespine.client.maintenance.maintenance import Maintenance
from timespine.client.read.follow.commit_stream import end_listeners
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
        _await_end("an append of another process", context.committer.relay.close, timeout_s)
    maintenance.finish()
    heartbeat_thread.stop()
    _await_end("maintenance", maintenance.stop, timeout_s)
    _await_end("the heartbeat", heartbeat_thread.join, timeout_s)
    for end in (context.leases.close, context.committer.close, upkeep.close):
        with contextlib.suppress(Exception):  # storage is unavailable: leases and ids expire
            end()
    context.committed.ring()  # wake threads that wait for a time to be complete


def _await_end(what: str, is_over: Callable[[float], bool], limit_s: float) -> None:
    """Wait until a thread ends; raise Determinate after a limit. Waits in slices: a suspended process did not wait."""
    left_s = limit_s
    while not is_over(max(min(left_s, SLICE_S), 0)):
        if left_s <= 0:
            raise Determinate(f"the store is not closed: {what} still works after {limit_s:.0f} s; close it again")
        left_s -= SLICE_S
