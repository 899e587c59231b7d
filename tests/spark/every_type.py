"""Rows with a column of every type, and a form of them that compares."""

from __future__ import annotations

import datetime
import decimal

VALUES = {
    "flag": "bool",
    "tiny": "int8",
    "small": "uint8",
    "wide": "uint64",
    "ratio": "float64",
    "price": "decimal(10,2)",
    "name": "string",
    "data": "binary",
    "day": "date",
    "at": "timestamp",
    "moment": "timestamp[UTC]",
    "tags": "list<string>",
    "place": "struct<x:int64,y:uint16>",
}


def row(id, **values):
    full = {
        "flag": id % 2 == 0,
        "tiny": id % 100,
        "small": id % 250,
        "wide": (1 << 64) - 1 - id,
        "ratio": float("nan") if id % 7 == 0 else id / 3,
        "price": decimal.Decimal(id).scaleb(-2),
        "name": f"n{id % 11}é" if id % 5 else None,
        "data": bytes([id % 256]),
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=id % 1000),
        "at": datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=id),
        "moment": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=id),
        "tags": [f"t{id}", None],
        "place": {"x": id, "y": id % 9},
    }
    return {"id": id, **full, **values}


def canonical(table):
    """Rows in a form that compares: NaN is a text, instants are in UTC."""

    def plain(value):
        if isinstance(value, float) and value != value:
            return "nan"
        if isinstance(value, decimal.Decimal):
            return str(value.normalize())
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return sorted(map(repr, rows))
