"""What most tests of views begin with."""

import pytest
from memory_store import MemoryStore


@pytest.fixture
def place():
    """Storage, with a clock and faults that the test decides."""
    with MemoryStore() as made:
        yield made
