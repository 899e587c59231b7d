"""Fixtures of tests of the codec: each kind of entry, its bytes and its decoder."""

from __future__ import annotations

import pytest
from codec_cases import ENTRIES, Decode


@pytest.fixture(params=ENTRIES)
def kind(request: pytest.FixtureRequest) -> str:
    """One kind of entry after the other."""
    return str(request.param)


@pytest.fixture
def data(kind: str) -> bytes:
    """An entry of that kind, as it is stored."""
    return ENTRIES[kind][0]()


@pytest.fixture
def decode(kind: str) -> Decode:
    """What reads entries of that kind."""
    return ENTRIES[kind][1]
