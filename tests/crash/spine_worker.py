"""A process with a spine that is going to be killed: python spine_worker.py FOLDER MEMORY. It says what was saved."""

import os
import sys

from timespine.arrangement.spine.spine import Spine
from timespine.columnar.schema.schema import define
from timespine.config import LEVELS
from timespine.core.arrangement import memory_pressure
from timespine.core.arrangement.levels import LevelRules

ORDERS = define({"id": "int64"}, {"name": "string"})
RULES = LevelRules(tuple(3**n for n in range(1, LEVELS)), (2,) * LEVELS, 4, 10, 0, 3)
"""Small levels, so that every insert starts merges."""

LAST = 1 << 40
"""The key whose one row names the last batch."""


def opened(folder, memory):
    """A spine of the folder. With little memory, everything goes to files at once."""
    memory_pressure.RESERVE_BYTES = 0
    return Spine(ORDERS, folder=folder, rules=RULES, memory_bytes=memory)


def batch(n):
    """A new row, and the last row changed."""
    rows = [{"id": n, "name": "x" * (n % 7), "_diff": 1}, {"id": LAST, "name": str(n), "_diff": 1}]
    rows += [{"id": LAST, "name": str(n - 1), "_diff": -1}] if n else []
    return [{**row, "_time": n} for row in rows]


def count(spine):
    """The number of batches that a spine has, if it has the first ones whole, and nothing else; else what is wrong."""
    rows = [row for table in spine.view().scan() for row in table.to_pylist()]
    found = len(rows) - 1
    if not rows:
        return 0
    expected = [{"id": n, "name": "x" * (n % 7), "_diff": 1} for n in range(found)]
    expected.append({"id": LAST, "name": str(found - 1), "_diff": 1})
    if rows != expected:
        raise SystemExit(f"wrong rows: {rows}")
    return found


def main():
    spine = opened(sys.argv[1], int(sys.argv[2]))
    for n in range(count(spine), 1 << 30):
        spine.insert(batch(n))
        if n % 3 == 0:
            spine.save()
            # One line in one write: a kill leaves it whole or unsaid.
            os.write(1, f"saved {n + 1}\n".encode())


if __name__ == "__main__":
    main()
