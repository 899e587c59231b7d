"""Figures of the pure core: python -m bench.core [--quick] [--json FILE]

Spine inserts per second, transition + diff + encode per append, applying a diff,
and whole states, at growing numbers of batches that are not merged; and
simulated histories per second. No peers: no other system has this part to compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.codec import decode_diff, decode_state, encode_diff, encode_state
from timespine.core.encoding.state_diff import apply_diff, diff
from timespine.core.group import CommandTransaction, Evaluated, Group, evaluate
from timespine.core.spine.spine import empty_spine
from timespine.core.state import State, new_state
from timespine.core.transitions import CompareAndAppend, RegisterCommitter, RegisterWriter
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.testing.simulator.checker import run_core_history

NAME = "c1"
LAST = 1000
"""The appends, at each size, that a figure is made from."""


def batch(time_: int) -> HollowBatch:
    """A batch of one part with one update and 40 bytes of statistics."""
    desc = Description(Frontier.at(time_), Frontier.at(time_ + 1), Frontier.at(0))
    return HollowBatch(desc, 1, (Run((Part(f"{NAME}/w1/p{time_}", 1, 1000, 1, meta=b"x" * 40),)),))


def spine_inserts(sizes: list[int]) -> list[dict[str, Any]]:
    """Inserts into the spine alone."""
    rows, spine, done = [], empty_spine(1), 0
    for size in sizes:
        batches = [batch(done + index) for index in range(size - done)]
        seconds = []
        for each in batches:
            began = time.perf_counter()
            spine = spine.insert(each)
            seconds.append(time.perf_counter() - began)
        done = size
        rows.append({"batches": size, **figures("insert", seconds[-LAST:]), "spine batches": spine.batch_count})
    return rows


def appends(sizes: list[int]) -> list[dict[str, Any]]:
    """One append: judge, diff, encode; and what a reader pays: decode, apply."""
    state = judged(new_state(NAME), RegisterWriter("w1", 1 << 39), RegisterCommitter("k1", 1 << 39))
    replica, rows, done = state, [], 0
    for size in sizes:
        write, follow, stored = [], [], []
        while done < size:
            command = CompareAndAppend((batch(done),), Frontier.at(done), Frontier.at(done + 1))
            began = time.perf_counter()
            new = judged(state, command, committer="k1", number=done + 1)
            data = encode_diff(diff(state, new))
            middle = time.perf_counter()
            replica = apply_diff(replica, decode_diff(data))
            follow.append(time.perf_counter() - middle)
            write.append(middle - began)
            stored.append(len(data))
            state, done = new, done + 1
        rows.append(
            {
                "batches": size,
                **figures("append", write[-LAST:]),
                **figures("follow", follow[-LAST:]),
                "diff bytes": round(statistics.mean(stored[-LAST:])),
                **whole_state(state),
            }
        )
        if replica.trace != state.trace:
            raise SystemExit("the replica that followed by diffs differs: this is a bug")
    return rows


def judged(state: State, *commands: Any, committer: str | None = None, number: int = 0) -> State:
    """The state after some commands."""
    transaction = CommandTransaction(tuple((NAME, command) for command in commands))
    outcome = evaluate({NAME: state}, Group((transaction,), committer, number), 0)
    if not isinstance(outcome, Evaluated) or NAME not in outcome.changed:
        raise SystemExit(f"the append was refused: {outcome}")
    return outcome.changed[NAME]


def whole_state(state: State) -> dict[str, Any]:
    """Encoding and decoding everything, as a rollup does."""
    began = time.perf_counter()
    data = encode_state(state)
    middle = time.perf_counter()
    decode_state(data)
    ended = time.perf_counter()
    return {
        "state KB": round(len(data) / 1000),
        "encode ms": round((middle - began) * 1e3, 1),
        "decode ms": round((ended - middle) * 1e3, 1),
    }


def histories(seconds: float) -> list[dict[str, Any]]:
    """Simulated histories of 60 operations, in one process."""
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        run_core_history(done, 60)
        done += 1
    return [{"histories": done, "per second": round(done / (time.perf_counter() - began), 1)}]


def figures(name: str, seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile in microseconds."""
    ordered = sorted(seconds)
    return {
        f"{name} p50 us": round(statistics.median(ordered) * 1e6, 1),
        f"{name} p99 us": round(ordered[len(ordered) * 99 // 100] * 1e6, 1),
    }


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows for a person."""
    print(f"\n{title}")
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    print("  ".join(name.rjust(width) for name, width in widths.items()))
    for row in rows:
        print("  ".join(str(row[name]).rjust(width) for name, width in widths.items()))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench.core", description="Figures of the pure core.")
    parser.add_argument("--quick", action="store_true", help="up to 10,000 batches only")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    sizes = [1_000, 10_000] if options.quick else [1_000, 10_000, 100_000]
    results = {
        "spine inserts": spine_inserts(sizes),
        "appends (judge + diff + encode), followers (decode + apply), whole states": appends(sizes),
        "simulated histories of 60 operations, one process": histories(3 if options.quick else 10),
    }
    for title, rows in results.items():
        table(title, rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
