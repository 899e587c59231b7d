"""The log of the catalog: one compare-and-set stores an entry, and what must appear with it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from timespine.core.effects import CompareAndSet, Protocol, Scan, Sleep, Truncate
from timespine.core.protocols.load_state import Entries
from timespine.core.protocols.session import Session, pause_ms, retry, retry_determinate
from timespine.core.state import Commit, State, new_state
from timespine.core.transitions import AddSchema, apply
from timespine.errors import Indeterminate, Unavailable, UsageError

LOG = "catalog"
"""The key of the log. No collection can have it: their ids end in a random part."""

MoreWrites = tuple[tuple[str, int | None, bytes], ...]


def scan_catalog(session: Session, after: int | None = None) -> Protocol[Entries]:
    """Return the entries after a number, or all of them, oldest first."""
    entries: Entries = yield from retry(session, Scan(LOG, 0 if after is None else after + 1))
    return entries


def store_catalog(session: Session, expected: int | None, data: bytes, more: MoreWrites) -> Protocol[bool | None]:
    """Store the catalog, and the entries that must appear with it, in one compare-and-set; return whether it is stored.

    None: it lost, perhaps to itself. A loss may be to itself also if storage reports it as certain: then the
    caller finds its change in the newest names.
    """
    write = CompareAndSet(((LOG, expected, data), *more))
    lost: bool | None = False
    try:
        mismatch = yield from retry_determinate(session, write)
    except Indeterminate:
        lost = None
        mismatch = yield from _sent_again(session, write)
    return lost if mismatch is not None else True


def truncate_catalog(below: int) -> Protocol[None]:
    """Drop older entries. If that fails, the next change drops them."""
    with contextlib.suppress(Unavailable):
        yield Truncate(LOG, below)


def _sent_again(session: Session, write: CompareAndSet) -> Protocol[Mapping[str, int | None] | None]:
    """Repeat a compare-and-set that may have happened, byte for byte, until storage answers; return the answer.

    It names one sequence number, so it cannot happen twice. If it loses, it may have lost to itself: the caller checks.
    """
    for attempt in range(session.config.storage_attempts):
        yield Sleep(pause_ms(session.config, attempt))
        try:
            mismatch: Mapping[str, int | None] | None = yield write
            return mismatch
        except Unavailable:
            session.count("retries")
    raise Indeterminate("the catalog may or may not have been changed: storage does not answer")


def first_state(id: str, arity: int, schema: bytes) -> State:
    """Return the first state of a collection: empty, with its schema."""
    outcome = apply(new_state(id, arity), AddSchema(None, schema), 0)
    if not isinstance(outcome, Commit):
        raise UsageError(str(outcome.reply))
    return outcome.state
