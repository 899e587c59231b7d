"""Batches hold what they are made of, know their facts, and give away nothing that they do not have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spine_cases import layouts, pools, tiny, update_tables, updates_of

from timespine.arrangement.batch import chunk
from timespine.arrangement.batch.batch import Location, batch_of
from timespine.arrangement.batch.key_filters import WordBitmap
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.kernels.comparable_words import Probes
from timespine.columnar.kernels.find_keys import locate
from timespine.columnar.schema.schema import define, infer
from timespine.core.batch import wrap_int64
from timespine.errors import UsageError
from timespine.testing.spine_model import SpineModel

ORDERS = define({"id": "int64"}, {"name": "string"})


@given(st.data())
def test_a_batch_is_its_updates_in_order_each_once_with_their_facts(data):
    layout = data.draw(layouts())
    table = data.draw(update_tables(layout, data.draw(pools(layout)), max_size=24))
    model = SpineModel(layout.order, len(layout.by), layout.schema.time_names)
    model.insert(table)
    with tiny():
        batch = batch_of(table, layout)
    if batch is None:
        assert not model.updates
        return
    found = updates_of(batch, layout)
    assert found == sorted((row, time, diff) for (row, time), diff in model.updates.items())
    assert batch.rows == len(found)
    assert batch.keys == len({row[: len(layout.by)] for row, _, _ in found})
    assert batch.negatives == sum(diff < 0 for _, _, diff in found)
    assert batch.diff_sum == wrap_int64(sum(diff for _, _, diff in found))
    assert all(each.rows <= 4 for each in batch.chunks)
    coordinates = list(zip(*(time for _, time, _ in found), strict=True))
    assert batch.earliest == tuple(map(min, coordinates))
    assert batch.latest == tuple(map(max, coordinates))
    assert batch.location is Location.MEMORY
    assert batch.first <= batch.last
    assert batch.nbytes > 8 * batch.rows


@given(st.data())
def test_a_filter_never_says_no(data):
    layout = data.draw(layouts())
    table = data.draw(update_tables(layout, data.draw(pools(layout)), min_size=1, max_size=24))
    with tiny(chunk_rows=24, set_rows=data.draw(st.sampled_from([0, 24]))):
        batch = batch_of(table, layout)
        for each in batch.chunks if batch else ():
            assert all(each.members.may_contain(word) for word in each.index.words.tolist())
            assert each.members.nbytes > 0


def test_a_bloom_filter_is_wrong_about_few_words_and_a_bitmap_about_none():
    sparse = pa.array([n * 1_000_003 for n in range(20_000)])
    dense = pa.array([n * 3 for n in range(20_000)])
    kinds = {}
    for ids in (sparse, dense):
        rows = pa.table({"id": ids, "name": pa.array(["x"] * 20_000), "_time": pa.array([0] * 20_000)})
        rows = rows.append_column("_diff", pa.array([1] * 20_000))
        members = batch_of(rows.cast(ORDERS.update_arrow), Layout.of(ORDERS)).chunks[0].members
        there = set(ids.to_pylist())
        absent = [n for n in range(60_001) if n not in there]
        kinds[members.kind] = sum(members.may_contain(n + (1 << 63)) for n in absent) / len(absent)
    assert kinds["bitmap"] == 0
    assert 0 < kinds["bloom"] < 0.03


@given(
    st.lists(st.integers(0, 400), min_size=30, unique=True),
    st.integers(0, 2**64 - 402),
    st.lists(st.integers(0, 400), max_size=50, unique=True),
    st.booleans(),
)
def test_a_bitmap_tells_the_row_of_every_word_that_the_chunk_has(gaps, low, wanted, is_twice):
    words = np.sort(np.array(gaps, np.uint64)) + np.uint64(low)
    bitmap = WordBitmap(np.repeat(words, 2) if is_twice else words)
    assert bitmap.tells_places is not is_twice
    inside = np.sort(np.array([low + each for each in wanted if words[0] <= low + each <= words[-1]], np.uint64))
    there, rows = WordBitmap(words).places(inside)
    assert [(int(inside[place]), int(row)) for place, row in zip(there, rows, strict=True)] == [
        (word, place) for place, word in enumerate(words.tolist()) if word in inside.tolist()
    ]


@pytest.mark.parametrize("step", [1, 2, 13, 17, 1_000_003])
def test_fetches_by_a_bitmap_find_what_a_search_finds(step):
    """Ids at the ends of blocks of bits, absent ones in between, and keys on both sides of the chunk."""
    ids = [n * step for n in range(-100, 400) if n % 7]
    table = pa.table({"id": ids, "name": ["x"] * len(ids), "_time": [0] * len(ids), "_diff": [1] * len(ids)})
    made = batch_of(table.cast(ORDERS.update_arrow), Layout.of(ORDERS)).chunks[0]
    probes = Probes([pa.array(sorted({n * step + off for n in range(-130, 430) for off in (0, 1, -1)}))])
    searched = locate(made.index, probes)
    assert all(map(np.array_equal, made.locate(probes), searched))
    assert (made.members.kind == "bitmap") == (step < 17)
    assert len(searched.keys) == len(ids)


def test_a_chunk_makes_a_bitmap_for_fetches_once_it_was_asked_for_many_keys():
    rows = range(1_000)
    table = pa.table({"id": rows, "name": ["x"] * 1_000, "_time": [0] * 1_000, "_diff": [1] * 1_000})
    made = batch_of(table.cast(ORDERS.update_arrow), Layout.of(ORDERS)).chunks[0]
    few = Probes([pa.array(range(5, 1_000, 100))])
    for _ in range(1_000 // chunk.PLACES_PAY // 10):
        made.locate(few)
        assert "members" not in vars(made)
    assert made.locate(few).lower.tolist() == list(range(5, 1_000, 100))
    assert made.members.nbytes == 128 + 4 * 17


def test_chunks_do_not_keep_the_table_alive_that_they_were_cut_from():
    rows = 10_000
    table = pa.table({"id": range(rows), "name": ["a name"] * rows, "_time": [0] * rows, "_diff": [1] * rows})
    made = batch_of(table.cast(ORDERS.update_arrow).slice(5, 10), Layout.of(ORDERS))
    assert sum(column.get_total_buffer_size() for column in made.chunks[0].columns.values()) < 2_000


def test_chunks_are_cut_by_bytes_too():
    names = ["x" * (n % 7) for n in range(100)]
    table = pa.table({"id": range(100), "name": names, "_time": [0] * 100, "_diff": [1] * 100})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_BYTES", 150)
        made = batch_of(table.cast(ORDERS.update_arrow), Layout.of(ORDERS))
    assert len(made.chunks) > 5
    assert pa.concat_arrays([each.columns["name"] for each in made.chunks]).to_pylist() == names


def test_rows_are_arranged_by_columns_that_have_an_order_each_once():
    nested = infer(pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())]))
    for by in (["a"], ["b", "b"], [], ["c"]):
        with pytest.raises(UsageError):
            Layout.of(nested, by)
    assert Layout.of(ORDERS).by == ("id",)
    assert Layout.of(ORDERS, ["name"]).order == ("name", "id")
