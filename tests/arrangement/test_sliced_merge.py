"""Merges of batches, slice by slice, change no answer from since on, copy no more than they must, and forget."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spine_cases import TIMES, counted, frontiers, spines, times, tiny, updates_of
from test_view_as_of import BY_ID, orders

from timespine.arrangement.batch.batch import batch_of
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.retention_filters import Keep, RetentionFilters, ValueFilter
from timespine.arrangement.spine.sliced_merge import SlicedMerge, merge_batches
from timespine.columnar.predicate.where import col
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier

START = Frontier.at(0)


def run(merge, rows):
    """Merge in slices of some rows; the sizes of the slices."""
    sizes = []
    while not merge.is_done:
        sizes.append(merge.step(rows))
    return sizes


@given(st.data())
def test_a_merge_of_any_batches_changes_no_answer_from_since_on(data):
    with tiny():
        spine = data.draw(spines(max_batches=5))
        since = data.draw(frontiers(spine.layout))
        chosen = data.draw(st.sets(st.sampled_from(range(len(spine.batches))))) if spine.batches else set()
        inputs = [batch for number, batch in enumerate(spine.batches) if number in chosen]
        others = [batch for number, batch in enumerate(spine.batches) if number not in chosen]
        merge = SlicedMerge(inputs, spine.layout, since)
        sizes = run(merge, data.draw(st.integers(1, 20)))
        assert all(size > 0 for size in sizes)
        assert sum(sizes) == sum(batch.rows for batch in inputs)
        merged = merge.finish()
        batches = [*others, *([merged] if merged else [])]
        as_of = data.draw(times(spine.layout))
        if since.less_equal(as_of):
            answer = [
                row
                for table in ArrangementView(spine.layout, batches, as_of).scan(rows=5)
                for row in counted(table, spine.layout)
            ]
            assert answer == spine.model.as_of(as_of)


@given(st.data())
def test_a_merge_of_all_is_what_the_model_folds_to_in_full_chunks(data):
    with tiny():
        spine = data.draw(spines(max_batches=5))
        since = data.draw(frontiers(spine.layout))
        merged = merge_batches(spine.batches, spine.layout, since)
        spine.model.fold(since)
        expected = sorted((row, time, diff) for (row, time), diff in spine.model.updates.items())
        assert (updates_of(merged, spine.layout) if merged else []) == expected
        assert all(each.rows <= 4 for each in merged.chunks) if merged else True


def test_a_chunk_that_no_other_input_reaches_into_passes_by_reference():
    with tiny():
        low, high = (batch_of(orders([(n, "") for n in rows]), BY_ID) for rows in (range(8), range(100, 108)))
        between = batch_of(orders([(5, "other"), (104, "other")], time=3), BY_ID)
        merge = SlicedMerge([low, between, high], BY_ID, START)
        run(merge, 100)
        merged = merge.finish()
    assert merge.passed == 2
    assert low.chunks[0] in merged.chunks
    assert high.chunks[0] in merged.chunks
    assert merged.rows == 18
    # Folded to one time, rows are shared, and the time is that of the frontier.
    with tiny():
        merge = SlicedMerge([low, high], BY_ID, Frontier.at(7))
        run(merge, 100)
    assert merge.passed == 4
    passed = merge.finish().chunks[0]
    assert passed.columns is low.chunks[0].columns
    assert passed.time == (7,)


def test_a_slice_has_about_the_rows_that_were_asked_for():
    batches = [batch_of(orders([(n, str(part)) for n in range(part, 20_000, 7)]), BY_ID) for part in range(7)]
    batches.append(batch_of(orders([(n, "few") for n in range(50)]), BY_ID))
    sizes = run(SlicedMerge(batches, BY_ID, START), 1000)
    assert max(sizes) <= 1300
    assert len(sizes) <= 45


def test_a_key_with_many_rows_goes_in_one_slice():
    layout = Layout.of(BY_ID.schema, ["name"])
    batches = [batch_of(orders([(n, "one") for n in range(part, 300, 3)]), layout) for part in range(3)]
    assert run(SlicedMerge(batches, layout, START), 10) == [300]


def test_a_merge_whose_diffs_do_not_add_up_is_refused():
    batches = [batch_of(orders([(1, "a")]), BY_ID), batch_of(orders([(2, "b")]), BY_ID)]
    merge = SlicedMerge(batches, BY_ID, START)
    run(merge, 10)
    with mock.patch.object(type(batches[0]), "diff_sum", 7), pytest.raises(CorruptionError, match="refused"):
        merge.finish()


# Filters.


@given(st.data())
def test_rejected_keys_and_values_go_when_they_are_merged(data):
    spine = data.draw(spines(arity=1, value=pa.int64()))
    bound = data.draw(st.integers(-2, 2))
    with tiny():
        retention = RetentionFilters(values=ValueFilter(col("v0") >= bound))
        merged = merge_batches(spine.batches, spine.layout, Frontier.at(TIMES), retention)
    place = spine.layout.order.index("v0")
    view = ArrangementView(spine.layout, [merged] if merged else [], (TIMES,))
    answer = [row for table in view.scan() for row in counted(table, spine.layout)]
    expected = spine.model.as_of((TIMES,))
    assert answer == [(row, count) for row, count in expected if row[place] >= (1, bound)]


def kept_by_model(rows, layout, bound, keep, count):
    """Which rows a filter of values keeps, key by key."""
    place, depth = layout.order.index("v0"), len(layout.by)
    kept = []
    for key in sorted({row[:depth] for row, _ in rows}):
        mine = [row for row, _ in rows if row[:depth] == key]
        accepted = [row for row in mine if row[place] >= (1, bound)]
        rejected = [row for row in mine if row not in accepted]
        if keep is Keep.LAST and accepted:
            rejected = [row for row in rejected if row < accepted[0]]
        chosen = rejected[:count] if keep is Keep.BOTTOM else rejected[-count:]
        kept += accepted + chosen
    return set(kept)


@given(st.data())
def test_of_rejected_rows_the_last_the_largest_or_the_smallest_of_each_key_stay(data):
    spine = data.draw(spines(max_batches=5, arity=1, value=pa.int64()))
    bound, count = data.draw(st.integers(-2, 2)), data.draw(st.integers(1, 2))
    keep = data.draw(st.sampled_from(Keep))
    retention = RetentionFilters(values=ValueFilter(col("v0") >= bound, keep, count))
    since, now = Frontier.at(TIMES), (TIMES,)
    chosen = data.draw(st.integers(0, len(spine.batches)))
    inputs, others = spine.batches[:chosen], spine.batches[chosen:]
    with tiny():
        merge = SlicedMerge(inputs, spine.layout, since, retention, lambda: others)
        run(merge, data.draw(st.integers(1, 20)))
        merged = merge.finish()
    rows = spine.model.as_of(now)
    kept = kept_by_model(rows, spine.layout, bound, keep, count)
    elsewhere = {row for batch in others for row, _, _ in updates_of(batch, spine.layout)}
    view = ArrangementView(spine.layout, [*others, *([merged] if merged else [])], now)
    answer = [row for table in view.scan() for row in counted(table, spine.layout)]
    # Never a remainder: a row has its whole count, or is gone because this merge held all of it.
    assert answer == [(row, total) for row, total in rows if row in kept or row in elsewhere]


def test_a_row_with_a_part_in_another_batch_stays_whole():
    spine = [batch_of(orders([(1, "a")]), BY_ID), batch_of(orders([(1, "a")]), BY_ID)]
    retention = RetentionFilters(values=ValueFilter(col("name") == "z", Keep.TOP, 1))
    more = batch_of(orders([(1, "b")]), BY_ID)
    merge = SlicedMerge([spine[0], more], BY_ID, START, retention, lambda: [spine[1]])
    run(merge, 10)
    view = ArrangementView(BY_ID, [merge.finish(), spine[1]], (0,))
    assert [(row["name"], count) for row, count in view.get({"id": 1})] == [("a", 2), ("b", 1)]


def test_keys_may_be_filtered_by_a_function():
    batch = batch_of(orders([(n, "") for n in range(10)]), BY_ID)
    retention = RetentionFilters(keys=lambda table: table.column("id").to_numpy() % 2 == 0)
    merged = merge_batches([batch], BY_ID, START, retention)
    assert merged.chunks[0].columns["id"].to_pylist() == [0, 2, 4, 6, 8]
    assert merge_batches([batch], BY_ID, START, RetentionFilters(keys=col("id") > 100)) is None
    with pytest.raises(UsageError, match="flag"):
        merge_batches([batch], BY_ID, START, RetentionFilters(keys=lambda table: [1, 2]))


def test_a_filter_keeps_a_positive_number_of_rows_and_counts_them_once_times_are_folded():
    for keep, count in ((Keep.TOP, 0), (None, 2), (Keep.LAST, -1)):
        with pytest.raises(UsageError):
            ValueFilter(col("name") == "z", keep, count)
    batches = [batch_of(orders([(1, "a")], time=at), BY_ID) for at in (0, 1)]
    retention = RetentionFilters(values=ValueFilter(col("name") == "z", Keep.TOP, 1))
    batches.append(batch_of(orders([(1, "b")], time=1), BY_ID))
    assert merge_batches(batches, BY_ID, START, retention).rows == 3
    assert merge_batches(batches, BY_ID, Frontier.at(1), retention).chunks[0].columns["name"].to_pylist() == ["b"]
