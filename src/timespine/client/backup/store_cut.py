"""A cut: the catalog and the states of all collections as of one moment.

`heads` of consensus gives the newest numbers of all logs as of one moment, so no transaction is torn. A lease on
each collection keeps the blobs of its state, and the entries of its log, until the copy is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from timespine.client.catalog.catalog import Names
from timespine.client.catalog.catalog_log import LOG
from timespine.client.read.leases import LeasedState
from timespine.client.store import Store
from timespine.core.effects import Protocol, Scan
from timespine.core.protocols.load_state import Entries, replay
from timespine.core.protocols.session import Session, retry
from timespine.core.state import State
from timespine.errors import Contention
from timespine.location.consensus import read_heads_at_once

CUTS_MAX = 32
"""How often a cut is tried while other processes change the catalog."""


@dataclass(frozen=True, slots=True)
class StoreCut:
    """All collections of a store as of one moment."""

    names: Names
    """The catalog."""
    states: dict[str, State]
    """The state of each collection in it, by id."""
    cut_ms: int
    """The time of the cut, by the clock of this process."""

    @property
    def heads(self) -> dict[str, int]:
        """The sequence number of each collection, by id."""
        return {id: state.seqno for id, state in self.states.items()}


@contextlib.contextmanager
def newest_cut(store: Store) -> Iterator[StoreCut]:
    """Cut a store as it is now; maintenance keeps all of it until the block ends.

    A store that is open for reading only takes no leases: blobs may go while the block runs.
    """
    held: dict[str, tuple[LeasedState, State]] = {}
    try:
        yield _cut(store, held)
    finally:
        for leased, _ in held.values():
            leased.close()


def _cut(store: Store, held: dict[str, tuple[LeasedState, State]]) -> StoreCut:
    committer = store._committer
    for _ in range(CUTS_MAX):
        names = store._catalog.read()
        ids = [entry.id for entry in names.entries.values()]
        for id in ids:
            if id not in held:
                held[id] = _lease(store, id)
        heads = read_heads_at_once(committer.driver.consensus, [LOG, *ids])
        if heads[LOG] != names.seqno:
            continue  # a collection was created, dropped or renamed meanwhile
        now_ms = committer.driver.now_ms()
        found = {id: committer.look(partial(_state_at, base=held[id][1], seqno=heads[id])) for id in ids}
        states = {id: state for id, state in found.items() if state is not None}
        if len(states) == len(found):
            return StoreCut(names, states, now_ms)
        for id in sorted(found.keys() - states.keys()):
            held.pop(id)[0].close()  # its lease lapsed, or there was none: begin with a newer state
    raise Contention(f"other processes changed the store {CUTS_MAX} times while it was cut: try again later")


def _lease(store: Store, id: str) -> tuple[LeasedState, State]:
    """Lease a collection, from its present state on: blobs stay, and history may still expire."""
    leases = store._leases
    state = store._committer.state(id)
    leased = leases.listen(state)
    if leased.is_leased:
        # SUBTLE: `listen` has set a cursor, so no heartbeat releases the state before it is pinned; and a pin, unlike a
        # cursor, is never given up because the collection has moved on (tests/client/backup/test_copy.py).
        leased.lease.pin = leased.lease.seqno
        leased.lease.cursor = None
    return leased, leased.state


def _state_at(session: Session, base: State, seqno: int | None) -> Protocol[State | None]:
    """Return the state of a number at or after a known one; None if entries between them are gone."""
    assert seqno is not None, "a collection in the catalog has a log"
    if seqno == base.seqno:
        return base
    entries: Entries = yield from retry(session, Scan(base.collection, base.seqno + 1, seqno - base.seqno))
    if [number for number, _ in entries] != list(range(base.seqno + 1, seqno + 1)):
        return None
    return replay(base, entries)


def placed_state(state: State, seqno: int) -> State:
    """Return a state as it is placed into another log: without the processes that used it, and without its garbage."""
    forgetting = state.forgetting
    if forgetting is not None and forgetting.clean is not None:
        forgetting = msgspec.structs.replace(forgetting, clean=None)
    return msgspec.structs.replace(
        state,
        seqno=seqno,
        readers={},
        writers={},
        committers={},
        claims={},
        rollups={},
        turn=None,
        forgetting=forgetting,
        totals=msgspec.structs.replace(state.totals, collected_bytes=state.totals.dropped_bytes),
    )
