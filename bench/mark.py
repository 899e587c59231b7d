"""What the mark costs: how much of an append goes into counting its entries beside the logs.

    python -m bench.mark [--appends 1000] [--dir DIR]

Appends one row at a time to a store in a folder below DIR, without maintenance, and takes the time of each
append and of all calls of the mark inside of it (`SqliteMark.count` and `SqliteMark.check`).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timespine as ts
from timespine.location.sqlite.sqlite_mark import SqliteMark

WARM_UP = 50
"""Appends before the first that counts."""


@contextmanager
def timed_mark() -> Iterator[list[float]]:
    """Within this, add the seconds inside of the mark to the last element of the list."""
    seconds = [0.0]
    real = {name: getattr(SqliteMark, name) for name in ("count", "check")}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args)
            finally:
                seconds[-1] += time.perf_counter() - start

        return measured

    for name, call in real.items():
        setattr(SqliteMark, name, timed(call))
    try:
        yield seconds
    finally:
        for name, call in real.items():
            setattr(SqliteMark, name, call)


def measure(folder: Path, appends: int) -> tuple[list[float], list[float]]:
    """The seconds of each append, and those of the mark inside of it."""
    whole, inside = [], []
    with timed_mark() as mark, ts.open(folder / "store", maintenance=False) as store:
        numbers = store.create("numbers", key={"n": "int64"}, timeline="counter")
        for number in range(WARM_UP + appends):
            mark[:] = [0.0]
            start = time.perf_counter()
            numbers.append([{"n": number}])
            whole.append(time.perf_counter() - start)
            inside.append(mark[-1])
    return whole[WARM_UP:], inside[WARM_UP:]


def main(given: list[str] | None = None) -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--appends", type=int, default=1000)
    options.add_argument("--dir", type=Path, default=None, help="a folder on the disk to measure")
    chosen = options.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=chosen.dir) as folder:
        whole, inside = measure(Path(folder), chosen.appends)
    for title, average in (("p50", statistics.median), ("mean", statistics.fmean)):
        append, mark = average(whole), average(inside)
        print(f"{title:4}  append {append * 1e3:.2f} ms, mark {mark * 1e6:.0f} us ({mark / append:.1%})")


if __name__ == "__main__":
    main()
