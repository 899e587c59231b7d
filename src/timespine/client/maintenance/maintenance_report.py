"""The report of maintenance: counts of steps, and failures, which also go to the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from timespine.errors import TimespineError

LOG = logging.getLogger("timespine.maintenance")
"""The logger of failed steps, once for each try. Its messages never contain rows."""

NO_SPACE = "no space"
"""The condition that a merge has no space: logged once, and again after it had ended."""

SKIPPED_MAX = 16
"""Most failed steps that a report lists."""

COUNTED = ("merges", "rollups", "collected", "swept", "leases", "passed_over", "failures")


@dataclass(slots=True)
class MaintenanceReport:
    """The result of a round of maintenance."""

    merges: int = 0
    """Merges whose results were committed."""
    rollups: int = 0
    """Rollups that were written."""
    collected: int = 0
    """Blobs deleted because only old states referred to them."""
    swept: int = 0
    """Blobs deleted because no state ever referred to them."""
    leases: int = 0
    """Leases that had expired."""
    passed_over: int = 0
    """Merges that were due and skipped: another process works on them, or they failed a moment ago."""
    failures: int = 0
    """Steps that failed."""
    skipped: list[str] = field(default_factory=list)
    """The last failed steps, with their reasons."""

    reported: set[str] = field(default_factory=set)
    """Conditions that were logged, and that still hold."""

    def skip(self, what: str, condition: str = "") -> None:
        """Record and log a failed step; log it only once while a condition holds."""
        if condition not in self.reported:
            LOG.warning("%s", what)
        if condition:
            self.reported.add(condition)
        self.failures += 1
        self.skipped.append(what)
        del self.skipped[:-SKIPPED_MAX]

    def skip_failed(self, what: str, error: Exception) -> None:
        """Record and log a step that an error ended."""
        self.skip(f"{what}: {describe_error(error)}")

    def counts(self) -> dict[str, int]:
        """Return the counts so far."""
        return {name: getattr(self, name) for name in COUNTED}

    def since(self, before: dict[str, int]) -> MaintenanceReport:
        """Return the difference to earlier counts."""
        later = MaintenanceReport()
        for name, count in self.counts().items():
            setattr(later, name, count - before[name])
        later.skipped = self.skipped[-later.failures :] if later.failures else []
        return later


def describe_error(error: Exception) -> str:
    """Return error text that is safe to log: row values are stripped from third-party errors.

    An error of ours is named by the class that users can import.
    """
    if isinstance(error, TimespineError):
        exported = next(kind for kind in type(error).__mro__ if kind.__module__ == TimespineError.__module__)
        return f"{exported.__name__}: {error}"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
