"""A collection and rows that tests of writes ahead of the seal share."""

import pytest
from memory_store import BLOBS, QUICK, counted

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def row(k, time=None, v="a", **more):
    return {"k": k, "v": v, **({} if time is None else {"_time": time}), **more}


def rows_at(collection, as_of):
    return counted(collection.snapshot(as_of, multiplicity="column").to_pylist(), "k", "v")


def unsealed(collection, lower=None, upper=None):
    found = collection.unsealed(lower, upper).to_pylist()
    return sorted((each["k"], each["_time"], each["_diff"]) for each in found)
