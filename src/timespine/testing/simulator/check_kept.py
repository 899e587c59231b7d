"""The check of stores that keep what they delete: every state of the last while can be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from timespine.core.state import State

if TYPE_CHECKING:
    from timespine.testing.simulator.world import World


class KeptStates:
    """The states that were the newest one at some moment of the last `keep_ms`."""

    def __init__(self, world: World, keep_ms: int = 0, clock: Callable[[], int] = lambda: 0) -> None:
        self._world = world
        self._keep_ms = keep_ms
        self._clock = clock
        self._commit_ms: dict[str, list[int]] = {}
        """The time of every commit, by collection."""

    @property
    def is_on(self) -> bool:
        """Whether the store keeps deleted data at all."""
        return self._keep_ms > 0

    @property
    def begin_ms(self) -> int:
        """The begin of the time whose states must stay restorable."""
        return self._clock() - self._keep_ms

    def committed(self, collection: str, said_ms: int | None = None) -> None:
        """Record the time of a commit: now, or what the commit says."""
        times = self._commit_ms.setdefault(collection, [])
        times.append(max(self._clock() if said_ms is None else said_ms, *times[-1:], 0))

    def states(self, collection: str) -> list[State]:
        """Return the states that must stay restorable."""
        since_ms = self.begin_ms
        times = self._commit_ms.get(collection, [])
        # A state was the newest one until the commit after it.
        first = next((number for number, at_ms in enumerate(times[1:]) if at_ms >= since_ms), max(len(times) - 1, 0))
        return self._world.states.get(collection, [])[first:]

    def check_blobs(self, collection: str, keys: Iterable[str]) -> None:
        """Check that no blob goes which a kept state needs."""
        if not self.is_on:
            return
        parts = [part for state in self.states(collection) for part in state.parts() if part.key]
        needed = self._world.with_children({part.key: part.hollow for part in parts})
        for key in keys:
            if key in needed:
                self._world.violate(f"blob {key} was deleted, but a state refers to it that can still be restored")

    def check_log(self, collection: str) -> None:
        """Check that the log, with a rollup to begin with, still gives the oldest kept state."""
        world, states = self._world, self.states(collection)
        first = world.first.get(collection, 0)
        if not self.is_on or not states or first == 0:
            return
        oldest = states[0].seqno
        rollups = world.head(collection).rollups
        usable = [seqno for seqno, rollup in rollups.items() if rollup.key in world.blobs and first <= seqno + 1]
        if not any(seqno <= oldest for seqno in usable):
            world.violate(f"state {oldest} of {collection} cannot be restored: the log begins at {first}")
