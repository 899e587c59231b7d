"""How far a public call walks through the code: python -m bench.walk [--causes] [--only "append of 3 rows"]

`sys.setprofile` notes every entry of a function of `timespine` in the calling thread, after one append that registers
the process. (A generator that goes on is an entry too.) Nothing is timed. Of the sequence of entries:

- *calls*, *functions*, *files*: how many entries, and how many distinct functions and files they are of;
- *room switches*: neighbours of the sequence in different rooms. A room is the first name below `src/timespine`:
  `client`, `core`, `columnar`, `location`, `model`, `locks`, `errors`, ...;
- *station switches*: the same, without entries of shared modules (`SHARED`). Every layer may use those, and they call
  no layer: a lock, an id or a frontier is a word of the language, not a station on the way of a row. A function that
  calls `Frontier.at` twice has four room switches and no station switch;
- *file switches*: neighbours in different files;
- *scans / CAS*: calls of the consensus store.

Only the public interface is used, so that the file measures other commits as well.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import timespine as ts
from timespine.config import Config

PACKAGE = str(Path(ts.__file__).parent) + "/"
CONSENSUS = ("location/sqlite/sqlite_consensus.py", "location/sqlite.py")
SHARED = frozenset({"errors", "hints", "ids", "config", "locks", "pool", "model"})
"""Rooms that every layer may use, and that use none (see ARCHITECTURE.md, The layers)."""

FEW = [{"id": number, "customer": "ada", "total": 1.0 * number} for number in range(3)]
MANY = 150_000
TINY_BATCHES = 13


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a function."""

    file: str
    """Its file below the package."""
    name: str
    """The function, with its class."""

    @property
    def room(self) -> str:
        """The first name of its path."""
        return self.file.partition("/")[0].removesuffix(".py")

    @property
    def place(self) -> str:
        """The function, as a report names it."""
        return f"{self.file.removesuffix('.py')}:{self.name}"


def entries(work: Callable[[], object]) -> list[Entry]:
    """Call something, and list the functions of the package that this thread enters meanwhile."""
    found: list[Entry] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            found.append(Entry(file.removeprefix(PACKAGE), frame.f_code.co_qualname))

    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def switches(walk: list[Entry]) -> list[tuple[Entry, Entry]]:
    """List the neighbours of a walk that are in different rooms."""
    return [(one, next_one) for one, next_one in pairwise(walk) if one.room != next_one.room]


def stations(walk: list[Entry]) -> list[Entry]:
    """Leave out what is shared by all layers."""
    return [entry for entry in walk if entry.room not in SHARED]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one walk touches."""

    calls: int
    """Entries of functions."""
    functions: int
    """Distinct functions."""
    files: int
    """Distinct files."""
    room_switches: int
    """Neighbours in different rooms."""
    station_switches: int
    """Neighbours in different rooms, without shared modules."""
    file_switches: int
    """Neighbours in different files."""
    scans: int
    """Reads of a log."""
    compare_and_sets: int
    """Writes of logs."""


def figures(walk: list[Entry]) -> Figures:
    """Count what a walk touches."""
    port = Counter(entry.name.rpartition(".")[2] for entry in walk if entry.file in CONSENSUS)
    return Figures(
        calls=len(walk),
        functions=len(set(walk)),
        files=len({entry.file for entry in walk}),
        room_switches=len(switches(walk)),
        station_switches=len(switches(stations(walk))),
        file_switches=sum(one.file != next_one.file for one, next_one in pairwise(walk)),
        scans=port["scan"],
        compare_and_sets=port["compare_and_set"],
    )


def walks() -> Iterator[tuple[str, list[Entry]]]:
    """Take every walk of the table, each in a store of its own."""
    many = pa.table(
        {
            "id": pa.array(range(MANY), pa.int64()),
            "customer": [f"customer {number}" for number in range(MANY)],
            "total": pa.array(map(float, range(MANY)), pa.float64()),
        }
    )
    changed = [{**row, "total": -1.0} for row in FEW]
    yield "append of 3 rows", _walk(lambda orders, _: orders.append(FEW))
    yield f"append of {MANY:,} rows, parts of 1 MiB", _walk(lambda orders, _: orders.append(many))
    yield "first snapshot of 3 rows, `to_arrow`", _walk(lambda orders, _: orders.snapshot().to_arrow(), rows=FEW)
    yield "local upsert of 3 rows", _walk(lambda orders, _: orders.upsert(changed), rows=FEW)
    yield (
        f"`store.maintain()` over {TINY_BATCHES} tiny batches",
        _walk(lambda _, store: store.maintain(), batches=TINY_BATCHES),
    )


def _walk(
    work: Callable[[Any, Any], object], rows: list[dict[str, Any]] | None = None, batches: int = 1
) -> list[Entry]:
    """Make a store and a collection, append to it, and walk."""
    with tempfile.TemporaryDirectory() as folder:
        store = ts.open(folder, maintenance=False, config=Config(part_bytes=1 << 20))
        value = {"customer": "string", "total": "double"}
        orders = store.create("orders", key={"id": "int64"}, value=value, timeline="counter")
        for number in range(batches):
            orders.append(rows or [{"id": -1 - number, "customer": "bob", "total": 0.0}])
        found = entries(lambda: work(orders, store))
        store.close()
    return found


HEAD = (
    "| walk | Python calls | distinct functions | files | room switches | station switches | file switches "
    "| scans / CAS |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(name: str, found: Figures) -> str:
    """Write one line of the table."""
    counts = (found.calls, found.functions, found.files, found.room_switches, found.station_switches)
    cells = [*(f"{count:,}" for count in (*counts, found.file_switches)), f"{found.scans} / {found.compare_and_sets}"]
    return f"| {name} | {' | '.join(cells)} |"


def causes(walk: list[Entry], count: int = 25) -> str:
    """Name what switches rooms most: the rooms, the functions entered, and the pairs of neighbours."""
    rooms = Counter(f"{one.room} > {next_one.room}" for one, next_one in switches(walk))
    entered = Counter(next_one.place for _, next_one in switches(walk))
    crossed = Counter(f"{one.place} > {next_one.place}" for one, next_one in switches(stations(walk)))
    titles = ("from room to room", "functions entered from another room", "station switches, pair by pair")
    return "\n".join(
        f"{title}:\n" + "\n".join(f"{times:6d}  {name}" for name, times in counted.most_common(count))
        for title, counted in zip(titles, (rooms, entered, crossed), strict=True)
    )


def main() -> None:
    """Print the table, and the causes if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--causes", action="store_true", help="what switches rooms, walk by walk")
    parser.add_argument("--only", default="", help="walks whose name has this text")
    options = parser.parse_args()
    chosen = [(name, walk) for name, walk in walks() if options.only in name]
    print(HEAD)
    for name, walk in chosen:
        print(line(name, figures(walk)))
    if options.causes:
        for name, walk in chosen:
            print(f"\n## {name}\n\n{causes(walk)}")


if __name__ == "__main__":
    main()
