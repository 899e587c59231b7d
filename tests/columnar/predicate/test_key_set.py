"""A set of keys finds exactly the rows that have one of them, and rules out only what has none."""

from __future__ import annotations

import datetime
import decimal
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import TYPES, array, key, keys
from run_cases import FLAT

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.part_stats import column_range
from timespine.columnar.predicate import key_set
from timespine.columnar.predicate.key_set import KeySet

some = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def key_tables(draw, kinds, names, max_size=6):
    pools = [draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=4)) for kind in kinds]
    rows = draw(st.lists(st.tuples(*[st.sampled_from(pool) for pool in pools]), max_size=max_size))
    others = draw(st.lists(st.tuples(*[st.sampled_from(pool) for pool in pools]), max_size=max_size))
    return tuple(
        pa.Table.from_arrays(
            [array([row[place] for row in some_rows], kind) for place, kind in enumerate(kinds)], names=list(names)
        )
        for some_rows in (rows, others)
    )


@some
@given(st.data(), st.lists(st.sampled_from(FLAT), min_size=1, max_size=3))
def test_members_are_the_rows_with_one_of_the_keys(data, kinds):
    names = ["#", "row", "row_#"][: len(kinds)]  # whatever is used inside, users may use too
    looked_for, table = data.draw(key_tables(kinds, names))
    found = KeySet(looked_for)
    wanted = set(keys(looked_for, names))
    assert found.mask(table).to_pylist() == [each in wanted for each in keys(table, names)]
    assert len(found) == len(wanted)
    assert sorted(found.encoded(tuple(names))) == sorted(
        {encode_row(looked_for, index, names) for index in range(looked_for.num_rows)}
    )


@some
@given(st.data(), st.lists(st.sampled_from(FLAT), min_size=1, max_size=2), st.sampled_from([1, 4, 100]))
def test_what_has_one_of_the_keys_is_never_ruled_out(data, kinds, bound_bytes):
    names = ["a", "b"][: len(kinds)]
    looked_for, table = data.draw(key_tables(kinds, names))
    found = KeySet(looked_for)
    ranges = {name: column_range(table.column(name), bound_bytes) for name in names} if table.num_rows else {}
    if not found.may_match(ranges):
        assert not any(found.mask(table).to_pylist())


def test_no_keys_match_nothing():
    for kind in (pa.int64(), pa.string()):
        nothing = KeySet(pa.table({"a": pa.array([], kind)}))
        table = pa.table({"a": array([None, *([1] if kind == pa.int64() else ["x"])], kind)})
        assert len(nothing) == 0
        assert nothing.mask(table).to_pylist() == [False, False]
        assert nothing.encoded(("a",)) == []
        valued = column_range(table.column("a").slice(1), 64)
        assert not nothing.may_match({"a": valued})


@pytest.mark.parametrize("number", [3, key_set.FEW, key_set.FEW + 1, 3 * key_set.FEW])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.float64(), pa.string()])
def test_many_keys_rule_out_what_lies_outside_of_them(number, kind):
    values = [f"{2 * n:06}" if kind == pa.string() else 2 * n for n in range(1, number + 1)]
    found = KeySet(pa.table({"a": pa.array(values, kind)}))

    def range_of(*these):
        given_values = [f"{n:06}" if kind == pa.string() else n for n in these]
        return {"a": column_range(pa.chunked_array([pa.array(given_values, kind)]), 64)}

    assert found.may_match(range_of(4))
    assert found.may_match(range_of(0, 10 * number))
    assert not found.may_match(range_of(0, 1))
    assert not found.may_match(range_of(2 * number + 1, 2 * number + 5))
    between = found.may_match(range_of(3))
    assert not between or number > key_set.FEW, "few keys are looked up one by one"
    if kind in (pa.int64(), pa.uint64()):
        assert not between, "of integers it is known what lies between"


def test_unknown_bounds_and_nulls_rule_out_nothing():
    found = KeySet(pa.table({"a": pa.array([5, None], pa.int64())}))
    assert found.may_match({})
    some_nulls = column_range(pa.chunked_array([pa.array([100, None], pa.int64())]), 64)
    assert found.may_match({"a": some_nulls})
    assert not found.may_match({"a": column_range(pa.chunked_array([pa.array([100], pa.int64())]), 64)})


def test_integers_at_the_ends_of_their_types_are_found():
    for kind, low, high in ((pa.int64(), -(1 << 63), (1 << 63) - 1), (pa.uint64(), 0, (1 << 64) - 1)):
        values = [low, low + 1, high - 1, high]
        for value in values:
            found = KeySet(pa.table({"a": pa.array([value], kind)}))
            column = pa.chunked_array([pa.array(values, kind)])
            assert found.mask(pa.table({"a": column})).to_pylist() == [each == value for each in values]
            assert found.may_match({"a": column_range(column, 64)})
            for other in values:
                alone = column_range(pa.chunked_array([pa.array([other], kind)]), 64)
                assert found.may_match({"a": alone}) or other != value


def test_large_unsigned_keys_near_each_other_are_told_apart():
    # Beyond 2^53, where a double would take them for one.
    values = [(1 << 63) + n for n in range(4)]
    found = KeySet(pa.table({"a": pa.array(values[1:2], pa.uint64())}))
    column = pa.chunked_array([pa.array(values, pa.uint64())])
    assert found.mask(pa.table({"a": column})).to_pylist() == [False, True, False, False]


def test_nan_null_and_zeros_are_keys_like_others():
    values = [math.nan, None, 0.0, 1.0]
    for value in values:
        found = KeySet(pa.table({"a": pa.array([value], pa.float64())}))
        table = pa.table({"a": pa.array(values, pa.float64())})
        assert found.mask(table).to_pylist() == [key(each) == key(value) for each in values]


def test_the_first_key_is_given_as_values_even_in_the_year_30000():
    late = 884_541_340_800_000_000_000 // 1000
    columns = {
        "when": pa.array([late], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "day": pa.array([10_000_000], pa.int32()).cast(pa.date32()),
        "name": pa.array(["x"]),
        "cost": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
    }
    first = KeySet(pa.table(columns)).first()
    assert first == {"when": late, "day": 10_000_000, "name": "x", "cost": decimal.Decimal("1.50")}
    today = KeySet(pa.table({"day": pa.array([datetime.date(1970, 1, 3)])})).first()
    assert today == {"day": 2}


@pytest.mark.parametrize(
    ("type", "make"),
    [
        (pa.int64(), lambda n: n * 3 - 2_000),
        (pa.uint64(), lambda n: (1 << 63) + n * 3),
        (pa.int64(), lambda n: (n * 0x9E3779B97F4A7C15) % (1 << 63)),
        (pa.string(), lambda n: f"key {n * 7919 % 10007}"),
        (pa.binary(), lambda n: (n * 7919 % 10007).to_bytes(4, "big")),
        (pa.timestamp("us"), lambda n: n * (1 << 45)),
        (pa.float64(), lambda n: float(n) if n % 5 else float("nan")),
    ],
)
@pytest.mark.parametrize("nulls", [False, True])
def test_many_keys_are_found_in_chunks_of_any_range(type, make, nulls):
    keys = pa.array([make(n) for n in range(0, 3000, 2)], type)
    rows = pa.array([make(n) for n in range(3000)], type)
    if nulls:
        keys, rows = pa.concat_arrays([keys, pa.array([None], type)]), pa.concat_arrays([rows, pa.array([None], type)])
    found = KeySet(pa.table({"k": keys}))
    wanted = set(map(repr, keys.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(type) else keys.to_pylist()))
    for start in range(0, len(rows), 700):
        chunk = rows.slice(start, 700)
        plain = chunk.cast(pa.int64()) if pa.types.is_timestamp(type) else chunk
        expected = [repr(value) in wanted for value in plain.to_pylist()]
        assert found.mask(pa.table({"k": chunk})).to_pylist() == expected
    assert found.mask(pa.table({"k": rows.slice(0, 0)})).to_pylist() == []


@settings(max_examples=100)
@given(st.lists(st.integers(-40, 40), min_size=1), st.lists(st.integers(-45, 45), max_size=6), st.booleans())
def test_a_search_in_an_ascending_column_finds_the_rows_of_a_mask(values, wanted, has_second):
    kinds = {"k": pa.array(wanted, pa.int64())} | ({"v": pa.array(wanted, pa.int64())} if has_second else {})
    keys = KeySet(pa.table(kinds))
    column = pa.chunked_array([pa.array(sorted(values * 8), pa.int64())])
    found = keys.ranges_in(column)
    if found is None:
        assert len(set(wanted)) > len(column) // 8
        return
    places = [place for start, stop in zip(*found, strict=True) for place in range(start, stop)]
    assert places == [place for place, value in enumerate(column.to_pylist()) if value in wanted]


def test_rows_are_not_searched_where_values_do_not_compare_or_keys_are_many():
    ascending = pa.chunked_array([pa.array(range(64), pa.int64())])
    assert KeySet(pa.table({"k": pa.array(range(9), pa.int64())})).ranges_in(ascending) is None
    assert KeySet(pa.table({"k": pa.array([1], pa.int32())})).ranges_in(ascending) is None
    assert KeySet(pa.table({"k": pa.array([None], pa.int64())})).ranges_in(ascending) is None
    assert KeySet(pa.table({"k": ["a"]})).ranges_in(pa.chunked_array([["a"] * 64])) is None
    with_null = pa.chunked_array([pa.array([None, *range(64)], pa.int64())])
    assert KeySet(pa.table({"k": pa.array([1], pa.int64())})).ranges_in(with_null) is None
