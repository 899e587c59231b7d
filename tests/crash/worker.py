"""A process that is going to be killed: python worker.py ROLE FOLDER SEED. It says what was acknowledged."""

import os
import random
import sys

import timespine as ts
from timespine.errors import Conflict, HandleExpired

CONFIG = ts.Config(
    part_bytes=20_000,
    row_group_rows=64,
    inline_part_bytes=600,
    inline_total_bytes=8_000,
    run_parts=4,
    rollup_seqnos=16,
    reader_lease_ms=2_000,
    writer_lease_ms=2_000,
    claim_ms=1_000,
)
"""Small parts and short leases, so that a second of work reaches every corner and the next process inherits it."""


def say(*words):
    """One line in one write: a kill leaves it whole or unsaid."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write(store, seed):
    """Append rows that nobody else has; name them once they are acknowledged."""
    orders = store["orders"]
    for number in range(1 << 30):
        rows = [{"id": f"{seed}-{number}-{i}", "n": i} for i in range(random.choice((1, 3, 40)))]
        say("try", seed, number, len(rows))
        orders.append(rows)
        say("ack", seed, number, len(rows))


def change(store, seed):
    """Count up in a few rows that everybody changes; each number is taken once."""
    counters = store["counters"]
    for number in range(1 << 30):
        key = random.randrange(4)
        counters.upsert([{"k": key, "by": seed, "n": number}])
        say("ack", seed, key, number)


def read(store, seed):
    """Read twice as of the same time: the same rows, and what is acknowledged is there."""
    orders = store["orders"]
    while True:
        try:
            with orders.snapshot() as rows:
                first = sorted(row["id"] for row in rows.to_pylist())
                if rows.as_of is None:
                    continue
                again = sorted(row["id"] for row in orders.snapshot(rows.as_of).to_pylist())
        except (HandleExpired, Conflict):
            continue  # this process was paused past its lease, or somebody forgot that time meanwhile
        if first != again or len(set(first)) != len(first):
            say("wrong", rows.as_of, len(first), len(again))
            return
        say("read", len(first))


def maintain(store, seed):
    """Merge, roll up, collect, sweep, forget."""
    while True:
        report = store.maintain(sweep=True)
        for name in store.names():
            upper = store[name].upper.elements[0][0]
            if upper and random.random() < 0.3:
                store[name].expire(before=upper - 1)
        say("maintained", report.merges, report.collected, report.swept)


def main():
    role, folder, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    random.seed(seed)
    with ts.open(folder, maintenance=role in ("write", "change"), config=CONFIG) as store:
        say("ready")
        {"write": write, "change": change, "read": read, "maintain": maintain}[role](store, seed)


if __name__ == "__main__":
    main()
