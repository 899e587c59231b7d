"""The adapters that several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from timespine.location.folder.local_blob import LocalBlob
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def blob(root: Path) -> Iterator[LocalBlob]:
    adapter = LocalBlob(root)
    yield adapter
    adapter.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a ?#%' folder.db"


@pytest.fixture
def log(path: Path) -> Iterator[SqliteConsensus]:
    adapter = SqliteConsensus(path)
    yield adapter
    adapter.close()


@pytest.fixture
def hasty(path: Path) -> Iterator[SqliteConsensus]:
    """An adapter that does not wait: what would make another wait makes this one fail at once."""
    adapter = SqliteConsensus(path, wait_s=0)
    yield adapter
    adapter.close()
