"""The registry: a hidden collection with the definition of every view, by the id of its collection.

One commit creates a view, its stages, its definition and its holds on the inputs. A drop removes the name of the view
first. The next call that creates or drops a view finds what is left of dropped ones here, and removes it.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from timespine.client.engine_interface import (
    CatalogEntry,
    Collection,
    Definition,
    Store,
    Transaction,
    begin_refresh,
    catalog_entries,
    drop_owned,
    handle_of,
)
from timespine.columnar.schema.schema import DIFF, define
from timespine.core.transitions import ReleaseHold
from timespine.errors import CollectionExists, UnknownCollection, UsageError
from timespine.views.definition import ViewDefinition, decode_definition

NAME = "timespine.views"
"""The name of the collection that has the definitions."""

_SCHEMA = define({"view": "string"}, {"definition": "binary"})


def hold_name(view: str) -> str:
    """Return the name of the holds of a view on its inputs."""
    return f"view-{view}"[:64]


def registry_of(store: Store) -> Collection:
    """Open the registry; create it in a store that has none."""
    if NAME not in catalog_entries(store):
        with contextlib.suppress(CollectionExists), begin_refresh(store) as transaction:
            transaction.create_as(NAME, Definition(_SCHEMA, "counter", None, None, role="registry"))
    return store.collection(NAME)


def add_definition(transaction: Transaction, store: Store, view: str, definition: ViewDefinition) -> None:
    """Add the definition of a view to the transaction that creates it."""
    table = pa.table({"view": [view], "definition": pa.array([definition.encode()], pa.binary())})
    transaction.append(registry_of(store), table)


def definitions(store: Store) -> dict[str, ViewDefinition]:
    """Read the definitions of all views, by the ids of their collections."""
    if NAME not in catalog_entries(store):
        return {}
    rows = store.collection(NAME).snapshot().to_pylist()
    return {row["view"]: decode_definition(row["definition"]) for row in rows}


def view_entry(store: Store, name: str) -> CatalogEntry:
    """Return the catalog entry of a view; raise an error if the name is that of no view."""
    entries = catalog_entries(store)
    entry = entries.get(name)
    if entry is None:
        there = ", ".join(sorted(each for each, found in entries.items() if found.role == "view")) or "none"
        raise UnknownCollection(f"there is no view {name}; there are: {there}", name)
    if entry.role != "view":
        raise UsageError(f"{name} is no view: create one with store.view(name, sql=...)")
    return entry


def find_definition(store: Store, name: str) -> tuple[str, ViewDefinition]:
    """Return the id of the collection of a view, and its definition."""
    id = view_entry(store, name).id
    found = definitions(store).get(id)
    if found is None:
        raise UnknownCollection(f"there is no view {name}: it was dropped just now", name)
    return id, found


def drop_view(store: Store, name: str, *, force: bool) -> None:
    """Drop a view, and what belongs to it. Views that read it keep it, unless forced."""
    view_entry(store, name)
    drop_owned(store, name, force=force)
    remove_leftovers(store)


def remove_leftovers(store: Store) -> None:
    """Remove what is left of dropped views: stages, holds and definitions."""
    known = definitions(store)
    entries = catalog_entries(store)
    there = {entry.id: name for name, entry in entries.items()}
    gone = {view: definition for view, definition in known.items() if view not in there}
    for name, entry in entries.items():
        if entry.role == "stage" and entry.owner not in there:
            drop_owned(store, name, force=True)
    for view, definition in gone.items():
        _release(store, view, definition, there)
    if gone:
        rows = [{"view": view, "definition": known[view].encode(), DIFF: -1} for view in gone]
        with begin_refresh(store) as transaction:
            # SUBTLE: another process may do the same at this time. The retraction counts once, as the commit relies on
            # the rows that were read (test_views.py).
            seen = transaction.snapshot(NAME)
            left = {row["view"] for row in seen.to_pylist()}
            transaction.append(NAME, [row for row in rows if row["view"] in left] or pa.table(rows_schema()))


def rows_schema() -> dict[str, pa.Array]:
    """Return no rows of the registry."""
    return {"view": pa.array([], pa.string()), "definition": pa.array([], pa.binary())}


def _release(store: Store, view: str, definition: ViewDefinition, there: dict[str, str]) -> None:
    """Release the holds of a view on inputs that still exist."""
    for each in definition.inputs:
        if each.id in there:
            handle = handle_of(store.collection(there[each.id]))
            if hold_name(view) in handle.state().holds:
                handle.committer.commit((handle.id, ReleaseHold(hold_name(view), definition.token)))
