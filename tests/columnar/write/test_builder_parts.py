"""The parts that a batch builder makes: inline or blobs, in long runs, with bounds of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from batch_builder_cases import check_references
from building import (
    FOUR,
    SCHEMA,
    TINY,
    Fresh,
    Gated,
    at,
    builder,
    built,
    keys_in,
    read_part,
    read_run_of,
    table_of,
    up,
    updates_of,
)

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.inline_part import encode_inline
from timespine.columnar.parts.part_list_tree import delete_batch, is_written_by
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.schema.schema import define
from timespine.columnar.write.inline_to_blob import flush_to_blob
from timespine.columnar.write.transmit_batch import decode_batch, encode_batch, rewrite
from timespine.core.batch import HollowBatch, Order, Part, Run, wrap_int64
from timespine.core.read_plan import plan_snapshot
from timespine.core.state import Commit, new_state
from timespine.core.transitions import CompareAndAppend, RegisterWriter, apply
from timespine.errors import Determinate, Indeterminate, UsageError
from timespine.location.memory import MemoryBlob
from timespine.model import Description, advance_by
from timespine.testing.unreliable import Fault, UnreliableBlob

# Inline.


def test_a_small_batch_is_inline_and_touches_no_storage() -> None:
    data = encode_inline(table_of(FOUR))
    for limit, is_inline in ((len(data), True), (len(data) - 1, False)):
        counters: dict[str, float] = {}
        config = replace(TINY, part_bytes=1 << 20, inline_part_bytes=limit)
        batch, blob = built(FOUR, at(5), chunk=2, config=config, counters=counters)
        (part,) = batch.parts
        assert (part.inline is not None) == is_inline == (part.key == "")
        assert len(keys_in(blob)) == (not is_inline)
        assert (part.rows, part.diff_sum) == (4, 4)
        assert read_run_of(batch.runs[0], blob) == FOUR
        meta = PartMeta.decode(part.meta)
        assert (meta.min_time, meta.max_time) == ((1,), (4,))
        if is_inline:
            assert part.size == len(part.inline) == batch.inline_bytes == limit
            assert counters == {"inline parts": 1, "inline bytes": limit}


def test_a_batch_of_which_a_part_was_flushed_is_not_inline() -> None:
    config = replace(TINY, part_bytes=table_of(FOUR[:2]).nbytes, inline_part_bytes=4096)
    batch, _ = built(FOUR[:3], at(5), config=config)
    assert [part.inline for part in batch.parts] == [None, None]
    assert batch.len == 3


def test_rows_that_compress_well_are_inline_too() -> None:
    updates = [up(k, 0, v="same" * 9) for k in range(250)]
    config = replace(TINY, part_bytes=1 << 20, inline_part_bytes=4096)
    assert table_of(updates).nbytes > 3 * 4096
    batch, blob = built(updates, at(1), chunk=250, config=config)
    assert batch.inline_bytes > 0
    assert read_run_of(batch.runs[0], blob) == updates


def test_the_sum_of_an_inline_part_wraps() -> None:
    most = (1 << 63) - 1
    updates = [up(1, 0, most), up(2, 0, most)]
    batch, _ = built(updates, at(1), chunk=2, config=replace(TINY, part_bytes=1 << 20, inline_part_bytes=4096))
    assert batch.diff_sum == wrap_int64(2 * most)


def flushed(batch, blob, counters=None, config=TINY):
    schemas = {4: SCHEMA}
    counters = {} if counters is None else counters
    return flush_to_blob(batch, "orders", "w1", schemas.__getitem__, blob, config, fresh=Fresh(), counters=counters)


def test_flushing_puts_inline_parts_into_blobs_and_changes_nothing_else() -> None:
    config = replace(TINY, part_bytes=1 << 20, inline_part_bytes=4096)
    inline, _ = built(FOUR, at(5), chunk=4, config=config)
    (part,) = inline.parts
    part = msgspec.structs.replace(part, rewrite=at(7), lower=at(1), upper=at(4))
    other = Part("orders/w0/p9", 3, 5, 1)
    runs = (Run((other,), Order.SORTED, 2), Run((part, other), Order.UNORDERED, 4))
    batch = HollowBatch(Description(at(0), at(9), at(0)), 10, runs)
    counters: dict[str, float] = {}
    result = flushed(batch, blob := MemoryBlob(), counters)
    assert result.desc == batch.desc
    assert result.len == batch.len
    assert result.runs[0] == runs[0]
    put, kept = result.runs[1].parts
    assert kept == other
    assert (result.runs[1].order, result.runs[1].schema) == (Order.UNORDERED, 4)
    assert put == msgspec.structs.replace(part, key="orders/w1/p1", inline=None, size=put.size, meta=put.meta)
    assert updates_of(read_part(put, blob)) == FOUR
    assert PartMeta.decode(put.meta).columns, "blobs have statistics"
    assert counters["parts"] == 1
    assert flushed(result, MemoryBlob()) == result, "there is nothing inline any more"


def test_flushing_that_fails_leaves_nothing_behind() -> None:
    config = replace(TINY, part_bytes=1 << 20, inline_part_bytes=4096)
    inline, _ = built(FOUR, at(5), chunk=4, config=config)
    (part,) = inline.parts
    batch = msgspec.structs.replace(inline, runs=(Run((part, part), Order.SORTED, 4),))
    inner = MemoryBlob()
    puts = []

    def decide(operation, key):
        puts.append(key)
        return Fault.INDETERMINATE_DONE if operation == "put" and len(puts) > 1 else Fault.NONE

    with pytest.raises(Indeterminate):
        flushed(batch, UnreliableBlob(inner, decide))
    assert keys_in(inner) == []
    counters: dict[str, float] = {}
    with pytest.raises(Determinate):
        flushed(batch, UnreliableBlob(inner, lambda operation, key: Fault.DETERMINATE), counters)
    assert counters == {"left to the sweep": 1}
    nameless = msgspec.structs.replace(inline, runs=(Run((part,), Order.SORTED, None),))
    with pytest.raises(UsageError, match="names no schema"):
        flushed(nameless, inner)


def test_an_inline_part_without_updates_is_not_flushed() -> None:
    data = encode_inline(table_of([]))
    batch = HollowBatch(Description(at(0), at(1), at(0)), 0, (Run((Part("", 0, len(data), 0, data),), schema=4),))
    with pytest.raises(UsageError, match="without updates"):
        flushed(batch, blob := MemoryBlob())
    assert keys_in(blob) == []


# Long runs.


def test_a_long_run_is_spilled_as_the_parts_come(pool) -> None:
    blob = Gated()
    with builder(blob, config=replace(TINY, run_parts=3, outstanding_parts=2), order=Order.SORTED, pool=pool) as made:
        blob.open_all()
        for k in range(40):
            made.add(table_of([up(k, 0)]))
        assert "orders/w1/h5" in blob.gates, "before the end is known"
        batch = made.finish(at(1))
    (run,) = batch.runs
    assert len(run.parts) <= 3
    assert read_run_of(run, blob) == [up(k, 0) for k in range(40)]
    check_references(batch, blob, SCHEMA, 3)
    delete_batch(batch, blob, owned=is_written_by("orders", "w1"), counters={})
    assert keys_in(blob) == []


# Bounds of rows.


def test_the_bound_of_an_unordered_part_is_its_smallest_row() -> None:
    batch, _ = built([up(5, 0), up(2, 0), up(9, 0)], at(1), chunk=3, config=replace(TINY, part_bytes=1 << 20))
    (part,) = batch.parts
    smallest = table_of([up(2, 0)])
    assert PartMeta.decode(part.meta).lower == encode_row(smallest, 0, SCHEMA.order_names)


def test_bounds_that_are_too_long_are_cut_and_counted() -> None:
    counters = Counter()
    built([up(1, 0, v="a"), up(2, 0, v="b" * 500)], at(1), chunk=2, counters=counters)
    assert counters["bounds truncated"] == 2, "of the second part both"
    assert counters["bounds omitted"] == 0


def test_bounds_that_cannot_be_cut_are_omitted_and_counted() -> None:
    schema = define({"b": "binary"}, None)
    counters = Counter()
    table = pa.Table.from_arrays([pa.array([b"\xff" * 500]), pa.array([0]), pa.array([1])], schema=schema.update_arrow)
    with builder(schema=schema, counters=counters, config=replace(TINY, bound_bytes=1)) as made:
        made.add(table)
        (part,) = made.finish(at(1)).parts
    meta = PartMeta.decode(part.meta)
    assert meta.lower == b"\x01"
    assert (meta.upper is None) == (counters["bounds omitted"] == 1)


def test_statistics_over_the_budget_are_counted_in_columns_and_bytes() -> None:
    counters = Counter()
    built([up(1, 0, v="a"), up(2, 0, v="b" * 500)], at(1), chunk=2, counters=counters)
    assert (counters["column statistics trimmed"], counters["column statistics trimmed bytes"]) == (0, 0)
    built([up(1, 0, v="a")], at(1), chunk=2, counters=counters, config=replace(TINY, stats_bytes=1))
    assert counters["column statistics trimmed"] == len(SCHEMA.fields)
    assert counters["column statistics trimmed bytes"] > len(SCHEMA.fields)


# Together with the core.


def test_a_batch_that_was_built_sent_and_rewritten_is_committed_and_planned() -> None:
    batch, blob = built([up(1, 0)], at(1))
    batch = decode_batch(encode_batch(batch, "orders", 1), "orders")
    batch = rewrite(batch, at(2), at(3))
    state = apply(new_state("orders", 1), RegisterWriter("w1", 1000), 0).state
    state = msgspec.structs.replace(state, schemas=(b"",) * 5)
    outcome = apply(state, CompareAndAppend((batch,), at(0), at(3)), 0)
    assert isinstance(outcome, Commit), outcome
    plan = plan_snapshot(outcome.state, (2,))
    (part,) = plan.parts
    ((row, time, diff),) = updates_of(read_part(part, blob))
    assert (row, advance_by(time, part.rewrite), diff) == ((1, "x"), (2,), 1)


def test_consolidation_gives_what_a_sorted_builder_takes() -> None:
    updates = [up(k % 7, k % 3, 1 if k % 2 else -1, v=str(k % 5)) for k in range(200)]
    table = consolidate(table_of(updates), (*SCHEMA.order_names, "_time")).select(SCHEMA.update_arrow.names)
    with builder(order=Order.SORTED) as made:
        made.add(table)
        assert made.finish(at(9)).len == table.num_rows
