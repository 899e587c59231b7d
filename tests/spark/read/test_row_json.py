"""Rows as JSON say every value, also those that JSON has no word for."""

from __future__ import annotations

import base64
import datetime
import decimal
import json

import pyarrow as pa

from timespine.spark.read.row_json import json_of

NAN, INF = float("nan"), float("inf")


def test_what_json_has_no_word_for_is_text_and_never_null():
    table = pa.table(
        {
            "f": pa.array([NAN, INF, -INF, 1.5, None]),
            "g": pa.array([NAN, INF, -INF, 1.5, None], pa.float32()),
            "b": pa.array([b"\xff\x00", b"", None, b"abc", b"x"]),
            "l": pa.array([[NAN, None, 2.5], [], None, [INF], [1.0]]),
            "s": pa.array([{"x": NAN, "y": [b"\xff"]}, None, {"x": None, "y": None}, {"x": 1.0, "y": []}, None]),
        }
    )
    rows = [json.loads(text) for text in json_of(table, table.column_names).to_pylist()]
    assert [row["f"] for row in rows] == ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert [row["g"] for row in rows] == ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert [None if row["b"] is None else base64.b64decode(row["b"]) for row in rows] == table["b"].to_pylist()
    assert [row["l"] for row in rows] == [["NaN", None, 2.5], [], None, ["Infinity"], [1.0]]
    assert [row["s"] for row in rows] == [
        {"x": "NaN", "y": ["/w=="]},
        None,
        {"x": None, "y": None},
        {"x": 1.0, "y": []},
        None,
    ]


def test_everything_else_keeps_its_digits_and_names_are_quoted():
    day = datetime.date(2026, 1, 31)
    table = pa.table(
        {
            'a"b': [1],
            "c.d": ['x"y\n'],
            "u": pa.array([2**64 - 1], pa.uint64()),
            "d": pa.array([decimal.Decimal("1234567890123456789.01")]),
            "day": pa.array([[day, None]]),
            "yes": [True],
        }
    )
    (text,) = json_of(table, table.column_names).to_pylist()
    assert json.loads(text, parse_float=str) == {
        'a"b': 1,
        "c.d": 'x"y\n',
        "u": 2**64 - 1,
        "d": "1234567890123456789.01",
        "day": ["2026-01-31", None],
        "yes": True,
    }
    assert json_of(table.slice(0, 0), ["u"]).to_pylist() == []
