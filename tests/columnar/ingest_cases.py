"""Rows of orders, as dictionaries and as a table, and their schema."""

import pyarrow as pa

from timespine.columnar.schema.schema import define

ORDERS = define({"id": "int64"}, {"customer": "string", "total": "double", "n": "int16"})
ROWS = [
    {"id": 1, "customer": "ann", "total": 1.5, "n": 7},
    {"id": 2, "customer": None, "total": -0.0, "n": None},
]
TABLE = pa.table(
    {
        "id": pa.array([1, 2]),
        "customer": pa.array(["ann", None]),
        "total": pa.array([1.5, 0.0]),
        "n": pa.array([7, None], pa.int16()),
    }
)
