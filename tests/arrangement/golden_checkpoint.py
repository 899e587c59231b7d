"""The updates of the checkpoints in tests/golden, which this version wrote once, and how to write such again.

    python tests/arrangement/golden_checkpoint.py tests/golden

writes them. That is for a new version of the format, into a folder of its own: those that are there stay as they are,
because later versions must read them.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import shutil
import sys
import tempfile
import zoneinfo
from pathlib import Path
from unittest import mock

import timespine as ts
from timespine.arrangement.batch import chunk
from timespine.columnar.schema.schema import Schema, define
from timespine.model.frontier import Frontier

VALUES = {
    "bool": True,
    "int8": -8,
    "int16": -16,
    "int32": 1 << 30,
    "uint8": 255,
    "uint16": 65_535,
    "uint32": (1 << 32) - 1,
    "uint64": (1 << 64) - 1,
    "float32": 0.5,
    "float64": -1e300,
    "decimal(20,3)": decimal.Decimal("-12345678901234567.125"),
    "string": "größer",
    "binary": b"\0\xff",
    "date": datetime.date(1969, 12, 31),
    "timestamp": datetime.datetime(2024, 2, 29, 12, 0, 0, 1),
    "timestamp[UTC]": datetime.datetime(2024, 2, 29, 12, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "list<int64>": [1, None, 3],
    "struct<a:string,b:list<int8>>": {"a": "x", "b": [1]},
}
"""A value of every type but the one of the key."""

TYPES = define({"id": "int64"}, {f"c{place}": kind for place, kind in enumerate(VALUES)})
PAIRS = define({"name": "string"}, {"n": "int64"}, arity=2)

Update = tuple[dict[str, object], tuple[int, ...], int]


def typed_updates() -> list[list[Update]]:
    """Batches of rows of every type: whole ones, rows of nulls, retractions, and a row that counts three times."""
    whole = {f"c{place}": value for place, value in enumerate(VALUES.values())}
    nothing = dict.fromkeys(whole)
    return [
        [({"id": n, **whole}, (0,), 1) for n in range(-2, 5)],
        [({"id": 0, **whole}, (1,), -1), ({"id": 0, **nothing}, (1,), 1), ({"id": 9, **nothing}, (2,), 3)],
    ]


def paired_updates() -> list[list[Update]]:
    """Batches of rows whose times have two coordinates."""
    return [
        [({"name": f"a long beginning {n}", "n": n}, (n % 2, n % 3), 1) for n in range(6)],
        [({"name": "a long beginning 4", "n": 4}, (1, 2), -1), ({"name": "", "n": None}, (0, 2), 200)],
    ]


CHECKPOINTS = {
    "types": (TYPES, typed_updates, Frontier.at(3)),
    "pairs": (PAIRS, paired_updates, Frontier(((2, 0), (0, 3)))),
}
"""By name of the folder: the schema, the batches that were inserted, and the upper."""

ORDERS = [
    {"id": 1, "customer": "ada", "total": 1.5},
    {"id": 2, "customer": "bob", "total": None},
    {"id": 3, "customer": None, "total": 3.0},
]
"""The rows of the checkpoint of a collection, arranged by customer."""


def write_checkpoint(folder: str, schema: Schema, batches: list[list[Update]], upper: Frontier) -> None:
    """Write one checkpoint of a spine, with chunks of four updates."""
    with mock.patch.object(chunk, "CHUNK_ROWS", 4), ts.arrangement.Spine(schema, folder=folder) as spine:
        for batch in batches:
            rows = [
                {**row, **dict(zip(schema.time_names, time, strict=True)), "_diff": diff} for row, time, diff in batch
            ]
            spine.insert(rows, upper=upper)
        spine.save()


def write_followed(folder: str) -> None:
    """Write the checkpoint of an arrangement of a collection."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        store = stack.enter_context(ts.open(f"{place}/store"))
        orders = store.create(
            "orders", key={"id": "int64"}, value={"customer": "string", "total": "double"}, timeline="counter"
        )
        orders.append([*ORDERS[:2], {"id": 3, "customer": "eve", "total": 3.0}])
        orders.upsert(ORDERS[2:])
        with orders.arrange(by=["customer"], where="id < 100", folder=folder):
            pass


def main() -> None:
    """Write all of them, each to a new folder."""
    root = Path(sys.argv[1])
    for name, (schema, batches, upper) in CHECKPOINTS.items():
        write_checkpoint(str(root / f"checkpoint-1-{name}"), schema, batches(), upper)
    write_followed(str(root / "checkpoint-1-orders"))
    for each in root.iterdir():
        (each / "lock").unlink(missing_ok=True)
        for path in each.iterdir():
            shutil.copymode(__file__, path)


if __name__ == "__main__":
    main()
