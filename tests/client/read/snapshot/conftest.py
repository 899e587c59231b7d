"""Fixtures of tests of snapshots."""

from __future__ import annotations

import pytest
from memory_store import SMALL


@pytest.fixture
def store(place):
    return place.open(config=SMALL)
