"""The checks of every answer that a simulated process gets from the log of a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from timespine.errors import Determinate, StoreFenced, Unavailable
from timespine.location.bucket.commit import Outcome
from timespine.location.bucket.formats import PackedEntry, WriteGroup
from timespine.location.consensus import EPOCH
from timespine.testing.bucket.world import BucketWorld


@dataclass(slots=True)
class BucketCall:
    """One group of a compare-and-set, from its call to its answer."""

    group: WriteGroup
    start: int
    """The step of the call."""
    epoch: int | None = None
    """The epoch in which its process opened the store; None if there are no fences."""
    end: int | None = None
    """The step of the answer."""
    outcome: Outcome | None = None
    """The answer; None if its process crashed before it."""


class BucketAnswerChecks:
    """The promises of the port, compared with the truth of the world."""

    def __init__(self, world: BucketWorld) -> None:
        self.world = world
        self.calls: list[BucketCall] = []
        """All compare-and-sets and truncations, answered or not."""

    def check_commit(self, call: BucketCall) -> None:
        """Check the answer to a compare-and-set at the moment of the answer."""
        world, group, outcome = self.world, call.group, call.outcome
        if outcome is None or call.end is None or outcome.error is not None:
            return
        landed = world.landed.get(group.id)
        if outcome.heads is None:
            if landed is None:
                world.violate(f"a group from step {call.start} was acknowledged and is lost")
            elif not call.start <= landed <= call.end and group.writes:
                world.violate(f"a group of steps {call.start} to {call.end} became durable at {landed}")
            if outcome.dropped and any(key in world.bounds[-1] for key, _ in group.gone):
                world.violate(f"a log was said to be removed by {group.id.hex()}, and is there")
            return
        expected = {key: head for key, head, _ in group.writes}
        if any(expected[key] == head for key, head in outcome.heads.items()):
            world.violate(f"a group was told of {dict(outcome.heads)}, which is what it expected")
        if not any(self._heads(slot, outcome.heads) for slot in world.between(call.start, call.end)):
            world.violate(f"a group was told of heads {dict(outcome.heads)}, which were never true during its call")

    def check_refused(self) -> None:
        """Check, once late writes have happened, that no group is in that was said not to be."""
        for call in self.calls:
            if call.outcome is None or call.group.id not in self.world.landed:
                continue
            if call.outcome.heads is not None:
                self.world.violate(f"a group from step {call.start} was told of a mismatch, and is in")
            elif isinstance(call.outcome.error, Determinate | StoreFenced) and call.group.writes:
                self.world.violate(f"a group from step {call.start} was said not to have happened, and is in")

    def check_epochs(self) -> None:
        """Check that no process committed after a fence that it had not opened the store after."""
        epochs = {call.group.id: call.epoch for call in self.calls}
        epoch = 0
        for entry in self.world.truth:
            for group in entry.groups:
                opened = epochs.get(group.id)
                if opened is not None and opened != epoch:
                    self.world.violate(f"slot {entry.slot} is of a process of epoch {opened}, in epoch {epoch}")
            epoch += sum(key == EPOCH for group in entry.groups for key, _, _ in group.writes)

    def check_scan(self, key: str, start: int, first: int, entries: list[PackedEntry]) -> None:
        """Check that a scan of a whole log was true at one moment of its call."""
        world = self.world
        there = world.entries.get(key, [])
        if entries != there[first : first + len(entries)]:
            world.violate(f"a scan of {key} gave entries that are not those of the log")
        bounds = (first, first + len(entries) - 1) if entries else None
        if not any(world.bounds[slot].get(key) == bounds for slot in world.between(start, world.step)):
            world.violate(f"a scan of {key} gave {bounds}, which was never true during its call")

    def check_heads(self, start: int, heads: dict[str, int | None]) -> None:
        """Check that the heads of several keys were true at one moment of the call."""
        if not any(self._heads(slot, heads) for slot in self.world.between(start, self.world.step)):
            self.world.violate(f"the heads {heads} were never true together during their call")

    def check_error(self, what: str, error: Exception) -> None:
        """Check that a call failed only because storage did: no process may take the log for damaged."""
        if not isinstance(error, Unavailable):
            self.world.violate(f"{what} failed: {error!r}", error)

    def _heads(self, slot: int, heads: object) -> bool:
        assert isinstance(heads, dict)
        bounds = self.world.bounds[slot]
        return all((bounds[key][1] if key in bounds else None) == head for key, head in heads.items())
