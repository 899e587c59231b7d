"""Merged runs are what consolidating everything at once gives, within a bound of memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import LONG, MAX, SMALL, ascending_runs, counted, keys, order_of, small, tables

from timespine.columnar.kernels import consolidate_shared_keys
from timespine.columnar.kernels import kway_merge as module
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.kway_merge import kway_merge
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, DiffOverflow, UsageError


def chunks(table, sizes):
    """A run in chunks of the given sizes, over and over; empty ones too."""
    at, number = 0, 0
    while at < table.num_rows:
        size = sizes[number % len(sizes)]
        yield table.slice(at, size)
        at, number = at + size, number + 1


def even(table, rows):
    return chunks(table, [rows])


def check(outputs, table, order, cut=None):
    """Ascending across all tables, no row twice, no group in two tables, and the right sums."""
    assert all(output.num_rows for output in outputs)
    found = [row for output in outputs for row in counted(output, order)]
    assert found == counted(consolidate(table, order), order)
    groups = [set(keys(output, order if cut is None else cut)) for output in outputs]
    assert sum(map(len, groups)) == len(set().union(*groups))


SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)


@given(st.data(), tables(max_rows=25), st.integers(1, 4), st.sampled_from([1, 200, 2000, 1 << 20]), SMALL)
def test_merged_runs_are_what_consolidating_everything_gives(data, table, count, chunk_bytes, how):
    order = order_of(table)
    cut = data.draw(st.none() | st.integers(0, len(order)).map(lambda columns: order[:columns]))
    runs = ascending_runs(table, order if cut is None else cut, count, data.draw(st.integers(0, 1 << 20)))
    with small(how):
        cut_up = [chunks(run, data.draw(SIZES)) for run in runs]
        outputs = list(kway_merge(cut_up, order, cut, chunk_bytes=chunk_bytes))
    check(outputs, table, order, cut)


@given(st.data(), tables(max_rows=40), st.integers(1, 3), st.sampled_from([1, 200, 2000, 1 << 20]), SMALL)
def test_without_an_order_the_rows_are_the_same_and_each_table_is_ascending(data, table, count, chunk_bytes, how):
    order = order_of(table)
    cut = order[: data.draw(st.integers(1, len(order)))]
    runs = ascending_runs(table, cut, count, data.draw(st.integers(0, 1 << 20)))
    with small(how):
        cut_up = [chunks(run, data.draw(SIZES)) for run in runs]
        apart = data.draw(st.integers(1, len(cut)))
        rows = data.draw(st.sampled_from([0, DEFAULT.any_order_rows]))
        outputs = list(kway_merge(cut_up, order, cut, chunk_bytes=chunk_bytes, apart=apart, any_order_rows=rows))
    assert all(counted(output, order) == counted(consolidate(output, order), order) for output in outputs)
    check([consolidate(pa.concat_tables(outputs), order)] if outputs else [], table, order)
    assert sum(output.num_rows for output in outputs) == consolidate(table, order).num_rows


def test_rows_that_nothing_touches_are_neither_sorted_nor_compared(monkeypatch):
    seen = []
    original = consolidate_shared_keys.consolidate_inputs

    def spied(inputs, *rest):
        seen.extend(row for tables in inputs for table in tables for row in table["k"].to_pylist())
        return original(inputs, *rest)

    monkeypatch.setattr(consolidate_shared_keys, "consolidate_inputs", spied)
    base = numbers(range(1000), v=["old"] * 1000)
    update = numbers([7, 7, 500, 500, 2000], v=["new", "old", "new", "old", "new"])
    update = update.set_column(2, "_diff", pa.array([1, -1, 1, -1, 1]))
    inputs = [iter([base]), iter([update])]
    alone, few = kway_merge(inputs, ["k", "v"], chunk_bytes=1 << 20, apart=1, any_order_rows=1000)
    assert sorted(seen) == [7] * 3 + [500] * 3 + [2000]
    assert alone.num_rows == 998
    assert few.to_pydict() == {"k": [7, 500, 2000], "v": ["new"] * 3, "_diff": [1, 1, 1]}


def test_a_few_rows_come_in_order_too():
    base, update = numbers(range(1000)), numbers([7, 500, 2000])
    (only,) = kway_merge([iter([base]), iter([update])], ["k"], chunk_bytes=1 << 20, apart=1)
    assert only.column("k").to_pylist() == [*range(1000), 2000]


def test_a_run_by_itself_passes_as_it_is_if_no_key_is_there_twice():
    base = numbers(range(1000))
    (only,) = kway_merge([iter([base])], ["k"], chunk_bytes=1 << 20, apart=1, any_order_rows=1000)
    assert only.column("k").chunk(0).buffers()[1].address == base.column("k").chunk(0).buffers()[1].address
    gone = iter([numbers(range(1000), diff=0)])
    assert list(kway_merge([gone], ["k"], chunk_bytes=1 << 20, apart=1, any_order_rows=1000)) == []


EXTREME = st.sampled_from([-MAX - 1, -MAX, -(1 << 62), -1, 1, 1 << 62, MAX])


@given(tables(kinds=[pa.bool_()], max_columns=1, arity=0, max_rows=12, diffs=EXTREME), st.integers(1, 3), SIZES)
def test_only_the_sum_of_all_diffs_of_a_row_must_fit(table, count, sizes):
    runs = ascending_runs(table, ["c0"], count)
    merged = kway_merge([chunks(run, sizes) for run in runs], ["c0"], chunk_bytes=1)
    try:
        wanted = consolidate(table, ["c0"])
    except DiffOverflow:
        with pytest.raises(DiffOverflow):
            list(merged)
    else:
        assert [row for output in merged for row in counted(output, ["c0"])] == counted(wanted, ["c0"])


def numbers(values, diff=1, **more):
    values = np.asarray(values, dtype=np.int64)
    return pa.table({"k": values, **more, "_diff": np.full(len(values), diff)})


def test_no_runs_and_empty_runs():
    assert list(kway_merge([], ["k"], chunk_bytes=1000)) == []
    empty = numbers([])
    assert list(kway_merge([iter([]), iter([empty]), iter([empty, empty])], ["k"], chunk_bytes=1000)) == []
    (only,) = kway_merge([iter([empty, numbers([1]), empty]), iter([])], ["k"], chunk_bytes=1000)
    assert only.to_pydict() == {"k": [1], "_diff": [1]}


def test_a_single_run_is_consolidated_across_its_chunks():
    run = numbers([1, 2, 2, 2, 3, 3, 4])
    outputs = list(kway_merge([even(run, 2)], ["k"], chunk_bytes=1))
    check(outputs, run, ["k"])


def test_runs_that_do_not_meet_pass_through_without_a_copy(monkeypatch):
    monkeypatch.setattr(module, "_ALONE_ROWS", 2)
    first, second = numbers(range(100)), numbers(range(100, 200))
    pieces = [list(even(first, 10)), list(even(second, 10))]
    outputs = list(kway_merge([iter(pieces[0]), iter(pieces[1])], ["k"], chunk_bytes=1 << 20))
    given_in = {table.column("k").chunk(0).buffers()[1].address for run in pieces for table in run}
    assert [output.num_rows for output in outputs] == [10] * 20
    assert all(output.column("k").chunk(0).buffers()[1].address in given_in for output in outputs)


def test_a_table_that_reaches_beyond_what_is_loaded_of_another_run_does_not_pass_alone(monkeypatch):
    monkeypatch.setattr(module, "_ALONE_ROWS", 2)
    for other in ([[50, 60], [70]], [[100], [100, 101]], [[1], [2], [3]]):
        runs = [[numbers([0, 50, 100])], [numbers(each) for each in other]]
        outputs = list(kway_merge([iter(run) for run in runs], ["k"], chunk_bytes=1))
        check(outputs, pa.concat_tables([*runs[0], *runs[1]]), ["k"])


def test_a_row_that_cancels_at_a_cut_and_comes_back_is_summed_right():
    run = pa.table({"k": [1, 1, 1, 1, 1], "_diff": [1, -1, 1, 1, -1]})
    (only,) = kway_merge([even(run, 1)], ["k"], chunk_bytes=1)
    assert only.to_pydict() == {"k": [1], "_diff": [1]}


class Watched:
    """A run that counts the rows handed out and not yet given back merged."""

    def __init__(self, table, rows):
        self.tables = even(table, rows)
        self.rows = 0

    def __iter__(self):
        return self

    def __next__(self):
        table = next(self.tables)
        self.rows += table.num_rows
        return table


SKEWS = {
    "even": lambda draw, rows: draw.integers(0, 1 << 40, rows),
    "one key": lambda draw, rows: np.zeros(rows, np.int64),
    "one key among many": lambda draw, rows: np.where(draw.random(rows) < 0.8, 500, draw.integers(0, 1000, rows)),
    "few": lambda draw, rows: draw.integers(0, 3, rows),
}


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("column", ["k", "_time", "text"])
def test_no_more_is_loaded_than_the_bound_allows_whatever_the_skew(skew, column):
    draw = np.random.default_rng(3)
    rows, chunk, chunk_bytes = 6000, 100, 80_000
    plain = {
        "k": np.zeros(rows, np.int64),
        "text": np.full(rows, LONG).astype(object),
        "_time": np.zeros(rows, np.int64),
    }
    values = np.sort(SKEWS[skew](draw, rows))
    runs = []
    for number in range(3):
        dealt = values[number::3]
        part = {name: pa.array(column_[number::3]) for name, column_ in plain.items()}
        part[column] = pa.array([f"{LONG}{value:020}" for value in dealt]) if column == "text" else pa.array(dealt)
        runs.append(pa.table({**part, "_diff": np.ones(len(dealt), np.int64)}))
    order = ["k", "text", "_time"]
    watched = [Watched(run, chunk) for run in runs]
    given_out = 0
    most = 0
    outputs = []
    distinct = counted(consolidate(pa.concat_tables(runs), order), order)
    sums = np.cumsum([diff for _, diff in distinct])
    for output in kway_merge(watched, order, chunk_bytes=chunk_bytes):
        outputs.append(output)
        given_out += output.num_rows
        # Rows that were loaded, but are not in what was given out so far.
        most = max(most, sum(each.rows for each in watched) - int(sums[given_out - 1]))
    check(outputs, pa.concat_tables(runs), order)
    row_bytes = runs[0].nbytes / runs[0].num_rows
    assert most * row_bytes <= chunk_bytes / 2 + 3 * chunk * row_bytes


@pytest.mark.parametrize("cut", [["k"], []])
def test_a_group_is_never_given_out_in_two_tables(cut):
    draw = np.random.default_rng(4)
    table = numbers(draw.integers(0, 20, 3000), v=draw.integers(0, 400, 3000), _time=draw.integers(0, 2, 3000))
    order = ["k", "v", "_time"]
    # Ascending in the columns of the cut only: what follows is in any order.
    runs = ascending_runs(table, cut, 3)
    outputs = list(kway_merge([even(run, 50) for run in runs], order, cut, chunk_bytes=2000))
    check(outputs, table, order, cut)
    assert len(outputs) in (range(10, 21) if cut else [1])


def test_a_large_group_is_not_consolidated_again_and_again(monkeypatch):
    worked = []
    kernel = module.consolidate_inputs

    def counting(inputs, *rest):
        worked.extend(table.num_rows for tables in inputs for table in tables)
        return kernel(inputs, *rest)

    monkeypatch.setattr(module, "consolidate_inputs", counting)
    rows = 40_000
    table = numbers(np.zeros(rows), v=np.arange(rows))
    (only,) = kway_merge([even(table, 100)], ["k", "v"], ["k"], chunk_bytes=40_000)
    assert only.num_rows == rows
    assert sum(worked) < 4 * rows


def test_times_that_were_advanced_are_netted_across_runs_and_chunks():
    runs = [
        pa.table({"k": [1, 1, 2], "_time": [5, 5, 5], "_diff": [1, -1, 1]}),
        pa.table({"k": [2], "_time": [5], "_diff": [2]}),
    ]
    outputs = list(kway_merge([even(run, 1) for run in runs], ["k", "_time"], chunk_bytes=1))
    assert pa.concat_tables(outputs).to_pydict() == {"k": [2], "_time": [5], "_diff": [3]}


@pytest.mark.parametrize(
    "pieces",
    [
        [[3, 4], [1, 2]],
        [[1, 5, 3], [6]],
        [[1], [5], [4]],
    ],
)
@pytest.mark.parametrize("others", [[], [[2, 9]], [[100]]])
def test_a_run_that_is_not_in_order_is_corrupt(pieces, others):
    runs = [iter([numbers(piece) for piece in pieces]), *(iter([numbers(each)]) for each in others)]
    with pytest.raises(CorruptionError):
        list(kway_merge(runs, ["k"], chunk_bytes=1))


def test_a_run_that_falls_where_no_row_is_given_out_is_corrupt_too():
    cancelling = pa.table({"k": [5, 5], "_diff": [1, -1]})
    with pytest.raises(CorruptionError):
        list(kway_merge([iter([cancelling, numbers([3])])], ["k"], chunk_bytes=1))


def test_disorder_that_words_cannot_see_gives_no_wrong_order():
    stem = "1" * 40
    falling = pa.table({"k": ["0", f"{stem}b", f"{stem}a"], "_diff": [1, 1, 1]})
    rising = pa.table({"k": [f"{stem}aa", "2"], "_diff": [1, 1]})
    with pytest.raises(CorruptionError):
        list(kway_merge([even(falling, 3), even(rising, 1)], ["k"], chunk_bytes=1))


def test_what_sets_rows_apart_is_part_of_the_cut():
    with pytest.raises(UsageError, match="sets rows apart"):
        kway_merge([], ["k", "v"], ["k"], chunk_bytes=1000, apart=2)


def test_a_cut_must_lead_the_order():
    with pytest.raises(UsageError, match="leading"):
        kway_merge([], ["a", "b"], ["b"], chunk_bytes=1)
    with pytest.raises(UsageError, match="too few"):
        kway_merge([], ["a"], chunk_bytes=0)


def test_the_result_does_not_depend_on_how_runs_are_chunked_or_listed():
    draw = np.random.default_rng(5)
    table = pa.table(
        {
            "k": [f"{LONG}{number}" for number in draw.integers(0, 500, 5000)],
            "v": pa.array(draw.random(5000).round(1), mask=draw.random(5000) < 0.1),
            "_diff": draw.integers(-1, 2, 5000),
        }
    )
    wanted = consolidate(table, ["k", "v"])
    for count, rows, chunk_bytes in ((1, 7, 1), (5, 100, 50_000), (40, 1000, 1 << 20)):
        runs = [even(run, rows) for run in ascending_runs(table, ["k", "v"], count)]
        merged = pa.concat_tables(kway_merge(runs[::-1], ["k", "v"], chunk_bytes=chunk_bytes))
        assert merged.combine_chunks().equals(wanted.combine_chunks())


def test_nothing_is_read_before_the_first_table_is_asked_for():
    def never():
        raise AssertionError
        yield

    kway_merge([never()], ["k"], chunk_bytes=1)
