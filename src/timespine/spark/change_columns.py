"""The columns and the change types of change feeds and change logs."""

from __future__ import annotations

from timespine.client.api_for_engines import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE

COMMIT_VERSION, COMMIT_TIMESTAMP = "_commit_version", "_commit_timestamp"
"""The columns of a feed with the time of a change, and with its timestamp on the wall clock."""

SEQUENCE = "_sequence"
"""The column of a change log that orders changes. Lines with equal values keep their order in the file."""

UPSERT = "upsert"
"""The change type of a row that replaces the row with its key, or is added if there is none."""

KINDS = {
    INSERT: ("c", "r", "i", "insert", "create", "read"),
    POSTIMAGE: ("u", "update", "update_postimage"),
    UPSERT: ("upsert",),
    DELETE: ("d", "delete"),
    PREIMAGE: ("update_preimage",),
}
"""The words of logs for change types, in lower case."""

UPSERT_KINDS = (INSERT, POSTIMAGE, UPSERT, "update")
"""The change types whose row replaces the row with its key."""

DELETE_KINDS = (DELETE,)
"""The change types that delete the row with the key."""

IGNORED_KINDS = (PREIMAGE,)
"""The change types that repeat information of others."""

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
