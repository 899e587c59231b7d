"""Rows that wait to become a part: where they are cut, and what is checked of them."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from building import SCHEMA, at, table_of, up, updates_of
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.schema.schema import define
from timespine.columnar.write import update_buffer as buffers
from timespine.columnar.write import update_checks
from timespine.columnar.write.update_buffer import OVER, Buffer
from timespine.columnar.write.update_checks import MaxTimes, check_not_before, is_ascending
from timespine.errors import UsageError
from timespine.model import CLOSED, Frontier
from timespine.testing import strategies as ts

# Cutting.


@given(st.lists(st.lists(st.integers(0, 60), max_size=8), max_size=8), st.sampled_from([1, 60, 200, 1000]))
@settings(max_examples=80)
def test_rows_leave_in_the_order_they_came_and_in_pieces_that_fit(sizes, limit) -> None:
    buffer = Buffer(limit)
    added, full = [], []
    for lengths in sizes:
        updates = [up(len(added) + place, 0, v="x" * length) for place, length in enumerate(lengths)]
        added += updates
        full += buffer.push(table_of(updates))
    assert all(table.num_rows == 1 or table.nbytes <= limit for table in full)
    assert buffer.rows == len(added) - sum(table.num_rows for table in full)
    rest = [buffer.drain()] if buffer.rows else []
    assert [update for table in [*full, *rest] for update in updates_of(table)] == added
    assert all(table.num_rows for table in full)
    assert all(table.nbytes < limit + max(limit // OVER, 1) for table in rest), "what is left does not fill a part"
    assert buffer.rows == 0


def test_a_piece_is_as_large_as_it_may_be() -> None:
    table = table_of([up(k, 0) for k in range(100)])
    limit = table.slice(0, 10).nbytes
    buffer = Buffer(limit)
    assert [each.num_rows for each in buffer.push(table)] == [10] * 9
    assert buffer.drain().num_rows == 10


def test_a_little_more_than_a_piece_is_not_cut() -> None:
    table = table_of([up(k, 0) for k in range(1000)])
    limit = table.slice(0, 980).nbytes
    buffer = Buffer(limit)
    assert buffer.push(table) == [], "what is left of a cut would be tiny"
    assert buffer.drain().num_rows == 1000


def test_very_many_small_tables_are_joined(monkeypatch) -> None:
    monkeypatch.setattr(buffers, "LOOSE_MAX", 4)
    buffer = Buffer(1 << 30)
    for k in range(10):
        assert buffer.push(table_of([up(k, 0)])) == []
    assert len(buffer._gathered) == 2
    assert len(buffer._loose) == 2
    assert updates_of(buffer.drain()) == [up(k, 0) for k in range(10)]


# Times.


def times_array(times, arity):
    return np.array(times, dtype=np.int64).reshape(-1, arity)


@given(st.integers(1, 3).flatmap(lambda arity: st.tuples(ts.frontiers(arity), st.lists(st.lists(ts.times(arity))))))
def test_some_update_is_past_an_upper_iff_a_latest_one_is(drawn) -> None:
    upper, tables = drawn
    arity = upper.arity or len(next((time for times in tables for time in times), (0,)))
    latest = MaxTimes(arity)
    for times in tables:
        latest.see(times_array(times, arity))
    if any(upper.less_equal(time) for times in tables for time in times):
        with pytest.raises(UsageError, match="not before the upper"):
            latest.check_before(upper)
    else:
        latest.check_before(upper)


@given(st.lists(ts.times(2), min_size=1, max_size=40))
def test_only_maximal_times_are_kept(times) -> None:
    latest = MaxTimes(2)
    latest.see(times_array(times, 2))
    kept = {tuple(time) for time in latest._times.tolist()}
    expected = {t for t in times if not any(t != u and all(a <= b for a, b in zip(t, u, strict=True)) for u in times)}
    assert kept == expected


def test_very_many_maximal_times_are_kept_as_they_are() -> None:
    number = update_checks.ROUNDS_MAX * 3
    latest = MaxTimes(2)
    for start in range(0, number, 7):
        latest.see(times_array([(t, number - t) for t in range(start, min(start + 7, number))], 2))
    latest.check_before(at(number, number))
    for t in (0, 1, number // 2, number - 1):
        with pytest.raises(UsageError, match=rf"\({t}, {number - t}\)"):
            latest.check_before(at(t, number - t))
        latest.check_before(at(t, number - t + 1))


@given(st.integers(1, 3).flatmap(lambda arity: st.tuples(ts.frontiers(arity), st.lists(ts.times(arity), min_size=1))))
def test_times_are_compared_with_the_lower_as_the_model_does(drawn) -> None:
    lower, times = drawn
    arity = len(times[0])
    if all(lower.less_equal(time) for time in times):
        check_not_before(times_array(times, arity), lower)
    else:
        with pytest.raises(UsageError, match=f"of {len(times)} updates"):
            check_not_before(times_array(times, arity), lower)


def test_the_largest_times_are_compared_exactly() -> None:
    most = (1 << 63) - 1
    latest = MaxTimes(1)
    latest.see(times_array([(most - 1,)], 1))
    latest.check_before(at(most))
    latest.check_before(CLOSED)
    check_not_before(times_array([(most,)], 1), at(most))
    with pytest.raises(UsageError):
        check_not_before(times_array([(most - 1,)], 1), at(most))
    latest.see(times_array([(most,)], 1))
    with pytest.raises(UsageError, match=str(most)):
        latest.check_before(Frontier(((most,),)))


# Order.

VALUES = {
    "bool": st.booleans(),
    "int8": st.integers(-2, 2),
    "uint64": st.sampled_from([0, 1, (1 << 64) - 1]),
    "float32": st.sampled_from([-1.0, 0.0, 2.5, float("inf"), float("nan")]),
    "float64": st.sampled_from([float("-inf"), -1.0, 0.0, 2.5, float("nan")]),
    "decimal(38,2)": st.sampled_from([decimal.Decimal("-1.50"), decimal.Decimal(0), decimal.Decimal("9" * 36)]),
    "string": st.sampled_from(["", "a", "a\0", "b", "ab", "\u00e9", "\U0001f600", "\uffff"]),
    "binary": st.sampled_from([b"", b"\0", b"\xff", b"a"]),
    "date": st.sampled_from([datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 1, 1)]),
    "timestamp": st.sampled_from([datetime.datetime(1960, 1, 1), datetime.datetime(2020, 1, 1)]),
    "timestamp[Europe/Berlin]": st.sampled_from(
        [datetime.datetime(2020, 1, day, tzinfo=datetime.UTC) for day in (1, 2)]
    ),
    "list<int64>": st.lists(st.none() | st.integers(0, 2), max_size=2),
    "struct<a:int64,b:string>": st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 1), "b": st.none() | st.sampled_from(["", "x"])}
    ),
}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    schema = define(None, {f"c{place}": kind for place, kind in enumerate(kinds)})
    rows = draw(st.integers(1, 12))
    arrays = []
    for kind, field in zip(kinds, schema.update_arrow, strict=False):
        values = draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows))
        arrays.append(pa.array(values, field.type))
    arrays.append(pa.array(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)), pa.int64()))
    arrays.append(pa.array([1] * rows, pa.int64()))
    return (*schema.order_names, "_time"), pa.Table.from_arrays(arrays, schema=schema.update_arrow)


@given(tables(), st.booleans())
@settings(max_examples=150)
def test_a_table_is_ascending_iff_consolidation_leaves_it_alone(drawn, prepare) -> None:
    order, table = drawn
    if prepare:
        table = consolidate(table, order)
        assert is_ascending(table, order)
    assert is_ascending(table, order) == (consolidate(table, order) is table)
    if table.num_rows > 1:
        swapped = table.take([1, 0, *range(2, table.num_rows)])
        twice = table.take([0, 0, *range(1, table.num_rows)])
        assert not is_ascending(twice, order)
        if is_ascending(table, order):
            assert not is_ascending(swapped, order)


def test_the_order_is_that_of_the_schema_not_of_the_columns() -> None:
    schema = define({"k": "int64"}, {"v": "int64"}, cluster=["v"])
    rows = [((9, 1), (0,), 1), ((1, 2), (0,), 1)]
    assert is_ascending(table_of(rows, schema), (*schema.order_names, "_time"))
    assert not is_ascending(table_of(rows, SCHEMA.drop("v").add("v", "int64")), ("k", "v", "_time"))
