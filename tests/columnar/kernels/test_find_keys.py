"""What a search by words finds is what a walk over all rows finds: for one key, for many, and for places between."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import LONG, TYPES, array, keys

from timespine.columnar.kernels import find_keys
from timespine.columnar.kernels.comparable_words import Key, Probes
from timespine.columnar.kernels.find_keys import WordIndex, locate, locate_key, rows_before

FLAT = [kind for kind in TYPES if not pa.types.is_nested(kind)]


@st.composite
def cases(draw, kinds=None):
    """A sorted table, and keys of its leading columns, some of which it has; all types, many ties."""
    kinds = kinds or draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=3))
    pools = [draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=5)) for kind in kinds]
    if draw(st.booleans()):
        pools = [
            [LONG + value if isinstance(value, str) else value for value in pool if value is not None] or [None]
            for pool in pools
        ]
    rows = draw(st.lists(st.tuples(*map(st.sampled_from, pools)), min_size=1, max_size=24))
    depth = draw(st.integers(1, len(kinds)))
    others = [st.sampled_from(pool) | st.none() | TYPES[kind] for pool, kind in zip(pools, kinds, strict=True)]
    wanted = draw(st.lists(st.tuples(*others[:depth]), min_size=1, max_size=12))
    return _sorted(rows, kinds), _sorted(wanted, kinds[:depth], distinct=True)


def _sorted(rows, kinds, distinct=False):
    table = pa.table([array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)], names=names(kinds))
    plain = keys(table, names(kinds))
    order = sorted(range(len(rows)), key=plain.__getitem__)
    if distinct:
        order = [row for n, row in enumerate(order) if n == 0 or plain[row] != plain[order[n - 1]]]
    return table.take(pa.array(order))


def names(kinds):
    return [f"k{number}" for number in range(len(kinds))]


def arrays(table):
    return [column.combine_chunks() for column in table.columns]


def found(index, key):
    return locate_key(index, key) if index.covers(key) else (0, 0)


def expected(table, wanted):
    """For every key the range of rows that begin with it, and the number of rows before it."""
    depth = wanted.num_columns
    rows = [row[:depth] for row in keys(table, table.column_names)]
    for key in keys(wanted, wanted.column_names):
        before = sum(row < key for row in rows)
        yield before, before + rows.count(key)


@given(cases(), st.sampled_from([1, 16]), st.sampled_from([0, 4]))
def test_many_keys_find_exactly_their_rows(case, keys_per_run, few_rows):
    table, wanted = case
    with mock.patch.object(find_keys, "KEYS_PER_RUN", keys_per_run), mock.patch.object(find_keys, "FEW_ROWS", few_rows):
        located = locate(WordIndex.of(arrays(table)), Probes(arrays(wanted)))
    places = {int(key): (int(low), int(high)) for key, low, high in zip(*located, strict=True)}
    assert places == {number: place for number, place in enumerate(expected(table, wanted)) if place[0] < place[1]}
    assert (np.diff(located.keys) > 0).all()


@given(cases())
def test_one_key_finds_exactly_its_rows_and_its_place(case):
    table, wanted = case
    index, probes = WordIndex.of(arrays(table)), arrays(wanted)
    for number, (before, until) in enumerate(expected(table, wanted)):
        key = Key.at(probes, number)
        assert found(index, key) == ((before, until) if before < until else (0, 0))
        assert rows_before(index, key, inclusive=False) == before
        assert rows_before(index, key, inclusive=True) == until


@given(cases(kinds=[pa.int64(), pa.string(), pa.int8()]))
def test_composite_keys_are_narrowed_by_runs_of_equal_words(case):
    table, wanted = case
    with mock.patch.object(find_keys, "KEYS_PER_RUN", 0):
        located = locate(WordIndex.of(arrays(table)), Probes(arrays(wanted)))
    ranges = [place for place in expected(table, wanted) if place[0] < place[1]]
    assert list(zip(located.lower.tolist(), located.upper.tolist(), strict=True)) == ranges


def test_a_text_outside_of_the_table_is_not_found():
    # Behind the prefix that all rows share, these probes have the words of rows.
    index = WordIndex.of([pa.array([LONG + "a", LONG + "b"])])
    liars = pa.array(sorted(["x" * len(LONG) + "a", "a" * len(LONG) + "b"]))
    assert len(locate(index, Probes([liars])).keys) == 0
    assert found(index, Key.of(["x" * len(LONG) + "a"], [pa.string()])) == (0, 0)


def test_a_text_that_ends_in_nul_is_not_its_shorter_neighbour():
    index = WordIndex.of([pa.array(["a", "b"])])
    assert index.exact
    assert len(locate(index, Probes([pa.array(["a\0", "b\0"])])).keys) == 0
    assert found(index, Key.of(["a\0"], [pa.string()])) == (0, 0)


def test_null_is_not_the_smallest_integer():
    least = -(1 << 63)
    index = WordIndex.of([pa.array([least, 0])])
    assert len(locate(index, Probes([pa.array([None], pa.int64())])).keys) == 0
    both = WordIndex.of([pa.array([None, least])])
    assert found(both, Key.of([least], [pa.int64()])) == (1, 2)
    assert locate(both, Probes([pa.array([None, least], pa.int64())])).lower.tolist() == [0, 1]
