"""The results that writes give to their callers."""

from __future__ import annotations

import msgspec

from timespine.model.frontier import Frontier
from timespine.model.time import Time


class CommitResult(msgspec.Struct, frozen=True):
    """The result of an append, or of a change of rows."""

    time: int | Time | None
    """The time of the updates; None if they have several, or there are none."""
    upper: Frontier
    """The upper of the collection after the commit."""
    rows: int
    """The number of stored updates: equal ones count once."""
    seqno: int
    """The sequence number of the commit; if nothing changed, that of the state that was read."""


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a write ahead of the seal."""

    number: int | None
    """The number of the write in the collection; None if there were no rows."""
    rows: int
    """The number of stored updates: equal ones count once."""
    first: int | Time | None
    """The earliest time of them; None if there are none, or several minimal times."""
    last: int | Time | None
    """A time at or after all of them."""
    late: int = 0
    """The number of late rows that were dropped or moved."""
    seqno: int | None = None
    """The sequence number of the commit; None if there were no rows."""


class SealResult(msgspec.Struct, frozen=True):
    """The result of a seal."""

    upper: Frontier
    """The upper of the collection after the commit."""
    seqno: int
    """The sequence number of the commit; if the upper did not move, that of the state that was read."""


NOTHING = WriteResult(None, 0, None, None)
"""The result of a write of no rows."""
