"""Uploads: a bounded number at once, whatever storage does; and builders that give up."""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pyarrow as pa
import pytest
from building import (
    FOUR,
    ORDERS,
    TINY,
    Gated,
    StallClock,
    add_all,
    add_each,
    at,
    builder,
    built,
    keys_in,
    read_run_of,
    table_of,
    up,
)

from timespine.columnar.kernels import key_encoding
from timespine.columnar.parts.part_list_tree import delete_batch, is_written_by
from timespine.columnar.schema.schema import define
from timespine.columnar.write.batch_builder import AddResult
from timespine.columnar.write.upload import END_BYTES, UploadTarget
from timespine.config import Config
from timespine.core.batch import Order
from timespine.errors import Determinate, DiffOverflow, Indeterminate, UsageError
from timespine.location.memory import MemoryBlob
from timespine.testing.unreliable import Fault, UnreliableBlob

# Uploads.


def run_in_thread(work):
    outcome = []

    def target():
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=target)
    return thread, outcome


def test_adding_waits_for_the_oldest_part_once_too_many_are_under_way(pool) -> None:
    blob, clock, counters = Gated(), StallClock(), Counter()
    made = builder(
        blob,
        config=replace(TINY, outstanding_parts=2, run_parts=3),
        order=Order.SORTED,
        pool=pool,
        clock=clock,
        counters=counters,
    )
    made.add(table_of([FOUR[0]]))
    made.add(table_of([FOUR[1]]))
    blob.arrived("orders/w1/p1")
    blob.arrived("orders/w1/p2")
    assert counters["stalls"] == 0
    thread, outcome = run_in_thread(lambda: made.add(table_of([FOUR[2]])))
    clock.owner = thread
    thread.start()
    assert clock.stalling.wait(60), "the third part has to wait"
    assert outcome == []
    assert "orders/w1/p3" not in blob.gates, "and is not even begun"
    blob.open("orders/w1/p1")
    thread.join(60)
    assert outcome == [AddResult.ROWS_AND_PARTS]
    blob.arrived("orders/w1/p3")
    assert counters["stalls"] == 1
    assert counters["stall seconds"] >= 1
    assert keys_in(blob) == ["orders/w1/p1"]

    # The fourth part makes the run too long: the first three are gathered into a list.
    blob.open("orders/w1/p2")
    blob.open("orders/w1/p3")
    made.add(table_of([FOUR[3]]))
    blob.arrived("orders/w1/p4")
    blob.arrived("orders/w1/h5")
    blob.open_all()
    batch = made.finish(at(5))
    assert [part.key for part in batch.parts] == ["orders/w1/h5", "orders/w1/p4"]
    assert read_run_of(batch.runs[0], blob) == FOUR
    assert counters["parts"] == 4
    assert counters["runs spilled"] == 1


def test_a_part_that_is_done_out_of_turn_makes_room(pool) -> None:
    blob, counters = Gated(), Counter()
    made = builder(blob, config=replace(TINY, outstanding_parts=2), pool=pool, counters=counters)
    made.add(table_of([FOUR[0]]))
    made.add(table_of([FOUR[1]]))
    blob.open("orders/w1/p2")
    wait([made._writer._uploads._under_way[1]], 60)
    made.add(table_of([FOUR[2]]))
    assert counters["stalls"] == 0
    blob.open_all()
    assert made.finish(at(5)).len == 3


def test_a_table_is_not_held_while_its_bytes_travel(pool) -> None:
    allocated = []

    class Weighing(MemoryBlob):
        def put(self, key, value):
            allocated.append(pa.total_allocated_bytes())
            super().put(key, value)

    size = 8 << 20
    before = pa.total_allocated_bytes()
    with builder(Weighing(), config=replace(TINY, part_bytes=size // 2), pool=pool) as made:
        made.add(table_of([up(1, 0, v="x" * size)]))
        made.finish(at(1))
    assert allocated[0] - before < size, "the rows are gone, only their bytes are left"


# Failures.


def failing(fault, inner=None, only="put", since=1):
    """A blob whose calls fail from one on; and the blob inside."""
    inner = MemoryBlob() if inner is None else inner
    calls = Counter()

    def decide(operation, key):
        calls[operation] += 1
        return fault if operation == only and calls[operation] >= since else Fault.NONE

    return UnreliableBlob(inner, decide), inner


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.DETERMINATE, Determinate),
        (Fault.INDETERMINATE_DONE, Indeterminate),
        (Fault.INDETERMINATE_NOT, Indeterminate),
    ],
)
def test_a_failed_upload_is_raised_and_only_abort_is_left(fault, error, order, pooled, pool) -> None:
    blob, inner = failing(fault, since=2)
    made = builder(blob, config=replace(TINY, outstanding_parts=1), order=order, pool=pool if pooled else None)
    with pytest.raises(error):
        add_each(made, 4)
    for _ in range(2):
        with pytest.raises(error):
            made.add(table_of([up(9, 0)]))
        with pytest.raises(error):
            made.finish(at(5))
    assert keys_in(inner), "something is there"
    assert made.abort() == 0
    assert keys_in(inner) == [], "what may have been put is gone too"
    with pytest.raises(UsageError, match="aborted already"):
        made.add(table_of([up(9, 0)]))


def test_an_upload_that_fails_at_the_end_is_raised_by_finish(pool) -> None:
    blob, _ = failing(Fault.DETERMINATE)
    made = builder(blob, config=replace(TINY, part_bytes=1 << 20), pool=pool)
    made.add(table_of(FOUR))
    for _ in range(2):
        with pytest.raises(Determinate):
            made.finish(at(5))
    made.abort()


def test_a_list_that_cannot_be_put_fails_the_batch() -> None:
    inner = MemoryBlob()
    blob = UnreliableBlob(inner, lambda operation, key: Fault.DETERMINATE if "/h" in key else Fault.NONE)
    for order in ORDERS:
        made = builder(blob, config=replace(TINY, run_parts=2), order=order)
        with pytest.raises(Determinate):
            add_each(made, 4).finish(at(1))
        assert made.abort() == len(made._writer._list_keys) > 0
        assert keys_in(inner) == []


@pytest.mark.parametrize("attempts_max", [4, 9])
def test_a_put_is_tried_again_while_storage_is_unavailable(attempts_max) -> None:
    attempts, pauses = Counter(), []

    def decide(operation, key):
        attempts[key] += 1
        faults = [Fault.DETERMINATE, Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.NONE]
        return faults[min(attempts[key], 4) - 1]

    counters = Counter()
    blob = UnreliableBlob(inner := MemoryBlob(), decide)
    config = replace(TINY, storage_attempts=attempts_max, run_parts=2)
    batch, _ = built(FOUR, at(5), blob=blob, config=config, order=Order.SORTED, counters=counters, sleep=pauses.append)
    assert read_run_of(batch.runs[0], inner) == FOUR
    puts = len(keys_in(inner))
    assert counters["put retries"] == 3 * puts
    assert pauses == [0.008, 0.016, 0.032] * puts


def test_a_count_that_does_not_fit_is_raised() -> None:
    most = (1 << 63) - 1
    updates = [up(1, 0, most), up(1, 0, most)]
    for part_bytes, inline in ((table_of(updates).nbytes, 1), (1 << 20, 1), (1 << 20, 4096)):
        made = builder(config=replace(TINY, part_bytes=part_bytes, inline_part_bytes=inline))
        with pytest.raises(DiffOverflow):
            add_all(made, updates).finish(at(1))
        with pytest.raises(DiffOverflow):
            made.finish(at(1))
        made.abort()


def test_a_batch_whose_building_was_interrupted_can_only_be_aborted(pool) -> None:
    blob, owner = Gated(), threading.current_thread()

    def clock():
        if threading.current_thread() is owner:
            raise KeyboardInterrupt
        return 0.0

    made = builder(blob, config=replace(TINY, outstanding_parts=1), pool=pool, clock=clock)
    made.add(table_of([up(1, 0)]))
    with pytest.raises(KeyboardInterrupt):
        made.add(table_of([up(2, 0)]))
    blob.open_all()
    for call in (lambda: made.add(table_of([up(3, 0)])), lambda: made.finish(at(1))):
        with pytest.raises(UsageError, match="interrupted"):
            call()
    assert made.abort() == 0
    assert keys_in(blob) == []


def test_a_batch_whose_part_could_not_even_be_begun_can_only_be_aborted() -> None:
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    made = builder(pool=closed)
    with pytest.raises(RuntimeError, match="shutdown"):
        made.add(table_of([up(1, 0)]))
    with pytest.raises(RuntimeError, match="shutdown"):
        made.finish(at(1))
    made.abort()


# Giving up.


def test_abort_deletes_what_was_uploaded(pool) -> None:
    for order in ORDERS:
        blob = MemoryBlob()
        made = builder(blob, config=replace(TINY, run_parts=2), order=order, pool=pool)
        for k in range(9):
            made.add(table_of([up(k, 0)]))
        assert made.abort() == 0
        assert keys_in(blob) == []
        assert made.abort() == 0, "again is fine"
        with pytest.raises(UsageError, match="aborted already"):
            made.finish(at(1))


def test_abort_waits_for_what_is_under_way_and_drops_what_has_not_begun() -> None:
    blob, cancelled = Gated(), threading.Event()
    with ThreadPoolExecutor(1) as single:
        made = builder(blob, config=replace(TINY, outstanding_parts=3), pool=single)
        for k in range(3):
            made.add(table_of([up(k, 0)]))
        blob.arrived("orders/w1/p1")
        (*_, last) = made._writer._uploads._under_way
        last.add_done_callback(lambda future: cancelled.set())
        thread, outcome = run_in_thread(made.abort)
        thread.start()
        assert cancelled.wait(60)
        assert outcome == []
        blob.open("orders/w1/p1")
        thread.join(60)
        assert outcome == [0]
        assert keys_in(blob) == []
        assert set(blob.gates) == {"orders/w1/p1"}


def test_a_pool_that_is_shut_down_too_early_fails_the_batch() -> None:
    blob, counters = Gated(), Counter()
    pool = ThreadPoolExecutor(1)
    made = builder(blob, config=replace(TINY, outstanding_parts=3), pool=pool, counters=counters)
    for k in range(3):
        made.add(table_of([up(k, 0)]))
    blob.arrived("orders/w1/p1")
    pool.shutdown(wait=False, cancel_futures=True)
    blob.open_all()
    for _ in range(2):
        with pytest.raises(UsageError, match="shut down too early"):
            made.finish(at(1))
    pool.shutdown()
    assert made.abort() == 0
    assert keys_in(blob) == []


def test_abort_does_what_it_can_and_counts_the_rest() -> None:
    blob, inner = failing(Fault.DETERMINATE, only="delete", since=2)
    counters = Counter()
    with builder(blob, counters=counters) as made:
        for k in range(3):
            made.add(table_of([up(k, 0)]))
    assert counters["left to the sweep"] == 2 == len(keys_in(inner))


def test_leaving_the_block_aborts_a_batch_that_is_not_finished() -> None:
    blob = MemoryBlob()

    def interrupted():
        with builder(blob) as made:
            made.add(table_of(FOUR))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        interrupted()
    assert keys_in(blob) == []


def test_a_finished_batch_is_not_aborted() -> None:
    with builder(blob := MemoryBlob()) as made:
        made.add(table_of(FOUR))
        batch = made.finish(at(5))
    assert len(keys_in(blob)) == 4
    for call in (lambda: made.add(table_of([])), lambda: made.finish(at(5)), made.abort):
        with pytest.raises(UsageError, match="finished"):
            call()
    assert delete_batch(batch, blob, owned=is_written_by("orders", "w1"), counters={}) == 0
    assert keys_in(blob) == []


def test_a_builder_that_is_dropped_warns_and_is_counted() -> None:
    counters = Counter()

    def dropped():
        made = builder(counters=counters, config=replace(TINY, part_bytes=table_of(FOUR[:2]).nbytes))
        made.add(table_of(FOUR[:3]))

    with pytest.warns(ResourceWarning, match="1 updates are lost, and 1 blobs are left to the sweep"):
        dropped()
    assert counters["builders dropped"] == 1


def test_a_builder_that_loses_nothing_is_dropped_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counters = Counter()
        unused = builder(counters=counters)
        with builder(counters=counters) as finished:
            finished.add(table_of(FOUR))
            finished.finish(at(5))
        with builder(counters=counters) as aborted:
            aborted.add(table_of(FOUR))
        with pytest.raises(UsageError):
            builder(counters=counters, lower=at(0, 0))
        del unused, finished, aborted
        gc.collect()
    assert counters["builders dropped"] == 0


@pytest.mark.parametrize("key", [{"k": "int64"}, None], ids=["value", "ordered"])
def test_no_more_of_a_long_value_is_encoded_than_bounds_need(monkeypatch, key):
    """What is encoded byte by byte in Python must not follow the length of values."""
    schema = define(key, {"v": "binary"} if key else {"k": "int64", "v": "binary"})
    encoded = []
    real = key_encoding._bytes
    monkeypatch.setattr(key_encoding, "_bytes", lambda value: (encoded.append(len(value)), real(value))[1])
    values = [bytes(1 << 20), b"\xff" * (1 << 20), b"short"]
    columns = {"k": [1, 2, 3], "v": values, "_time": [0] * 3, "_diff": [1] * 3}
    table = pa.table(columns).cast(schema.update_arrow)
    blob = MemoryBlob()
    target = UploadTarget("orders", "w1", schema, 0, blob, Config())
    sent = target.send_part("p1", [table], is_consolidated=True)
    assert sent.part.rows == 3
    assert max(encoded, default=0) <= END_BYTES


def test_the_ends_of_long_rows_are_bounds_of_them():
    schema = define({"k": "string"}, None)
    target = UploadTarget("orders", "w1", schema, 0, MemoryBlob(), Config())
    long = "a" * (2 * END_BYTES)

    def ends(*keys):
        table = pa.table({"k": list(keys), "_time": [0] * len(keys), "_diff": [1] * len(keys)})
        sent = target.send_part(f"p{len(keys)}{keys[0][-1:]}", [table.cast(schema.update_arrow)], is_consolidated=True)
        return sent.first, sent.last

    first, last = ends(long + "b", long + "c")
    assert first < last
    assert not last < ends(long + "d")[0], "rows that are alike for longer than is looked at may overlap"
    assert last < ends("b")[0]
    assert len(first) <= END_BYTES
    assert len(last) <= END_BYTES
