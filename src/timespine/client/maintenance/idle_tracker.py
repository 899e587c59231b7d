"""Which collections there was nothing to do for: so a round of maintenance costs by what was written to."""

from __future__ import annotations

from collections.abc import Iterable

from timespine.client.context import Access

SETTLED_S = 30.0
"""A collection for which there was nothing to do is left alone for so long, unless this process commits to it."""


class Settled:
    """By collection, when it was last found in order. Commits of this process take that back, at any time."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def put(self, collection: str, now: float) -> None:
        """There is nothing to do.

        SUBTLE: said before the look that shows it, so that what is committed meanwhile takes it back
        (test_maintenance.py).
        """
        self._since[collection] = now

    def take_back(self, collections: Iterable[str]) -> None:
        """There may be something to do."""
        for each in collections:
            self._since.pop(each, None)

    def others(self, accesses: Iterable[Access], now: float) -> list[Access]:
        """Those that are to be looked at."""
        since = self._since
        return [each for each in accesses if now - since.get(each.id, float("-inf")) >= SETTLED_S]
