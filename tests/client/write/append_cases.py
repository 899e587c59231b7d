"""A collection and rows that tests of appends share."""

from memory_store import counted


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def now(collection):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), "k", "v")


def parts_of(place, collection):
    """The blobs with rows, or lists of them."""
    return [key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"]


ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": None}, {"k": 2, "v": None}]
