"""A copy of the store of a history: whenever it says that it is complete, it is one moment of the store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog_log import LOG
from timespine.core.effects import CompareAndSet, DeleteBlobs, PutBlob
from timespine.core.encoding.codec import decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.protocols.garbage import references
from timespine.core.state import State
from timespine.testing.copies.origin_world import OriginWorld
from timespine.testing.simulator.world import World
from timespine.testing.stores.world import StoreWorld, Truth, decode_stored_schema, short


@dataclass(frozen=True, slots=True)
class PlacedCut:
    """What one run of `copy` placed."""

    event: int
    """The compare-and-set of the copy."""
    until: int
    """The last compare-and-set of the store at which this was its newest moment; of a restored one, -1."""
    run: str
    """The run."""
    heads: dict[str, int]
    """The number of each collection in the store, by id."""
    names: dict[str, str]
    """The ids of the collections, by name."""


class CopyWorld(StoreWorld):
    """Logs and blobs of a copy."""

    def __init__(self, url: str, origin: OriginWorld, *, is_past: bool = False) -> None:
        super().__init__()
        self.url = url
        self.origin = origin
        self.is_past = is_past
        """Whether a restore makes it: then clocks decide which moment it is."""
        self.cuts: list[PlacedCut] = []
        """Every complete copy that there was."""
        self.is_promoted = False
        self.violations, self.counts = origin.violations, origin.counts

    @property
    def is_complete(self) -> bool:
        """Whether the newest catalog says that all collections are of one cut."""
        names = self.names[-1][1] if self.names else None
        return names is not None and (names.copied is None or names.copied.is_complete)

    def _compare_and_set(self, effect: CompareAndSet) -> dict[str, int | None] | None:
        self.step = self.origin.step
        before = len(self.names)
        wrong = super()._compare_and_set(effect)
        if wrong is None and len(self.names) > before:
            self._check_catalog(self.names[-1][1], {key for key, _, _ in effect.writes} - {LOG})
        return wrong

    def _commit(self, key: str, data: bytes) -> None:
        if envelope_kind(data) is not EnvelopeKind.STATE:
            if not self.is_promoted:
                self.violate(f"{self.url} is a copy, and a process commits to {key}")
            super()._commit(key, data)
            return
        state, log = decode_state(data), self.states.setdefault(key, [])
        if state.seqno != len(log):
            self.violate(f"{self.url} has state {state.seqno} of {key} in place of {len(log)}")
        log.append(state)
        truth = self.truths.setdefault(key, Truth())
        truth.events.append(self.event)

    def _learn_names(self, names: catalog.Names) -> None:
        self.names.append((self.event, names))
        self._ids.update(entry.id for entry in names.entries.values())

    def _check_catalog(self, names: catalog.Names, placed: set[str]) -> None:
        """Check what a catalog of the copy says of it."""
        record = names.copied
        if record is None:
            if not self.is_promoted and not self.cuts:
                self.violate(f"{self.url} was promoted, and is no complete copy")
            self.is_promoted = True
            return
        if self.is_promoted:
            self.violate(f"{self.url} is a store of its own, and was copied over")
        if not record.is_complete or (not placed and self.cuts):
            return
        ids = {entry.id for entry in names.entries.values()}
        if ids != record.heads.keys() or not ids <= self.states.keys():
            self.violate(f"{self.url} says that it has {sorted(record.heads)}, and its catalog has {sorted(ids)}")
            return
        until = -1 if self.is_past else self._check_moment(record.heads, names)
        for id, seqno in record.heads.items():
            self._check_rows(id, seqno, self.states[id][-1])
        self._check_forward(record.heads)
        self.counts["copies placed"] += 1
        entries = {name: entry.id for name, entry in names.entries.items()}
        self.cuts.append(PlacedCut(self.event, until, record.run, dict(record.heads), entries))

    def _check_moment(self, heads: dict[str, int], names: catalog.Names) -> int:
        """Check that the store had these states and these names at one moment; return the last one."""
        origin = self.origin
        spans = []
        for id, seqno in heads.items():
            events = origin.truths[id].events
            spans.append((events[seqno], events[seqno + 1] if seqno + 1 < len(events) else origin.event + 1))
        begin, end = max((first for first, _ in spans), default=0), min((last for _, last in spans), default=1 << 62)
        catalogs = [*origin.names, (origin.event + 1, origin.names[-1][1])]
        for (first, found), (last, _) in reversed(list(pairwise(catalogs))):
            if found.entries == names.entries and max(first, begin) < min(last, end):
                return min(last, end) - 1
        self.violate(
            f"{self.url} is no moment of the store: {heads} and {sorted(names.entries)} were never there at once"
        )
        return origin.event

    def _check_forward(self, heads: dict[str, int]) -> None:
        """Check that a copy does not go back to an earlier moment."""
        known = self.cuts[-1].heads if self.cuts else {}
        back = sorted(id for id, seqno in heads.items() if seqno < known.get(id, 0))
        if back:
            self.violate(f"{self.url} had {back[0]} at {known[back[0]]}, and goes back to {heads[back[0]]}")

    def _check_rows(self, id: str, seqno: int, state: State) -> None:
        """Check that a state of the copy has the rows, the times and the columns of the state of the store."""
        past = self.origin.states[id][seqno]
        if (past.upper, past.since, past.schemas) != (state.upper, state.since, state.schemas):
            self.violate(f"{self.url} has {id} from {state.since} to {state.upper}, not {past.since} to {past.upper}")
            return
        missing = self.with_children(references(state)) - self.blobs.keys()
        if missing:
            self.violate(f"{self.url} refers to blobs that it does not have: {sorted(missing)[:3]}")
            return
        if state.since.is_closed:
            return
        held = self._held(state, decode_stored_schema(state.schemas[-1]), state.since.time)
        expected = self.origin.held_at(id, seqno, state)
        if held != expected:
            wrong = {seen: held.get(seen, 0) - expected.get(seen, 0) for seen in {**held, **expected}}
            self.violate(f"{self.url} has other rows in {id}: {short({each: n for each, n in wrong.items() if n})}")
        truth = self.truths[id]
        truth.held, truth.added = held, self.origin.commits_at(id, seqno)

    # Blobs.

    def _put(self, effect: PutBlob) -> None:
        World._put(self, effect)

    def _delete(self, effect: DeleteBlobs) -> None:
        """Delete blobs, and check that the newest complete copy does not need them."""
        needed = self.needed()
        for key in effect.keys:
            if key in needed and len(self.blobs.get(key, b"")):
                self.violate(f"blob {key} of {self.url} was deleted, and the copy refers to it")
            self.blobs.pop(key, None)

    def needed(self) -> set[str]:
        """Return the blobs that the newest complete copy refers to."""
        if not self.cuts:
            return set()
        found: set[str] = set()
        for id in self.cuts[-1].heads:
            found |= self.with_children(references(self.states[id][-1]))
        return found
