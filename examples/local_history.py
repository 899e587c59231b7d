"""The history of a small shop, on a real store in a temporary folder: make demo-local

Orders come in, change and are cancelled; the collection is read as of any time,
changes are net, a feed follows along, everything is merged into one run and gives
the same answers, history is forgotten, and what no reader can reach is deleted.
Every line that is printed comes from the library; every answer is checked.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import timespine as ts

Row = dict[str, Any]

CONFIG = ts.Config(inline_part_bytes=1, rollup_seqnos=8)
"""Nothing inline, so that there are files to look at."""


class Demo:
    """One store, one collection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ts.open(folder, maintenance=False, config=CONFIG)
        self.orders = self.store.create(
            "orders", key={"id": "int64"}, value={"customer": "string", "total": "double"}, timeline="counter"
        )
        self.failures = 0

    def run(self) -> bool:
        """Run all steps; return whether every answer was right."""
        print(f"A store in {self.folder}: data in Parquet files, truth in SQLite. One collection: orders.\n")
        feed = self.orders.subscribe()
        self.write()
        before = {time: self.rows(time) for time in (0, 2, 5)}
        print("\nThe collection as of three times:")
        for time, rows in before.items():
            print(f"  as of {time}: {', '.join(map(shown, rows))}")
        self.changes()
        self.follow(feed)
        self.merge(before)
        self.forget(before[5])
        self.store.close()
        return self.failures == 0

    def write(self) -> None:
        """Make six commits: appends, an upsert, a deletion, an update."""
        orders = self.orders
        self.told(orders.append([order(1, "ada", 10), order(2, "bob", 25)]), "append: two orders come in")
        self.told(orders.upsert([order(1, "ada", 12)]), "upsert: order 1 becomes larger (the retraction is worked out)")
        self.told(orders.append([order(3, "cy", 40), order(4, "di", 7)]), "append: two more")
        self.told(orders.delete({"id": 2}), "delete: order 2 is cancelled")
        self.told(orders.update(where="total < 10", set={"total": 9.5}), "update: small orders cost at least 9.50")
        self.told(
            orders.upsert([order(1, "ada", 10), order(5, "eve", 99)]), "upsert: order 1 back to 10, a new order 5"
        )
        print(
            f"  lookup of id 1: {shown(orders.lookup({'id': 1}).to_pylist()[0])}; "
            f"count: {orders.count()} rows, from metadata alone"
        )

    def changes(self) -> None:
        """Read net changes, which leave out rows that came and went in between."""
        changes = self.orders.changes(after=0, until=5, images=True).to_pylist()
        print("\nNet changes after 0 until 5 (order 1 went to 12 and back: it is not among them):")
        for change in changes:
            print(f"  {change['_change_type']:17} {shown(change)}")
        self.check(all(change["id"] != 1 for change in changes), "the changes are net")

    def follow(self, feed: Any) -> None:
        """Read the feed that was opened before the first commit: it has every change."""
        updates = [update for event in feed.poll() if event.rows is not None for update in event.rows.to_pylist()]
        counts: dict[tuple[int, str, float], int] = {}
        for update in updates:
            row = (update["id"], update["customer"], update["total"])
            counts[row] = counts.get(row, 0) + update["_diff"]
        now = [(row["id"], row["customer"], row["total"]) for row in self.rows(5)]
        print(f"\nA feed opened at the beginning was told {len(updates)} updates; they add up to the rows of now.")
        self.check(sorted(row for row, count in counts.items() if count) == sorted(now), "the feed adds up")
        feed.close()

    def merge(self, before: dict[int, list[Row]]) -> None:
        """Merge all batches into one run, and compare the answers."""
        layers = self.orders.inspect()
        self.orders.compact(wait=True)
        merged = self.orders.inspect()
        print(f"\nCompaction: {len(layers.batches)} batches become {len(merged.batches)}; nothing was locked.")
        self.check({time: self.rows(time) for time in before} == before, "the same three reads give the same answers")

    def forget(self, newest: list[Row]) -> None:
        """Expire, collect, and read the newest again."""
        files = self.files()
        reply = self.orders.expire(before=5)
        print(f"\nExpire: history before {reply.asked} goes; since is {reply.since}.")
        try:
            self.rows(3)
            self.check(False, "reading before since is refused")
        except ts.SinceError as error:
            print(f"  Reading as of 3 now says: {error}.")
        self.orders.compact(wait=True)
        for _ in range(2):
            self.store.maintain(sweep=True)
        print(f"  {files} files before maintenance, {self.files()} after: the rows, and a rollup of the state.")
        self.check(self.rows(5) == newest, "as of 5 the rows are what they were")
        self.check(self.store.vacuum().blobs == [], "nothing has leaked")

    def rows(self, time: int) -> list[Row]:
        """Read the collection as of a time."""
        return self.orders.snapshot(time).to_pylist()

    def told(self, committed: Any, what: str) -> None:
        print(f"  time {committed.time}: {what}")

    def check(self, holds: bool, what: str) -> None:
        """Say whether something holds."""
        self.failures += not holds
        print(f"  {'ok' if holds else 'THIS IS A BUG'}: {what}")

    def files(self) -> int:
        """Count the data files in the store."""
        return sum(1 for path in (self.folder / "blobs").rglob("*") if path.is_file())


def order(id: int, customer: str, total: float) -> Row:
    """Make a row of an order."""
    return {"id": id, "customer": customer, "total": float(total)}


def shown(row: Row) -> str:
    """Format an order on one line."""
    return f"#{row['id']} {row['customer']} {row['total']:.2f}"


def main() -> int:
    """Run the example; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="timespine-demo-") as folder:
        return 0 if Demo(Path(folder)).run() else 1


if __name__ == "__main__":
    sys.exit(main())
