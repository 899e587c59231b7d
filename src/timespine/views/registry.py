"""The registry: a hidden collection with the definition of every view, by the id of its collection.

One commit creates a view, its stages, its definition and its holds on the inputs. A drop removes the name of the view
first. The next call that creates or drops a view finds what is left of dropped ones here, and removes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import pyarrow as pa

from timespine.client.api_for_engines import (
    CatalogEntry,
    Collection,
    CollectionHandle,
    Definition,
    RefreshTransaction,
    Store,
    begin_refresh,
    catalog_entries,
    drop_owned,
    handle_of,
    open_entry,
    view_hold_name,
)
from timespine.columnar.schema.schema import DIFF, define
from timespine.core.transitions import ReleaseHold
from timespine.errors import CollectionExists, UnknownCollection, UpperMismatch, UsageError
from timespine.hints import Hint
from timespine.model.frontier import Frontier
from timespine.views.definition import ViewDefinition, decode_definition, dropped_input

NAME = "timespine.views"
"""The name of the collection that has the definitions."""

STAGES = "timespine.stage."
"""How the names of stages begin."""

ATTEMPTS = 16
"""Times that definitions are retracted, because other processes write to the registry. The next call does the rest."""

_SCHEMA = define({"view": "string"}, {"definition": "binary"})


def registry_of(store: Store) -> Collection:
    """Open the registry; create it in a store that has none."""
    entry = catalog_entries(store).get(NAME)
    if entry is not None and entry.role != "registry":
        raise CollectionExists(
            NAME, f"{NAME} is the name of the definitions of views: rename the collection that has it"
        )
    if entry is None:
        with contextlib.suppress(CollectionExists), begin_refresh(store) as transaction:
            transaction.create_as(NAME, Definition(_SCHEMA, "counter", None, None, role="registry"))
    return store.collection(NAME)


def add_definition(transaction: RefreshTransaction, store: Store, view: str, definition: ViewDefinition) -> None:
    """Add the definition of a view to the transaction that creates it."""
    table = pa.table({"view": [view], "definition": pa.array([definition.encode()], pa.binary())})
    transaction.append(registry_of(store), table)


def definitions(store: Store) -> dict[str, ViewDefinition]:
    """Read the definitions of all views, by the ids of their collections."""
    return definitions_in(store, catalog_entries(store))


def definitions_in(store: Store, entries: Mapping[str, CatalogEntry]) -> dict[str, ViewDefinition]:
    """Read the definitions of all views of a catalog. They are decoded again only when the registry has changed."""
    entry = entries.get(NAME)
    if entry is None or entry.role != "registry":
        return {}
    handle = open_entry(store, NAME, entry)
    upper = handle.state().upper
    known = _decoded.get(store)
    if known is not None and known[:2] == (entry.id, upper):
        return dict(known[2])
    rows = Collection(handle, store).snapshot()
    found = {row["view"]: decode_definition(row["definition"]) for row in rows.to_pylist()}
    if rows.upper == upper:
        _decoded[store] = entry.id, upper, found
    return dict(found)


_decoded: WeakKeyDictionary[Store, tuple[str, Frontier, dict[str, ViewDefinition]]] = WeakKeyDictionary()
"""By store: the registry, its upper, and the definitions before it."""


def view_entry(store: Store, name: str) -> CatalogEntry:
    """Return the catalog entry of a view; raise an error if the name is that of no view."""
    return view_among(catalog_entries(store), name)


def view_among(entries: Mapping[str, CatalogEntry], name: str) -> CatalogEntry:
    """Return the entry of a view in a catalog; raise an error if the name is that of no view."""
    entry = entries.get(name)
    if entry is None:
        there = ", ".join(sorted(each for each, found in entries.items() if found.role == "view")) or "none"
        raise UnknownCollection(f"there is no view {name}; there are: {there}", name)
    if entry.role != "view":
        raise UsageError(f"{name} is no view", hint=Hint("create-view"))
    return entry


def find_definition(store: Store, name: str) -> tuple[str, ViewDefinition]:
    """Return the id of the collection of a view, and its definition."""
    id = view_entry(store, name).id
    found = definitions(store).get(id)
    if found is None:
        raise UnknownCollection(f"there is no view {name}: it was dropped just now", name)
    return id, found


def open_inputs(
    store: Store, view: str, definition: ViewDefinition, entries: Mapping[str, CatalogEntry]
) -> dict[str, CollectionHandle]:
    """Open the inputs of a view, by their names in the text; raise a UsageError if the catalog lacks one."""
    found = open_remaining_inputs(store, definition, entries)
    for each in definition.inputs:
        if each.name not in found:
            raise dropped_input(view, each.name)
    return found


def open_remaining_inputs(
    store: Store, definition: ViewDefinition, entries: Mapping[str, CatalogEntry]
) -> dict[str, CollectionHandle]:
    """Open the inputs of a view that were not dropped, by their names in the text."""
    there = {entry.id: (name, entry) for name, entry in entries.items()}
    return {each.name: open_entry(store, *there[each.id]) for each in definition.inputs if each.id in there}


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
        _retract(store, gone)
    _remove_unused_stages(store)


def _retract(store: Store, gone: dict[str, ViewDefinition]) -> None:
    """Remove the definitions of dropped views. Another process may do the same at this time: it counts once."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(UpperMismatch):
            with begin_refresh(store) as transaction:
                # SUBTLE: the commit relies on the rows that were read, so that no definition is retracted twice
                # (test_views.py).
                # What is retracted is what is stored: another version may encode the same definition differently.
                rows = [{**row, DIFF: -1} for row in transaction.snapshot(NAME).to_pylist() if row["view"] in gone]
                transaction.append(NAME, rows or pa.table(rows_schema()))
            return


def _remove_unused_stages(store: Store) -> None:
    """Drop stages that a rebuild has put others in the place of.

    SUBTLE: the catalog is read before the definitions. A rebuild commits both at once, so that stages which are seen
    and not in the definition are old ones (test_rebuild.py).
    """
    entries = catalog_entries(store)
    known = definitions(store)
    for name, entry in entries.items():
        owner = known.get(entry.owner) if entry.role == "stage" and name.startswith(STAGES) else None
        if owner is not None and entry.id not in owner.stages:
            drop_owned(store, name, force=True)


def replace_definition(transaction: RefreshTransaction, view: str, old: ViewDefinition, new: ViewDefinition) -> bool:
    """Put a new definition in the place of an old one, in a transaction; return False if that is no longer there."""
    rows = {row["view"]: row["definition"] for row in transaction.snapshot(NAME).to_pylist()}
    if view not in rows or decode_definition(rows[view]) != old:
        return False
    made = [
        {"view": view, "definition": rows[view], DIFF: -1},
        {"view": view, "definition": new.encode(), DIFF: 1},
    ]
    transaction.append(NAME, made)
    return True


def rows_schema() -> dict[str, pa.Array]:
    """Return no rows of the registry."""
    return {"view": pa.array([], pa.string()), "definition": pa.array([], pa.binary())}


def _release(store: Store, view: str, definition: ViewDefinition, there: dict[str, str]) -> None:
    """Release the holds of a view on inputs that still exist."""
    for each in definition.inputs:
        if each.id in there:
            handle = handle_of(store.collection(there[each.id]))
            if view_hold_name(view) in handle.state().holds:
                handle.committer.commit((handle.id, ReleaseHold(view_hold_name(view), definition.token)))
