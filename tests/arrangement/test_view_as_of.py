"""Reads of batches are those of the model: one key, many keys, ranges, samples; as of every time."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spine_cases import counted, key_tables, scalar_key, spines, times, tiny

from timespine.arrangement.batch import chunk, combine_chunks
from timespine.arrangement.batch.batch import batch_of
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.read import view_as_of
from timespine.arrangement.read.find_key import YIELD_EVERY, Courtesy, KeySearch
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.columnar.kernels.find_keys import locate_key
from timespine.columnar.schema.schema import define
from timespine.errors import UsageError
from timespine.testing.spine_model import model_rows

ORDERS = define({"id": "int64"}, {"name": "string"})
BY_ID = Layout.of(ORDERS)


def orders(rows, time=0, diff=1):
    """An update table of (id, name) pairs."""
    ids, names = [row[0] for row in rows], [row[1] for row in rows]
    return pa.table({"id": ids, "name": names, "_time": [time] * len(rows), "_diff": [diff] * len(rows)}).cast(
        ORDERS.update_arrow
    )


def view_of(*tables, as_of=(9,), **options):
    return ArrangementView(BY_ID, [batch_of(table, BY_ID) for table in tables], as_of, **options)


@given(st.data())
def test_one_key_gives_its_rows_as_of_every_time(data):
    with tiny(set_rows=data.draw(st.sampled_from([0, 24]))):
        spine = data.draw(spines())
        keys = data.draw(key_tables(spine))
        as_of = data.draw(times(spine.layout))
        shown = ArrangementView(spine.layout, spine.batches, as_of)
        with mock.patch.object(view_as_of, "SUMMED_MAX", data.draw(st.sampled_from([0, 64]))):
            for place, key in enumerate(model_rows(keys, keys.column_names)):
                expected = spine.model.get(key, as_of)
                try:
                    found = shown.get(scalar_key(keys, place))
                except UsageError:  # Python has no year 10000
                    assert any(pa.types.is_timestamp(kind) for kind in spine.layout.schema.types.values())
                    continue
                assert [count for _, count in found] == [count for _, count in expected]
                rows = pa.Table.from_pylist([row for row, _ in found], schema=spine.layout.schema.arrow)
                assert model_rows(rows, spine.layout.order) == [row for row, _ in expected]


@given(st.data())
def test_many_keys_give_their_rows_as_of_every_time(data):
    with tiny():
        spine = data.draw(spines())
        keys = data.draw(key_tables(spine))
        as_of = data.draw(times(spine.layout))
        with mock.patch.object(view_as_of, "SHARE_KEYS", data.draw(st.sampled_from([1, 1 << 14]))):
            found = ArrangementView(spine.layout, spine.batches, as_of).fetch(keys)
        assert counted(found, spine.layout) == spine.model.fetch(model_rows(keys, keys.column_names), as_of)


@given(st.data())
def test_some_columns_of_many_keys_are_those_of_the_whole_rows(data):
    with tiny():
        spine = data.draw(spines())
        keys = data.draw(key_tables(spine))
        names = data.draw(st.lists(st.sampled_from(spine.layout.schema.names), min_size=1, unique=True))
        shown = ArrangementView(spine.layout, spine.batches, data.draw(times(spine.layout)))
        with mock.patch.object(view_as_of, "SHARE_KEYS", data.draw(st.sampled_from([1, 1 << 14]))):
            whole, some = shown.fetch(keys), shown.fetch(keys, names)
        assert some.schema == whole.select([*names, "_diff"]).schema
        assert model_rows(some, names) == model_rows(whole, names)
        assert some.column("_diff") == whole.column("_diff")
    with pytest.raises(UsageError):
        shown.fetch(keys, ["nothing"])


@given(st.data())
def test_a_scan_gives_the_rows_between_two_keys_in_order(data):
    with tiny():
        spine = data.draw(spines())
        as_of = data.draw(times(spine.layout))
        bounds, models = [], []
        for _ in range(2):
            keys = data.draw(st.none() | key_tables(spine, max_size=1))
            bounds.append(None if keys is None else scalar_key(keys, 0))
            models.append(None if keys is None else model_rows(keys, keys.column_names)[0])
        inclusive = data.draw(st.booleans())
        rows = data.draw(st.integers(1, 12))
        found = ArrangementView(spine.layout, spine.batches, as_of).scan(*bounds, inclusive=inclusive, rows=rows)
        answer = [row for table in found for row in counted(table, spine.layout)]
        assert answer == spine.model.scan(*models, as_of, inclusive=inclusive)


@given(st.data())
def test_sampled_keys_are_few_different_and_there(data):
    with tiny():
        spine = data.draw(spines())
        as_of = data.draw(times(spine.layout))
        count = data.draw(st.integers(0, 30))
        shown = ArrangementView(spine.layout, spine.batches, as_of)
        keys = model_rows(shown.sample_keys(count, seed=data.draw(st.integers(0, 5))), spine.layout.by)
        there = spine.model.keys(as_of)
        assert keys == sorted(set(keys))
        assert set(keys) <= set(there)
        assert len(keys) <= count
        if count >= sum(batch.keys for batch in spine.batches):
            assert keys == there


def test_a_sample_is_drawn_from_all_batches_in_proportion_and_by_chance():
    large, small = [(n, "") for n in range(0, 9_000, 3)], [(n, "") for n in range(1, 3_000, 3)]
    shown = view_of(orders(large), orders(small))
    drawn = [shown.sample_keys(400, seed=seed).column("id").to_pylist() for seed in range(5)]
    for keys in drawn:
        assert len(keys) == 400  # nothing cancels, and no key is in both batches
        assert sum(key % 3 == 0 for key in keys) == 300
        assert 30 <= sum(key < 1_800 for key in keys if key % 3 == 0) <= 90  # about a fifth of the first batch
    assert len({tuple(keys) for keys in drawn}) == 5
    assert drawn[0] == shown.sample_keys(400, seed=0).column("id").to_pylist()
    assert len({key for keys in drawn for key in keys}) > 1_300
    gone = view_of(orders(large), orders(large, diff=-1), orders(small))
    keys = gone.sample_keys(700).column("id").to_pylist()
    assert keys
    assert all(key % 3 == 1 for key in keys)


@given(st.data(), st.integers(1, 6))
def test_partition_keys_ascend_and_are_fewer_than_the_shares(data, shares):
    with tiny():
        spine = data.draw(spines())
        keys = model_rows(
            ArrangementView(spine.layout, spine.batches, (0,) * spine.layout.schema.arity).partition_keys(shares),
            spine.layout.by,
        )
        assert keys == sorted(set(keys))
        assert len(keys) < shares


def test_partition_keys_cut_rows_about_evenly():
    shown = view_of(orders([(n, "") for n in range(0, 1000, 2)]), orders([(n, "") for n in range(1, 1000, 2)]))
    ids = shown.partition_keys(4).column("id").to_pylist()
    assert len(ids) == 3
    assert all(abs(found - wanted) <= 20 for found, wanted in zip(ids, (250, 500, 750), strict=True))


def test_a_row_at_two_times_in_two_chunks_is_netted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_ROWS", 1)
        table = pa.concat_tables([orders([(1, "a")], time=0), orders([(1, "a")], time=1, diff=-1)])
        shown = view_of(table)
    assert shown.get({"id": 1}) == []
    assert shown.fetch([{"id": 1}]).num_rows == 0
    assert list(shown.scan(rows=1)) == []


def test_chunks_with_other_prefixes_are_put_together():
    by_name = Layout.of(ORDERS, ["name"])
    batches = [
        batch_of(orders([(n, prefix + "z" * n) for n in (2, 1)]), by_name) for prefix in ("aaaa", "bbbb", "aaab")
    ]
    rows = [row for table in ArrangementView(by_name, batches, (0,)).scan() for row in table.column("name").to_pylist()]
    assert rows == sorted(rows)
    assert len(rows) == 6


def test_absent_keys_search_no_chunk():
    counts = FilterCounts()
    shown = view_of(*(orders([(n * 1000 + part, "") for n in range(100)]) for part in range(5)), counts=counts)
    with mock.patch("timespine.arrangement.read.find_key.locate_key", side_effect=AssertionError):
        assert shown.get({"id": 500}) == []
        assert shown.get({"id": -1}) == []
    assert (counts.member_misses, counts.member_hits, counts.range_misses) == (5, 0, 5)
    assert len(shown.get({"id": 3000})) == 1
    assert counts.member_hits == 1


def id_of(hit):
    return id(hit[0])


@given(st.data())
def test_filters_are_counted_as_if_every_chunk_were_asked(data):
    with tiny(set_rows=data.draw(st.sampled_from([0, 24]))):
        spine = data.draw(spines())
        keys = data.draw(key_tables(spine))
        counts, plain = FilterCounts(), FilterCounts()
        shown = ArrangementView(spine.layout, spine.batches, data.draw(times(spine.layout)))
        search = KeySearch(spine.batches, counts)
        for place in range(keys.num_rows):
            key = shown._key_of(scalar_key(keys, place))
            hits = search.find(key)
            found = []
            for batch in spine.batches:
                around = [each for each in batch.chunks if each.covers(key)]
                asked = [each for each in around if each.members.may_contain(key.word(each.index.prefix)[0])]
                plain.range_hits += bool(around)
                plain.range_misses += not around
                plain.member_hits += len(asked)
                plain.member_misses += len(around) - len(asked)
                located = [(each, *locate_key(each.index, key)) for each in around]
                found += [(each, lower, upper) for each, lower, upper in located if lower < upper]
            assert sorted(hits, key=id_of) == sorted(found, key=id_of)
        if len(spine.batches) == 1:  # which is searched without its filter
            plain.member_hits = plain.member_misses = 0
        assert counts == plain


def test_rows_that_count_once_share_counts_that_cannot_be_changed():
    shown = view_of(orders([(n, "") for n in range(100)]))
    first, second = (table.column("_diff").chunk(0) for _ in range(2) for table in shown.scan())
    assert first.buffers()[1].address == second.buffers()[1].address
    assert first.to_pylist() == [1] * 100
    with pytest.raises(ValueError, match="read-only"):
        combine_chunks._ones(50)[0] = 2
    with mock.patch.object(combine_chunks, "CHUNK_ROWS", 10):
        assert combine_chunks._ones(1 << 22).sum() == 1 << 22
        assert len(combine_chunks._shared_ones) < 1 << 22


def test_keys_are_the_first_arranged_columns_and_of_their_types():
    shown = view_of(orders([(1, "a")]))
    for wrong in ({}, {"name": "a"}, {"id": 1, "name": "a"}, {"id": "one"}):
        with pytest.raises(UsageError):
            shown.get(wrong)
    with pytest.raises(UsageError):
        shown.fetch(pa.table({"name": ["a"]}))
    with pytest.raises(UsageError):
        shown.partition_keys(0)
    assert shown.fetch([]).num_rows == 0
    assert shown.fetch({"id": 1}).to_pylist() == [{"id": 1, "name": "a", "_diff": 1}]


def test_a_reader_sleeps_now_and_then_while_others_work():
    slept = []
    courtesy = Courtesy()
    shown = view_of(orders([(1, "a")]), courtesy=courtesy)
    with mock.patch("timespine.arrangement.read.find_key.time.sleep", slept.append):
        for _ in range(2 * YIELD_EVERY):
            shown.get({"id": 1})
        assert not slept
        courtesy.busy.add(1)
        for _ in range(2 * YIELD_EVERY):
            shown.get({"id": 1})
    assert len(slept) == 2
