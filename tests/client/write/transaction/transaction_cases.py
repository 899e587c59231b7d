"""Collections and rows that tests of transactions share."""

import pytest
from key_value_cases import create
from memory_store import BLOBS, QUICK, counted

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def pair(store, **options):
    return create(store, "orders", **options), create(store, "items", **options)


def row(k, v="a", **more):
    return {"k": k, "v": v, **more}


def rows(collection, as_of=None):
    return counted(collection.snapshot(as_of, multiplicity="column").to_pylist(), "k", "v")


def keys_of(script_or_gate):
    return [len(keys) for keys in script_or_gate.sets]
