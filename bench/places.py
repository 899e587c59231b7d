"""What operations cost at each place, by counting: python -m bench.places [--json FILE]

The same operations run on a folder, on S3 with PostgreSQL, and on a bucket alone, in virtual time: each request takes
the time that `PLACES` says, and nothing else takes any. So the figures are counts of requests and sums of waits, and do
not depend on the machine. They leave out CPU time: `python -m bench` measures that, on a folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from timespine.client.api_for_engines import Store, slices_of
from timespine.config import Config
from timespine.testing.latency import S3, Latency, SlowPlace, pools_on

FOLDER, POSTGRESQL, BUCKET = "folder", "S3 + PostgreSQL", "bucket alone"

PLACES: dict[str, Callable[[], SlowPlace]] = {
    # A quiet local disk: a blob is four fsyncs, a commit of SQLite is one.
    FOLDER: lambda: SlowPlace(Latency(put=4.0, get=0.1, list=0.1, log=1.0), is_remote=False),
    POSTGRESQL: lambda: SlowPlace(S3),
    BUCKET: lambda: SlowPlace(S3, is_bucket=True),
}
"""The places, with what their requests take."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation waited for."""

    operation: str
    ms: float
    """Milliseconds of virtual time."""
    blobs: dict[str, int]
    """Requests for blobs, by kind."""
    logs: dict[str, int]
    """Calls of the logs, or requests for their objects, by kind."""


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Make rows with keys from `first` on."""
    return [{"k": first + number, "v": f"value {number}"} for number in range(count)]


def measure(place: SlowPlace) -> Iterator[Cost]:
    """Run all operations at a place."""
    with pools_on(place.clock):
        yield from _small_work(place)
        yield from _many_parts(place)
        yield from _planning(place)
        yield from _upsert_among_runs(place)


class _Meter:
    """Names what was done since the last look."""

    def __init__(self, place: SlowPlace) -> None:
        self._place = place

    def __call__(self, operation: str) -> Cost:
        return Cost(operation, *self._place.measured())


def _small_work(place: SlowPlace) -> Iterator[Cost]:
    cost = _Meter(place)
    with place.open() as store:
        for name in ("numbers", "others"):
            store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter").append(rows(0, 10))
    place.measured()
    with place.open() as store:
        yield cost("open a store")
        numbers = store["numbers"]
        yield cost("find a collection")
        numbers.append(rows(10, 1))
        yield cost("append 1 row, the first of a process")
        for first, count in ((100, 1), (200, 100), (1000, 1000), (10_000, 10_000)):
            numbers.append(rows(first, count))
            yield cost(f"append {count:,} {'row' if count == 1 else 'rows'}")
        numbers.upsert(rows(100, 1))
        yield cost("upsert 1 row, the first")
        numbers.upsert([{"k": 100, "v": "again"}])
        yield cost("upsert 1 row")
        with store.transaction() as transaction:
            transaction.append("numbers", rows(30_000, 1))
            transaction.append("others", rows(30_000, 1))
        yield cost("transaction over two collections, the first")
        with store.transaction() as transaction:
            transaction.append("numbers", rows(30_001, 1))
            transaction.append("others", rows(30_001, 1))
        yield cost("transaction over two collections")
    with place.open(read_only=True) as store:
        numbers = store["numbers"]
        place.measured()
        numbers.snapshot().to_arrow()
        yield cost("snapshot, the first of a process")
        numbers.snapshot().to_arrow()
        yield cost("snapshot again")
    with place.open() as store:
        store.maintain()
        yield cost("open, and maintain two collections")
        store.maintain()
        yield cost("maintain again, nothing to do")


def _append_40_runs(store: Store, name: str) -> None:
    """Create a collection of 40 runs of 2,000 rows."""
    made = store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")
    for part in range(40):
        made.append(rows(part * 2000, 2000))


def _many_parts(place: SlowPlace) -> Iterator[Cost]:
    cost, config = _Meter(place), Config(inline_part_bytes=1, row_group_rows=512)
    with place.open(config) as store:
        _append_40_runs(store, "parts")
    place.measured()
    for name, read in (
        ("snapshot of 40 runs", lambda made: made.snapshot().to_arrow()),
        ("lookup of 1 row among 40 runs", lambda made: made.lookup([{"k": 41_234}])),
    ):
        with place.open(config) as store:
            made = store["parts"]
            read(made)
            yield cost(f"open, and {name}")
            read(made)
            yield cost(f"{name}, again")
        place.measured()
    with place.open(config) as store:
        made = store["parts"]
        made.lookup([{"k": 41_234}])
        place.measured()
        made.lookup([{"k": 40_001}])
        yield cost("lookup of a row of another row group")
    with place.open(config) as store:
        made = store["parts"]
        place.measured()
        made.compact(wait=True)
        yield cost("merge 40 runs into one")
        for _ in range(2):
            store.maintain()
        yield cost("collect the 40 blobs that were merged")


def _planning(place: SlowPlace) -> Iterator[Cost]:
    cost, config = _Meter(place), Config(inline_part_bytes=1, part_bytes=640)
    with place.open(config) as store:
        store.create("many", key={"k": "int64"}, value={"v": "string"}, timeline="counter").append(rows(0, 17_000))
    place.measured()
    with place.open(config, read_only=True) as store:
        many = store["many"]
        place.measured()
        with many.snapshot() as snapshot:
            slices_of(snapshot, 32)
        yield cost("plan a read of 1,000 parts in 32 pieces")


def _upsert_among_runs(place: SlowPlace) -> Iterator[Cost]:
    cost, config = _Meter(place), Config(inline_part_bytes=1, row_group_rows=512)
    with place.open(config) as store:
        _append_40_runs(store, "upserted")
    place.measured()
    with place.open() as store:
        made = store["upserted"]
        place.measured()
        made.upsert([{"k": 41_234, "v": "again"}])
        yield cost("upsert 1 row among 40 runs, the first of a process")
        made.upsert([{"k": 41_235, "v": "again"}])
        yield cost("upsert 1 row among 40 runs")


def told(costs: dict[str, list[Cost]]) -> str:
    """Write the figures as a table of Markdown."""
    lines = ["| operation | " + " | ".join(f"{place}, ms | requests" for place in costs) + " |"]
    lines.append("| --- |" + " --- |" * 2 * len(costs))
    for each in zip(*costs.values(), strict=True):
        cells = " | ".join(f"{cost.ms:,.0f} | {_calls(cost)}" for cost in each)
        lines.append(f"| {each[0].operation} | {cells} |")
    return "\n".join(lines)


def _calls(cost: Cost) -> str:
    shown = {"compare_and_set": "CAS", "put": "PUT", "get": "GET", "list": "LIST", "open": "statement"}
    found: dict[str, int] = {}
    for calls in (cost.logs, cost.blobs):
        for kind, count in calls.items():
            name = shown.get(kind, kind)
            found[name] = found.get(name, 0) + count
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="bench.places", description="What operations cost at each place.")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file too")
    asked = parser.parse_args(arguments)
    costs = {name: list(measure(make())) for name, make in PLACES.items()}
    print(told(costs))
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({name: [asdict(each) for each in found] for name, found in costs.items()}, file, indent=1)


if __name__ == "__main__":
    main()
