"""The words of change feeds and change logs: what can happen to a row, and which column says so."""

from __future__ import annotations

from timespine.client.engines import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE

COMMIT_VERSION, COMMIT_TIMESTAMP = "_commit_version", "_commit_timestamp"
"""The columns of a feed that say when: the time, and its moment if it is one of the wall clock."""

SEQUENCE = "_sequence"
"""The column of a change log that orders changes. Lines with the same one count in the order in which they stand."""

UPSERT = "upsert"
"""A row that comes, whether or not there was one with its key."""

KINDS = {
    INSERT: ("c", "r", "i", "insert", "create", "read"),
    POSTIMAGE: ("u", "update", "update_postimage"),
    UPSERT: ("upsert",),
    DELETE: ("d", "delete"),
    PREIMAGE: ("update_preimage",),
}
"""What logs call the kinds of changes, in lower case."""

UPSERT_KINDS = (INSERT, POSTIMAGE, UPSERT, "update")
"""The row replaces the one with its key."""

DELETE_KINDS = (DELETE,)
"""The row with this key is deleted."""

IGNORED_KINDS = (PREIMAGE,)
"""The other kinds say the same."""

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "DELETE",
    "DELETE_KINDS",
    "IGNORED_KINDS",
    "INSERT",
    "KINDS",
    "POSTIMAGE",
    "PREIMAGE",
    "SEQUENCE",
    "UPSERT",
    "UPSERT_KINDS",
]
