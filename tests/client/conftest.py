"""What most tests of the client begin with."""

import pytest
from places import Place


@pytest.fixture
def place():
    """Storage, with a clock and faults that the test decides."""
    with Place() as made:
        yield made
