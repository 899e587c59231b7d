"""When maintenance last did what, per collection."""

from __future__ import annotations

from dataclasses import dataclass, field

from timespine.client.inner_handles import CollectionHandle
from timespine.model.frontier import Frontier


@dataclass(slots=True)
class MaintenanceTimes:
    """The memory of maintenance of a collection. Only timing: everything else is in the state."""

    handle: CollectionHandle
    written: tuple[Frontier, int] | None = None
    """The upper, and the number of the next write, at the last look."""
    changed: float = 0.0
    """The time at which they were seen to move."""
    expired: float = float("-inf")
    swept: float = float("-inf")
    swept_seqno: int = -1
    """The state that the last sweep by this process looked at."""
    listed: float = float("-inf")
    """The time of that sweep."""
    is_sweep_asked: bool = False
    """Whether a caller asked for the next sweep, whatever process has the turn."""
    judged: int = -1
    """The sequence number for which no extra work was worth doing."""
    skipped: dict[tuple[int, int], float] = field(default_factory=dict)
    rollup_from: int = 0
    """The sequence number from which on a commit may have to write a rollup itself."""
    rewrite_after: float = float("-inf")
    """The time until which an unsealed batch is skipped, after a rewrite failed."""
