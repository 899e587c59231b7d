"""Keys of several columns with nulls in the second and later ones: consolidated as plain Python would."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_cases import MAX, SMALL, TEXT, ints, rechunked, small

from timespine.columnar.kernels.consolidate import consolidate, consolidate_runs

FIRST = {pa.int8(): ints(8), pa.int64(): ints(64), pa.string(): TEXT, pa.bool_(): st.booleans()}
LATER = {
    **FIRST,
    pa.int32(): ints(32),
    pa.uint64(): ints(64, signed=False),
    pa.float64(): st.sampled_from([float("-inf"), -1.5, 0.0, 2.0, float("inf")]),
    pa.binary(): st.binary(max_size=9),
}


def over_leftovers(values, kind):
    """A column whose nulls have something else than zeros in their place, as Arrow allows."""
    if not pa.types.is_integer(kind):
        return pa.array(values, kind)
    present = pa.array([value is not None for value in values], pa.bool_())
    filled = np.array(
        [row % 128 if value is None else value for row, value in enumerate(values)], kind.to_pandas_dtype()
    )
    return pa.Array.from_buffers(kind, len(values), [present.buffers()[1], pa.py_buffer(filled)])


@st.composite
def keyed(draw):
    """Rows with a key of two to six columns, the first without nulls, the others with some or only nulls."""
    rows = draw(st.integers(1, 40))
    kinds = [draw(st.sampled_from(list(FIRST)))]
    kinds += draw(st.lists(st.sampled_from(list(LATER)), min_size=1, max_size=5))
    data = {}
    for number, kind in enumerate(kinds):
        values = LATER[kind] if number == 0 else st.none() | LATER[kind]
        pool = draw(st.lists(values, min_size=1, max_size=4))
        if number and draw(st.booleans()):
            pool.append(None)
        places = draw(st.lists(st.integers(0, len(pool) - 1), min_size=rows, max_size=rows))
        data[f"k{number}"] = over_leftovers([pool[place] for place in places], kind)
    diffs = draw(st.lists(st.integers(-2, 2), min_size=rows, max_size=rows))
    return rechunked(draw, pa.table({**data, "_diff": pa.array(diffs, pa.int64())}))


def summed(table):
    """What is left when equal rows are added up, in order: null before everything, texts by their bytes."""
    *names, _ = table.column_names
    sums = defaultdict(int)
    for row in table.to_pylist():
        sums[tuple(row[name] for name in names)] += row["_diff"]
    return sorted(((key, diff) for key, diff in sums.items() if diff), key=lambda pair: sortable(pair[0]))


def sortable(key):
    return [
        (value is not None, value.encode() if isinstance(value, str) else value if value is not None else 0)
        for value in key
    ]


def rows_of(table):
    *names, _ = table.column_names
    return [(tuple(row[name] for name in names), row["_diff"]) for row in table.to_pylist()]


def wide(*rows):
    """Rows whose first column fills a word by itself."""
    first = [-MAX - 1 if number % 2 else MAX for number in range(len(rows))]
    columns = {f"k{place + 1}": pa.array(values, pa.int64()) for place, values in enumerate(zip(*rows, strict=True))}
    return pa.table({"k0": pa.array(first, pa.int64()), **columns, "_diff": pa.array([1] * len(rows), pa.int64())})


@given(keyed(), SMALL)
@example(wide((None, 1), (None, 1), (0, None), (0, None), (None, None), (0, 0)), None)
@example(wide((1, None, 2), (1, None, 2), (None, 1, 2), (None, 1, None), (1, 0, 2), (1, 0, 2)), None)
def test_keys_with_nulls_in_later_columns_are_added_up_and_in_order(table, how):
    *names, _ = table.column_names
    with small(how):
        result = consolidate(table, names)
    result.validate(full=True)
    assert rows_of(result) == summed(table)


@given(keyed(), st.integers(0, 40), SMALL)
def test_runs_of_keys_with_nulls_in_later_columns_are_merged_as_one_table_is(table, cut, how):
    *names, _ = table.column_names
    with small(how):
        runs = [consolidate(each, names) for each in (table.slice(0, cut), table.slice(cut))]
        starts = [0, runs[0].num_rows] if all(run.num_rows for run in runs) else [0]
        merged = consolidate_runs(pa.concat_tables(runs), names, starts, len(names))
    assert rows_of(merged) == summed(table)
