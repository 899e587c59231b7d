"""Collections with the key `k` and the value `v`, which most tests of the client use."""

from memory_store import counted


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def fill(collection, times, *, first=0):
    """Append one row after the other."""
    for n in range(first, first + times):
        collection.append([{"k": n, "v": f"v{n}"}])


def rows_at(collection, as_of=None):
    """How often each row counts, as of a time."""
    return counted(collection.snapshot(as_of, multiplicity="column").to_pylist(), "k", "v")


def now(collection):
    """How often each row counts now."""
    return rows_at(collection)


def parts_of(place, collection):
    """The blobs with rows, or lists of them."""
    return [key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"]
