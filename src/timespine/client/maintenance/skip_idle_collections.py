"""Collections without pending maintenance: the cost of a round follows the collections that were written to."""

from __future__ import annotations

from collections.abc import Iterable

from timespine.client.inner_handles import CollectionHandle

IDLE_S = 30.0
"""Seconds that maintenance skips a collection without pending work, unless this process commits to it."""


class IdleTracker:
    """The time at which each collection had no pending maintenance. A commit of this process removes it."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def mark_idle(self, collection: str, now: float) -> None:
        """Mark a collection as having no pending maintenance.

        SUBTLE: before the look that shows it, so that a commit during the look removes the mark
        (test_maintenance.py).
        """
        self._since[collection] = now

    def mark_dirty(self, collections: Iterable[str]) -> None:
        """Mark collections as having pending maintenance."""
        for each in collections:
            self._since.pop(each, None)

    def due(self, handles: Iterable[CollectionHandle], now: float) -> list[CollectionHandle]:
        """List the collections to look at."""
        since = self._since
        return [each for each in handles if now - since.get(each.id, float("-inf")) >= IDLE_S]
