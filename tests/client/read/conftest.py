"""Fixtures of tests of reads."""

import pytest
from memory_store import SMALL


@pytest.fixture
def store(place):
    """A store in which a handful of rows is several parts."""
    return place.open(config=SMALL)


@pytest.fixture
def passing_time(store):
    """A clock that a wait for commits moves on by its timeout: (seconds since the start,)."""
    clock = [0.0]
    context = store._context
    context.monotonic = lambda: clock[0]

    class Quick(type(context.committed)):
        def wait(self, heard, timeout):
            clock[0] += timeout
            return False

    context.committed = Quick()
    return clock
