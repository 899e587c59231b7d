"""Leases of reads that Spark plans: of a fixed term, because nothing tells when such a read is done.

They are registered in the state and belong to no process: the one that plans a read may
be gone before the read begins. Reads that are planned soon after each other use the same
lease, whichever processes plan them. So a dashboard that asks every second leaves few of them.
"""

from __future__ import annotations

from timespine.client.engines import Access, Hold, LeasedState, fresh_id, to_ms
from timespine.core.state import State
from timespine.core.transitions import ExpireReader, RegisterReader
from timespine.model.frontier import Frontier
from timespine.model.time import Time

TERM = "1 hour"
"""How long a read by `spark.read`, or one in SQL, may take after it was planned, if nobody says otherwise."""

SHARES = 12
"""A lease lives a twelfth longer than its term, and for so long further reads count on it: each has its term."""

READER = "rs"
"""How the ids of these leases begin: no other reader's does."""


def for_term(access: Access, term: str | None = None, *, all_history: bool = False) -> Hold:
    """Give a way to lease states for a term from now on: from the time of the read, or from their since on."""
    term_ms = to_ms(term or TERM)

    def hold(state: State, as_of: Time | None) -> LeasedState:
        leases = access.shared.leases
        if as_of is not None and not state.since.less_equal(as_of):
            return leases.unleased(state)  # the read is about to be refused
        since = state.since if as_of is None or all_history else Frontier((as_of,))
        until_ms = access.now_ms() + term_ms
        there = [reader for id, reader in state.readers.items() if id.startswith(READER)]
        if any(reader.since <= since and reader.until_ms >= until_ms for reader in there):
            return leases.unleased(state)
        longer_ms = term_ms + term_ms // SHARES
        access.committer.commit((access.id, RegisterReader(fresh_id(READER), since, longer_ms)))
        # SUBTLE: the state that has the lease, not the one before it: what only that refers to may be gone
        # (tests/spark/read/test_data_source.py).
        return leases.unleased(access.known())

    return hold


def drop_reads(access: Access) -> int:
    """End all such leases; how many there were."""
    readers = [each for each in access.state().readers if each.startswith(READER)]
    if readers:
        access.committer.commit(*((access.id, ExpireReader(each)) for each in readers))
    return len(readers)
