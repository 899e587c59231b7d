"""Find the place for the scheme of a location.

A function imports the adapter of object stores on first use, so that a folder needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable

from timespine.location.opening.extras import needs
from timespine.location.opening.folder_place import FolderPlace
from timespine.location.opening.memory_place import MemoryPlace
from timespine.location.opening.place import Place
from timespine.location.opening.store_location import ABFSS, AZ, FILE, GS, MEMORY, S3, StoreLocation


def _object_place(location: StoreLocation) -> Place:
    with needs("obstore", location.scheme, "s3"):
        from timespine.location.object_store.object_place import ObjectPlace
    return ObjectPlace(location)


PLACES: dict[str, Callable[[StoreLocation], Place]] = {
    FILE: FolderPlace,
    MEMORY: MemoryPlace,
    **dict.fromkeys((S3, GS, AZ, ABFSS), _object_place),
}
"""What makes the place of a location, by scheme."""


def place_of(location: StoreLocation) -> Place:
    """Return the place of a location. Nothing is opened or read yet."""
    return PLACES[location.scheme](location)
