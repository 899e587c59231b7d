"""The collections that are open in a process: one handle each, by id and by name."""

from __future__ import annotations

from collections.abc import Iterable

from timespine.client.catalog.catalog import Entry, first_name
from timespine.client.context import Access, Shared
from timespine.locks import Lock


class Handles:
    """Which collections are open, and what they are called."""

    def __init__(self) -> None:
        self._by_id: dict[str, Access] = {}
        self._by_name: dict[str, Access] = {}
        self._lock = Lock("the handles of this store")

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def get(self, id: str) -> Access | None:
        """The handle of a collection, if it is open."""
        return self._by_id.get(id)

    def all(self) -> list[Access]:
        """All that are open."""
        with self._lock:
            return list(self._by_id.values())

    def open(self, shared: Shared, name: str, entry: Entry) -> Access:
        """The handle of a collection, which is called like this by now."""
        with self._lock:
            access = self._by_id.get(entry.id)
            if access is None:
                access = self._by_id[entry.id] = Access(shared, name, entry)
            access.entry = entry
            self._call(access, name)
        return access

    def adopt(self, access: Access) -> None:
        """A handle that somebody had before the collection was there."""
        with self._lock:
            self._by_id[access.id] = access
            self._call(access, access.name)

    def rename(self, id: str, name: str) -> None:
        """It is called otherwise from now on, if it is open."""
        with self._lock:
            if id in self._by_id:
                self._call(self._by_id[id], name)

    def forget(self, ids: Iterable[str]) -> None:
        """They are not there any more."""
        with self._lock:
            for id in ids:
                access = self._by_id.pop(id, None)
                if access is not None and self._by_name.get(access.name) is access:
                    del self._by_name[access.name]

    def name_of(self, id: str) -> str:
        """What people call a collection, or called it once."""
        access = self._by_id.get(id)
        return access.name if access is not None else first_name(id)

    def _call(self, access: Access, name: str) -> None:
        """Call a collection by its name; whoever had it before is called by its id, too."""
        known = self._by_name.get(name)
        if known is not None and known is not access and known.name == name:
            known.name = f"{name} ({known.id})"
        access.name = name
        self._by_name[name] = access
