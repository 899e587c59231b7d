"""The open collections of a process: one handle each, by id and by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timespine.client.catalog.catalog import CatalogEntry, Names, first_name
from timespine.client.inner_handles import CollectionHandle, StoreContext
from timespine.locks import Lock


class Handles:
    """The handles of open collections, and their names."""

    def __init__(self) -> None:
        self._by_id: dict[str, CollectionHandle] = {}
        self._by_name: dict[str, CollectionHandle] = {}
        self._lock = Lock("the handles of this store", follows_commit=True)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def get(self, id: str) -> CollectionHandle | None:
        """Return the handle of an open collection, or None."""
        return self._by_id.get(id)

    def all(self) -> list[CollectionHandle]:
        """List the handles of all open collections."""
        with self._lock:
            return list(self._by_id.values())

    def open(self, context: StoreContext, name: str, entry: CatalogEntry) -> CollectionHandle:
        """Return the handle of a collection, with its newest name."""
        with self._lock:
            handle = self._by_id.get(entry.id)
            if handle is None:
                handle = self._by_id[entry.id] = CollectionHandle(context, name, entry)
            handle.entry = entry
            self._set_name(handle, name)
        return handle

    def open_by_id(self, context: StoreContext, catalog: Callable[[], Names], id: str) -> CollectionHandle | None:
        """Return the handle of a collection by its id; None if the catalog, which `catalog` reads, does not name it."""
        found = self.get(id)
        if found is None:
            named = next((each for each in catalog().entries.items() if each[1].id == id), None)
            found = self.open(context, *named) if named is not None else None
        return found

    def register_created(self, handle: CollectionHandle) -> None:
        """Register a handle that was made before its transaction created the collection."""
        with self._lock:
            self._by_id[handle.id] = handle
            self._set_name(handle, handle.name)

    def rename(self, id: str, name: str) -> None:
        """Rename an open collection."""
        with self._lock:
            if id in self._by_id:
                self._set_name(self._by_id[id], name)

    def forget(self, ids: Iterable[str]) -> None:
        """Drop the handles of purged collections."""
        with self._lock:
            for id in ids:
                handle = self._by_id.pop(id, None)
                if handle is not None and self._by_name.get(handle.name) is handle:
                    del self._by_name[handle.name]

    def name_of(self, id: str) -> str:
        """Return the name of a collection, or its last one if it was dropped."""
        handle = self._by_id.get(id)
        return handle.name if handle is not None else first_name(id)

    def _set_name(self, handle: CollectionHandle, name: str) -> None:
        """Set the name of a collection; add the id to the name of a collection that had this name before."""
        known = self._by_name.get(name)
        if known is not None and known is not handle and known.name == name:
            known.name = f"{name} ({known.id})"
        handle.name = name
        self._by_name[name] = handle
