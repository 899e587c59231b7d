"""Fixtures of tests of reads."""

import pytest
from memory_store import SMALL


@pytest.fixture
def store(place):
    """A store in which a handful of rows is several parts."""
    return place.open(config=SMALL)
