"""Leases of reads that Spark plans: of a fixed term, because nobody hears when such a read is done.

They are registered in the state and belong to nobody: the process that plans a read may
be gone before it begins. Reads that are planned soon after each other count on the same
one, whichever processes plan them, so that a dashboard that asks every second leaves no
heap of them.
"""

from __future__ import annotations

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.moments import to_ms
from timespine.core.transitions import ExpireReader, RegisterReader
from timespine.model.frontier import Frontier

TERM = "1 hour"
"""How long a read by `spark.read`, or one in SQL, may take after it was planned, if nobody says otherwise."""

SHARES = 12
"""A lease lives a twelfth longer than its term, and for so long further reads count on it: each has its term."""

READER = "rs"
"""How the ids of these leases begin: no other reader's does."""


def lease(access: Access, since: Frontier, term: str | None = None) -> None:
    """See to it that history from `since` on stays for a term from now on."""
    term_ms = to_ms(term or TERM)
    until_ms = access.now_ms() + term_ms
    there = [reader for id, reader in access.state().readers.items() if id.startswith(READER)]
    if not any(reader.since <= since and reader.until_ms >= until_ms for reader in there):
        longer_ms = term_ms + term_ms // SHARES
        access.committer.commit((access.id, RegisterReader(fresh_id(READER), since, longer_ms)))


def drop_reads(access: Access) -> int:
    """End all such leases; how many there were."""
    readers = [each for each in access.state().readers if each.startswith(READER)]
    if readers:
        access.committer.commit(*((access.id, ExpireReader(each)) for each in readers))
    return len(readers)
