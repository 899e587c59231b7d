"""Change the schema of a collection: rewrite no data, and lose no concurrent change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timespine.client.commit.retry_limits import RETRY, schema_contention
from timespine.client.inner_handles import CollectionHandle
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import TypeLike
from timespine.core.transitions import AddSchema
from timespine.errors import SchemaConflict, UsageError, short_repr


def evolve_schema(
    handle: CollectionHandle,
    add: Mapping[str, TypeLike | tuple[TypeLike, object]],
    drop: Sequence[str],
    rename: Mapping[str, str],
    widen: Mapping[str, TypeLike],
    expected: int | None,
) -> int:
    """Commit a changed schema; return its id. Without `expected`, try again on the schema of another process.

    Raise Contention if other processes were first every time, up to a limit.
    """
    handle.check_unowned()
    if isinstance(drop, str) or not isinstance(drop, Sequence):
        raise UsageError(f"drop is a list of names of columns, not {short_repr(drop)}")
    for what, given in (("add", add), ("rename", rename), ("widen", widen)):
        if not isinstance(given, Mapping):
            raise UsageError(f"{what} is a dictionary by names of columns, not {short_repr(given)}")
    for _ in range(RETRY.schema_changes):
        state = handle.state()
        id, schema = handle.schema(state)
        if expected is not None and expected != id:
            raise SchemaConflict(expected, id)
        changed = _evolve_schema(schema, add, drop, rename, widen)
        try:
            (reply,) = handle.committer.commit((handle.id, AddSchema(id, changed.encode())))
        except SchemaConflict:
            if expected is not None:
                raise
            continue
        return int(reply)
    raise schema_contention(handle.name, RETRY.schema_changes)


def _evolve_schema(
    schema: Schema,
    add: Mapping[str, TypeLike | tuple[TypeLike, object]],
    drop: Sequence[str],
    rename: Mapping[str, str],
    widen: Mapping[str, TypeLike],
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
