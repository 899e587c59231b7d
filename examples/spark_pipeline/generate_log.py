"""A change log for trying things out: the orders of a shop and its customers, from a seed.

The same numbers give the same bytes, on every machine and with every version of NumPy: bits come from a counter-based
generator, whose stream is fixed, and everything else is arithmetic.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl

import timespine as ts
from examples.spark_pipeline.change_log import SEQUENCE
from examples.spark_pipeline.files import age_in_order

CITIES = ("Accra", "Bonn", "Cusco", "Dakar", "Esbjerg", "Faro", "Graz", "Hanoi", "Izmir", "Jaipur", "Kyiv", "Lyon")

NEW_PERCENT = 55
"""Changes that are about a new key."""

GONE_PERCENT = 15
"""Of the others, those that are deletes."""

MOVED_PERCENT = 5
"""Of updates, those by which an order goes to another customer."""

LATE_PERCENT = 2
"""Changes that come behind newer ones of the same batch: only their sequence says that they are older."""

LATE_MAX = 200
"""By how many places, at most."""

ORDERS_PER_CUSTOMER = 50
"""Changes of orders per customer, about."""


def generate_log(folder: str | os.PathLike[str], *, rows: int = 20_000, batches: int = 8, seed: int = 1) -> Path:
    """Write a log of `rows` changes of orders, and one of their customers, as JSON lines in numbered files.

    The files are folder/orders/0000.jsonl and so on, and likewise folder/customers. Lines have the columns of a row,
    `op` (c, u or d; of what is deleted only the key is told) and `_sequence`. Gives the folder back.
    """
    if not 1 <= batches <= rows:
        raise ts.UsageError(f"a log has at least one change for each of its batches, not {rows} for {batches}")
    place = Path(folder)
    customers = max(rows // ORDERS_PER_CUSTOMER, 1)
    _write(place / "orders", _orders(rows, batches, customers, seed))
    _write(place / "customers", _customers(max(2 * customers, batches), batches, seed))
    return place


def _orders(rows: int, batches: int, customers: int, seed: int) -> pl.DataFrame:
    bits = _bits(rows, seed, 0)
    log = _log(bits, batches)
    key = log["key"].to_numpy()
    moved = (log["op"].to_numpy() == "u") & (bits[:, 4] % 100 < MOVED_PERCENT)
    owner = np.where(moved, bits[:, 3], bits[key, 3]) % customers
    return _told(log, id=pl.Series(key + 1), customer=_customer(owner), cents=pl.Series(bits[:, 5] % 100_000 + 1))


def _customers(rows: int, batches: int, seed: int) -> pl.DataFrame:
    bits = _bits(rows, seed, 1)
    log = _log(bits, batches)
    city = pl.Series(CITIES)[bits[:, 3] % len(CITIES)]
    level = pl.Series(bits[:, 4] % 3 + 1)
    return _told(log, customer=_customer(log["key"].to_numpy()), city=city, level=level)


def _bits(rows: int, seed: int, stream: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Draw six numbers below 2**63 for every change."""
    raw = np.random.Philox(key=[seed, stream]).random_raw(6 * rows).reshape(rows, 6)
    bits: np.ndarray[tuple[int, int], np.dtype[np.int64]] = (raw >> np.uint64(1)).astype(np.int64)
    return bits


def _log(bits: np.ndarray[tuple[int, int], np.dtype[np.int64]], batches: int) -> pl.DataFrame:
    """Choose what happens to which key, in order: `key`, `op`, `batch`, and the place in which a line is written."""
    rows = len(bits)
    place = np.arange(rows)
    is_new = bits[:, 0] % 100 < NEW_PERCENT
    is_new[0] = True
    count = np.cumsum(is_new)
    key = np.where(is_new, count - 1, bits[:, 1] % np.maximum(count - is_new, 1))
    op = np.where(is_new, "c", np.where(bits[:, 2] % 100 < GONE_PERCENT, "d", "u"))
    late = np.where(bits[:, 1] // 7 % 100 < LATE_PERCENT, bits[:, 2] // 7 % LATE_MAX, 0)
    frame = pl.DataFrame({"at": place, "key": key, "op": op, "batch": place * batches // rows, "line": place + late})
    return _possible(frame)


def _possible(frame: pl.DataFrame) -> pl.DataFrame:
    """Turn deletes and updates of keys that are not there into creates."""
    op, before = pl.col("op"), pl.col("op").shift(1)
    stretch = (op != before).fill_null(True).cum_sum().over("key")
    # Of deletes in a row every other one would find nothing.
    again = (op == "d") & (pl.int_range(pl.len()).over("key", "stretch") % 2 == 1)
    frame = (
        frame.sort("key", "at")
        .with_columns(stretch=stretch)
        .with_columns(op=pl.when(again).then(pl.lit("c")).otherwise(op))
    )
    missed = (op == "u") & (before.over("key") == "d")
    return frame.with_columns(op=pl.when(missed).then(pl.lit("c")).otherwise(op)).sort("at").drop("stretch")


def _told(log: pl.DataFrame, **columns: pl.Series) -> pl.DataFrame:
    """Make the lines of a log; a delete has only the first column, the key."""
    first, *others = columns
    is_gone = pl.col("op") == "d"
    frame = log.with_columns(**columns).with_columns(pl.when(~is_gone).then(pl.col(others)).name.keep())
    told = frame.sort("batch", "line", "at").with_columns((pl.col("at") + 1).alias(SEQUENCE))
    return told.select("batch", first, *others, "op", SEQUENCE)


def _customer(number: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.Series:
    return "c" + pl.Series(number).cast(pl.String).str.zfill(5)


def _write(folder: Path, log: pl.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = log.partition_by("batch", maintain_order=True, include_key=False)
    files = [folder / f"{number:04}.jsonl" for number in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        piece.write_ndjson(file)
    age_in_order(files)
