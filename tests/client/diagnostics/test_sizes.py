"""Sizes: what is inside a hollow run counts wherever bytes are counted."""

import pyarrow as pa
import pytest

from timespine.client.diagnostics.metrics import collection_metrics
from timespine.client.maintenance.due_merges import SPARE_BYTES
from timespine.config import Config

SHORT = Config(inline_part_bytes=1, part_bytes=1 << 12, run_parts=4, rollup_seqnos=1000)
"""Runs of more than four small parts are hollow."""


def filled(place, **options):
    store = place.open(config=SHORT, **options)
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")
    for first in (0, 1):
        orders.append(pa.table({"k": range(first, 4000, 2)}))
    return store, orders


def stored(place, collection):
    """The bytes of all blobs of a collection."""
    return sum(info.size for info in place.blob.list_keys(f"{collection.id}/"))


def test_all_figures_count_what_is_inside_hollow_runs(place):
    store, orders = filled(place)
    assert any(part.hollow for part in orders._handle.state().parts())
    whole = stored(place, orders)
    figures = collection_metrics(orders._handle)
    inspection = orders.inspect(parts=True)
    assert figures["bytes"] == figures["trace_blob_bytes"] == whole
    assert store.metrics()["trace blob bytes"] == whole
    assert store.metrics()["append bytes"] == whole
    assert inspection.size == sum(batch.size for batch in inspection.batches) == whole
    assert sum(part.size for batch in inspection.batches for part in batch.detail) == whole
    assert sum(entry.size for entry in orders.history()) == whole
    with orders.snapshot() as rows:
        assert rows._extent() == (4000, whole)


def test_the_history_of_data_written_ahead_counts_what_is_inside_hollow_runs(place):
    store = place.open(config=SHORT)
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")
    orders.write(pa.table({"k": range(4000), "_time": [7] * 4000}))
    assert any(part.hollow for part in orders._handle.state().parts())
    assert (
        orders.history()[-1].size == collection_metrics(orders._handle)["unsealed_blob_bytes"] == stored(place, orders)
    )


@pytest.mark.parametrize("spare", [0, -1])
def test_a_merge_of_hollow_runs_needs_room_for_what_is_inside_of_them(place, spare):
    free = [1 << 40]
    store, orders = filled(place, free_bytes=lambda: free[0])
    size = stored(place, orders)
    free[0] = size + min(size, SPARE_BYTES) + spare
    orders.compact()
    report = store.maintain()
    assert report.merges == (1 if spare == 0 else 0)
    assert any("free space" in why for why in report.skipped) == (spare < 0)
