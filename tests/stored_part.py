"""What tests of parts share: making them, opening them from bytes, and comparing rows."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
from assertions import check

from timespine.columnar.parts.part_reader import open_part
from timespine.columnar.parts.part_writer import encode_part
from timespine.columnar.schema.schema import define
from timespine.config import DEFAULT
from timespine.core.batch import Part

SCHEMA = define({"id": "int64"}, {"name": "string", "total": "double", "seen": "timestamp[Europe/Berlin]"})
KEY = "orders/w1/p1"


def rows(count, schema=SCHEMA):
    """An update table in order: every third name is null, names repeat, times and diffs vary."""
    columns = [
        range(0, 2 * count, 2),
        [None if place % 3 == 0 else f"name {place % 50}" for place in range(count)],
        [place / 4 for place in range(count)],
        [place * 1_000_003 for place in range(count)],
        [place % 7 for place in range(count)],
        [1 + place % 2 for place in range(count)],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema.update_arrow, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.update_arrow)


def encoded(table, schema=SCHEMA, config=DEFAULT, *, collection="orders", name="p1", schema_id=3, is_sorted=True):
    return encode_part(table, schema, schema_id, collection, name, config, is_sorted=is_sorted)


def part_of(made, key=KEY, meta=None):
    """What the state says of it."""
    return Part(key, made.rows, len(made.data), made.diff_sum, meta=(meta or made.meta).encode())


class Bytes:
    """A blob, and what was read of it."""

    def __init__(self, data):
        self.data = data
        self.reads = []

    def __call__(self, start, stop):
        self.reads.append((start, stop))
        return None if self.data is None else self.data[start:stop]


def opened(made, schema=SCHEMA, config=DEFAULT, *, fetch=None, part=None, collection="orders", schema_id=3):
    return open_part(part or part_of(made), collection, schema, schema_id, fetch or Bytes(made.data), config)


def check_same(actual, wanted):
    """The same schema, with its metadata, and the same rows, a NaN being one value."""
    check(actual.schema.equals(wanted.schema, check_metadata=True), f"{actual.schema} is not {wanted.schema}")
    check(pl.DataFrame(pl.from_arrow(actual)).equals(pl.DataFrame(pl.from_arrow(wanted))), "rows differ")
    actual.validate(full=True)
