"""Leases with a fixed term for reads that Spark plans, because Spark does not report the end of a read.

They are registered in the state and belong to no process: the process that plans a read may
end before the read begins. Reads that are planned soon after each other share one
lease, also across processes. So a dashboard with a query every second registers few of them.
"""

from __future__ import annotations

from timespine.client.api_for_engines import CollectionHandle, HoldState, LeasedState, fresh_id, parse_duration_ms
from timespine.core.state import State
from timespine.core.transitions import ExpireReader, RegisterReader
from timespine.model.frontier import Frontier
from timespine.model.time import Time

TERM = "1 hour"
"""The default term of a read by `spark.read` or SQL: from its plan to its end."""

SHARES = 12
"""A lease lives a twelfth longer than its term. Reads planned in that twelfth share it, and each has a full term."""

READER = "rs"
"""The prefix of the ids of these leases, which no other reader has."""


def lease_for_term(handle: CollectionHandle, term: str | None = None, *, all_history: bool = False) -> HoldState:
    """Make a function that leases states for a term: with history from the time of the read, or from their since."""
    term_ms = parse_duration_ms(term or TERM)

    def hold(state: State, as_of: Time | None) -> LeasedState:
        leases = handle.context.leases
        if as_of is not None and not state.since.less_equal(as_of):
            return leases.unleased(state)  # the read will be refused
        since = state.since if as_of is None or all_history else Frontier((as_of,))
        until_ms = handle.now_ms() + term_ms
        there = [reader for id, reader in state.readers.items() if id.startswith(READER)]
        if any(reader.since <= since and reader.until_ms >= until_ms for reader in there):
            return leases.unleased(state)
        longer_ms = term_ms + term_ms // SHARES
        handle.committer.commit((handle.id, RegisterReader(fresh_id(READER), since, longer_ms)))
        # SUBTLE: the state that has the lease, not the one before it: blobs that only that one refers to may be gone
        # (tests/spark/test_data_source.py).
        return leases.unleased(handle.known())

    return hold


def drop_read_leases(handle: CollectionHandle) -> int:
    """End all such leases; return their number."""
    readers = [each for each in handle.state().readers if each.startswith(READER)]
    if readers:
        handle.committer.commit(*((handle.id, ExpireReader(each)) for each in readers))
    return len(readers)
