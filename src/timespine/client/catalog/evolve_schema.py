"""Changing the schema of a collection: nothing is rewritten, and nobody's change is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timespine.client.context import Access
from timespine.columnar.schema.schema import Schema
from timespine.core.transitions import AddSchema
from timespine.errors import SchemaConflict, UsageError, shown


def evolve(
    access: Access,
    add: Mapping[str, Any],
    drop: Sequence[str],
    rename: Mapping[str, str],
    widen: Mapping[str, Any],
    expected: int | None,
) -> int:
    """Commit a changed schema; its id. Without `expected` it is tried again on what somebody else made of it."""
    if isinstance(drop, str) or not isinstance(drop, Sequence):
        raise UsageError(f"drop is a list of names of columns, not {shown(drop)}")
    for what, given in (("add", add), ("rename", rename), ("widen", widen)):
        if not isinstance(given, Mapping):
            raise UsageError(f"{what} is a dictionary by names of columns, not {shown(given)}")
    while True:
        state = access.state()
        id, schema = access.schema(state)
        if expected is not None and expected != id:
            raise SchemaConflict(expected, id)
        changed = _evolved(schema, add, drop, rename, widen)
        try:
            (reply,) = access.committer.commit((access.id, AddSchema(id, changed.encode())))
        except SchemaConflict:
            if expected is not None:
                raise
            continue
        return int(reply)


def _evolved(
    schema: Schema, add: Mapping[str, Any], drop: Sequence[str], rename: Mapping[str, str], widen: Mapping[str, Any]
) -> Schema:
    for name in drop:
        schema = schema.drop(name)
    for old, new in rename.items():
        schema = schema.rename(old, new)
    for name, type in widen.items():
        schema = schema.widen(name, type)
    for name, given in add.items():
        type, default = given if isinstance(given, tuple) else (given, None)
        schema = schema.add(name, type, default)
    return schema
