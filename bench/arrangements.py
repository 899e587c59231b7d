"""Arrangements beside peers, in turns, in one process: every figure that docs/arrangements.md aims at.

    python -m bench.arrangements                          everything but Spark, 10 million rows
    python -m bench.arrangements gets fetches --rows 1000000
    python -m bench.arrangements enrich                   on Spark, against its join
    python -m bench.arrangements --json FILE

Each figure is processor time and wall time; ratios are of one run. The aims are about wall time on a machine that does
nothing else; on a busy one only processor time says something. Every answer is compared with that of a peer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from bench.arrangement_rows import BATCH, SCHEMA, Figures, in_turns, medians, rows_of_ids
from bench.arrangement_stores import enriched, stored
from bench.arrangement_streams import inserts
from timespine.arrangement.opened_checkpoint import OpenedCheckpoint
from timespine.arrangement.spine.spine import Spine
from timespine.columnar.schema.schema import DIFF, TIME

LOOSE, LARGE, LARGE_SHARE = 60, 8, 50
"""Batches that are added to the settled one: small ones, and large ones of one fiftieth of its rows each."""

WORKS = ("memory", "gets", "fetches", "scans", "checkpoints", "loose", "inserts", "stores")
"""The works of a run, in order. Spark is not among them."""


class Index:
    """A spine of rows with even ids, and peers that have the same rows."""

    def __init__(self, count: int, folder: Path) -> None:
        from rocksdict import Rdict

        self.count, self.folder = count, folder
        ids = 2 * np.random.default_rng(0).permutation(count)
        table = rows_of_ids(ids)
        self.plain = table.drop_columns([TIME, DIFF])
        self.frame = pl.DataFrame(pl.from_arrow(self.plain))
        self.keys: list[int] = (2 * np.random.default_rng(3).integers(0, count, 4_000)).tolist()
        self.spine = Spine(SCHEMA)
        self.spine.insert(table)
        self.spine.complete_merges()
        self.rocks = Rdict(str(folder / "peer"))
        columns = [self.plain.column(name).to_pylist() for name in self.plain.column_names]
        for row in zip(*columns, strict=True):
            self.rocks[row[0]] = msgspec.msgpack.encode(dict(zip(self.plain.column_names, row, strict=True)))
        self.rocks.flush()
        self.places = dict(zip(ids.tolist(), range(count), strict=True))

    def peer(self, key: int) -> Any:
        """Return the row of a key from RocksDB."""
        return msgspec.msgpack.decode(self.rocks[key])

    def from_dict(self, key: int) -> dict[str, Any]:
        """Return the row of a key by a dictionary of row numbers."""
        place = self.places[key]
        return {name: self.plain.column(name)[place].as_py() for name in self.plain.column_names}

    def close(self) -> None:
        """Close everything."""
        self.spine.close()
        self.rocks.close()


def memory(index: Index, figures: Figures) -> None:
    """Compare bytes per row with those of the Arrow table."""
    ours, arrow = (nbytes / index.count for nbytes in (index.spine.nbytes, index.plain.nbytes))
    figures.ratio("memory per row", "Arrow", ours, arrow, "bytes", "<= 1.3x")


def gets(index: Index, figures: Figures, title: str = "settled", aim: str = "<= 15 us, 1.2x rocksdict") -> None:
    """Measure single gets, also of keys that are absent."""
    view = index.spine.view()
    for key in index.keys[:50]:
        assert view.get({"id": key})[0][0] == index.peer(key) == index.from_dict(key), key
        assert view.get({"id": key - key % 20 + 1}) == []
    # Keys are even; the loose batches have some odd ones in between, of other remainders.
    taken = medians(
        {
            "ours": lambda key: view.get({"id": key}),
            "ours, absent (aim: <= 20 us)": lambda key: view.get({"id": key - key % 20 + 1}),
            "rocksdict": index.peer,
            "a dictionary of row numbers": index.from_dict,
        },
        index.keys,
    )
    figures.show(f"get, {title}", taken, "us", aim)


def fetches(index: Index, figures: Figures, title: str = "settled", aim: str = "best peer >= 2x") -> None:
    """Measure fetches of many keys."""
    import duckdb

    base = duckdb.connect()
    base.register("rows_arrow", index.plain)
    base.execute("create table stored as select * from rows_arrow")
    view, frame = index.spine.view(), index.frame
    for count in (1_000, min(100_000, index.count // 10)):
        wanted = pa.table({"id": 2 * np.sort(np.random.default_rng(1).choice(index.count, count, replace=False))})
        keys = pl.DataFrame(pl.from_arrow(wanted))
        base.register("wanted", wanted)
        assert view.fetch(wanted).num_rows == frame.join(keys, on="id", how="semi").height == count
        taken = in_turns(
            {
                "ours": lambda wanted=wanted: view.fetch(wanted),
                "polars, semi join": lambda keys=keys: frame.join(keys, on="id", how="semi"),
                "polars, inner join": lambda keys=keys: keys.join(frame, on="id", how="inner"),
                "polars, is_in": lambda keys=keys: frame.filter(pl.col("id").is_in(keys["id"].implode())),
                "duckdb": lambda: base.sql("select * from stored semi join wanted using (id)").to_arrow_table(),
            }
        )
        figures.show(f"fetch of {count:,}, {title}", taken, "ms", aim)
    base.close()


def scans(index: Index, figures: Figures) -> None:
    """Measure a walk over all rows, in order, that adds up a column. One kernel adds up both: the walk is compared."""
    view, frame = index.spine.view(), index.frame.sort("id")

    def ours() -> float:
        return sum(pl.Series(table.column("total")).sum() for table in view.scan())

    def polars() -> float:
        return sum(each["total"].sum() for each in frame.iter_slices(1 << 17))

    assert np.isclose(ours(), polars())
    figures.show(f"scan of {index.count:,}", in_turns({"ours": ours, "polars, slices": polars}), "ms", "<= 1.3x polars")


def checkpoints(index: Index, figures: Figures) -> None:
    """Measure saving, saving unchanged data, opening, and gets from mapped files."""
    spine, folder = index.spine, str(index.folder / "index")
    with Spine(SCHEMA, folder=folder) as saved:
        for batch in spine.batches:
            saved.insert(batch)
        figures.show("save, everything", in_turns({"ours": saved.save}, 1), "ms", "")
        figures.show("save, unchanged", in_turns({"ours": saved.save}, 9), "ms", "<= 20 ms")
    key = {"id": index.keys[0]}

    def restore() -> None:
        OpenedCheckpoint(folder).close()

    def first_get() -> None:
        with OpenedCheckpoint(folder) as opened:
            opened.get(key)

    figures.show("restore", in_turns({"ours": restore}), "ms", "<= 100 ms")
    figures.show("restore and first get", in_turns({"ours": first_get}), "ms", "<= 150 ms")
    with OpenedCheckpoint(folder) as opened:
        opened.verify()
        view = opened._view()
        assert view.get(key) == spine.view().get(key)
        taken = medians({"ours": lambda key: view.get({"id": key}), "rocksdict": index.peer}, index.keys)
        figures.show("get, mapped files", taken, "us", "<= 20 us")


def loosen(index: Index) -> str:
    """Add small batches that are not merged; return how many batches there are."""
    index.spine.pause()
    sizes = [BATCH] * LOOSE + [max(5 * BATCH, index.count // LARGE_SHARE)] * LARGE
    fresh = np.random.default_rng(4).integers(0, index.count // 10, sum(sizes)) * 20 + 3
    for start, size in zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True):
        index.spine.insert(rows_of_ids(fresh[start : start + size]))
    return f"{len(index.spine.batches)} batches"


def loose(index: Index, figures: Figures) -> None:
    """Measure gets and fetches with many batches."""
    title = loosen(index)
    gets(index, figures, title, "<= 50 us")
    fetches(index, figures, title, "best peer >= 1x")
    index.spine.resume()


def main(arguments: list[str] | None = None) -> None:
    """Run some works, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}, enrich")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--inserts", type=int, default=1_000, help="batches that are inserted")
    parser.add_argument("--repeat", type=int, default=50, help="calls of lookup and upsert")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args(arguments)
    works = options.works or WORKS
    if unknown := set(works) - {*WORKS, "enrich"}:
        parser.error(f"there is no work {', '.join(sorted(unknown))}")
    figures, began = Figures(), time.perf_counter()
    on_index: dict[str, Callable[[Index, Figures], None]] = {
        each.__name__: each for each in (memory, gets, fetches, scans, checkpoints, loose)
    }
    print(f"{options.rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        if set(works) & set(on_index):
            index = Index(options.rows, Path(folder))
            for name in WORKS:
                if name in works and name in on_index:
                    on_index[name](index, figures)
            index.close()
        if "inserts" in works:
            inserts(figures, options.inserts)
        if "stores" in works:
            stored(figures, Path(folder), options.rows, options.repeat)
        if "enrich" in works:
            enriched(figures, Path(folder), options.rows)
    print(f"{time.perf_counter() - began:.0f} seconds in all")
    if options.json:
        options.json.write_text(json.dumps(figures.records, indent=1) + "\n")


if __name__ == "__main__":
    main()
