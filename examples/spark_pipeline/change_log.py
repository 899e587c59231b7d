"""Names in change logs, and names of columns as Spark's SQL wants them."""

from __future__ import annotations

DIFF = "_diff"
"""The column of a change feed that says by how much a change moves the count of its row."""

CHANGE_TYPE = "_change_type"
"""The column that says what a change does: one of the next four words."""

INSERT, UPDATE, UPSERT, DELETE = "insert", "update_postimage", "upsert", "delete"

SEQUENCE = "_sequence"
"""The column of a change log that orders changes."""


def quoted(name: str) -> str:
    """Quote the name of a column, so that Spark takes a dot in it literally."""
    return "`" + name.replace("`", "``") + "`"
