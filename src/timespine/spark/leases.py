"""Leases of reads that Spark plans: of a fixed term, because nobody hears when such a read is done.

They are registered in the state and belong to nobody: the process that plans a read may
be gone before it begins. Reads of a collection that are planned soon after each other
count on the same one, so that a dashboard that asks every second leaves no heap of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.moments import to_ms
from timespine.core.state import State
from timespine.core.transitions import ExpireReader, RegisterReader
from timespine.model.frontier import Frontier

TERM = "1 hour"
"""How long a read by `spark.read`, or one in SQL, may take after it was planned, if nobody says otherwise."""

SHARES = 12
"""A lease lives a twelfth longer than its term, and for so long further reads count on it: each has its term."""

READER = "rs"
"""How the ids of these leases begin: no other reader's does."""


@dataclass(frozen=True, slots=True)
class _Taken:
    reader: str
    since: Frontier
    at: float
    """When, by a clock that only goes forward."""

    def covers(self, since: Frontier, state: State) -> bool:
        """Whether reads from a time on may count on it.

        SUBTLE: one that was dropped or has run out is not in the state any more, whatever this process remembers.
        """
        return self.since <= since and self.reader in state.readers


_taken: dict[tuple[int, str, int], _Taken] = {}
"""The newest lease of this process, by process, collection and term."""


def lease(access: Access, since: Frontier, term: str | None = None) -> None:
    """See to it that history from `since` on stays for a term from now on."""
    term_ms = to_ms(term or TERM)
    more_ms = term_ms // SHARES
    key = (os.getpid(), access.id, term_ms)
    now = access.shared.monotonic()
    found = _taken.get(key)
    if found is not None and now - found.at <= more_ms / 1000 and found.covers(since, access.state()):
        return
    reader = fresh_id(READER)
    (granted,) = access.committer.commit((access.id, RegisterReader(reader, since, term_ms + more_ms)))
    _taken[key] = _Taken(reader, granted.since, now)


def drop_reads(access: Access) -> int:
    """End all such leases; how many there were."""
    readers = [each for each in access.state().readers if each.startswith(READER)]
    if readers:
        access.committer.commit(*((access.id, ExpireReader(each)) for each in readers))
    return len(readers)
