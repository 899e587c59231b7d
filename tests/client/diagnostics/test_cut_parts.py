"""Figures of parts that are drained in pieces: each update counts once, each blob once."""

import pytest

from timespine.client.diagnostics.metrics import collection_metrics
from timespine.config import Config
from timespine.core.transitions import Drain
from timespine.errors import LeaseExpired


def drained(place, inline_bytes, uppers):
    """Ten rows at ten times, written ahead and drained up to each of some times."""
    config = Config(inline_part_bytes=inline_bytes, rollup_seqnos=1000)
    store = place.open(config=config)
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")
    orders.write([{"k": k, "_time": k} for k in range(10)])
    orders.write([{"k": 3, "_time": 4, "_diff": -1}])
    for upper in uppers:
        orders.seal(upper)
        store._committer.commit((orders.id, Drain()))
    return store, orders


@pytest.mark.parametrize("inline_bytes", [1, 4096], ids=["blobs", "inline"])
@pytest.mark.parametrize("uppers", [(3,), (3, 6), (3, 6, 9), (10,), (1, 2, 3, 4, 5, 6)], ids=str)
def test_rows_and_updates_are_those_that_are_visible(place, inline_bytes, uppers):
    _, orders = drained(place, inline_bytes, uppers)
    upper = uppers[-1]
    cancelled = upper > 4
    figures = collection_metrics(orders._handle)
    assert figures["rows"] == orders.count() == upper - cancelled
    assert figures["updates"] == upper + cancelled
    assert figures["update_amplification"] == figures["updates"] / figures["rows"]


def test_a_blob_that_is_listed_in_pieces_counts_its_bytes_once(place):
    _, orders = drained(place, 1, (3, 6, 9))
    keys = {part.key for batch in orders._handle.state().hollow_batches() for part in batch.parts}
    sizes = {info.key: info.size for info in place.blob.list_keys(f"{orders.id}/")}
    assert collection_metrics(orders._handle)["bytes"] == sum(sizes[key] for key in keys)


def test_the_times_of_a_cut_part_are_read_once(place):
    store, orders = drained(place, 1, (3, 6))
    first = collection_metrics(orders._handle)
    blob, reads = store._context.blob, []
    get_range = blob.get_range
    blob.get_range = lambda *given: (reads.append(given), get_range(*given))[1]
    assert collection_metrics(orders._handle) == first
    assert reads == []


def test_parts_that_keep_going_away_are_a_typed_error(place):
    _, orders = drained(place, 1, (3,))
    for info in list(place.blob.list_keys(f"{orders.id}/")):
        place.blob.delete(info.key)
    with pytest.raises(LeaseExpired, match="ask again"):
        collection_metrics(orders._handle)
