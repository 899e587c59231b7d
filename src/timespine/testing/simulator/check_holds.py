"""The critical holds of a simulated history: the requests, the grants, and the check that they are kept."""

from __future__ import annotations

from typing import Any

from timespine.core.effects import FreshId, Protocol
from timespine.core.group import Refused
from timespine.core.protocols.commit import commit
from timespine.core.protocols.session import Session
from timespine.core.transitions import CompareAndDowngrade, RegisterHold, ReleaseHold
from timespine.model.frontier import Frontier
from timespine.testing.simulator.world import World


class HoldChecks:
    """One critical hold per collection at a time, which any process takes, moves or releases."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[str, tuple[str, str]] = {}
        """Per collection: name and token of the hold that some process requested."""
        self.asked: dict[str, Frontier] = {}
        """Per hold: the furthest frontier that a process requested, perhaps before its reply arrived."""
        self.granted: dict[str, tuple[str, Frontier]] = {}
        """Per collection: the hold that was granted and not released, and the frontier from which on it holds."""

    def take(self, session: Session, name: str, since: Frontier) -> Protocol[Any]:
        hold = yield FreshId("h")
        token = yield FreshId("t")
        self.known[name], self.asked[hold] = (hold, token), since
        taken = yield from commit(session, name, RegisterHold(hold, since, token))
        if not isinstance(taken, Refused) and self.known.get(name) == (hold, token):
            self.granted[name] = (hold, taken[0].since.join(self.asked[hold]))
        return taken

    def give_back(self, session: Session, name: str) -> Protocol[Any]:
        hold, token = self.known.pop(name)
        self.granted.pop(name, None)
        return (yield from commit(session, name, ReleaseHold(hold, token)))

    def move(self, session: Session, name: str, since: Frontier) -> Protocol[Any]:
        """Move the hold. From the request on it may hold from later on, whatever the outcome of the call."""
        hold, token = known = self.known[name]
        self.asked[hold] = self.asked[hold].join(since)
        # Two processes may take a hold at once: then the granted one is not the known one.
        was_granted = name in self.granted and self.granted[name][0] == hold
        if was_granted:
            self.granted[name] = (hold, self.granted[name][1].join(since))
        moved = yield from commit(session, name, CompareAndDowngrade(hold, token, token, since))
        if was_granted and isinstance(moved, Refused) and self.known.get(name) == known:
            self.world.violate(f"hold {hold} of {name} was granted and is refused: {moved.reason!r}")
        return moved

    def check(self) -> None:
        """Check that granted holds hold, whatever the state records of them."""
        for name, (hold, since) in self.granted.items():
            state = self.world.head(name)
            if hold not in state.holds or not state.since <= since:
                self.world.violate(f"since of {name} is {state.since} though hold {hold} was granted from {since} on")
