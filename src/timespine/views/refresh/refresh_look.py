"""What a refresh looks at before it computes: the catalog, the definitions and the states of inputs, each read once.

An idle refresh of many views is nothing but this look, so it reads no log twice: one read of the catalog, one of the
registry, and one of each input, however many views read it.
"""

from __future__ import annotations

from timespine.client.api_for_engines import CatalogEntry, CollectionHandle, Store, catalog_entries, open_entry
from timespine.columnar.schema.schema import Schema
from timespine.core.state import State
from timespine.errors import UsageError
from timespine.views.compute_changes import compile_definition
from timespine.views.definition import ViewDefinition, dropped_input
from timespine.views.registry import definitions_in, open_inputs, view_among


class RefreshLook:
    """One look at a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # SUBTLE: definitions are read after the catalog, so that a view in the catalog has its definition there, or was
        # dropped since.
        self.entries = catalog_entries(store)
        """The catalog."""
        self.definitions: dict[str, ViewDefinition] = definitions_in(store, self.entries)
        """The definitions of all views, by the ids of their collections."""
        self._names = {entry.id: name for name, entry in self.entries.items()}
        self._states: dict[str, State] = {}

    def views(self) -> list[str]:
        """List the names of all views, sorted."""
        return sorted(name for name, entry in self.entries.items() if entry.role == "view")

    def view(self, name: str) -> CatalogEntry:
        """Return the catalog entry of a view."""
        return view_among(self.entries, name)

    def has(self, id: str) -> bool:
        """Return whether a collection is in the catalog."""
        return id in self._names

    def is_dropped(self, id: str) -> bool:
        """Read the catalog again, and return whether a collection was dropped since the look."""
        return all(entry.id != id for entry in catalog_entries(self._store).values())

    def open(self, id: str) -> CollectionHandle:
        """Open a collection of the catalog."""
        return open_entry(self._store, self._names[id], self.entries[self._names[id]])

    def inputs(self, view: str, definition: ViewDefinition) -> dict[str, CollectionHandle]:
        """Return the handles of the inputs by their names in the text; raise a UsageError if one was dropped."""
        return open_inputs(self._store, view, definition, self.entries)

    def broken(self) -> dict[str, str]:
        """Say why some views cannot be refreshed: an input was dropped, or stages are those of another version.

        Views that read one of these cannot be either.
        """
        found: dict[str, str] = {}
        ids: set[str] = set()
        waiting = {name: self.definitions.get(self.entries[name].id) for name in self.views()}
        for name, definition in waiting.items():
            try:
                if definition is not None:
                    compile_definition(definition)
            except UsageError as error:
                found[name] = f"view {name}: {error}"
        is_complete = False
        while not is_complete:
            is_complete = True
            for name, definition in waiting.items():
                for each in definition.inputs if definition is not None and name not in found else ():
                    if not self.has(each.id):
                        found[name] = str(dropped_input(name, each.name))
                    elif each.id in ids:
                        found[name] = (
                            f"view {name} is no longer refreshed, because its input {self._names[each.id]} is not"
                        )
                if name in found and self.entries[name].id not in ids:
                    ids.add(self.entries[name].id)
                    is_complete = False
        return found

    def state(self, handle: CollectionHandle) -> State:
        """Return the state of a collection at this look."""
        if handle.id not in self._states:
            self._states[handle.id] = handle.state()
        return self._states[handle.id]

    def schema(self, handle: CollectionHandle) -> Schema:
        """Return the schema of a collection at this look."""
        return handle.schema(self.state(handle))[1]
