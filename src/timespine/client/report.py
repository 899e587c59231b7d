"""What maintenance did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

COUNTED = ("merges", "rollups", "collected", "swept", "leases", "failures")


@dataclass(slots=True)
class Report:
    """What a round of maintenance did."""

    merges: int = 0
    rollups: int = 0
    collected: int = 0
    """Blobs deleted because only old states referred to them."""
    swept: int = 0
    """Blobs deleted because nobody ever referred to them."""
    leases: int = 0
    """Leases that had lapsed."""
    failures: int = 0
    skipped: list[str] = field(default_factory=list)
    """What could not be done, and why."""

    def add(self, other: Report) -> None:
        """Add up two reports."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped.extend(other.skipped)
