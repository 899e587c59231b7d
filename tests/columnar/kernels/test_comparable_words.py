"""Absolute words order and equal values as rows are ordered; comparing rows pair by pair does the same."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import LONG, TYPES, array, key

from timespine.columnar.kernels.comparable_words import Key, Probes, absolute_words, compare, shared_prefix
from timespine.errors import UsageError

FLAT = [kind for kind in TYPES if not pa.types.is_nested(kind)]
TEXTS = [pa.string(), pa.binary()]


def plain(column):
    """The sort keys of a column."""
    values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return [key(value) for value in values.to_pylist()]


def sign(left, right):
    return (left > right) - (left < right)


@st.composite
def flat_columns(draw, kind, min_size=1, max_size=12):
    return array(draw(st.lists(st.none() | TYPES[kind], min_size=min_size, max_size=max_size)), kind)


@given(st.data(), st.sampled_from(FLAT))
def test_words_of_any_two_tables_compare_as_their_values_do(data, kind):
    ours, theirs = data.draw(flat_columns(kind)), data.draw(flat_columns(kind))
    left, right = absolute_words(ours, 0), absolute_words(theirs, 0)
    for value, word in zip(plain(ours), left.words.tolist(), strict=True):
        for other, other_word in zip(plain(theirs), right.words.tolist(), strict=True):
            if word < other_word:
                assert value < other
            if left.exact and right.exact and word == other_word:
                assert value == other


@given(st.data(), st.sampled_from(TEXTS))
def test_words_behind_a_shared_prefix_compare_too(data, kind):
    shared = data.draw(st.sampled_from(["", "a", "\0", "eight by", LONG]))
    tails = data.draw(st.lists(TYPES[pa.string()], min_size=1, max_size=8))
    values = [shared + tail for tail in tails]
    column = pa.array(values, pa.string()).cast(kind)
    prefix = data.draw(st.integers(0, len(shared)))
    made = absolute_words(column, prefix)
    ordered = sorted(zip(made.words.tolist(), plain(column), strict=True))
    assert [value for _, value in ordered] == sorted(plain(column))
    if made.exact:
        assert len(set(made.words.tolist())) == len(set(values))


@given(st.data(), st.sampled_from(FLAT))
def test_the_word_of_one_key_is_that_of_its_column(data, kind):
    column = data.draw(flat_columns(kind))
    prefix = data.draw(st.integers(0, 3)) if kind in TEXTS else 0
    for row in range(len(column)):
        alone = absolute_words(column.slice(row, 1), prefix)
        made = Key.at([column], row)
        assert made.word(prefix) == (int(alone.words[0]), alone.exact)
        scalar = column[row]
        assert Key.of([scalar], [kind]).word(prefix) == made.word(prefix)
        assert Key.of([scalar], [kind]).encoded == made.encoded


def test_a_key_of_python_values_is_that_of_the_arrow_values():
    for value, kind in (
        (-3, pa.int64()),
        (7, pa.uint64()),
        ("né\0", pa.string()),
        (b"\xff", pa.binary()),
        (1, pa.float64()),
    ):
        assert Key.of([value], [kind]).word(0) == Key.at([pa.array([value], kind)], 0).word(0)
    assert Key.of([None], [pa.string()]).word(0) == (0, False)
    with pytest.raises(UsageError):
        Key.of(["seven"], [pa.int64()])


@given(st.data(), st.sampled_from(FLAT))
def test_the_shared_prefix_is_that_of_all_rows_in_between(data, kind):
    column = data.draw(flat_columns(kind))
    order = sorted(range(len(column)), key=plain(column).__getitem__)
    column = column.take(pa.array(order))
    prefix = shared_prefix(column[0], column[len(column) - 1])
    texts = {value.as_buffer().to_pybytes()[:prefix] if prefix else b"" for value in column}
    assert len(texts) == 1
    assert prefix == 0 or kind in TEXTS


@given(st.data())
def test_rows_are_compared_pair_by_pair_in_the_order_of_rows(data):
    kinds = data.draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=3))
    rows = data.draw(st.integers(1, 12))
    left = [data.draw(flat_columns(kind, rows, rows)) for kind in kinds]
    right = [data.draw(flat_columns(kind, rows, rows)) for kind in kinds]
    ours, theirs = (list(zip(*map(plain, side), strict=True)) for side in (left, right))
    expected = [sign(one, other) for one, other in zip(ours, theirs, strict=True)]
    assert compare(left, right).tolist() == expected


def test_a_nested_column_has_no_words():
    with pytest.raises(UsageError, match="arranged"):
        absolute_words(pa.array([{"a": 1}], pa.struct([("a", pa.int64())])), 0)


def test_probes_make_words_once_per_prefix():
    probes = Probes([pa.array(["aab", "aac"])])
    assert probes.words(2) is probes.words(2)
    assert probes.words(2).words.tolist() != probes.words(0).words.tolist()
    assert probes.slice(1, 2).key(0).encoded == probes.key(1).encoded
