"""What the catalog of a copy says of the store that it is a copy of."""

from __future__ import annotations

import msgspec

from timespine.errors import IncompleteCopy, ReadOnlyStore
from timespine.hints import Hint


class CopyRecord(msgspec.Struct, frozen=True, array_like=True):
    """The origin of a copy, and whether the copy is whole."""

    origin: str
    """The id of the store that it is a copy of."""
    epoch: int
    """The epoch of that store: after a restore of the origin, a copy of it is another one."""
    location: str
    """The location of that store, as the process that copied knew it."""
    cut_ms: int
    """The time of the cut, by the clock of that process; 0 if there is none yet."""
    is_complete: bool
    """Whether every collection is of that cut."""
    run: str
    """The id of the last run of `copy` that began here: an earlier run can change nothing since then."""
    heads: dict[str, int] = {}
    """The sequence number of each collection in the origin, by id, as of the cut."""


def check_usable(record: CopyRecord | None, *, read_only: bool) -> None:
    """Refuse a copy that is not whole, and refuse to write to a whole one."""
    if record is None:
        return
    if not record.is_complete:
        raise IncompleteCopy(
            f"this is a copy of {record.location} that is not complete: the last run of copy was interrupted",
            hint=Hint("copy-again"),
        )
    if not read_only:
        raise ReadOnlyStore(
            f"this is a copy of {record.location}, and later runs of copy replace what is in it",
            hint=Hint("promote-copy"),
        )
