"""The store of a history of copies: every commit with its time, and which commits a restore in place undid."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog_log import LOG
from timespine.core.effects import CompareAndSet
from timespine.core.encoding.codec import decode_diff, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.state import State
from timespine.testing.simulator.check_kept import KeptStates
from timespine.testing.stores.world import (
    Added,
    StoreWorld,
    Truth,
    Written,
    decode_stored_schema,
    projection,
    short,
)

CLOCK_ERROR_MS = 600
"""The largest difference between two clocks of a history."""

Held = dict[tuple[Written, int], int]
"""The count of each row at each time."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A state of the past that a restore put after the newest one."""

    seqno: int
    """The number that it got."""
    origin: int
    """The number of the last state with the same rows."""


class KeptCollections(KeptStates):
    """The states of collections that were in the catalog at some moment of the last `keep_ms`."""

    def __init__(self, world: OriginWorld, keep_ms: int, clock: Callable[[], int]) -> None:
        super().__init__(world, keep_ms, clock)
        self._catalogs = world

    def states(self, collection: str) -> list[State]:
        """Return the states that must stay restorable: none of a collection that was dropped before that time."""
        world = self._catalogs
        return super().states(collection) if collection in world.named_since(self.begin_ms) else []


class OriginWorld(StoreWorld):
    """Logs and blobs of a store that may be restored."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: dict[str, list[Added]] = {}
        """Every commit with updates, also of those that were undone, by collection."""
        self.restored: dict[str, list[Restored]] = {}
        """The restores in place, by collection."""
        self.times: dict[str, list[int]] = {}
        """By log: the true time of every entry, in milliseconds."""
        self.clock: Callable[[], int] = lambda: 0
        """The true time in milliseconds."""
        self._placed: dict[str, int] = {}
        """What the catalog of this compare-and-set says that a restore placed."""

    def _compare_and_set(self, effect: CompareAndSet) -> dict[str, int | None] | None:
        stored = next((data for key, _, data in effect.writes if key == LOG), None)
        self._placed = {} if stored is None else catalog.decode_catalog(0, stored).placed
        wrong = super()._compare_and_set(effect)
        if wrong is None:
            for key, _, data in effect.writes:
                self.times.setdefault(key, []).append(self.clock())
                if key in self.states:
                    self.kept.committed(key, _said_ms(data))
        return wrong

    def _commit(self, key: str, data: bytes) -> None:
        if envelope_kind(data) is EnvelopeKind.STATE and self._placed.get(key) == len(self.states.get(key, ())) > 0:
            self._restore(key, decode_state(data))
            return
        super()._commit(key, data)
        added = self.truths[key].added
        known = self.commits.setdefault(key, [])
        if added and (not known or added[-1].event > known[-1].event):
            known.append(added[-1])

    def _restore(self, key: str, new: State) -> None:
        """Learn that a collection is as it was before, and check that it ever was so."""
        truth = self.truths[key]
        schema = decode_stored_schema(new.schemas[-1])
        held = self._held(new, schema, new.since.time)
        for seqno in reversed(range(len(self.states[key]))):
            past = self.states[key][seqno]
            same = (past.upper, past.since, past.schemas) == (new.upper, new.since, new.schemas)
            if same and self.held_at(key, seqno, new) == held:
                self.restored.setdefault(key, []).append(Restored(new.seqno, seqno))
                break
        else:
            self.violate(f"{key} at {new.seqno} was restored to what it never was: {short(held)}")
            return
        self.counts["collections restored in place"] += 1
        self.states[key].append(new)
        truth.events.append(self.event)
        truth.held = held
        truth.added = self.commits_at(key, new.seqno)

    def commits_at(self, key: str, seqno: int) -> list[Added]:
        """Return the commits that a state of a collection has, without those that a restore before it undid."""
        last = next((each for each in reversed(self.restored.get(key, [])) if each.seqno <= seqno), None)
        if last is None:
            return [each for each in self.commits[key] if each.seqno <= seqno]
        later = [each for each in self.commits[key] if last.seqno < each.seqno <= seqno]
        return self.commits_at(key, last.origin) + later

    def held_at(self, key: str, seqno: int, seen_by: State) -> Held:
        """Return the rows of a state of the past, as a state with the same commits must hold them."""
        truth = Truth(added=self.commits_at(key, seqno))
        project = projection(decode_stored_schema(seen_by.schemas[-1]))
        held: Held = {}
        for commit in truth.added:
            for row, time, diff in commit.updates:
                seen = (project(row), max(time, seen_by.since.time))
                held[seen] = held.get(seen, 0) + diff
        return {seen: diff for seen, diff in held.items() if diff}

    def keep_for(self, keep_ms: int, clock: Callable[[], int]) -> None:
        self.kept = KeptCollections(self, keep_ms, clock)

    def named_since(self, at_ms: int) -> set[str]:
        """Return the ids of the collections that were in the catalog at some moment since then."""
        times = self.times[LOG]
        first = max(bisect_right(times, at_ms) - 1, 0)
        return {entry.id for _, names in self.names[first:] for entry in names.entries.values()}

    # What a cut of the past must be.

    def check_past_cut(self, what: str, seqnos: dict[str, int], at_ms: int) -> None:
        """Check that a cut of the past tears no transaction, and lacks no commit from clearly before its time."""
        inside = {key: {each.event for each in self.commits_at(key, seqno)} for key, seqno in seqnos.items()}
        for call, found in sorted(self.by_call.items()):
            if not call.startswith("op"):
                continue  # the value of a column that was added
            told = {commit.event in inside[key] for key, commit in found if key in inside}
            if len(told) > 1:
                self.violate(f"{what} has {call} in some collections and not in others: {seqnos}")
        for key, seqno in seqnos.items():
            times = self.times[key]
            if seqno + 1 < len(times) and times[seqno + 1] < at_ms - CLOCK_ERROR_MS:
                late = times[seqno + 1] - at_ms
                self.violate(f"{what} is as of {at_ms}, and lacks commit {seqno + 1} of {key}, {late} ms from then")


def _said_ms(data: bytes) -> int | None:
    """Return the time of a commit, as its process says: one that slept before the commit says when it began."""
    return decode_diff(data).k if envelope_kind(data) is EnvelopeKind.DIFF else None
