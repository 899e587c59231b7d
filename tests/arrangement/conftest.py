"""Fixtures of tests of arrangements."""

import pytest

import timespine as ts

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double"}


@pytest.fixture
def store(tmp_path):
    """A store in a folder, with maintenance in the background."""
    with ts.open(str(tmp_path / "store")) as made:
        yield made


@pytest.fixture
def orders(store):
    """A collection of ten rows of two customers."""
    made = store.create("orders", key=KEY, value=VALUE, timeline="counter")
    made.append([{"id": n, "customer": "ab"[n % 2], "total": float(n)} for n in range(10)])
    return made
