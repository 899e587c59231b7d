"""A filter of keys never says no to one of them, whatever its type, and seldom yes to others."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.columnar.predicate.changed_keys_bloom_filter import KeyFilter, digests, filter_of
from timespine.columnar.schema.schema import define

NAN = float("nan")
DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
COLUMNS = {
    "int64": pa.array([-(1 << 63), (1 << 63) - 1, 0, None, -1], pa.int64()),
    "uint64": pa.array([(1 << 64) - 1, 0, 1, None, 7], pa.uint64()),
    "int8": pa.array([-128, 127, 0, None, 1], pa.int8()),
    "bool": pa.array([True, False, None, True, False]),
    "double": pa.array([0.5, NAN, None, 1e300, -1.0]),
    "float": pa.array([0.5, NAN, None, 1e30, -1.0], pa.float32()),
    "string": pa.array(["", "a", None, "ä" * 300, "b"]),
    "large string": pa.array(["", "a", None, "ä" * 300, "b"], pa.large_string()),
    "binary": pa.array([b"", b"\x00", None, b"\x00\x00", b"x"]),
    "decimal": pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("-3.10"), decimal.Decimal(0), None]),
    "date": pa.array([DAY, None, datetime.date(1970, 1, 1), DAY, datetime.date(1, 1, 1)]),
    "timestamp": pa.array([NOON, None, NOON, None, NOON], pa.timestamp("us", "UTC")),
}


def mask(keys: pa.Table, rows: pa.Table) -> list[bool]:
    found: list[bool] = KeyFilter(tuple(keys.column_names), [filter_of(keys)]).mask(rows).to_pylist()
    return found


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_of_every_type_are_found_in_any_piece_and_chunk(name: str) -> None:
    table = pa.table({"k": COLUMNS[name], "other": range(5)})
    keys = table.select(["k"])
    chunked = pa.concat_tables([keys.slice(0, 2), keys.slice(2, 0), keys.slice(2)])
    assert mask(keys, table) == mask(chunked, table) == [True] * 5
    assert mask(keys.slice(1, 3), table)[1:4] == [True] * 3
    assert (digests(chunked) == digests(keys)).all()
    assert (digests(keys.slice(1, 3)) == digests(keys)[1:4]).all()
    assert digests(keys.slice(0, 0)).tolist() == []


@pytest.mark.parametrize("name", COLUMNS)
def test_values_that_differ_are_told_apart(name: str) -> None:
    distinct = set(map(repr, COLUMNS[name].to_pylist()))
    assert len(set(digests(pa.table({"k": COLUMNS[name]})).tolist())) == len(distinct)


def test_zeros_of_either_sign_and_all_that_is_no_number_are_the_same_key() -> None:
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    left, right = (pa.table({"k": pa.array(values)}) for values in ([0.0, NAN], [-0.0, float(other_nan)]))
    assert (digests(left) == digests(right)).all()


def test_keys_of_several_columns_are_one_key_each() -> None:
    keys = pa.table({"a": [1, 2], "b": ["x", "y"]})
    rows = pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"]})
    assert mask(keys, rows) == [True, False, False, True]


def test_others_are_seldom_taken_for_one_of_them() -> None:
    count = 50_000
    for make in (np.arange, lambda *ends: [f"user-{number}" for number in range(*ends)]):
        keys, others = pa.table({"k": make(0, count)}), pa.table({"k": make(count, 2 * count)})
        assert all(mask(keys, keys))
        assert sum(mask(keys, others)) < count / 80


def test_several_filters_hold_what_one_of_them_holds_and_none_holds_nothing() -> None:
    left, right, rows = (pa.table({"k": list(numbers)}) for numbers in (range(10), range(50, 60), range(100)))
    both = KeyFilter(("k",), [filter_of(left), filter_of(right)]).mask(rows).to_pylist()
    assert all(both[:10])
    assert all(both[50:60])
    assert KeyFilter(("k",), []).mask(rows).to_pylist() == [False] * 100
    assert not any(mask(left.slice(0, 0), rows))


def test_it_is_a_condition_that_skips_nothing() -> None:
    condition = KeyFilter(("k",), [])
    condition.check(define({"k": "int64"}, None, (), 1))
    assert condition.columns == ("k",)
    assert condition.may_match({}, {}, 1)


@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), max_size=20), st.data())
def test_any_texts_are_found(texts: list[str | None], data: st.DataObject) -> None:
    table = pa.table({"k": pa.array(texts, pa.string())})
    start = data.draw(st.integers(0, len(texts)))
    assert all(mask(table.slice(start), table)[start:])
