"""Ids that a transaction reserves before it creates their collections, and what becomes of those it never creates.

The catalog lists an id as expected before the first blob is put under it. A transaction that fails gives
its ids up; maintenance gives up ids that were expected for a day. Both changes are final: an id that was
given up is never expected again, and no collection is ever created under it.

A process that slept may put blobs under an id after maintenance gave it up. The catalog remembers such an
id for a week, and maintenance deletes what it finds under it again and again until then. A put that a
process began before the id was given up is found too, unless it arrives more than a week later.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from timespine.client.catalog.catalog import Catalog, Names
from timespine.errors import Determinate

EXPECTED_MS = 24 * 3_600_000
"""How long an id may be expected before maintenance gives it up: how long its transaction may take."""

REMEMBERED_MS = 7 * EXPECTED_MS
"""How long maintenance looks for blobs under an id that was given up."""


def give_up_late(now_ms: int, names: Names) -> Names | None:
    """Give up ids that were expected for longer than EXPECTED_MS."""
    late = {id for id, since_ms in names.expected.items() if since_ms < now_ms - EXPECTED_MS}
    return _with_given_up(late, now_ms, names)


def give_up(ids: Collection[str], now_ms: int, names: Names) -> Names | None:
    """Give up ids that their own transaction will not create.

    SUBTLE: also ids that maintenance gave up and the catalog forgot: the transaction may have put blobs
    since (test_transaction.py).
    """
    created = {*names.dropped, *(entry.id for entry in names.entries.values())}
    return _with_given_up({*ids} - created - names.given_up.keys(), now_ms, names)


def forget_given_up(ids: Collection[str], names: Names) -> Names | None:
    """Forget ids that were given up, once no more blobs arrive under them."""
    left = {id: since_ms for id, since_ms in names.given_up.items() if id not in ids}
    return msgspec.structs.replace(names, given_up=left) if len(left) < len(names.given_up) else None


def check_expected(catalog: Catalog, id: str) -> None:
    """Raise Determinate if nothing may be put under an id: it was given up, or never announced."""
    names = catalog.read()
    if id not in names.expected and not any(entry.id == id for entry in names.entries.values()):
        raise Determinate("nothing was committed: what was to be created is not expected any more: do it again")


def _with_given_up(ids: Collection[str], now_ms: int, names: Names) -> Names | None:
    if not ids:
        return None
    expected = {id: since_ms for id, since_ms in names.expected.items() if id not in ids}
    given_up = {**names.given_up, **dict.fromkeys(sorted(ids), now_ms)}
    return msgspec.structs.replace(names, expected=expected, given_up=given_up)
