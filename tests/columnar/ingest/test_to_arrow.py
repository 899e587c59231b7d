"""What callers give as rows: every form and every Python value is read exactly, or refused by name."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from ingest_cases import ORDERS, ROWS, TABLE

from timespine.columnar.ingest.update_table import conform_columns, to_arrow, to_update_table
from timespine.columnar.schema.schema import define, infer
from timespine.errors import UsageError

D = decimal.Decimal
UTC = datetime.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def one(type_, value, **more):
    """A single value through the door and out again."""
    schema = define(None, {"x": type_})
    table = to_update_table([{"x": value}], schema, (0,), **more)
    assert table.schema.equals(schema.update_arrow, check_metadata=True)
    return table.column("x").to_pylist()[0]


# --- what can be rows ---


class Exports:
    """Somebody else's table, of which only the Arrow interface is known."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class ExportsBatch:
    def __init__(self, batch):
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "rows",
    [
        TABLE,
        TABLE.to_batches()[0],
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
        pl.DataFrame(ROWS),
        pl.LazyFrame(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).set_index("id"),
        pd.DataFrame(ROWS).set_index(["id", "customer"]),
        pd.DataFrame(ROWS, index=[5, 3]),
        pd.DataFrame(ROWS).convert_dtypes(),
        pd.DataFrame(ROWS).astype(object),
        ROWS,
        tuple(ROWS),
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        {
            "id": np.array([1, 2]),
            "customer": np.array(["ann", None], object),
            "total": pd.Series([1.5, -0.0]),
            "n": pl.Series([7, None]),
        },
        {
            "id": range(1, 3),
            "customer": pa.chunked_array([["ann"], [None]]),
            "total": (1.5, -0.0),
            "n": pa.array([7, None]),
        },
        {**{name: TABLE[name] for name in ("customer", "total", "n")}, "id": ExportsBatch(pa.array([1, 2]))},
        Exports(TABLE),
        ExportsBatch(TABLE.to_batches()[0]),
        TABLE.select(["n", "total", "customer", "id"]),
        pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(2), TABLE.slice(1)]),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_rows_may_come_in_many_forms(rows):
    table = to_update_table(rows, ORDERS, (7,))
    assert table.schema.equals(ORDERS.update_arrow, check_metadata=True)
    table.validate(full=True)
    expected = [{**row, "_time": 7, "_diff": 1} for row in TABLE.to_pylist()]
    assert table.to_pylist() == expected
    assert math.copysign(1, table["total"][1].as_py()) == 1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (None, "NoneType cannot be read as rows: give an Arrow table"),
        ("text", "str cannot be read"),
        (3, "int cannot be read"),
        (iter(ROWS), "cannot be read"),
        ({"id": 1, "customer": "ann"}, r"column 'id' is an int, not many values: a single row is \[row\]"),
        ({"customer": "ann"}, "column 'customer' is a str"),
        ({"id": [1, 2], "n": [1]}, "column 'n' has 1 values where the others have 2"),
        ({1: [1]}, "1 is not the name of a column"),
        ([{1: 1}], "1 is not the name of a column"),
        ([{"id": 1}, None], "a row is a NoneType, not a dict"),
        ([{"id": 1}, (1, 2)], "a row is a tuple, not a dict"),
        ([1], "a row is an int"),
        ({"id": np.zeros((2, 2))}, "column 'id': ndarray cannot be read"),
        ({"id": np.zeros(2, "i4,i4")}, "column 'id'"),
        (pa.chunked_array([[1]]), "does not export a table"),
        (pl.Series([1]), "does not export a table"),
        (pd.Series([1]), "as rows|export"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "two columns named 'id'"),
        (pd.DataFrame([[1]], columns=[0]), "0 is not the name"),
        (pa.table([[1], [2]], names=["id", "id"]), "two columns named 'id'"),
        ({"id": pl.Series([object()], dtype=pl.Object)}, "column 'id'"),
        (pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}), "column 'id': Int128 has no Arrow type"),
        (pl.DataFrame({"id": [datetime.timedelta(1)]}), "column 'id' holds 'duration"),
        (pd.DataFrame({"id": pd.period_range("2020", periods=1, freq="D")}), "column 'id' holds 'extension"),
        (pd.DataFrame({"n": [1, "x"]}), "column 'n': it holds a str"),
        (pd.DataFrame({"id": [2**70]}), "column 'id': row 0"),
    ],
)
def test_what_cannot_be_rows_is_refused(rows, why):
    with pytest.raises(UsageError, match=why):
        to_update_table(rows, ORDERS, (7,))


def test_rows_of_no_columns_are_still_rows():
    schema = define(None, {"a": "int8"}).add("b", "string", "x")
    empty = pa.table({"z": [1, 2, 3]}).select([])
    expected = [{"a": None, "b": "x", "_time": 1, "_diff": 1}] * 3
    for rows in (empty, [{}, {}, {}], pd.DataFrame(index=range(3)), empty.to_batches()[0]):
        assert to_update_table(rows, schema, (1,)).to_pylist() == expected
    assert to_arrow([{}, {}]).shape == (2, 0)


@pytest.mark.parametrize("rows", [[], (), {}, pa.table({}), pl.DataFrame(), pd.DataFrame(), ORDERS.arrow.empty_table()])
def test_no_rows_are_an_empty_update_table(rows):
    table = to_update_table(rows, ORDERS, (7,))
    assert table.num_rows == 0
    assert table.schema.equals(ORDERS.update_arrow, check_metadata=True)


def test_empty_columns_must_still_be_of_the_right_type():
    with pytest.raises(UsageError, match="holds 'string'"):
        to_update_table(pa.table({"id": pa.array([], pa.string())}), ORDERS, (7,))
    assert to_update_table({"id": []}, ORDERS, (7,)).num_rows == 0
    assert to_update_table(pd.DataFrame(columns=["id"]), ORDERS, (7,)).num_rows == 0


def test_keys_of_all_dicts_count_not_only_those_of_the_first():
    table = to_update_table([{"id": 1}, {"n": 2}], ORDERS, (0,))
    assert table.select(["id", "n"]).to_pylist() == [{"id": 1, "n": None}, {"id": None, "n": 2}]
    assert to_arrow([{"a": 1}, {"b": 2}]).column_names == ["a", "b"]
    with pytest.raises(UsageError, match="a column 'x' that the collection does not have"):
        to_update_table([{"id": 1}, {"x": object()}], ORDERS, (0,))


def test_a_dict_that_lacks_a_key_holds_the_default_whatever_its_neighbours_do():
    schema = ORDERS.add("when", "timestamp[UTC]", datetime.datetime(2020, 1, 1, tzinfo=UTC)).add("b", "binary", b"\x00")
    rows = [{"id": 1}, {"id": 2, "when": None, "b": b"x"}]
    together = to_update_table(rows, schema, (0,)).to_pylist()
    alone = [to_update_table([row], schema, (0,)).to_pylist()[0] for row in rows]
    assert together == alone
    assert together[0]["when"] == datetime.datetime(2020, 1, 1, tzinfo=UTC)
    assert together[0]["b"] == b"\x00"
    assert together[1]["when"] is None


def test_polars_types_are_read_exactly():
    moment = datetime.datetime(2020, 1, 1, 12, tzinfo=UTC)
    frame = pl.DataFrame(
        {
            "c": pl.Series(["x", None, "y"], dtype=pl.Categorical),
            "e": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b"])),
            "d": pl.Series([D("1.5"), None, D("-99.99")], dtype=pl.Decimal(None, 2)),
            "t": pl.Series([moment, None, moment], dtype=pl.Datetime("ns", "Europe/Berlin")),
            "l": pl.Series([[1, 2], None, [3, None]], dtype=pl.Array(pl.Int64, 2)),
            "s": [{"x": -0.0, "y": ["a"]}, None, {"x": None, "y": None}],
            "b": [b"\xff", b"", None],
            "z": [None, None, None],
        }
    )
    schema = define(
        None,
        {
            "c": "string",
            "e": "string",
            "d": "decimal(4,2)",
            "t": "timestamp[UTC]",
            "l": "list<int8>",
            "s": "struct<x:double,y:list<string>>",
            "b": "binary",
            "z": "date",
        },
    )
    table = to_update_table(frame, schema, (0,)).select(schema.names)
    expected = frame.to_dicts()
    assert [{**row, "l": row["l"] and list(row["l"])} for row in expected] == table.to_pylist()
    assert math.copysign(1, table["s"][0].as_py()["x"]) == 1
    assert to_update_table(frame.lazy().head(1), schema, (0,)).num_rows == 1


def test_polars_objects_are_read_as_what_they_are():
    schema = define(None, {"x": "binary"})
    frame = pl.DataFrame({"x": pl.Series([b"a", None], dtype=pl.Object)})
    assert to_update_table(frame, schema, (0,))["x"].to_pylist() == [b"a", None]
    with pytest.raises(UsageError, match="it holds an object"):
        to_update_table(pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}), schema, (0,))


def test_pandas_says_missing_in_many_ways_and_all_are_null():
    schema = define(
        None, {"s": "string", "n": "int64", "f": "double", "t": "timestamp", "c": "string", "l": "list<int8>"}
    )
    frame = pd.DataFrame(
        {
            "s": ["a", np.nan, None],
            "n": [1, np.nan, np.nan],
            "f": [1.5, np.nan, -0.0],
            "t": [pd.Timestamp(2020, 1, 1), pd.NaT, None],
            "c": pd.Categorical(["x", None, "x"]),
            "l": [[1, 2], None, []],
        }
    )
    assert conform_columns(to_arrow(frame, schema), schema).to_pylist() == [
        {"s": "a", "n": 1, "f": 1.5, "t": datetime.datetime(2020, 1, 1), "c": "x", "l": [1, 2]},
        {"s": None, "n": None, "f": None, "t": None, "c": None, "l": None},
        {"s": None, "n": None, "f": 0.0, "t": None, "c": "x", "l": []},
    ]
    objects = pd.DataFrame({"n": [1, pd.NA, None], "f": [1, 2.5, np.nan]}, dtype=object)
    assert to_update_table(objects, schema, (0,)).select(["n", "f"]).to_pylist() == [
        {"n": 1, "f": 1.0},
        {"n": None, "f": 2.5},
        {"n": None, "f": None},
    ]


def test_an_index_without_a_name_is_no_column_and_one_with_a_name_is():
    frame = pd.DataFrame({"n": [1]}, index=pd.MultiIndex.from_tuples([(7, "x")], names=["id", None]))
    assert to_arrow(frame).column_names == ["id", "n"]
    both = pd.DataFrame({"id": [1]}).set_index("id", drop=False)
    assert to_arrow(both).to_pydict() == {"id": [1]}


def test_frames_are_not_changed():
    frame = pd.DataFrame({"customer": ["a", np.nan]}, index=pd.Index([1, 2], name="id"))
    to_update_table(frame, ORDERS, (0,))
    assert frame.columns.tolist() == ["customer"]
    assert isinstance(frame["customer"].iloc[1], float)


def test_without_a_schema_python_values_get_the_type_they_seem_to_have():
    rows = [
        {
            "i": 1,
            "f": 1,
            "s": "a",
            "t": datetime.datetime(2020, 1, 1, tzinfo=BERLIN),
            "d": D("1.5"),
            "l": [1],
            "z": None,
        },
        {"i": None, "f": 2.5, "s": None, "t": None, "d": D("10"), "l": None, "z": None},
    ]
    table = to_arrow(rows)
    assert [str(field.type) for field in table.schema] == [
        *(
            "int64",
            "double",
            "string",
            "timestamp[us, tz=Europe/Berlin]",
            "decimal128(3, 1)",
            "list<item: int64>",
            "null",
        ),
    ]
    assert infer(table.drop_columns(["z"]).schema, key=["i"]).update_arrow.names[-1] == "_diff"
    for wrong in ([1, "a"], [1, True], [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)], [object()], [2**64]):
        with pytest.raises(UsageError, match="column 'x'"):
            to_arrow([{"x": value} for value in wrong])


def test_without_a_schema_fixed_offsets_become_utc():
    moment = datetime.datetime(2020, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    table = to_arrow([{"x": moment, "y": [{"z": moment}]}])
    assert table.schema.field("x").type == pa.timestamp("us", "UTC")
    assert table.to_pylist() == [{"x": moment, "y": [{"z": moment}]}]
    assert infer(table.schema).field("y").type == "list<struct<z:timestamp[UTC]>>"


# --- Python values ---


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("bool", True, True),
        ("bool", np.bool_(False), False),
        ("int8", -128, -128),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int64", np.int16(5), 5),
        ("int64", 5.0, 5),
        ("int64", Colour.RED, 1),
        ("float64", 5, 5.0),
        ("float64", np.float32(1.5), 1.5),
        ("float32", 0.1, float(np.float32(0.1))),
        ("float32", 2**24, 2.0**24),
        ("decimal(4,2)", D("1.5"), D("1.50")),
        ("decimal(4,2)", 3, D("3.00")),
        ("string", "größe \U0001f600\x00", "größe \U0001f600\x00"),
        ("string", np.str_("x"), "x"),
        ("binary", b"\xff", b"\xff"),
        ("binary", bytearray(b"x"), b"x"),
        ("binary", memoryview(b"x"), b"x"),
        ("date", datetime.date.max, datetime.date.max),
        ("timestamp", datetime.datetime.max, datetime.datetime.max),
        ("timestamp", pd.Timestamp("2020-01-01T00:00:00.000001"), datetime.datetime(2020, 1, 1, 0, 0, 0, 1)),
        ("timestamp", np.datetime64("2020-01-01T00:00:00", "ns"), datetime.datetime(2020, 1, 1)),
        ("timestamp[UTC]", datetime.datetime(2020, 7, 1, 2, tzinfo=BERLIN), datetime.datetime(2020, 7, 1, tzinfo=UTC)),
        (
            "timestamp[UTC]",
            datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
            datetime.datetime(2020, 10, 25, 1, 30, tzinfo=UTC),
        ),
        ("list<int8>", [1, None], [1, None]),
        ("list<int8>", (1, 2.0), [1, 2]),
        ("list<float64>", np.array([1.5, 2]), [1.5, 2.0]),
        ("list<list<string>>", [["a"], None, []], [["a"], None, []]),
        ("struct<a:int8,b:string>", {"b": "x"}, {"a": None, "b": "x"}),
        ("list<struct<t:timestamp[UTC]>>", [{"t": datetime.datetime(2020, 1, 1, tzinfo=UTC)}, None, {}], None),
        ("list<int8>", [], []),
        ("struct<a:list<date>>", {"a": [datetime.date(2020, 1, 1)]}, {"a": [datetime.date(2020, 1, 1)]}),
    ],
)
def test_python_values_are_read_exactly(type_, value, expected):
    if expected is None:
        moment = datetime.datetime(2020, 1, 1, tzinfo=UTC)
        expected = [{"t": moment}, None, {"t": None}]
    result = one(type_, value)
    assert result == expected
    assert type(result) is type(expected)
    assert one(type_, None) is None


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("bool", 1, "it holds an int where bool is needed"),
        ("int64", True, "it holds a bool where int64 is needed"),
        ("int64", "1", "it holds a str"),
        ("int64", 1.5, "row 0 does not fit int64"),
        ("int64", math.nan, "row 0 does not fit int64"),
        ("int64", D(1), "it holds a Decimal"),
        ("int8", 128, "row 0 does not fit int8"),
        ("uint8", -1, "row 0 does not fit uint8"),
        ("uint64", 2**64, "row 0 does not fit uint64"),
        ("int64", pd.NA, "it holds a NAType.*use None"),
        ("float64", True, "it holds a bool"),
        ("float64", "1.5", "it holds a str"),
        ("float64", 2**53 + 1, "row 0 does not fit float64"),
        ("float32", 1e300, "row 0 does not fit float32"),
        ("float32", 2**24 + 1, "row 0 does not fit float32"),
        ("decimal(4,2)", 1.5, "it holds a float"),
        ("decimal(4,2)", True, "it holds a bool"),
        ("decimal(4,2)", D("1.555"), "row 0 does not fit decimal"),
        ("decimal(4,2)", 100, "row 0 does not fit decimal"),
        ("decimal(4,2)", D("NaN"), "row 0 does not fit decimal"),
        ("string", b"x", "it holds a bytes"),
        ("string", 1, "it holds an int"),
        ("string", math.nan, "it holds a float"),
        ("string", "\ud800", "row 0 does not fit string"),
        ("binary", "x", "it holds a str"),
        ("date", datetime.datetime(2020, 1, 1, 5), "it holds a datetime"),
        ("date", 5, "it holds an int"),
        ("timestamp", datetime.date(2020, 1, 1), "it holds a date"),
        ("timestamp", 5, "it holds an int"),
        ("timestamp", datetime.datetime(2020, 1, 1, tzinfo=UTC), "has a zone"),
        ("timestamp[UTC]", datetime.datetime(2020, 1, 1), "has no zone"),
        ("timestamp", pd.Timestamp("2020-01-01T00:00:00.000000001"), "finer than microseconds"),
        ("timestamp", pd.NaT, "it holds a NaTType.*use None"),
        ("timestamp", np.datetime64("2020-01-01T00:00:00.000000001"), "row 0 does not fit timestamp"),
        ("timestamp[UTC]", np.datetime64("2020-01-01T00:00:00"), "without a zone"),
        ("list<int8>", "abc", "it holds a str"),
        ("list<int8>", {1, 2}, "it holds a set"),
        ("list<int8>", b"ab", "it holds a bytes"),
        ("list<int8>", [1.5], "row 0 does not fit list<int8>"),
        ("list<int8>", [True], "it holds a bool where int8"),
        ("list<timestamp>", [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=UTC)], "has a zone"),
        ("list<date>", [datetime.datetime(2020, 1, 1)], "it holds a datetime"),
        ("struct<a:int8>", {"a": 1, "b": 2}, "a field 'b' that struct<a:int8> does not have"),
        ("struct<a:int8>", [("a", 1)], "it holds a list"),
        ("struct<a:string>", {"a": b"x"}, "it holds a bytes where string"),
        ("list<struct<a:int8>>", [{"a": 1}, {1: 1}], "a field 1"),
    ],
)
def test_python_values_that_would_change_are_refused(type_, value, why):
    with pytest.raises(UsageError, match=f"column 'x'.*{why}"):
        one(type_, value)


def test_the_first_python_value_that_does_not_fit_is_named():
    rows = [{"n": 1}] * 500 + [{"n": 40_000}] + [{"n": 1}] * 200
    with pytest.raises(UsageError, match="column 'n': row 500 does not fit int16") as caught:
        to_update_table(rows, ORDERS, (0,))
    assert "40000" not in str(caught.value)


def test_mixed_zones_are_one_instant_each_but_mixed_with_none_they_are_refused():
    schema = define(None, {"x": "timestamp[UTC]"})
    moments = [datetime.datetime(2020, 1, 1, 1, tzinfo=BERLIN), datetime.datetime(2020, 1, 1, tzinfo=UTC)]
    assert to_update_table([{"x": m} for m in moments], schema, (0,)).column("x").to_pylist() == [moments[1]] * 2
    for wrong in ([*moments, datetime.datetime(2020, 1, 1)], [datetime.datetime(2020, 1, 1), *moments]):
        for wanted in (schema, define(None, {"x": "timestamp"})):
            with pytest.raises(UsageError, match="zone"):
                to_update_table([{"x": m} for m in wrong], wanted, (0,))
