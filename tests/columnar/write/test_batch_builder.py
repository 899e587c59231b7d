"""Batches: what is built is what was added, in bounded memory, whatever storage does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from batch_builder_cases import check_references
from building import (
    FOUR,
    ORDERS,
    SCHEMA,
    SCHEMA2,
    TINY,
    Fresh,
    at,
    builder,
    built,
    keys_in,
    leaves,
    read_part,
    read_run_of,
    table_of,
    up,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.write.batch_builder import AddResult, BatchBuilder
from timespine.columnar.write.chain_runs import chain_non_overlapping
from timespine.columnar.write.upload import StoredPart
from timespine.config import DEFAULT
from timespine.core.batch import Order, Part, empty_batch
from timespine.errors import UsageError
from timespine.ids import parse_blob_key
from timespine.location.memory import MemoryBlob
from timespine.model import CLOSED, Description, Frontier, oracle

# What comes out.


@st.composite
def histories(draw):
    arity = draw(st.integers(1, 2))
    time = st.tuples(*[st.integers(0, 3)] * arity)
    row = st.tuples(st.integers(0, 6), st.none() | st.sampled_from(["", "a", "b" * 40]))
    updates = draw(st.lists(st.tuples(row, time, st.sampled_from([-2, -1, 1, 2])), max_size=40))
    return (SCHEMA2 if arity == 2 else SCHEMA), updates


def sort_key(update):
    (k, v), time, _ = update
    return k, v is not None, v or "", time


CONFIGS = st.builds(
    replace,
    st.just(TINY),
    part_bytes=st.sampled_from([1, 100, 400, 1 << 20]),
    inline_part_bytes=st.sampled_from([1, 4096]),
    run_parts=st.integers(1, 4),
    outstanding_parts=st.integers(1, 3),
    row_group_rows=st.sampled_from([1, 16384]),
)


@given(histories(), CONFIGS, st.integers(1, 9), st.booleans(), st.data())
@settings(max_examples=120)
def test_what_was_added_is_what_is_read_back(history, config, chunk, pooled, data) -> None:
    schema, updates = history
    expected = sorted(oracle.consolidate(updates), key=sort_key)
    order = data.draw(st.sampled_from(ORDERS))
    added = expected if order is Order.SORTED else updates
    pool = ThreadPoolExecutor(2) if pooled else None
    counters: dict[str, float] = {}
    try:
        upper = Frontier(((9,) * schema.arity,))
        batch, blob = built(
            added, upper, chunk=chunk, schema=schema, config=config, order=order, pool=pool, counters=counters
        )
    finally:
        if pool is not None:
            pool.shutdown()
    runs = [read_run_of(run, blob, schema) for run in batch.runs]
    for run in runs:
        assert run == sorted(run, key=sort_key), "a run is sorted across its parts"
        assert oracle.consolidate(run) == run, "and consolidated"
    everything = [update for run in runs for update in run]
    assert sorted(oracle.consolidate(everything), key=sort_key) == expected
    if order is Order.SORTED:
        assert len(runs) == bool(expected)
    assert batch.len == len(everything) == sum(part.rows for part in batch.parts)
    assert batch.diff_sum == sum(diff for _, _, diff in everything)
    assert batch.desc == Description(Frontier.minimum(schema.arity), upper, Frontier.minimum(schema.arity))
    assert all(run.order is Order.SORTED and run.schema == 4 for run in batch.runs)
    check_references(batch, blob, schema, max(config.run_parts, 2))
    assert counters.get("rows", 0) == sum(part.rows for part in leaves(batch.parts, blob) if part.key)


def test_nothing_added_is_an_empty_batch() -> None:
    batch, blob = built([], at(5))
    assert batch == empty_batch(Description(at(0), at(5), at(0)))
    for inline in (1, 4096):
        config = replace(TINY, part_bytes=1 << 20, inline_part_bytes=inline)
        batch, blob = built([up(1, 1), up(1, 1, -1)], at(5), chunk=2, config=config)
        assert batch == empty_batch(Description(at(0), at(5), at(0)))
        assert keys_in(blob) == []


def test_a_table_without_rows_adds_nothing() -> None:
    with builder(order=Order.SORTED) as made:
        assert made.add(table_of([])) is AddResult.ROWS
        assert made.finish(at(1)).is_empty


def test_parts_whose_updates_cancel_are_not_written() -> None:
    both = [up(1, 1), up(1, 1, -1)]
    config = replace(TINY, part_bytes=table_of(both).nbytes)
    batch, blob = built([*both, up(2, 1), up(3, 1)], at(5), chunk=4, config=config)
    assert batch.len == 2
    assert len(keys_in(blob)) == 1


def test_each_part_is_a_blob_under_the_prefix_of_the_writer() -> None:
    batch, blob = built(FOUR[:3], at(4))
    assert batch.len == 3
    assert sorted(keys_in(blob)) == sorted(batch.keys)
    for key in batch.keys:
        assert parse_blob_key(key)[:2] == ("orders", "w1")


def test_adding_says_whether_a_part_was_full() -> None:
    config = replace(TINY, part_bytes=table_of(FOUR).nbytes)
    with builder(config=config) as made:
        results = [made.add(table_of([update])) for update in [*FOUR, up(5, 4)]]
        assert results == [AddResult.ROWS] * 4 + [AddResult.ROWS_AND_PARTS]
        assert len(made.finish(at(5)).runs) == 1


def test_the_rows_of_unordered_input_are_sorted_within_a_part() -> None:
    batch, blob = built(list(reversed(FOUR)), at(5), chunk=4, config=replace(TINY, part_bytes=1 << 20))
    (run,) = batch.runs
    assert run.order is Order.SORTED
    assert read_run_of(run, blob) == FOUR


def test_parts_of_unordered_input_that_overlap_are_runs_of_their_own() -> None:
    low_high = [up(1, 1), up(9, 1)], [up(2, 1), up(8, 1)], [up(3, 1), up(7, 1)]
    with builder(blob := MemoryBlob(), config=replace(TINY, part_bytes=table_of(low_high[0]).nbytes)) as made:
        made.add(table_of([update for updates in low_high for update in updates]))
        batch = made.finish(at(5))
    assert [read_run_of(run, blob) for run in batch.runs] == list(low_high)


def test_parts_of_unordered_input_that_do_not_overlap_are_one_run() -> None:
    batch, blob = built(list(reversed([up(k, 1) for k in range(9)])), at(5), config=replace(TINY, run_parts=3))
    (run,) = batch.runs
    assert read_run_of(run, blob) == [up(k, 1) for k in range(9)]
    assert any(part.hollow for part in run.parts)
    assert len(run.parts) <= 3


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=25))
def test_there_are_as_few_runs_as_there_can_be(spans) -> None:
    pieces = [
        StoredPart(Part(f"p{place}", 1), None, bytes([first]), bytes([first + width]))
        for place, (first, width) in enumerate(spans)
    ]
    chains = chain_non_overlapping((piece.first, piece.last, piece.part) for piece in pieces)
    ends = {piece.part.key: piece for piece in pieces}
    assert sorted(part.key for chain in chains for part in chain) == sorted(ends)
    for chain in chains:
        for before, after in pairwise(chain):
            assert ends[before.key].last < ends[after.key].first
    overlap = max((sum(f <= point <= f + w for f, w in spans) for point in range(36)), default=0)
    assert len(chains) == overlap


# Bounds.


def test_times_before_the_lower_are_refused_and_nothing_is_added() -> None:
    with builder(lower=at(3)) as made:
        with pytest.raises(UsageError, match=r"2 of 3 updates, one of them at time 2, .*lower \[3\]"):
            made.add(table_of([up(1, 3), up(2, 2), up(3, 0)]))
        made.add(table_of([up(4, 3)]))
        batch = made.finish(at(4))
    assert batch.len == 1
    assert batch.desc.lower == at(3)


def test_nothing_is_at_or_after_a_closed_lower() -> None:
    with builder(lower=CLOSED) as made:
        with pytest.raises(UsageError, match="lower"):
            made.add(table_of([up(1, 1 << 40)]))
        assert made.finish(CLOSED).is_empty


def test_partially_ordered_times_are_compared_with_every_element() -> None:
    lower = Frontier(((0, 5), (5, 0)))
    with builder(schema=SCHEMA2, lower=lower) as made:
        made.add(table_of([up(1, (0, 5)), up(2, (9, 0)), up(3, (5, 5))], SCHEMA2))
        with pytest.raises(UsageError, match=r"1 of 2 updates, one of them at time \(4, 4\)"):
            made.add(table_of([up(1, (5, 1)), up(2, (4, 4))], SCHEMA2))
        assert made.finish(CLOSED).len == 3


def test_the_upper_may_not_be_before_the_lower() -> None:
    with builder(lower=at(3)) as made:
        with pytest.raises(UsageError, match=r"begin at \[3\] and end before, at \[2\]"):
            made.finish(at(2))
        assert made.finish(at(3)).desc.is_empty_interval
    with builder(schema=SCHEMA2, lower=at(0, 5)) as made, pytest.raises(UsageError, match="begin at"):
        made.finish(at(5, 0))


def test_updates_at_or_after_the_upper_are_refused_and_the_builder_goes_on() -> None:
    with builder() as made:
        for update in FOUR:
            made.add(table_of([update]))
        for upper in (at(4), at(2)):
            with pytest.raises(UsageError, match=r"time 4 is not before the upper"):
                made.finish(upper)
        made.add(table_of([up(5, 6)]))
        with pytest.raises(UsageError, match="time 6"):
            made.finish(at(5))
        assert made.finish(at(7)).len == 5


def test_the_upper_of_partially_ordered_times_is_compared_with_every_maximal_time() -> None:
    def added():
        made = builder(schema=SCHEMA2)
        made.add(table_of([up(1, (0, 10))], SCHEMA2))
        made.add(table_of([up(2, (10, 0))], SCHEMA2))
        return made

    for upper in (Frontier(((0, 11), (10, 1))), at(10, 10), at(1, 1), CLOSED):
        with added() as made:
            assert made.finish(upper).len == 2
    for upper in (at(0, 10), at(10, 0), at(0, 0), at(5, 0), Frontier(((0, 11), (10, 0)))):
        with added() as made, pytest.raises(UsageError, match="not before the upper"):
            made.finish(upper)


def test_compacted_updates_may_lie_past_the_upper_but_not_before_the_lower() -> None:
    with builder(lower=at(1), since=at(7)) as made:
        made.add(table_of([up(1, 7)]))
        with pytest.raises(UsageError, match="lower"):
            made.add(table_of([up(1, 0)]))
        batch = made.finish(at(3))
    assert batch.desc == Description(at(1), at(3), at(7))
    with builder(lower=at(7), since=at(7)) as made:
        made.add(table_of([up(1, 9)]))
        with pytest.raises(UsageError, match="upper"):
            made.finish(at(8))


def test_frontiers_of_another_arity_are_refused() -> None:
    for options in ({"lower": at(0, 0)}, {"since": at(0, 0)}):
        with pytest.raises(UsageError, match="coordinates"):
            builder(**options)
    with builder() as made, pytest.raises(UsageError, match="coordinates"):
        made.finish(at(1, 1))


@pytest.mark.parametrize(("collection", "writer"), [("Orders", "w1"), ("orders", "w/1")])
def test_names_that_cannot_be_in_a_key_are_refused(collection, writer) -> None:
    with pytest.raises(UsageError):
        BatchBuilder(collection, writer, SCHEMA, 0, at(0), at(0), MemoryBlob(), DEFAULT, fresh=Fresh())


# Sorted input.


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([up(2, 0)], [up(1, 0)], "do not come after"),
        ([up(2, 0)], [up(2, 0, 5)], "do not come after"),
        ([up(2, 1)], [up(2, 0)], "do not come after"),
        ([up(1, 0)], [up(3, 0), up(2, 0)], "not ascending"),
        ([up(1, 0)], [up(3, 0), up(3, 0)], "not ascending, or not consolidated"),
        ([up(1, 0)], [up(3, 0, v="b"), up(3, 0, v="a")], "not ascending"),
        ([up(1, 0)], [up(3, 0, v="b"), up(3, 0, v=None)], "not ascending"),
        ([up(1, 0)], [up(3, 0), up(4, 0, 0)], "diff 0"),
    ],
)
def test_input_that_is_not_as_sorted_as_promised_is_refused_and_not_added(first, second, why) -> None:
    with builder(blob := MemoryBlob(), order=Order.SORTED) as made:
        made.add(table_of(first))
        with pytest.raises(UsageError, match=why):
            made.add(table_of(second))
        made.add(table_of([up(9, 0)]))
        batch = made.finish(at(5))
    (run,) = batch.runs
    assert read_run_of(run, blob) == [*first, up(9, 0)]


def test_updates_of_one_row_are_in_order_of_time() -> None:
    updates = [up(1, 0, v=None), up(1, 0, v=""), up(1, 1, v=""), up(1, 7, v="a")]
    batch, blob = built(updates, at(9), order=Order.SORTED)
    assert read_run_of(batch.runs[0], blob) == updates


def test_an_empty_batch_of_sorted_input_is_not_taken_for_unsorted() -> None:
    with builder(order=Order.SORTED, config=replace(TINY, part_bytes=1 << 20)) as made:
        made.add(table_of([up(1, 0)]))
        made.add(table_of([]))
        made.add(table_of([up(2, 0)]))
        assert made.finish(at(1)).len == 2


# Tables.


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("text", "an Arrow table, not str"),
        (table_of(FOUR).select(["v", "k", "_time", "_diff"]), "columns"),
        (table_of(FOUR).drop_columns(["_diff"]), "columns"),
        (table_of(FOUR, SCHEMA).cast(pa.schema([("k", pa.int32()), *list(SCHEMA.update_arrow)[1:]])), "column k"),
        (pa.table({"k": [1], "v": ["x"], "_time": pa.array([None], pa.int64()), "_diff": [1]}), "_time .* 1 null"),
        (pa.table({"k": [1], "v": ["x"], "_time": [1], "_diff": pa.array([None], pa.int64())}), "_diff .* 1 null"),
    ],
)
def test_what_is_not_an_update_table_is_refused(table, why) -> None:
    with builder() as made:
        with pytest.raises(UsageError, match=why):
            made.add(table)
        assert made.finish(at(1)).is_empty


def test_a_table_without_field_ids_is_as_good() -> None:
    with builder(blob := MemoryBlob()) as made:
        made.add(pa.table({"k": [1], "v": ["x"], "_time": [0], "_diff": [1]}))
        batch = made.finish(at(1))
    (part,) = batch.parts
    assert read_part(part, blob).schema.field("k").metadata[b"PARQUET:field_id"] == b"1"


def test_parts_are_as_large_as_they_may_be() -> None:
    updates = [up(k, 0, v="x" * (k % 50)) for k in range(3000)]
    limit = 4000
    batch, blob = built(updates, at(1), chunk=700, order=Order.SORTED, config=replace(TINY, part_bytes=limit))
    tables = [read_part(part, blob) for part in leaves(batch.parts, blob)]
    sizes = [pa.table(table).combine_chunks().nbytes for table in tables]
    assert all(size <= limit + 200 for size in sizes)
    assert all(size >= limit * 0.8 for size in sizes[:-1])


def test_one_row_may_be_larger_than_a_part() -> None:
    updates = [up(1, 0, v="a" * 10), up(2, 0, v="b" * 5000), up(3, 0, v="c" * 10)]
    batch, blob = built(updates, at(1), chunk=3, order=Order.SORTED, config=replace(TINY, part_bytes=100))
    assert [part.rows for part in leaves(batch.parts, blob)] == [1, 1, 1]
    assert read_run_of(batch.runs[0], blob) == updates
