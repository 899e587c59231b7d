"""Words are in the order of the rows they stand for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import LONG, MAX, SMALL, TYPES, array, keys, order_of, small, tables

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.row_words import pack, single


def packed_prefix(table, names):
    """A word per row in the order of some columns, and whether equal words mean equal rows."""
    packed = pack([single(table.column(name)) for name in names], table.num_rows)
    return packed.words, packed.rest is None


def check(table, names):
    words, exact = packed_prefix(table, names)
    assert words.dtype == np.uint64
    rows = keys(table, names)
    assert len(words) == len(rows)
    by_row = sorted(range(len(rows)), key=rows.__getitem__)
    for a, b in pairwise(by_row):
        if rows[a] == rows[b]:
            assert words[a] == words[b]
        else:
            assert words[a] < words[b] or (words[a] == words[b] and not exact)
    return words, exact


@given(tables(), SMALL)
def test_words_are_in_the_order_of_rows(table, how):
    with small(how):
        check(table, order_of(table))


@given(st.data(), st.sampled_from(list(TYPES)))
def test_words_of_one_column_are_in_the_order_of_its_values(data, kind):
    check(data.draw(tables(kinds=[kind], arity=0, max_columns=1)), ["c0"])


def one(values, kind):
    return pa.table({"c": array(values, kind)})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, -128, 0, 127], pa.int8()),
        ([-MAX - 1, -MAX, -1, 0, 1, MAX], pa.int64()),
        ([0, 1, 2 * MAX, 2 * MAX + 1], pa.uint64()),
        ([None, False, True], pa.bool_()),
        ([float("-inf"), -1.5, -5e-324, 0.0, 5e-324, 1.5, float("inf"), float("nan")], pa.float64()),
        ([None, float("-inf"), -1.5, 0.0, 1.5, float("inf"), float("nan")], pa.float32()),
        (["", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "b"], pa.string()),
        ([b"", b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\0", b"\xff\xff"], pa.binary()),
        ([LONG, LONG + "\0", LONG + "a", LONG + "a\0", LONG + "b"], pa.string()),
        (["0", "00", "1", "10", "100", "2", "99999999"], pa.string()),
    ],
)
def test_small_columns_are_exact_and_in_order(values, kind):
    words, exact = check(one(values, kind), ["c"])
    assert exact
    assert (words[1:] > words[:-1]).all()


def test_minus_zero_is_zero_and_every_nan_is_one():
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    table = pa.table({"c": pa.array([0.0, -0.0, float("nan"), *odd])})
    words, _ = packed_prefix(table, ["c"])
    assert words[0] == words[1]
    assert words[2] == words[3] == words[4] > words[0]


def test_a_column_with_nulls_over_the_whole_range_is_not_exact():
    table = one([None, -MAX - 1, MAX - 1, MAX], pa.int64())
    words, exact = check(table, ["c"])
    assert not exact
    assert words[0] < words[1] < words[2]


def test_columns_of_few_values_leave_room_for_the_ones_after_them():
    rows = 1000
    table = pa.table(
        {
            "a": pa.array(np.arange(rows) % 2 + (1 << 40)),
            "b": pa.array([f"country-{number % 7}" for number in range(rows)]),
            "c": pa.array(np.arange(rows) % 100),
            "d": pa.array(np.arange(rows)),
        }
    )
    words, exact = check(table, ["a", "b", "c", "d"])
    assert exact
    assert int(words.max()).bit_length() <= 1 + 3 + 7 + 10


def test_few_long_texts_take_few_bits_and_are_read_back():
    rows = 5000
    draw = np.random.default_rng(0)
    regions = ["Zürich", "Europe and the North", "asia", "", "south-america-and-more", "\U0001f600 moon"]
    region = pa.array([regions[place] for place in draw.integers(0, 6, rows)])
    nullable = pa.array([None if place == 0 else regions[place] for place in draw.integers(0, 6, rows)])
    table = pa.table({"a": region, "b": nullable, "c": pa.array(np.arange(rows)), "_diff": np.ones(rows, np.int64)})
    words, exact = check(table, ["a", "b", "c"])
    assert exact
    assert int(words.max()).bit_length() <= 3 + 4 + 13
    ordered = consolidate(table, ["a", "b", "c"])
    assert keys(ordered, ["a", "b", "c"]) == sorted(keys(table, ["a", "b", "c"]))


def test_digits_take_four_bits_each_and_constant_columns_none():
    values = [f"{number:014}" for number in range(0, 10**14, 2 * 10**10)]
    table = pa.table({"a": pa.array(["same"] * len(values)), "b": pa.array(values)})
    words, exact = check(table, ["a", "b"])
    assert exact
    assert int(words.max()).bit_length() <= 14 * 4


@given(st.data(), st.integers(1, 33), st.integers(0, 255))
def test_texts_of_any_alphabet_are_in_order(data, size, first):
    alphabet = [bytes((letter,)) for letter in range(first, min(first + size, 256))]
    values = data.draw(
        st.lists(st.lists(st.sampled_from(alphabet), max_size=12).map(b"".join), min_size=1, max_size=12)
    )
    edges = [alphabet[-1] * 8, alphabet[-1] * 9, alphabet[0] * 8, alphabet[0] * 3, b""]
    with small():
        check(one([*values, *edges[: data.draw(st.integers(0, 5))]], pa.binary()), ["c"])


def test_what_lies_under_a_null_does_not_count():
    numbers = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([7, 1, -MAX - 1]))])
    texts = pa.Array.from_buffers(
        pa.string(),
        3,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 4, 9], np.int32)), pa.py_buffer(b"foobwhale")],
    )
    assert numbers.to_pylist() == [None, 1, None]
    assert texts.to_pylist() == [None, "b", None]
    for column in (numbers, texts):
        words, exact = packed_prefix(pa.table({"c": column}), ["c"])
        assert exact
        assert words.tolist() == [0, 1, 0]


def test_text_at_the_very_end_of_its_buffer_is_read_safely():
    for count in range(20):
        data = bytes(range(65, 65 + count))
        offsets = np.arange(count + 1, dtype=np.int32)
        column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        check(pa.table({"c": column}), ["c"])


def test_no_columns_and_no_rows():
    assert packed_prefix(pa.table({"c": pa.array([1, 2])}), [])[0].tolist() == [0, 0]
    words, exact = packed_prefix(pa.table({"c": pa.array([], pa.string())}), ["c"])
    assert len(words) == 0
    assert exact


def test_large_offsets_are_read_too():
    values = [None, "", "a", "a\0", "b" * 40, "b" * 41]
    small_words, _ = check(one(values, pa.string()), ["c"])
    large_words, _ = check(one(values, pa.large_string()), ["c"])
    assert small_words.tolist() == large_words.tolist()
