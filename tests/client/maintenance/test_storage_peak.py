"""How much storage a collection takes at its peak, in the middle of maintenance too: measured after every blob put.

The bound follows from `core.maintenance_policy`. Before a merge begins there are the live rows and garbage of at most
half of them (2.2 times what is live, with rollups and the constant of tiny collections). A merge puts its whole result
before anything that it replaces is deleted: once more what is live, at most.
"""

import random

import pyarrow as pa
import pytest
from memory_store import BLOBS, MemoryStore, _Blob

from timespine.core.maintenance_policy import GARBAGE_MIN

REST = 2.2
"""Copies of what is live that storage holds between two merges, at most."""

MERGE = 1.0
"""Copies that a merge adds until what it replaces is deleted."""


class MeasuredBlob(_Blob):
    """Blobs that note how many bytes and files there are after every put."""

    def __init__(self):
        super().__init__()
        self.bytes_peak = 0
        self.files_peak = 0

    def put(self, key, data):
        super().put(key, data)
        found = list(self.list_keys(""))
        self.bytes_peak = max(self.bytes_peak, sum(info.size for info in found))
        self.files_peak = max(self.files_peak, len(found))


@pytest.fixture
def place():
    with MemoryStore() as place:
        place.blob = MeasuredBlob()
        yield place


def rows(number, seed, of=1 << 40):
    chosen = random.Random(seed)
    keys = sorted(chosen.sample(range(of), number))
    return pa.table({"id": keys, "v": [f"{chosen.getrandbits(64):x}" for _ in keys]})


def passing(store, clock, seconds, step=0.5):
    """Let time pass, and the background do what it does in it."""
    for _ in range(int(seconds / step)):
        clock.advance(step)
        while store._maintenance.round():
            pass


def create(store, **options):
    return store.create("c", key={"id": "int64"}, value={"v": "string"}, **options)


def live_bytes(collection):
    return collection._handle.state().totals.live_bytes


def test_tiny_appends_to_a_large_collection_add_nothing_to_its_peak(place):
    """A row every two seconds, beside a megabyte: no merge touches the large batch."""
    store = place.open(config=BLOBS)
    collection = create(store)
    collection.append(rows(60_000, 0))
    (large,) = list(place.blob.list_keys(""))
    for number in range(1, 61):
        collection.append(rows(1, number))
        passing(store, place.clock, 2.0)
    assert place.blob.bytes_peak <= large.size + 2 * GARBAGE_MIN
    # A merge replaces at least two blobs by one, so there is at most one more for each append; and three rollups.
    assert place.blob.files_peak <= 2 * 61 + 3


ARRIVALS = {
    "burst": lambda number: 0.0,
    "one per second": lambda number: 1.0,
    "idle gaps": lambda number: 60.0 if number % 7 == 0 else 0.5,
}


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("change", ["append", "upsert"])
def test_peak_of_storage_is_what_is_live_and_garbage_and_one_merge(place, arrival, change):
    store = place.open(config=BLOBS)
    collection = create(store, retain="10 s" if change == "upsert" else None)
    live = 0
    for number in range(80):
        write = collection.append if change == "append" else collection.upsert
        write(rows(400, number, of=1 << 40 if change == "append" else 2000))
        live = max(live, live_bytes(collection))
        passing(store, place.clock, ARRIVALS[arrival](number), step=0.5)
        live = max(live, live_bytes(collection))
    passing(store, place.clock, 120.0, step=5.0)
    assert place.blob.bytes_peak <= (REST + MERGE) * live + GARBAGE_MIN
