"""Consolidation gives what the oracle gives, in order; advancing times changes nothing for later readers."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_cases import MAX, SMALL, TYPES, counted, keys, order_of, small, tables

from timespine.columnar.kernels import row_words as ordering
from timespine.columnar.kernels import take_rows
from timespine.columnar.kernels.comparable_words import absolute_words, shared_prefix
from timespine.columnar.kernels.consolidate import consolidate, consolidate_runs, consolidate_words
from timespine.columnar.scan.visibility import advance_times
from timespine.errors import CorruptionError, DiffOverflow, UsageError
from timespine.model import oracle
from timespine.model.frontier import Frontier, advance_by


def expected(table, order):
    """The oracle's answer, in order. Its time is taken to be 0: ours is one more column of the row."""
    netted = oracle.consolidate((row, (0,), diff) for row, diff in counted(table, order))
    return sorted((row, diff) for row, _, diff in netted)


def check(table, order):
    result = consolidate(table, order)
    assert result.schema.equals(table.schema, check_metadata=True)
    result.validate(full=True)
    assert counted(result, order) == expected(table, order)
    return result


@given(tables(), SMALL)
def test_consolidated_is_what_the_oracle_says_in_order(table, how):
    with small(how):
        check(table, order_of(table))


@given(st.data(), st.sampled_from(list(TYPES)))
def test_rows_of_every_type_are_consolidated(data, kind):
    with small(data.draw(SMALL)):
        table = data.draw(tables(kinds=[kind], max_columns=2, max_rows=40))
        check(table, order_of(table))


@given(st.data())
def test_columns_may_be_ordered_in_any_sequence(data):
    table = data.draw(tables())
    check(table, data.draw(st.permutations(order_of(table))))


@given(tables())
def test_consolidating_twice_gives_the_same_table_itself(table):
    once = consolidate(table, order_of(table))
    assert consolidate(once, order_of(table)) is once


EXTREME = st.one_of(st.integers(-MAX - 1, MAX), st.sampled_from([-MAX - 1, -MAX, MAX, MAX - 1, 1, -1]))


@given(tables(kinds=[pa.int8()], arity=0, max_columns=1, max_rows=12, diffs=EXTREME))
def test_a_sum_that_does_not_fit_is_refused_and_one_that_fits_is_exact(table):
    try:
        wanted = expected(table, ["c0"])
    except UsageError:
        with pytest.raises(DiffOverflow):
            consolidate(table, ["c0"])
    else:
        assert counted(consolidate(table, ["c0"]), ["c0"]) == wanted


@pytest.mark.parametrize(
    ("diffs", "total"),
    [
        ([MAX, 1, -1], MAX),
        ([-MAX - 1, MAX, 1], 0),
        ([MAX, MAX, -MAX, -MAX, 5], 5),
        ([-MAX, -1], -MAX - 1),
        ([MAX, 1], None),
        ([-MAX - 1, -1], None),
        ([1 << 62, 1 << 62], None),
        ([-(1 << 62), -(1 << 62)], -MAX - 1),
    ],
)
def test_sums_at_the_limits_of_64_bits(diffs, total):
    others = [3, 1, 2]
    table = pa.table({"k": ["a"] * len(diffs) + ["b", "c", "d"], "_diff": pa.array([*diffs, *others], pa.int64())})
    if total is None:
        with pytest.raises(DiffOverflow, match="a row add up"):
            consolidate(table, ["k"])
    else:
        found = dict(zip(*consolidate(table, ["k"]).to_pydict().values(), strict=True))
        assert found == {**({"a": total} if total else {}), "b": 3, "c": 1, "d": 2}


def random_table(rows, seed=0):
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "name": pa.array([f"customer-{number}" for number in draw.integers(0, rows // 3, rows)]),
            "wide": pa.array(draw.integers(-(1 << 62), 1 << 62, 50)[draw.integers(0, 50, rows)]),
            "maybe": pa.array(draw.integers(0, 2, rows), mask=draw.random(rows) < 0.5),
            "half": pa.array(draw.integers(0, 2, rows) / 2),
            "_time": pa.array(draw.integers(0, 2, rows)),
            "_diff": pa.array(draw.integers(-1, 2, rows)),
        }
    )


@pytest.mark.parametrize("rows", [70_000, 140_000])
def test_large_tables_take_the_same_way_in_blocks_and_threads(rows):
    table = random_table(rows)
    check(table, order_of(table))


def test_ties_of_many_long_texts_with_a_common_prefix_in_every_group():
    draw = np.random.default_rng(1)
    rows = 4000
    middles = ["m" * 40 + str(number) for number in range(5)]
    texts = [f"https://example.com/{middles[draw.integers(5)]}/{'z' * 50}{draw.integers(300)}" for _ in range(rows)]
    table = pa.table({"k": texts, "v": draw.integers(0, 2, rows), "_diff": draw.integers(-1, 2, rows)})
    check(table, ["k", "v"])
    check(table, ["v", "k"])


def test_nulls_among_values_of_all_64_bits_are_told_apart():
    draw = np.random.default_rng(6)
    rows = 3000
    wide = draw.integers(-MAX - 1, MAX, 40)
    wide[:2] = -MAX - 1, MAX
    columns = {name: pa.array(wide[draw.integers(0, 40, rows)], mask=draw.random(rows) < 0.3) for name in "abc"}
    table = pa.table({**columns, "_diff": draw.integers(-1, 2, rows)})
    check(table, ["a", "b", "c"])


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(38, 0)])
def test_a_few_tied_rows_without_nulls_are_told_apart_by_their_last_bits(kind):
    rows = 4000
    step = (MAX << 60 if pa.types.is_decimal(kind) else MAX) // rows
    wide = [step * number for number in range(-rows, rows, 2)]
    close = [place + more for place in range(0, 500, 50) for more in (3, 1, 2, 0, 1)]
    # SUBTLE: the only null is not tied, so that the tied rows have none, and need fewer digits than all rows do.
    values = [None, *wide, *close]
    table = pa.table({"a": [1] * len(values), "b": pa.array(values, kind), "_diff": [1] * len(values)})
    check(table, ["a", "b"])
    check(table, ["b", "a"])
    check(table.set_column(0, "a", pa.array([place % 3 for place in range(len(values))])), ["a", "b"])


def test_texts_that_differ_only_in_how_many_nul_bytes_they_end_with():
    draw = np.random.default_rng(7)
    pool = [prefix + "\0" * count for prefix in ("", "a", "bcdefghi", "\x7f" * 20) for count in range(25)]
    for rows in (300, 5000):
        texts = pa.array([pool[place] for place in draw.integers(0, len(pool), rows)])
        noise = pa.array(draw.integers(-MAX - 1, MAX, 5)[draw.integers(0, 5, rows)])
        table = pa.table({"n": noise, "k": texts, "v": draw.integers(0, 2, rows), "_diff": draw.integers(-1, 2, rows)})
        check(table, ["k", "n", "v"])
        check(table, ["n", "k", "v"])


def test_texts_that_are_equal_for_thousands_of_bytes_take_no_thousands_of_rounds():
    stems = ["A" * 5000, "B" * 5000]
    draw = np.random.default_rng(8)
    texts = [stems[draw.integers(2)] + str(draw.integers(50)) for _ in range(2500)]
    check(pa.table({"k": texts, "_diff": draw.integers(-1, 2, 2500)}), ["k"])


@pytest.mark.parametrize("spread", [1, 1000])
def test_a_key_with_nearly_all_the_rows(spread):
    draw = np.random.default_rng(2)
    rows = 20_000
    key = np.where(draw.random(rows) < 0.9, 7, draw.integers(0, spread, rows)) * (1 << 50)
    wide = draw.integers(0, 1 << 60, 3000)[draw.integers(0, 3000, rows)]
    table = pa.table(
        {"k": key, "v": wide, "_time": draw.integers(0, 1 << 60, rows) // 1000, "_diff": np.ones(rows, np.int64)}
    )
    check(table, ["k", "v", "_time"])


def test_a_sorted_table_without_ties_or_zeros_is_returned_as_it_is():
    table = pa.table({"k": ["a", "b", "c"], "_diff": [1, -1, 2]})
    assert consolidate(table, ["k"]) is table
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert consolidate(chunked, ["k"]) is chunked


def test_an_empty_table_is_returned_as_it_is():
    table = pa.table({"k": pa.array([], pa.string()), "_diff": pa.array([], pa.int64())})
    assert consolidate(table, ["k"]) is table


def test_without_columns_all_rows_are_one():
    table = pa.table({"_diff": [1, 2, -4]})
    assert consolidate(table, []).to_pydict() == {"_diff": [-1]}
    assert consolidate(pa.table({"_diff": [1, -1]}), []).num_rows == 0


def test_an_order_that_leaves_columns_out_is_refused():
    with pytest.raises(UsageError, match="1 columns and a diff are not the 3 columns"):
        consolidate(pa.table({"k": [1], "v": [2], "_diff": [1]}), ["k"])


@given(tables(max_rows=20))
def test_columns_too_large_for_their_offsets_are_cut_into_chunks(table):
    with mock.patch.object(ordering, "OFFSET_MAX", 64), mock.patch.object(take_rows, "OFFSET_MAX", 64):
        check(table, order_of(table))


def test_a_column_too_large_for_its_offsets_comes_in_several_chunks():
    rows = 300
    table = pa.table({"k": [f"{number * 7919 % rows:0100}" for number in range(rows)], "_diff": [1] * rows})
    table = pa.concat_tables([table.slice(0, 100), table.slice(100)])
    with mock.patch.object(ordering, "OFFSET_MAX", 10_000), mock.patch.object(take_rows, "OFFSET_MAX", 10_000):
        result = check(table, ["k"])
    assert result.column("k").num_chunks > 2
    assert result.column("k").type == pa.string()


def test_no_chunk_of_a_column_that_is_too_large_is_too_large():
    texts = [f"{number:03}" for number in range(300)] + ["z" * 1000 + str(number) for number in range(30)]
    table = pa.table({"k": texts, "_diff": [1] * len(texts)})
    table = pa.concat_tables([table.slice(100), table.slice(0, 100)])
    with mock.patch.object(ordering, "OFFSET_MAX", 10_000), mock.patch.object(take_rows, "OFFSET_MAX", 10_000):
        result = check(table, ["k"])
    assert max(chunk.nbytes for chunk in result.column("k").chunks) <= 10_000


def test_a_failure_in_the_second_thread_is_raised():
    class Broken(Exception):
        pass

    class Column:
        def take(self, index):
            if index[0].as_py() == 0:
                raise Broken
            return index

    with mock.patch.object(take_rows, "THREADED_ROWS", 2), pytest.raises(Broken):
        take_rows.take([Column()], np.arange(4))


def test_a_run_that_falls_is_corrupt_but_a_new_run_may_begin_lower():
    table = pa.table({"k": [1, 2, 1, 2], "v": [2, 1, 5, 4], "_diff": [1, 1, 1, 1]})
    with pytest.raises(CorruptionError):
        consolidate_runs(table, ["k", "v"], [0], 2)
    with pytest.raises(CorruptionError):
        consolidate_runs(table, ["k", "v"], [0, 1], 1)
    assert consolidate_runs(table, ["k", "v"], [0, 2], 2).column("v").to_pylist() == [2, 5, 1, 4]
    # Only the first columns count that the runs are said to be ascending in.
    within = pa.table({"k": [1, 1, 1], "v": [2, 1, 5], "_diff": [1, 1, 1]})
    assert consolidate_runs(within, ["k", "v"], [0], 1).column("v").to_pylist() == [1, 2, 5]
    assert consolidate_runs(within, ["k", "v"], [0], 0).column("v").to_pylist() == [1, 2, 5]
    with pytest.raises(CorruptionError):
        consolidate_runs(within, ["k", "v"], [0], 2)


def advance(table, since):
    """The table with its times advanced, as a merge does it."""
    names = [name for name in table.column_names if name.startswith("_time")]
    for name, times in zip(names, advance_times([table.column(name).to_numpy() for name in names], since), strict=True):
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(times))
    return table


ELEMENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)


@given(tables(kinds=[pa.int8(), pa.string()], arity=2), ELEMENTS)
@example(pa.table({"c0": [1], "_time_0": [0], "_time_1": [9], "_diff": [1]}), [(5, 1), (1, 5)])
def test_advanced_times_are_those_of_the_model(table, elements):
    since = Frontier(tuple(elements))
    result = advance(table, since)
    assert result.schema.equals(table.schema)
    times = zip(table.column("_time_0").to_pylist(), table.column("_time_1").to_pylist(), strict=True)
    found = zip(result.column("_time_0").to_pylist(), result.column("_time_1").to_pylist(), strict=True)
    assert list(found) == [advance_by(time, since) for time in times]
    assert result.drop_columns(["_time_0", "_time_1"]).equals(table.drop_columns(["_time_0", "_time_1"]))


@given(tables(kinds=[pa.int8()], arity=1, max_columns=1), st.integers(0, 4))
def test_advanced_and_consolidated_is_what_the_model_compacts(table, since):
    result = consolidate(advance(table, Frontier.at(since)), order_of(table))
    rows = keys(table, ["c0"])
    updates = [(row, (time,), diff) for row, time, diff in zip(rows, *collection_schema(table), strict=True)]
    found = [
        (row, (time,), diff) for row, time, diff in zip(keys(result, ["c0"]), *collection_schema(result), strict=True)
    ]
    assert found == sorted(oracle.compact(updates, Frontier.at(since)))


def collection_schema(table):
    return table.column("_time").to_pylist(), table.column("_diff").to_pylist()


def test_times_that_need_no_advancing_cost_nothing():
    times = np.array([5, 7])
    assert advance_times([times], Frontier.at(5))[0] is times
    assert advance_times([times], Frontier.at(6))[0].tolist() == [6, 7]


FLAT = [kind for kind in TYPES if not pa.types.is_nested(kind)]


@given(st.data(), SMALL)
def test_consolidated_by_known_words_is_what_the_oracle_says(data, how):
    table = data.draw(tables(kinds=FLAT))
    order = order_of(table)
    columns = [column.combine_chunks() for column in table.select(order).columns]
    prefix = 0
    if table.num_rows:
        ordered = sorted(range(table.num_rows), key=keys(table, order[:1]).__getitem__)
        prefix = data.draw(st.integers(0, shared_prefix(columns[0][ordered[0]], columns[0][ordered[-1]])))
    made = absolute_words(columns[0], prefix)
    with small(how):
        index, sums = consolidate_words(made.words, made.exact, columns, table.column("_diff").to_numpy())
    rows = keys(table, order)
    assert [(rows[row], diff) for row, diff in zip(index.tolist(), sums.tolist(), strict=True)] == expected(
        table, order
    )


@given(tables(kinds=[pa.int64(), pa.string()], diffs=st.sampled_from([1])), SMALL)
def test_rows_whose_words_are_all_different_are_only_sorted(table, how):
    order = order_of(table)
    columns = [column.combine_chunks() for column in table.select(order).columns]
    words = np.random.default_rng(0).permutation(table.num_rows).astype(np.uint64)
    with mock.patch("timespine.columnar.kernels.consolidate.break_ties", side_effect=AssertionError):
        index, sums = consolidate_words(words, False, columns, table.column("_diff").to_numpy())
    assert index.tolist() == np.argsort(words).tolist()
    assert sums.tolist() == [1] * table.num_rows
