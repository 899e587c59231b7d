"""Reservations: ids that a transaction reserves before it creates their collections, and their cancellation.

The catalog lists an id as reserved before the first blob is put under it. A transaction that fails cancels
its reservations; maintenance cancels those that are older than a day. Both changes are final: a cancelled id is
never reserved again, and no collection is ever created under it.

A process that slept may put blobs under an id after maintenance cancelled it. The catalog remembers a cancelled
id for a week, and maintenance deletes blobs under it again and again until then. That includes a put that a
process began before the cancellation, unless it arrives more than a week later.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from timespine.client.catalog.catalog import CANCELLED, Catalog, Names
from timespine.errors import Determinate

RESERVED_MS = 24 * 3_600_000
"""Milliseconds until maintenance cancels a reservation: how long its transaction may take."""

REMEMBERED_MS = 7 * RESERVED_MS
"""Milliseconds that maintenance looks for blobs under a cancelled id."""


def expire_reservations(now_ms: int, names: Names) -> Names | None:
    """Cancel reservations that are older than RESERVED_MS."""
    late = {id for id, since_ms in names.reserved.items() if since_ms < now_ms - RESERVED_MS}
    return _with_cancelled(late, now_ms, names)


def cancel_reservations(ids: Collection[str], now_ms: int, names: Names) -> Names | None:
    """Cancel reservations that their own transaction will not use.

    SUBTLE: also ids that maintenance cancelled and the catalog forgot: the transaction may have put blobs
    since (test_transaction_creates.py).
    """
    created = {*names.dropped, *(entry.id for entry in names.entries.values())}
    return _with_cancelled({*ids} - created - names.cancelled.keys(), now_ms, names)


def forget_cancelled(ids: Collection[str], names: Names) -> Names | None:
    """Forget cancelled ids, once no more blobs arrive under them."""
    left = {id: since_ms for id, since_ms in names.cancelled.items() if id not in ids}
    return msgspec.structs.replace(names, cancelled=left) if len(left) < len(names.cancelled) else None


def check_reserved(catalog: Catalog, id: str) -> None:
    """Raise Determinate if an id is neither reserved nor that of a collection: no blob may be put under it."""
    names = catalog.read()
    if id not in names.reserved and not any(entry.id == id for entry in names.entries.values()):
        raise Determinate(f"nothing was committed: {CANCELLED}; run the transaction again")


def _with_cancelled(ids: Collection[str], now_ms: int, names: Names) -> Names | None:
    if not ids:
        return None
    reserved = {id: since_ms for id, since_ms in names.reserved.items() if id not in ids}
    cancelled = {**names.cancelled, **dict.fromkeys(sorted(ids), now_ms)}
    return msgspec.structs.replace(names, reserved=reserved, cancelled=cancelled)
