"""What a work may ask of a system. A system that cannot do something says why.

A system keeps one table of the rows in `bench.rows`, keyed by `id`, in a folder.
A *version* is whatever the system calls a state of that table: a small JSON value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

Version = Any
POLL_S = 0.001
NO_IDS = np.empty(0, dtype=np.int64)


class Cannot(Exception):
    """The system has no way to do this; the message says why."""


class System:
    """One table in one folder. Every method not overridden is something this system cannot do."""

    name: ClassVar[str]
    """What it is called in tables and on the command line."""

    kind: ClassVar[str] = "files"
    """"table format", "database", "key-value", "files" or "ours": which systems promise about the same."""

    commit: ClassVar[str] = ""
    """What is on the disk when a commit returns."""

    one_process: ClassVar[str] = ""
    """Why a second process cannot have the table open too, where it cannot."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions belong beside its figures."""

    cannot: ClassVar[dict[str, str]] = {}
    """Why it cannot, by method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {name: metadata.version(name) for name in cls.packages}

    @classmethod
    def why_not(cls, method: str) -> str | None:
        """The reason why this method is missing, or None when it is there."""
        if getattr(cls, method) is not getattr(System, method):
            return None
        return cls.cannot.get(method, "has nothing of the kind")

    def _refuse(self, method: str) -> Cannot:
        return Cannot(self.cannot.get(method, "has nothing of the kind"))

    # The table.

    def create(self) -> None:
        """An empty table in the folder, open."""
        raise self._refuse("create")

    def open(self) -> None:
        """Open the table that is in the folder: ready to write, and the latest version known."""
        raise self._refuse("open")

    def close(self) -> None:
        raise self._refuse("close")

    def version(self) -> Version:
        """The latest committed version."""
        raise self._refuse("version")

    # Writing. Each is one commit, durable as `commit` says when it returns.

    def load(self, table: pa.Table) -> None:
        """Many new rows at once."""
        self.append(table)

    def append(self, table: pa.Table) -> None:
        """New rows, of ids that are not there."""
        raise self._refuse("append")

    def upsert(self, table: pa.Table) -> None:
        """Rows that replace those of the same id, and the rest as new ones."""
        raise self._refuse("upsert")

    def writer(self) -> Callable[[pa.Table], None]:
        """An `append` for one thread among several."""
        return self.append

    # Reading.

    def snapshot(self, version: Version = None) -> pa.Table:
        """All rows of a version, by default the latest, in any order."""
        raise self._refuse("snapshot")

    def changes(self, after: Version, until: Version) -> pa.Table:
        """The change feed between two versions as it comes, plus a signed `_diff`."""
        raise self._refuse("changes")

    def lookup(self, key: int) -> list[dict[str, Any]]:
        """The rows of one id: one, or none."""
        raise self._refuse("lookup")

    def range(self, low: int, high: int) -> pa.Table:
        """The rows with low <= id < high."""
        raise self._refuse("range")

    def index(self) -> None:
        """Whatever this system offers to make lookups fast, after a load."""

    def feed(self, stop: threading.Event) -> Iterator[np.ndarray]:
        """The ids of rows as they are committed, after an empty answer that says: from now on."""
        raise self._refuse("feed")

    # Upkeep.

    def compact(self) -> None:
        """Rewrite what makes reading slow; history stays."""
        raise self._refuse("compact")

    def expire(self) -> None:
        """Forget every version but the latest, and the files that only those needed."""
        raise self._refuse("expire")

    def maintain(self) -> None:
        """The upkeep that a careful user would schedule between small commits."""
        self.compact()

    def background(self, on: bool) -> None:
        """Whether upkeep runs by itself from now on; a system that has none is asked to `maintain`."""

    # Kernels, without a table.

    def consolidate(self, updates: pa.Table) -> pa.Table:
        """Equal (row, time) summed, zero sums dropped, in the order of columns, nulls first."""
        raise self._refuse("consolidate")

    def write_runs(self, runs: Iterator[pa.Table]) -> None:
        """Sorted runs of updates in the folder, one per table, not merged."""
        raise self._refuse("write_runs")

    def merge_runs(self, memory_mb: int) -> int:
        """All runs merged into one, netted over time and sorted by id; gives the number of rows."""
        raise self._refuse("merge_runs")


class Polled(System):
    """A system that pushes nothing: a follower asks every millisecond."""

    def reader(self) -> Polled:
        """A second handle on the same table, for a thread that follows it."""
        another = type(self)(self.folder)
        another.open()
        return another

    def poll(self, after: Version) -> tuple[Version, np.ndarray]:
        """The latest version, and the ids that were added after the one given."""
        raise NotImplementedError

    def feed(self, stop: threading.Event) -> Iterator[np.ndarray]:
        reader = self.reader()
        after = reader.version()
        yield NO_IDS
        while not stop.is_set():
            latest, ids = reader.poll(after)
            if latest == after:
                time.sleep(POLL_S)
                continue
            after = latest
            yield ids
