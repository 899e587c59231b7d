"""Gets, fetches and inserts of a spine beside peers, in turns, in one process.

    python -m bench.arrangements --rows 1000000

Prints the median of wall times of single gets, the smallest processor time of fetches, and batches per second of
processor time for inserts. Every answer is compared with that of the peer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from timespine.arrangement.spine.spine import Spine
from timespine.columnar.schema.schema import DIFF, TIME, define

SCHEMA = define({"id": "int64"}, {"name": "string", "total": "double", "seen": "int64", "note": "string"})
BATCH = 1_000


def rows_of_ids(ids: np.ndarray, version: int = 0) -> pa.Table:
    """Make the rows of some ids: all but the version follows from the id."""
    numbers = pa.array(ids)
    table = pa.table(
        {
            "id": numbers,
            "name": pa.array([f"customer {each % 5000}" for each in ids.tolist()]),
            "total": pa.array(ids * 0.25 + version),
            "seen": numbers,
            "note": pa.array([None if each % 3 else "a note" for each in ids.tolist()]),
        }
    )
    return table.append_column(TIME, pa.array(np.zeros(len(ids), np.int64))).append_column(
        DIFF, pa.array(np.ones(len(ids), np.int64))
    )


def microseconds(call: Callable[[int], object], keys: list[int]) -> float:
    """Return the median wall time of a call."""
    times = []
    for key in keys:
        began = time.perf_counter()
        call(key)
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e6


def in_turns(calls: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Return the smallest processor time of each call, in milliseconds."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            call()
            best[name] = min(best.get(name, float("inf")), (time.process_time() - began) * 1e3)
    return best


def show(title: str, figures: dict[str, float], unit: str) -> None:
    """Print figures, with ratios to the first."""
    ours = next(iter(figures.values()))
    print(title, *(f"  {name}: {value:,.1f} {unit} ({value / ours:.2f}x)" for name, value in figures.items()), sep="\n")


def gets(spine: Spine, peer: object, keys: list[int], title: str) -> None:
    """Measure single gets, also of keys that are absent."""
    view = spine.view()
    decode = msgspec.msgpack.decode
    for key in keys[:50]:
        assert view.get({"id": key})[0][0] == decode(peer[key]), key  # type: ignore[index]
    figures = {
        "ours": microseconds(lambda key: view.get({"id": key}), keys),
        # Keys are even; the loose batches have some odd ones in between, of other remainders.
        "ours, absent": microseconds(lambda key: view.get({"id": key - key % 20 + 1}), keys),
        "rocksdict": microseconds(lambda key: decode(peer[key]), keys),  # type: ignore[index]
    }
    show(f"get, {title}", figures, "us")


def fetches(spine: Spine, table: pa.Table, count: int, title: str) -> None:
    """Measure fetches of many keys."""
    import duckdb

    draw = np.random.default_rng(1)
    wanted = pa.table({"id": 2 * np.sort(draw.choice(table.num_rows, count, replace=False))})
    view, frame, keys = spine.view(), pl.DataFrame(pl.from_arrow(table)), pl.DataFrame(pl.from_arrow(wanted))
    base = duckdb.connect()
    base.register("rows_arrow", table)
    base.execute("create table stored as select * from rows_arrow")
    base.register("wanted", wanted)
    assert view.fetch(wanted).num_rows == frame.join(keys, on="id", how="semi").height == count
    figures = in_turns(
        {
            "ours": lambda: view.fetch(wanted),
            "polars": lambda: frame.join(keys, on="id", how="semi"),
            "duckdb": lambda: base.sql("select * from stored semi join wanted using (id)").to_arrow_table(),
        }
    )
    show(f"fetch of {count:,}, {title}", figures, "ms")


def inserts(count: int) -> None:
    """Measure inserts of small batches of new rows."""
    from rocksdict import Rdict, WriteBatch

    ids = np.random.default_rng(2).permutation(count * BATCH)
    tables = [rows_of_ids(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)]
    figures = {}
    for name in ("ours, merging", "ours, paused"):
        with Spine(SCHEMA) as spine:
            if name == "ours, paused":
                spine.pause()
            began = time.process_time()
            for table in tables:
                spine.insert(table)
            figures[name] = count / (time.process_time() - began)
            if name == "ours, merging":
                spine.complete_merges()
                assert len(spine) == len(ids)
            else:
                spine.resume()
    with tempfile.TemporaryDirectory() as folder:
        peer = Rdict(str(Path(folder) / "peer"))
        began = time.process_time()
        for table in tables:
            batch = WriteBatch()
            for row in table.drop_columns([TIME, DIFF]).to_pylist():
                batch.put(row["id"], msgspec.msgpack.encode(row))
            peer.write(batch)
        figures["rocksdict"] = count / (time.process_time() - began)
        peer.close()
    show(f"inserts of {BATCH:,} rows", figures, "batches/s of processor time")


def main(arguments: list[str] | None = None) -> None:
    """Run everything."""
    from rocksdict import Rdict

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--inserts", type=int, default=300, help="batches that are inserted")
    options = parser.parse_args(arguments)
    table = rows_of_ids(2 * np.random.default_rng(0).permutation(options.rows))
    plain = table.drop_columns([TIME, DIFF])
    keys = (2 * np.random.default_rng(3).integers(0, options.rows, 2_000)).tolist()
    with tempfile.TemporaryDirectory() as folder, Spine(SCHEMA) as spine:
        spine.insert(table)
        per_row = [nbytes / options.rows for nbytes in (spine.nbytes, plain.nbytes)]
        print(f"{options.rows:,} rows, {per_row[0]:.1f} bytes per row, Arrow {per_row[1]:.1f}")
        peer = Rdict(str(Path(folder) / "peer"))
        for row in plain.to_pylist():
            peer[row["id"]] = msgspec.msgpack.encode(row)
        peer.flush()
        gets(spine, peer, keys, "settled")
        for count in (1_000, min(100_000, options.rows // 10)):
            fetches(spine, plain, count, "settled")
        spine.pause()
        fresh = np.random.default_rng(4).integers(0, options.rows // 10, 100_000) * 20 + 3
        for number in range(60):
            spine.insert(rows_of_ids(fresh[number * BATCH : (number + 1) * BATCH]))
        for number in range(8):
            start = 60_000 + number * 5_000
            spine.insert(rows_of_ids(fresh[start : start + 5_000]))
        gets(spine, peer, keys, f"{len(spine.batches)} batches")
        for count in (1_000, min(100_000, options.rows // 10)):
            fetches(spine, plain, count, f"{len(spine.batches)} batches")
        peer.close()
        spine.resume()
    inserts(options.inserts)


if __name__ == "__main__":
    main()
