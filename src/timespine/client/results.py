"""The results that writes give to their callers."""

from __future__ import annotations

import msgspec

from timespine.model.frontier import Frontier
from timespine.model.time import Time


class CommitResult(msgspec.Struct, frozen=True):
    """The result of an append, or of a change of rows."""

    time: int | Time | None
    """The time of its updates; None if they have several, or there are none."""
    upper: Frontier
    """The collection is complete below this now."""
    rows: int
    """Updates that were stored: equal ones count once."""
    seqno: int
    """The number of the state that has them: that of its commit; if nothing was changed, of the state that was read."""


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a write ahead of the seal."""

    number: int | None
    """Its number among the writes of the collection; None if there was nothing to write."""
    rows: int
    """Updates that were stored: equal ones count once."""
    first: int | Time | None
    """The earliest time of them; None if there are none, or several that are earliest."""
    last: int | Time | None
    """A time at or after all of them."""
    late: int = 0
    """Rows that were too late, and were dropped or moved by rule."""
    seqno: int | None = None
    """The number of the state that has them: that of its commit; None if there was nothing to write."""


class SealResult(msgspec.Struct, frozen=True):
    """The result of a seal."""

    upper: Frontier
    """The collection is complete below this now."""
    seqno: int
    """The number of the state that says so: that of its commit, if it was not so before."""


NOTHING = WriteResult(None, 0, None, None)
"""The answer to a write of no rows."""
