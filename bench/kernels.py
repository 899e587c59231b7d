"""The kernels against what others offer for the same work: python -m bench.kernels [--quick] [--json FILE]

Consolidation of updates in memory (sort, sum the diffs of equal rows, drop zeros),
and merges of 16 sorted runs. Everybody gets the rows in the form that suits it
best and gives an ordered result; all take turns, and the best of a few turns counts.
Millions of rows per second, and how many times the best other system we reach.
The others hold everything in memory; our merge is given a bound.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bench.core import table as print_table
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.kway_merge import kway_merge

SEED = 11
RUNS = 16
CHUNK_ROWS = 16_384
MERGE_BYTES = 256 << 20
TURNS = 3
SECONDS = 12.0
"""Seconds after which a contender gets no further turn."""

Work = Callable[[], pa.Table]


def updates(columns: dict[str, Any], draw: np.random.Generator) -> pa.Table:
    """Rows as updates at a few times; one of three is a retraction."""
    rows = len(next(iter(columns.values())))
    diffs = np.where(draw.random(rows) < 1 / 3, -1, 1)
    return pa.table({**columns, "_time": draw.integers(0, 4, rows), "_diff": diffs})


def picked(pool: pa.Array, rows: int, draw: np.random.Generator) -> pa.Array:
    """Each row is one of the pool."""
    return pool.take(pa.array(draw.integers(0, len(pool), rows)))


def int_keys(rows: int, draw: np.random.Generator) -> pa.Table:
    return updates(
        {"key": pa.array(draw.integers(0, rows // 2, rows)), "value": pa.array(draw.integers(0, 3, rows))}, draw
    )


def wide_ints(rows: int, draw: np.random.Generator) -> pa.Table:
    keys = pa.array(draw.integers(-(1 << 62), 1 << 62, rows // 2))
    return updates({"key": picked(keys, rows, draw), "value": pa.array(draw.integers(0, 3, rows))}, draw)


def fixed_strings(rows: int, draw: np.random.Generator) -> pa.Table:
    digits = pc.utf8_lpad(pa.array(draw.integers(0, rows // 2, rows)).cast(pa.string()), 10, "0")
    keys = pc.binary_join_element_wise("customer-", digits, "")
    return updates({"key": keys, "value": pa.array(draw.integers(0, 3, rows))}, draw)


def variable_strings(rows: int, draw: np.random.Generator) -> pa.Table:
    numbers = (draw.random(rows // 2) * 10.0 ** draw.integers(2, 15, rows // 2)).astype(np.int64)
    keys = pc.binary_join_element_wise("customer/", pa.array(numbers).cast(pa.string()), "")
    return updates({"key": picked(keys, rows, draw), "value": pa.array(draw.integers(0, 3, rows))}, draw)


def hex_strings(rows: int, draw: np.random.Generator) -> pa.Table:
    text = draw.bytes(rows // 2 * 16).hex()
    keys = pa.array([text[at : at + 32] for at in range(0, len(text), 32)])
    return updates({"key": picked(keys, rows, draw), "value": pa.array(draw.integers(0, 3, rows))}, draw)


def few_texts(rows: int, draw: np.random.Generator) -> pa.Table:
    """A first column of few texts: it must not use up what rows are compared by."""
    regions = pa.array([f"{name} {side}" for name in ("Europe", "Africa", "America") for side in ("north", "south")])
    return updates({"region": picked(regions, rows, draw), "key": pa.array(draw.integers(0, rows // 12, rows))}, draw)


def urls(rows: int, draw: np.random.Generator) -> pa.Table:
    count = rows // 2
    shops = pa.array(draw.integers(0, 50, count)).cast(pa.string())
    items = pa.array(draw.integers(0, 1 << 40, count)).cast(pa.string())
    keys = pc.binary_join_element_wise("https://www.example.com/shop", shops, items, "/item/")
    return updates({"key": picked(keys, rows, draw), "value": pa.array(draw.integers(0, 3, rows))}, draw)


def many_columns(rows: int, draw: np.random.Generator) -> pa.Table:
    """Ten columns of all sorts, a function of the key: an update retracts what another one inserted."""
    ids = draw.integers(0, rows // 2, rows)
    notes = pa.array([f"note number {number} of many" for number in range(97)])
    names = pa.array([f"name{number}" for number in range(5003)])
    mixed = ids * 7919 % 1_000_003
    return updates(
        {
            "id": pa.array(ids),
            "name": names.take(pa.array(ids % 5003)),
            "total": pa.array(mixed / 100.0),
            "created": pa.array(1_700_000_000_000_000 + ids * 1000, pa.timestamp("us")),
            "note": notes.take(pa.array(ids % 97, mask=ids % 3 == 0)),
            "flag": pa.array(ids % 2 == 0),
            "day": pa.array((ids % 10_000).astype(np.int32), pa.date32()),
            "small": pa.array((ids % 100).astype(np.int16)),
            "ratio": pa.array((mixed % 1000 / 8).astype(np.float32)),
            "count": pa.array(mixed, mask=ids % 7 == 0),
        },
        draw,
    )


def skewed(rows: int, draw: np.random.Generator) -> pa.Table:
    keys = np.minimum(draw.zipf(1.3, rows), 1_000_000)
    return updates({"key": pa.array(keys), "value": pa.array(draw.integers(0, 3, rows))}, draw)


def in_order(rows: int, draw: np.random.Generator) -> pa.Table:
    return consolidate(variable_strings(rows * 2, draw), ["key", "value", "_time"]).slice(0, rows)


def order_of(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name != "_diff"]


def by_polars(frame: pl.DataFrame) -> Work:
    order = [name for name in frame.columns if name != "_diff"]
    lazy = frame.lazy().group_by(order).agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0).sort(order)
    return lambda: lazy.collect(engine="streaming").to_arrow()


def by_duckdb(table: pa.Table) -> Work:
    connection = duckdb.connect()
    connection.register("given", table)
    columns = ", ".join(f'"{name}"' for name in order_of(table))
    nulls = ", ".join(f'"{name}" NULLS FIRST' for name in order_of(table))
    query = (
        f"SELECT {columns}, CAST(sum(_diff) AS BIGINT) AS _diff FROM given GROUP BY {columns} "
        f"HAVING sum(_diff) <> 0 ORDER BY {nulls}"
    )
    return lambda: connection.sql(query).to_arrow_table()


def by_pyarrow(table: pa.Table) -> Work:
    order = order_of(table)

    def run() -> pa.Table:
        grouped = table.group_by(order).aggregate([("_diff", "sum")])
        kept = grouped.filter(pc.not_equal(grouped.column("_diff_sum"), 0))
        return kept.sort_by([(name, "ascending") for name in order])

    return run


def compare(title: str, rows: int, contenders: dict[str, Work]) -> dict[str, Any]:
    """Turn by turn; the best turn of each."""
    best = dict.fromkeys(contenders, float("inf"))
    spent = dict.fromkeys(contenders, 0.0)
    results: dict[str, tuple[int, int]] = {}
    for turn in range(TURNS + 1):
        for name, work in contenders.items():
            if turn and spent[name] > SECONDS:
                continue
            began = time.perf_counter()
            result = work()
            seconds = time.perf_counter() - began
            spent[name] += seconds
            # The first turn warms up, unless it is the only one.
            if turn or seconds > SECONDS / 2:
                best[name] = min(best[name], seconds)
            results[name] = (result.num_rows, pc.sum(result.column(result.num_columns - 1)).as_py())
            del result
    if len(set(results.values())) != 1:
        raise SystemExit(f"{title}: not everybody found the same: {results}")
    rates = {name: rows / seconds / 1e6 for name, seconds in best.items()}
    ratio = rates["timespine"] / max(rate for name, rate in rates.items() if name != "timespine")
    row = {"work": title, **{name: round(rate, 2) for name, rate in rates.items()}, "ratio": round(ratio, 2)}
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def consolidations(quick: bool) -> list[dict[str, Any]]:
    million = 250_000 if quick else 1_000_000
    cases: list[tuple[str, Callable[[int, np.random.Generator], pa.Table], int]] = [
        ("int keys", int_keys, million),
        ("wide int keys", wide_ints, million),
        ("fixed strings", fixed_strings, million),
        ("variable strings", variable_strings, million),
        ("hex strings of 32", hex_strings, million),
        ("urls", urls, million),
        ("few texts, then ints", few_texts, million),
        ("ten columns", many_columns, million),
        ("skewed keys", skewed, million),
        ("in order already", in_order, million),
    ]
    if not quick:
        cases += [("int keys", int_keys, 10 * million), ("variable strings", variable_strings, 10 * million)]
    rows = []
    for title, make, count in cases:
        table = make(count, np.random.default_rng(SEED)).combine_chunks()
        order = order_of(table)
        contenders: dict[str, Work] = {
            "timespine": lambda table=table, order=order: consolidate(table, order),
            "polars": by_polars(pl.DataFrame(table)),
            "duckdb": by_duckdb(table),
            "pyarrow": by_pyarrow(table),
        }
        rows.append(compare(f"{title}, {count:,}", count, contenders))
    return rows


def chunks(run: pa.Table) -> Iterator[pa.Table]:
    for at in range(0, run.num_rows, CHUNK_ROWS):
        yield run.slice(at, CHUNK_ROWS)


def merges(quick: bool) -> list[dict[str, Any]]:
    rows = []
    count = 100_000 if quick else 1_000_000
    for title, make in (("int keys", int_keys), ("variable strings", variable_strings), ("ten columns", many_columns)):
        table = make(RUNS * count, np.random.default_rng(SEED)).combine_chunks()
        order = order_of(table)
        runs = [consolidate(table.slice(number * count, count), order) for number in range(RUNS)]
        table = pa.concat_tables(runs)
        contenders: dict[str, Work] = {
            "timespine": lambda runs=runs, order=order: pa.concat_tables(
                kway_merge([chunks(run) for run in runs], order, chunk_bytes=MERGE_BYTES)
            ),
            "polars": by_polars(pl.DataFrame(table)),
            "duckdb": by_duckdb(table),
            "pyarrow": by_pyarrow(table),
        }
        rows.append(compare(f"16 runs of {count:,}, {title}", table.num_rows, contenders))
    return rows


def tiny() -> list[dict[str, Any]]:
    """A table of 100 rows and 5 columns, as a small commit has it."""
    rows = []
    draw = np.random.default_rng(SEED)
    ids = draw.permutation(100)
    columns = {
        "id": pa.array(ids),
        "name": pa.array([f"name {each}" for each in ids]),
        "total": pa.array(draw.random(100)),
    }
    table = pa.table({**columns, "_time": np.zeros(100, np.int64), "_diff": np.ones(100, np.int64)})
    ordered = consolidate(table, order_of(table))
    frame = pl.DataFrame(table)
    for title, work in (
        ("timespine", lambda: consolidate(table, order_of(table))),
        ("timespine, in order already", lambda: consolidate(ordered, order_of(table))),
        ("polars", by_polars(frame)),
        ("pyarrow", by_pyarrow(table)),
        ("duckdb", by_duckdb(table)),
    ):
        seconds = []
        for _ in range(200):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        rows.append(
            {
                "100 rows, 5 columns": title,
                "best us": round(min(seconds) * 1e6),
                "p50 us": round(sorted(seconds)[100] * 1e6),
            }
        )
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench.kernels", description="The kernels, beside those of others.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, and less")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    results = {
        "tiny tables": tiny(),
        "consolidate, M rows/s": consolidations(options.quick),
        "merge sorted runs, M rows/s": merges(options.quick),
    }
    for title, rows in results.items():
        print_table(title, rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
