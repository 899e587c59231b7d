"""Few plain rows are converted by one call of Arrow: to what the general conversion gives, or not at all."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import struct
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from assertions import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.client.write.prepare import convert_any_rows
from timespine.columnar.ingest.few_plain_rows import FEW_ROWS_MAX, convert_few_rows
from timespine.columnar.schema.schema import define
from timespine.errors import TimespineError

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
PAYLOAD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
PLAIN_TYPES = {
    "bool": st.booleans(),
    **{f"{sign}int{bits}": st.integers(-130, 260) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float64": st.floats() | st.integers(-5, 5),
    "string": st.text(max_size=3),
    "binary": st.binary(max_size=3),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamp[UTC]": st.datetimes(timezones=st.just(datetime.UTC)),
    "timestamp[Europe/Berlin]": st.datetimes(timezones=st.sampled_from([BERLIN, datetime.UTC])),
}
OTHER_TYPES = {
    "float32": st.floats(width=32),
    "decimal(5,2)": st.decimals(-999, 999, places=2),
    "list<int8>": st.lists(st.integers(-128, 127), max_size=2),
    "struct<a:int8>": st.fixed_dictionaries({"a": st.integers(-128, 127)}),
}
TYPES = PLAIN_TYPES | OTHER_TYPES


class Text(str):
    """A text that shows another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "other"

    def encode(self, *_: object) -> bytes:
        return b"other"


class Number(int):
    """An integer that becomes another one."""

    def __int__(self) -> int:
        return 7

    __index__ = __int__


class Real(float):
    """A float of a subclass."""


class When(datetime.datetime):
    """A time of a subclass."""


class Wandering(datetime.tzinfo):
    """A time zone whose offset changes with each look."""

    looks = 0

    def utcoffset(self, when: object) -> datetime.timedelta:
        Wandering.looks += 1
        return datetime.timedelta(minutes=Wandering.looks % 60)


class Failing(datetime.tzinfo):
    """A time zone that cannot say its offset."""

    def utcoffset(self, when: object) -> datetime.timedelta:
        raise ValueError("no offset")


class Row(dict):
    """A dict that gives other values than it holds."""

    def __getitem__(self, name: str) -> object:
        return 0


class Name:
    """A key that is equal to a name without being a text."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return self.name == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Name({self.name})"


class Colour(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    ONE = "one"


NOON = datetime.datetime(2024, 5, 1, 12)
HOSTILE = [
    None, True, 0, -1, 127, 128, -129, 255, 256, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1,
    2**64 - 1, 2**64, 10**400, 0.0, -0.0, 1.5, 1e308, math.inf, -math.inf, math.nan, -math.nan, PAYLOAD_NAN,
    "", "a", "\x00", "\ud800", "a\udfff", "\U0010ffff", "12", b"", b"\xff", bytearray(b"a"), memoryview(b"a"),
    decimal.Decimal("1.5"), decimal.Decimal("NaN"), decimal.Decimal(3), 1j, object, object(), [], [1], (1,), {},
    {"a": 1},
    np.bool_(True), np.int8(1), np.int64(2), np.uint64(2**64 - 1), np.float16(1), np.float32(1.1), np.float64(-0.0),
    np.str_("a"), np.bytes_(b"a"), np.datetime64("2024-05-01"), np.datetime64("NaT"), np.array([1]), np.array(1),
    Text("a"), Number(3), Real(-0.0), Real("nan"), Colour.RED, Word.ONE, pd.NA, pd.NaT, pd.Timestamp("2024-05-01"),
    pd.Timestamp(1), pd.Timestamp("2024-05-01", tz="UTC"), pa.scalar(1), pa.scalar("a"), pa.scalar(None),
    datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.time(1), datetime.timedelta(1),
    datetime.datetime.min, datetime.datetime.max, NOON, NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=datetime.UTC),
    NOON.replace(tzinfo=Failing()), NOON.replace(tzinfo=Wandering()),
    NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2, microseconds=1))),
    datetime.datetime.min.replace(tzinfo=BERLIN), datetime.datetime.max.replace(tzinfo=datetime.timezone.min),
    datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), When(2024, 5, 1), When(2024, 5, 1, tzinfo=BERLIN),
]  # fmt: skip


def outcome(convert, *arguments):
    """Run a conversion; return its table, or the error for the caller."""
    try:
        return convert(*arguments)
    except TimespineError as error:
        return type(error), str(error)


def compare(rows, schema, at):
    """Compare the two conversions; return whether the fast one was used."""
    fast = convert_few_rows(rows, schema, at)
    if fast is None:
        return False
    plain = outcome(convert_any_rows, rows, schema, at)
    assert isinstance(plain, pa.Table), plain
    fast.validate(full=True)
    assert fast.schema.equals(plain.schema, check_metadata=True)
    for name, column, other in zip(fast.column_names, fast.columns, plain.columns, strict=True):
        assert column.type.equals(other.type)
        assert column.is_null().equals(other.is_null())
        if pa.types.is_floating(column.type):  # NaN is not equal to itself: compare the bits
            column, other = (each.fill_null(0).to_numpy().view(np.uint64).tolist() for each in (column, other))
            assert column == other, name
        else:
            assert column.equals(other), name
        assert not isinstance(column, pa.ChunkedArray) or column.num_chunks == other.num_chunks == 1
    assert fast.nbytes == plain.nbytes
    return True


@st.composite
def schemas(draw, types=tuple(TYPES)):
    """Draw a schema with the types of its columns."""
    chosen = draw(st.lists(st.sampled_from(types), min_size=1, max_size=4))
    columns = {f"c{i}": each for i, each in enumerate(chosen)}
    arity = draw(st.sampled_from([1, 1, 1, 2]))
    nested = any(each in ("list<int8>", "struct<a:int8>") for each in chosen)
    key = {} if nested or draw(st.booleans()) else {"c0": columns["c0"]}
    value = {name: each for name, each in columns.items() if name not in key}
    return define(key or None, value or None, arity=arity), columns


@st.composite
def cases(draw):
    """Draw a schema and rows for it: most of them fit, and each may be hostile in one place."""
    schema, columns = draw(schemas())
    rows = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3, 10]))):
        row = {name: draw(TYPES[each] | st.none()) for name, each in columns.items()}
        match draw(st.sampled_from(["fits"] * 6 + ["value", "value", "lacks", "more", "key", "kind", "order"])):
            case "value":
                row[draw(st.sampled_from(sorted(columns)))] = HOSTILE[draw(st.integers(0, len(HOSTILE) - 1))]
            case "lacks":
                del row[draw(st.sampled_from(sorted(columns)))]
            case "more":
                name = draw(st.sampled_from(["_diff", "_time", "_time_0", "C0", "x", Text("x"), 1, None, ""]))
                row[name] = draw(st.sampled_from([1, 0, -1, 2**63, None, True, 1.5]))
            case "key":
                name = draw(st.sampled_from(sorted(columns)))
                row[draw(st.sampled_from([Name, Text, np.str_]))(name)] = row.pop(name)
            case "kind":
                row = draw(st.sampled_from([Row(row), None, list(row), tuple(row.items()), 1]))
            case "order":
                row = dict(reversed(row.items()))
        rows.append(row)
    at = draw(st.sampled_from([(5,), (5,), (5, 6), (0,), (2**63 - 1,), (2**63,), None]))
    return rows if draw(st.integers(0, 9)) else tuple(rows), schema, at


@settings(max_examples=examples(100))
@given(cases())
def test_few_rows_become_what_the_general_conversion_gives(case):
    compare(*case)


@pytest.mark.parametrize("name", TYPES)
def test_each_hostile_value_in_each_column(name):
    schema = define(None, {"x": name})
    for value in HOSTILE:
        for rows in ([{"x": value}], [{"x": None}, {"x": value}], [{"x": value}, {"x": 1}], [{"x": 1.5}, {"x": value}]):
            compare(rows, schema, (5,))


@pytest.mark.parametrize(
    "row",
    [
        {Name("x"): 1},
        {Text("x"): 1},
        {np.str_("x"): 1},
        {"X": 1},
        {"x": 1, "y": 1},
        {},
        Row(x=1.5),
        Row(x=1),
        [("x", 1)],
        (("x", 1),),
        None,
        {"x": 1.5},
    ],
)
def test_rows_of_another_kind_are_declined(row):
    schema = define(None, {"x": "int64"})
    for rows in ([row], [{"x": 1}, row], [row, {"x": 1}]):
        assert not compare(rows, schema, (5,))


@given(st.data())
def test_plain_rows_take_the_fast_conversion(data):
    schema, columns = data.draw(schemas(tuple(PLAIN_TYPES)))
    values = {
        name: st.none() | (PLAIN_TYPES[each] if "int" not in each else st.integers(0, 127))
        for name, each in columns.items()
    }
    rows = data.draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=5))
    earliest = datetime.datetime(1, 1, 3)
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime.datetime) and value.replace(tzinfo=None) < earliest:
                row[name] = None  # too early for some zone
    assert compare(rows, schema, (5,) * schema.arity)


def test_many_rows_and_rows_with_times_take_the_general_conversion():
    schema = define({"id": "int64"}, {"x": "float64"})
    rows = [{"id": i, "x": 0.5} for i in range(FEW_ROWS_MAX)]
    assert convert_few_rows(rows, schema, (5,)).num_rows == FEW_ROWS_MAX
    assert convert_few_rows([*rows, rows[0]], schema, (5,)) is None
    assert convert_few_rows(rows, schema, None) is None
    assert convert_few_rows([{**row, "_time": 3} for row in rows], schema, (5,)) is None
    assert convert_few_rows([{**row, "_diff": -1} for row in rows], schema, (5,)) is None
    assert convert_few_rows([{"id": 1}], schema, (5,)) is None
    assert convert_few_rows([], schema, (5,)) is None
