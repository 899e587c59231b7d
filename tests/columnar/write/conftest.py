"""Fixtures of tests of the write pipeline."""

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
def pool():
    """Threads that upload."""
    with ThreadPoolExecutor(4) as executor:
        yield executor
