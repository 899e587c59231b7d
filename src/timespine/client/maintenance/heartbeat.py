"""The heartbeat of a process: what it counts on is kept alive while it lives, and expires after it."""

from __future__ import annotations

import contextlib
import threading

from timespine.client.context import Shared
from timespine.columnar.merge_engine import Engine
from timespine.core.transitions import ClaimMerge, HeartbeatWriter
from timespine.locks import Flag

HEARTBEAT_S = 2.0
"""How often the leases of the process are looked after. It writes only when one is due."""

MERGE_BEAT_S = 60.0
"""How often a merge or a job that takes that long says that it is still at work."""


class Heart:
    """Keeps alive leases of readers, writers and claims of long merges, and writers of jobs."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._shared = shared
        self._engine = engine
        self._stop = Flag()
        self._thread = threading.Thread(target=self._run, name="timespine-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Let the next beat be the last."""
        self._stop.set()

    def join(self, limit_s: float) -> bool:
        """Wait for the last beat; whether it came within the limit."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self.beat()

    def beat(self) -> None:
        """One heartbeat. Storage may be away: the next one tries again."""
        shared = self._shared
        with contextlib.suppress(Exception):
            shared.leases.heartbeat()
        for collection, id, writer in self._engine.long_merges(MERGE_BEAT_S):
            claim = ClaimMerge(id, writer, shared.config.claim_ms)
            with contextlib.suppress(Exception):
                shared.committer.commit((collection, HeartbeatWriter(writer)), (collection, claim))
        now = shared.monotonic()
        for (collection, writer), heard in list(shared.writing.items()):
            if now - heard >= MERGE_BEAT_S:
                shared.writing[collection, writer] = now
                with contextlib.suppress(Exception):
                    shared.committer.commit((collection, HeartbeatWriter(writer)))
