"""The heartbeat of a process: it renews leases and registrations while the process lives."""

from __future__ import annotations

import contextlib
import threading

from timespine.client.inner_handles import StoreContext
from timespine.columnar.merge.merge_engine import Engine
from timespine.core.transitions import ClaimMerge, HeartbeatWriter
from timespine.locks import Flag

HEARTBEAT_S = 2.0
"""Seconds between two heartbeats. A heartbeat writes only when a lease is due."""

MERGE_BEAT_S = 60.0
"""Seconds between two renewals of a long merge or job."""


class HeartbeatThread:
    """The thread that renews leases of readers, writers and claims of long merges, and writers of jobs."""

    def __init__(self, context: StoreContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._stop = Flag()
        self._thread = threading.Thread(target=self._run, name="timespine-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its present heartbeat."""
        self._stop.set()

    def join(self, limit_s: float) -> bool:
        """Wait for the thread to end; return whether it did within the limit."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self.heartbeat_once()

    def heartbeat_once(self) -> None:
        """Renew all leases that are due. If storage is unavailable, the next heartbeat tries again."""
        context = self._context
        with contextlib.suppress(Exception):
            context.leases.heartbeat()
        for collection, id, writer in self._engine.long_merges(MERGE_BEAT_S):
            claim = ClaimMerge(id, writer, context.config.claim_ms)
            with contextlib.suppress(Exception):
                context.committer.commit((collection, HeartbeatWriter(writer)), (collection, claim))
        now = context.monotonic()
        for (collection, writer), heard in list(context.writing.items()):
            if now - heard >= MERGE_BEAT_S:
                context.writing[collection, writer] = now
                with contextlib.suppress(Exception):
                    context.committer.commit((collection, HeartbeatWriter(writer)))
