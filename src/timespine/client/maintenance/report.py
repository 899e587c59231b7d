"""What maintenance did, and what it could not do: counted, kept for a while, and told to the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from timespine.errors import TimespineError

LOG = logging.getLogger("timespine.maintenance")
"""Where it is told what could not be done, once each time that it was tried. Rows are never part of it."""

NO_SPACE = "no space"
"""The condition that there is no room for a merge: the log is told of it once, and again after there was."""

SKIPPED_MAX = 16
"""What could not be done, and why, is remembered of the last so many."""

COUNTED = ("merges", "rollups", "collected", "swept", "leases", "passed_over", "failures")


@dataclass(slots=True)
class MaintenanceReport:
    """What a round of maintenance did."""

    merges: int = 0
    rollups: int = 0
    collected: int = 0
    """Blobs deleted because only old states referred to them."""
    swept: int = 0
    """Blobs deleted because nobody ever referred to them."""
    leases: int = 0
    """Leases that had lapsed."""
    passed_over: int = 0
    """Merges that were due, and left at a look: somebody is at work on them, or they failed a moment ago."""
    failures: int = 0
    """Steps that could not be done."""
    skipped: list[str] = field(default_factory=list)
    """Which, and why: the last few."""

    told: set[str] = field(default_factory=set)
    """Conditions that the log was told of, and that still hold."""

    def skip(self, what: str, condition: str = "") -> None:
        """Remember what could not be done, and tell whoever reads the log: once, for as long as a condition holds."""
        if condition not in self.told:
            LOG.warning("%s", what)
        if condition:
            self.told.add(condition)
        self.failures += 1
        self.skipped.append(what)
        del self.skipped[:-SKIPPED_MAX]

    def counts(self) -> dict[str, int]:
        """How often what was done so far."""
        return {name: getattr(self, name) for name in COUNTED}

    def since(self, before: dict[str, int]) -> MaintenanceReport:
        """What came after it was counted like this."""
        later = MaintenanceReport()
        for name, count in self.counts().items():
            setattr(later, name, count - before[name])
        later.skipped = self.skipped[-later.failures :] if later.failures else []
        return later


def said(error: Exception) -> str:
    """An error without what may be rows in it: ours never have any, those of others are named by their kind."""
    if isinstance(error, TimespineError):
        return f"{type(error).__name__}: {error}"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
