"""Collections and rows that tests of changes share."""

import pytest
from memory_store import BLOBS, QUICK, counted

from timespine.config import Config

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


GROUPS = Config(part_bytes=600, row_group_rows=4, inline_part_bytes=1, run_parts=2, retry_pause_ms=1)
"""A handful of rows is several parts of several row groups, which can be skipped, wrongly too."""


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string", "n": "int64"}, "timeline": "counter", **options}
    return store.create(name, **options)


def now(collection, *names):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), *(names or ("k", "v", "n")))


def row(k, v="a", n=0, **more):
    return {"k": k, "v": v, "n": n, **more}


def append(collection, rows):
    """Append rows, some of which say how often they count."""
    return collection.append([{"_diff": 1, **each} for each in rows])


def unchanged(collection):
    """What a change that writes nothing leaves as it is."""
    return collection.upper, len(collection.history()), now(collection)
