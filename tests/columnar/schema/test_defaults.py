"""Defaults of columns: one stored form per value, and nothing that the column could not hold."""

from __future__ import annotations

import datetime
import decimal
import math
import struct

import pandas as pd
import pytest

from timespine.columnar.schema.schema import Schema, define
from timespine.errors import UsageError

D = decimal.Decimal
UTC = datetime.UTC
BERLIN = datetime.timezone(datetime.timedelta(hours=2))

GOOD_DEFAULTS = [
    ("bool", True, True),
    ("int8", -128, -128),
    ("uint64", 2**64 - 1, 2**64 - 1),
    ("float64", 3, 3.0),
    ("float64", -0.0, 0.0),
    ("float64", math.inf, math.inf),
    ("float64", 1e300, 1e300),
    ("float32", 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    ("float32", -math.inf, -math.inf),
    ("string", "größe\x00", "größe\x00"),
    ("string", "nan", "nan"),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("binary", b"", b""),
    ("date", datetime.date(1969, 12, 31), datetime.date(1969, 12, 31)),
    ("timestamp", datetime.datetime(1, 1, 1), datetime.datetime(1, 1, 1)),
    ("timestamp", datetime.datetime.max, datetime.datetime.max),
    ("timestamp[UTC]", datetime.datetime(2020, 1, 1, 2, tzinfo=BERLIN), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp[Asia/Tokyo]", datetime.datetime(2020, 1, 1, tzinfo=UTC), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp", pd.Timestamp("2020-01-01T00:00:00.000001"), datetime.datetime(2020, 1, 1, 0, 0, 0, 1)),
    ("decimal(4,2)", D("1.5"), D("1.50")),
    ("decimal(4,2)", -3, D("-3.00")),
    ("decimal(4,2)", D("-0"), D("0.00")),
    ("decimal(2,2)", D("-0.01"), D("-0.01")),
    ("decimal(38,0)", D(10**38 - 1), D(10**38 - 1)),
    ("decimal(38,37)", D("-9." + "9" * 37), D("-9." + "9" * 37)),
    ("decimal(10,0)", D("1E+9"), D(10**9)),
    ("list<int8>", None, None),
]


@pytest.mark.parametrize(("type_", "value", "expected"), GOOD_DEFAULTS)
def test_a_default_is_kept_exactly(type_, value, expected):
    schema = define(None, {"a": "int8"}).add("x", type_, value)
    stored = Schema.decode(schema.encode())
    assert stored == schema
    scalar = stored.field("x").default_scalar()
    assert scalar.type == schema.field("x").arrow_type
    assert scalar.as_py() == expected
    assert repr(scalar.as_py()) == repr(expected) or type_.startswith("timestamp")


def test_a_default_of_nan_is_equal_to_itself():
    schema = define(None, {"a": "int8"}).add("x", "float32", math.nan)
    again = define(None, {"a": "int8"}).add("x", "float32", struct.unpack("<d", b"\x01" + b"\xff" * 7)[0])
    assert schema == again == Schema.decode(schema.encode())
    assert hash(schema) == hash(again)
    assert math.isnan(schema.field("x").default_scalar().as_py())


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("bool", 1),
        ("int8", 128),
        ("int8", True),
        ("int8", 1.0),
        ("int8", "1"),
        ("uint8", -1),
        ("uint64", 2**64),
        ("float64", True),
        ("float64", "1"),
        ("float64", "nan"),
        ("float64", 2**53 + 1),
        ("float32", 1e300),
        ("float32", 2**24 + 1),
        ("float64", D(1)),
        ("string", b"x"),
        ("string", "\ud800"),
        ("string", 1),
        ("binary", "00"),
        ("binary", bytearray(b"x")),
        ("date", datetime.datetime(2020, 1, 1)),
        ("date", 5),
        ("date", "2020-01-01"),
        ("timestamp", datetime.date(2020, 1, 1)),
        ("timestamp", datetime.datetime(2020, 1, 1, tzinfo=UTC)),
        ("timestamp[UTC]", datetime.datetime(2020, 1, 1)),
        ("timestamp", 5),
        ("timestamp", pd.NaT),
        ("timestamp", pd.Timestamp("2020-01-01T00:00:00.000000001")),
        ("decimal(4,2)", D("1.555")),
        ("decimal(4,2)", D("100")),
        ("decimal(4,2)", D("NaN")),
        ("decimal(4,2)", D("Infinity")),
        ("decimal(4,2)", D("1E+999999")),
        ("decimal(4,2)", D("1E-999999")),
        ("decimal(38,0)", D("1." + "3" * 5000)),
        ("decimal(4,2)", 1.5),
        ("decimal(4,2)", "1.50"),
        ("decimal(4,2)", True),
        ("list<int8>", [1]),
        ("struct<a:int8>", {"a": 1}),
        ("struct<a:int8>", "x"),
    ],
)
def test_a_default_that_the_column_could_not_hold_is_refused(type_, value):
    with pytest.raises(UsageError, match="default"):
        define(None, {"a": "int8"}).add("x", type_, value)


def test_a_decimal_default_does_not_depend_on_the_context():
    with decimal.localcontext(decimal.Context(prec=3, traps=[decimal.Inexact])):
        schema = define(None, {"a": "int8"}).add("x", "decimal(20,2)", D("123456789.12"))
    assert schema.field("x").default == "123456789.12"
