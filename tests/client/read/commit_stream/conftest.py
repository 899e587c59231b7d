"""Fixtures of tests of commit streams."""

from __future__ import annotations

import pytest
from commit_stream_cases import made
from memory_store import BLOBS, QUICK, SMALL


@pytest.fixture(params=[QUICK, BLOBS, SMALL], ids=["inline", "blobs", "small"])
def config(request):
    return request.param


@pytest.fixture
def store(place, config):
    return place.open(config=config)


@pytest.fixture
def orders(store):
    return made(store)
