"""A small scripted history on the embedded store, for a person to read: make demo

Append, read as of, merge, read again with the same answer, forget, and collect
what is garbage. Parts are opaque bytes and the naive engine merges them; the
machine below is the real one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from timespine.client.driver import Driver, fresh_id
from timespine.config import Config
from timespine.core.protocols import collect, maintain, read, write
from timespine.core.protocols.commit import commit, enter
from timespine.core.protocols.fetch import create
from timespine.core.protocols.session import Session
from timespine.core.transitions import Retain, RollUpAll
from timespine.errors import SinceError
from timespine.location.local import LocalBlob
from timespine.location.sqlite import SqliteConsensus
from timespine.model.frontier import Frontier
from timespine.model.oracle import Row, Update
from timespine.testing.engine import counted, data_of, merge_runs

HISTORY: list[tuple[str, list[Update]]] = [
    ("two orders come in", [("order 1: 10 EUR", (0,), 1), ("order 2: 25 EUR", (0,), 1)]),
    ("order 1 becomes larger", [("order 1: 10 EUR", (1,), -1), ("order 1: 12 EUR", (1,), 1)]),
    ("order 3 comes in", [("order 3: 40 EUR", (2,), 1)]),
    ("order 2 is cancelled", [("order 2: 25 EUR", (3,), -1)]),
    ("order 1 changes again", [("order 1: 12 EUR", (4,), -1), ("order 1: 15 EUR", (4,), 1)]),
    ("order 4 comes in", [("order 4: 7 EUR", (5,), 1)]),
    ("order 3 is cancelled", [("order 3: 40 EUR", (6,), -1)]),
    ("order 5 comes in", [("order 5: 99 EUR", (7,), 1)]),
]


class Demo:
    """One store, one collection, one session."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self.folder = folder
        self.driver = driver
        # Nothing inline, so that there are files to look at.
        self.session = Session(fresh_id("k"), fresh_id("w"), Config(inline_part_bytes=1))
        self.name = "orders"

    def run(self) -> bool:
        """The whole story; whether every answer stayed the same."""
        driver, session, name = self.driver, self.session, self.name
        driver.run(create(session, name))
        driver.run(enter(session, name))
        print(f"A store in {self.folder}: blobs in files, truth in SQLite.\n")
        for time, (what, updates) in enumerate(HISTORY):
            upper = Frontier.at(time)
            driver.run(write.compare_and_append(session, name, data_of(updates), upper, Frontier.at(time + 1)))
            print(f"  time {time}: {what:26} {', '.join(f'{diff:+d} {row}' for row, _, diff in updates)}")
        before = {time: self.snapshot(time) for time in (0, 3, 7)}
        print("\nThe collection as of three times:")
        for time, rows in before.items():
            print(f"  as of {time}: {', '.join(sorted(map(str, rows)))}")
        self.layers("\nBefore merging")
        driver.run(commit(session, name, RollUpAll()))
        while driver.run(maintain.merge_once(session, name)) is not None:
            pass
        self.layers("After merging ")
        after = {time: self.snapshot(time) for time in before}
        same = after == before
        print(f"The same three reads give {'the same answers' if same else 'OTHER ANSWERS: this is a bug'}.")
        return same and self.forget(before[7])

    def forget(self, newest: dict[Row, int]) -> bool:
        """Expire history, merge again, collect garbage; the newest answer must stay."""
        driver, session, name = self.driver, self.session, self.name
        driver.run(commit(session, name, Retain(Frontier.at(7))))
        driver.run(commit(session, name, RollUpAll()))
        while driver.run(maintain.merge_once(session, name)) is not None:
            pass
        self.layers("\nAfter expiring all before 7")
        try:
            self.snapshot(3)
        except SinceError as error:
            print(f"Reading as of 3 now says: {error}.")
        files = self.files()
        for _ in range(2):
            driver.run(maintain.roll_up(session, name))
            driver.run(collect.collect_garbage(session, name))
        same = self.snapshot(7) == newest
        print(
            f"Garbage collection: {files} data files before, {self.files()} after (two of them rollups of the state)."
        )
        print(f"As of 7 still: {', '.join(sorted(map(str, newest)))}" if same else "As of 7 differs: this is a bug")
        return same

    def snapshot(self, time: int) -> dict[Row, int]:
        """The collection as of a time."""
        reply = self.driver.run(read.snapshot(self.session, self.name, (time,)))
        if isinstance(reply, Exception):
            raise reply
        return counted(*reply)

    def layers(self, when: str) -> None:
        """Print how many batches and updates there are."""
        trace = self.session.state(self.name).trace
        print(f"{when}: {trace.update_count} updates in {trace.hollow_count} batch{'es' * (trace.hollow_count > 1)}.")

    def files(self) -> int:
        """Blobs in the store."""
        return sum(1 for _ in self.driver.blob.list_keys(f"{self.name}/"))


def main() -> int:
    """The command."""
    with tempfile.TemporaryDirectory(prefix="timespine-demo-") as folder:
        path = Path(folder)
        with Driver(LocalBlob(path / "blobs"), SqliteConsensus(path / "consensus.db"), merge_runs) as driver:
            return 0 if Demo(path, driver).run() else 1


if __name__ == "__main__":
    sys.exit(main())
