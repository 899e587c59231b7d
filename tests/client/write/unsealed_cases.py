"""A collection and rows that tests of writes ahead of the seal share."""

import pytest
from memory_store import BLOBS, QUICK

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def row(k, time=None, v="a", **more):
    return {"k": k, "v": v, **({} if time is None else {"_time": time}), **more}


def unsealed(collection, lower=None, upper=None):
    found = collection.unsealed(lower, upper).to_pylist()
    return sorted((each["k"], each["_time"], each["_diff"]) for each in found)
