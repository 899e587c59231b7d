"""Stores whose logs are in a bucket: two processes, checkpoints under them, maintenance, and counts of requests."""

from __future__ import annotations

import threading

import pytest
from broken_objects import BrokenObjects

from timespine.client.store import Store
from timespine.config import REMOTE
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.formats import LOG_PREFIX
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.memory import MemoryBlob
from timespine.location.remote.read_ahead import ReadAheadBlob

LIMITS = CheckpointLimits(slots=16, pack_bytes_small=500)


class SharedBlob(MemoryBlob):
    """Blobs that stay when a store is closed."""

    def close(self) -> None:
        return None


@pytest.fixture
def objects() -> BrokenObjects:
    return BrokenObjects()


@pytest.fixture
def blob() -> SharedBlob:
    return SharedBlob()


def opened(objects: BrokenObjects, blob: SharedBlob) -> Store:
    return Store(ReadAheadBlob(blob), BucketConsensus(objects, limits=LIMITS), config=REMOTE, maintenance=False)


def contents(store: Store) -> list[tuple[int, str]]:
    return sorted((row["id"], row["by"]) for row in store["orders"].snapshot().to_pylist())


def test_two_processes_append_and_change_and_each_sees_all(objects: BrokenObjects, blob: SharedBlob) -> None:
    with opened(objects, blob) as one, opened(objects, blob) as two:
        one.create("orders", key={"id": "int64"}, value={"by": "string"}, timeline="counter")
        errors: list[BaseException] = []

        def write(store: Store, first: int) -> None:
            try:
                for number in range(30):
                    store["orders"].append([{"id": first + number, "by": "append"}])
                    if number % 7 == 0:
                        store["orders"].upsert([{"id": first + number, "by": "upsert"}])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(store, 1000 * place)) for place, store in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert errors == []
        one.maintain()
        seen = [
            sorted((row["id"], row["by"]) for row in store["orders"].snapshot().to_pylist()) for store in (one, two)
        ]
    wanted = [(first + number, "append" if number % 7 else "upsert") for first in (0, 1000) for number in range(30)]
    assert seen == [wanted, wanted]
    assert objects.calls["put_if_match"] > 0  # checkpoints were made
    assert len(objects.list_names(LOG_PREFIX)) < 60  # and slots were deleted
    with opened(objects, blob) as store:
        assert contents(store) == wanted


def test_an_append_is_one_put_and_one_look_and_a_warm_read_two_looks(objects: BrokenObjects, blob: SharedBlob) -> None:
    with opened(objects, blob) as store:
        orders = store.create("orders", key={"id": "int64"}, timeline="counter")
        orders.append([{"id": 0}])
        orders.snapshot().to_arrow()
        objects.calls.clear()
        orders.append([{"id": number} for number in range(1, 101)])
        assert objects.calls == {"put": 1, "get": 1}
        objects.calls.clear()
        assert orders.snapshot().to_arrow().num_rows == 101
        assert objects.calls == {"get_many": 1, "get in one go": 1, "get": 1}


def test_a_transaction_over_collections_is_one_slot(objects: BrokenObjects, blob: SharedBlob) -> None:
    with opened(objects, blob) as store:
        names = ("orders", "items")
        for name in names:
            store.create(name, key={"id": "int64"}, timeline="counter").append([{"id": 0}])
        before = len(objects.list_names(LOG_PREFIX))
        with store.transaction() as transaction:
            for name in names:
                transaction.append(name, [{"id": 1}])
        assert len(objects.list_names(LOG_PREFIX)) == before + 1
