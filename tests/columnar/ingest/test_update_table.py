"""Rows in and out: whatever a caller gives becomes exact updates, or an error that names the column."""

from __future__ import annotations

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_cases import ORDERS, ROWS, TABLE

from timespine.columnar.ingest.update_table import conform_columns, project_rows, to_update_table
from timespine.columnar.schema.schema import define
from timespine.errors import UsageError

D = decimal.Decimal


# --- conform ---


def test_conform_gives_exactly_the_users_columns():
    table = conform_columns(TABLE.select(["total", "id"]), ORDERS)
    assert table.schema.equals(ORDERS.arrow, check_metadata=True)
    assert table.column("n").null_count == 2
    with pytest.raises(UsageError, match="column '_diff' that the collection does not have"):
        conform_columns(TABLE.append_column("_diff", [[1, 1]]), ORDERS)
    with pytest.raises(UsageError, match="use `to_arrow`"):
        conform_columns(ROWS, ORDERS)


def test_what_already_fits_is_not_copied():
    table = conform_columns(TABLE, ORDERS)
    for name in TABLE.column_names:
        assert table[name].chunk(0).buffers()[-1].address == TABLE[name].chunk(0).buffers()[-1].address


def test_unknown_columns_are_refused_with_a_guess():
    with pytest.raises(UsageError, match=r"a column 'Total' that .* did you mean 'total'"):
        conform_columns(pa.table({"Total": [1.0]}), ORDERS)
    with pytest.raises(UsageError, match="there are 'id', 'customer', 'total', 'n'"):
        conform_columns(pa.table({"x": [1.0]}), ORDERS)
    with pytest.raises(UsageError, match="'_time', '_diff'"):
        to_update_table(pa.table({"_time_0": [1]}), ORDERS, (0,))


@pytest.mark.parametrize("rows", [0, 1, 3, 70_000, 200_000])
def test_missing_columns_are_filled_with_their_defaults(rows):
    schema = ORDERS.add("s", "string", "x" * 100).add("d", "decimal(4,2)", D("1.5")).add("f", "float", math.nan)
    schema = schema.add("nothing", "struct<a:list<int8>>")
    table = conform_columns(pa.table({"id": np.arange(rows)}), schema)
    table.validate(full=True)
    assert table.num_rows == rows
    assert table["s"].unique().to_pylist() == ["x" * 100][:rows]
    assert table["d"].unique().to_pylist() == [D("1.50")][:rows]
    assert table["nothing"].null_count == rows
    assert table["s"].null_count == table["f"].null_count == 0
    assert table["f"].to_numpy().view(np.uint32).tolist() == [0x7FC00000] * rows


# --- updates ---


def test_rows_may_bring_their_own_times_and_diffs():
    rows = pa.table(
        {"id": [1, 2], "_diff": pa.array([-1, 0], pa.int8()), "_time": pa.array([3, 2**63 - 1], pa.uint64())}
    )
    table = to_update_table(rows, ORDERS, None)
    assert table.select(["id", "_time", "_diff"]).to_pylist() == [
        {"id": 1, "_time": 3, "_diff": -1},
        {"id": 2, "_time": 2**63 - 1, "_diff": 0},
    ]
    assert table.schema.equals(ORDERS.update_arrow, check_metadata=True)
    assert to_update_table([{"id": 1, "_time": 5, "_diff": -(2**63)}], ORDERS, None, diff=None)[
        "_diff"
    ].to_pylist() == [-(2**63)]
    assert to_update_table([{"id": 1, "_diff": 2}], ORDERS, (5,))["_time"].to_pylist() == [5]
    assert to_update_table([{"id": 1, "_time": 2}], ORDERS, None, diff=-1)["_diff"].to_pylist() == [-1]


def test_times_of_several_coordinates_have_several_columns():
    schema = define(None, {"a": "int8"}, arity=2)
    assert to_update_table([{"a": 1}], schema, (3, 4)).to_pylist() == [{"a": 1, "_time_0": 3, "_time_1": 4, "_diff": 1}]
    own = to_update_table([{"a": 1, "_time_1": 4, "_time_0": 3}], schema, None)
    assert own.column_names == ["a", "_time_0", "_time_1", "_diff"]
    assert own.to_pylist() == [{"a": 1, "_time_0": 3, "_time_1": 4, "_diff": 1}]
    with pytest.raises(UsageError, match="give the columns '_time_1'"):
        to_update_table([{"a": 1, "_time_0": 3}], schema, None)
    with pytest.raises(UsageError, match="leave out `at`"):
        to_update_table([{"a": 1, "_time_0": 3}], schema, (1, 2))
    with pytest.raises(UsageError, match="column '_time' that"):
        to_update_table([{"a": 1, "_time": 3}], schema, (1, 2))
    with pytest.raises(UsageError, match="2 are needed"):
        to_update_table([{"a": 1}], schema, (1,))


@pytest.mark.parametrize(
    ("rows", "at", "diff", "why"),
    [
        ({"id": [1]}, None, 1, "give `at` or the columns '_time'"),
        ({"id": [1]}, 7, 1, "not a time"),
        ({"id": [1]}, (-1,), 1, "-1 is not a time"),
        ({"id": [1]}, (1, 2), 1, "1 are needed"),
        ({"id": [1]}, (True,), 1, "True is not a time"),
        ({"id": [1]}, (1,), None, "the rows have no diffs"),
        ({"id": [1]}, (1,), 1.0, "is not a diff"),
        ({"id": [1]}, (1,), True, "is not a diff"),
        ({"id": [1]}, (1,), 2**63, "is not a diff"),
        ({"id": [1], "_time": [1]}, (1,), 1, "leave out `at`"),
        ({"id": [1], "_diff": [1]}, (1,), -1, "leave out `diff`"),
        ({"id": [1], "_time": [-1]}, None, 1, "times below zero"),
        ({"id": [1, 1], "_time": [1, None]}, None, 1, "column '_time' has 1 nulls"),
        ({"id": [1], "_diff": [None]}, (1,), 1, "column '_diff' has 1 nulls"),
        ({"id": [1], "_diff": pa.array([1.0])}, (1,), 1, "column '_diff' holds 'double' where integers"),
        ({"id": [1], "_diff": [1.0]}, (1,), 1, "column '_diff' holds 'double' where integers"),
        ({"id": [1], "_diff": [True]}, (1,), 1, "it holds a bool"),
        ({"id": [1], "_diff": pa.array([True])}, (1,), 1, "holds 'bool' where integers"),
        ({"id": [1], "_diff": pa.array([2**63], pa.uint64())}, (1,), 1, "column '_diff': row 0 does not fit int64"),
        ({"id": [1], "_time": pa.array([2**64 - 1], pa.uint64())}, None, 1, "column '_time': row 0"),
        ({"id": [1], "_time": [datetime.datetime(2020, 1, 1)]}, None, 1, "it holds a datetime"),
        ({"id": [1], "_time": pa.array([1], pa.timestamp("us"))}, None, 1, "holds 'timestamp"),
        ({"id": [1], "_Diff": [1]}, (1,), 1, "did you mean '_diff'"),
    ],
)
def test_times_and_diffs_are_checked(rows, at, diff, why):
    with pytest.raises(UsageError, match=why):
        to_update_table(rows, ORDERS, at, diff)


# --- project ---

EVOLVED = (
    ORDERS.rename("total", "sum")
    .drop("customer")
    .add("customer", "string", "new")
    .widen("n", "int64")
    .add("tags", "list<struct<a:float64>>")
)


def test_old_rows_are_seen_under_a_new_schema():
    table = project_rows(to_update_table(ROWS, ORDERS, (7,), diff=-2), ORDERS, EVOLVED)
    assert table.schema.equals(EVOLVED.update_arrow, check_metadata=True)
    table.validate(full=True)
    assert table.to_pylist() == [
        {"id": 1, "sum": 1.5, "n": 7, "customer": "new", "tags": None, "_time": 7, "_diff": -2},
        {"id": 2, "sum": 0.0, "n": None, "customer": "new", "tags": None, "_time": 7, "_diff": -2},
    ]


def test_a_column_that_was_added_again_is_not_the_old_one():
    again = ORDERS.drop("customer").add("customer", "string")
    old = to_update_table(ROWS, ORDERS, (7,))
    assert project_rows(old, ORDERS, again)["customer"].to_pylist() == [None, None]
    swapped = ORDERS.rename("customer", "x").rename("n", "customer").rename("x", "n")
    assert project_rows(old, ORDERS, swapped).select(["customer", "n"]).to_pylist() == [
        {"customer": 7, "n": "ann"},
        {"customer": None, "n": None},
    ]


def test_the_same_schema_gives_the_same_table():
    table = to_update_table(ROWS, ORDERS, (7,))
    assert project_rows(table, ORDERS, ORDERS) is table
    plain = table.replace_schema_metadata(None).cast(pa.schema([f.remove_metadata() for f in table.schema]))
    assert project_rows(plain, ORDERS, ORDERS).schema.equals(ORDERS.update_arrow, check_metadata=True)


def test_some_columns_need_only_their_sources():
    table = to_update_table(ROWS, ORDERS, (7,))
    some = project_rows(table.select(["total", "_diff"]), ORDERS, EVOLVED, columns=["customer", "sum"])
    assert some.to_pylist() == [
        {"customer": "new", "sum": 1.5, "_diff": 1},
        {"customer": "new", "sum": 0.0, "_diff": 1},
    ]
    assert some.schema.field("sum").metadata == {b"PARQUET:field_id": b"3"}
    without = project_rows(table.select(["n"]), ORDERS, EVOLVED, columns=["n"])
    assert without.schema.equals(pa.schema([EVOLVED.update_arrow.field("n")]), check_metadata=True)
    only_filled = project_rows(table.select([]), ORDERS, EVOLVED, columns=["customer"])
    assert only_filled["customer"].to_pylist() == ["new", "new"]
    assert project_rows(table.select([]), ORDERS, EVOLVED, columns=[]).num_rows == 2


def test_projection_refuses_what_it_cannot_see():
    table = to_update_table(ROWS, ORDERS, (7,))
    with pytest.raises(UsageError, match="cannot be seen as int16: use the newest schema"):
        project_rows(to_update_table([{"id": 1}], EVOLVED, (7,)), EVOLVED, ORDERS, columns=["id", "n"])
    with pytest.raises(UsageError, match="no column 'total'"):
        project_rows(table.drop_columns(["total"]), ORDERS, EVOLVED)
    with pytest.raises(UsageError, match="there is no column 'total'"):
        project_rows(table, ORDERS, EVOLVED, columns=["total"])
    with pytest.raises(UsageError, match="coordinates"):
        project_rows(table, ORDERS, define({"id": "int64"}, None, arity=2))
    with pytest.raises(UsageError, match="column 'n' was written as int16, the table has int64"):
        project_rows(table.set_column(3, "n", table["n"].cast("int64")), ORDERS, EVOLVED)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("int8", "int64", -128),
        ("uint32", "int64", 2**32 - 1),
        ("int32", "float64", -(2**31)),
        ("float32", "float64", float(np.float32(0.1))),
        ("decimal(4,2)", "decimal(38,2)", D("99.99")),
        ("struct<a:list<float64>>", "struct<a:list<float64>>", {"a": [1.5, None]}),
    ],
)
def test_widened_values_are_exact(old, new, value):
    written = define(None, {"x": old})
    table = project_rows(to_update_table([{"x": value}, {"x": None}], written, (0,)), written, written.widen("x", new))
    assert table["x"].to_pylist() == [value, None]


steps = st.lists(
    st.tuples(st.sampled_from(["add", "drop", "rename", "widen"]), st.sampled_from("abc"), st.sampled_from("abc")),
    max_size=12,
)


@settings(max_examples=120)
@given(steps, st.integers(0, 12))
def test_a_projection_by_any_path_gives_what_the_ids_say(steps, cut):
    """Against a model that keeps rows as dicts from id to value."""
    schemas = [define({"k": "int8"}, {"a": "int8"})]
    for what, name, other in steps:
        newest = schemas[-1]
        try:
            schemas.append(
                {
                    "add": lambda n=name, s=newest: s.add(n, "int8", s.next_id),
                    "drop": lambda n=name, s=newest: s.drop(n),
                    "rename": lambda n=name, o=other, s=newest: s.rename(n, o),
                    "widen": lambda n=name, s=newest: s.widen(n, "int64"),
                }[what]()
            )
        except UsageError:
            continue
    written, wanted = schemas[min(cut, len(schemas) - 1)], schemas[-1]
    by_id = {field.id: 50 + field.id for field in written.fields}
    table = to_update_table([{written.by_id(each).name: value for each, value in by_id.items()}], written, (3,))
    model = {field.name: by_id.get(field.id, field.default) for field in wanted.fields}
    assert project_rows(table, written, wanted).to_pylist() == [{**model, "_time": 3, "_diff": 1}]
