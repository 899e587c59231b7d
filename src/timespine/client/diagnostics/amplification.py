"""The cost of a collection relative to its contents, over all processes: from its state, and from its log.

write   bytes written (appends, merges, rollups) per byte appended
read    runs that a snapshot as of now has to merge
space   bytes stored (live parts, garbage, rollups, log) per byte that is live
"""

from __future__ import annotations

from dataclasses import dataclass

from timespine.client.inner_handles import CollectionHandle
from timespine.core.effects import Protocol, Scan
from timespine.core.protocols.load_state import Entries
from timespine.core.protocols.session import Session, retry
from timespine.core.state import State


@dataclass(frozen=True, slots=True)
class Amplification:
    """The cost of a collection, as of one state."""

    write: float
    """Bytes written per byte appended; 0 if nothing was appended."""
    read: int
    """Runs that a snapshot has to merge."""
    space: float
    """Bytes stored per byte that is live; 0 if nothing is."""
    appended_rows: int
    """Updates that writers appended since the collection was created."""
    merged_rows: int
    """Updates that maintenance wrote since then."""
    live_bytes: int
    """Bytes of the parts that the state refers to."""
    garbage_bytes: int
    """Bytes of the parts that only older states refer to."""
    rollup_bytes: int
    """Bytes of the rollups that the state lists."""
    log_bytes: int
    """Bytes of the entries of the log."""
    merge_seconds: float
    """Seconds of all merges together."""


def amplification(handle: CollectionHandle, state: State, runs: int) -> Amplification:
    """Compute the cost of a collection, given the runs that a reader merges (`run_count`). Scans its log."""

    def log_bytes(session: Session) -> Protocol[int]:
        entries: Entries = yield from retry(session, Scan(handle.id, 0))
        return sum(len(data) for _, data in entries)

    log = int(handle.committer.look(log_bytes))
    totals = state.totals
    rollups = sum(rollup.size for rollup in state.rollups.values())
    live = totals.live_bytes
    return Amplification(
        write=totals.write_amplification,
        read=runs,
        space=(live + totals.garbage_bytes + rollups + log) / live if live else 0.0,
        appended_rows=totals.appended_rows,
        merged_rows=totals.merged_rows,
        live_bytes=live,
        garbage_bytes=totals.garbage_bytes,
        rollup_bytes=rollups,
        log_bytes=log,
        merge_seconds=totals.merge_ms / 1000,
    )
