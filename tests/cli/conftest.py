"""Stores that tests of the command line begin with."""

import shutil
from pathlib import Path

import pytest

import timespine as ts


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A store with `orders` (tiny, three times) and `items` (in a file)."""
    root = tmp_path_factory.mktemp("cli") / "store"
    with ts.open(root, maintenance=False) as store:
        value = {"customer": "string", "total": "double"}
        orders = store.create("orders", key={"id": "int64"}, value=value, timeline="counter")
        orders.append([{"id": 1, "customer": "ann", "total": 10.0}, {"id": 2, "customer": "bob", "total": 25.0}])
        orders.upsert([{"id": 1, "customer": "ann", "total": 12.0}, {"id": 3, "customer": None, "total": None}])
        orders.delete({"id": 2})
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        items.append([{"id": i, "name": f"item {i * 7919 % 1000}"} for i in range(3000)])
    return root


@pytest.fixture
def store(original, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(original, tmp_path / "store"))
