"""A change-data pipeline from end to end, and how single steps of one grow with the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bench.peers.system import System, Version
from bench.rows import Digest, digest, minus, plus, rows, sample
from bench.works.tables import Loaded, forget
from bench.works.work import UPKEEP, Case, Out, Size, State, Work, attempt, check, median, opened, seconds, spread

NOTHING: Digest = (0, 0, 0)


class Pipeline(Work):
    """Commits of changes, two consumers that read what changed, whole snapshots, and upkeep between them.

    Half of each commit updates rows that are there, half is new. One consumer reads after every tenth
    commit, the other after every fiftieth. All of it is one thread, so that every system does the same
    in the same order; a system that maintains itself does so beside it.

    There is no later figure: each one is a sum over the whole run, of its first steps and of the others.
    """

    name = "pipeline"
    title = "{changes:,} changes in {commits:,} commits, two consumers, {snapshots} snapshots, expiry, compaction"
    needs = ("append", "upsert", "changes", "snapshot")
    repeat = 1
    patience = 8.0
    headlines = ("all of it",)
    measured_once = "each figure is a sum over the whole run, which begins with an empty table"
    cases = (
        Case(
            quick={"changes": 4_000, "commits": 40, "snapshots": 4},
            full={"changes": 1_000_000, "commits": 1_000, "snapshots": 10},
        ),
    )

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        system.background(True)
        with opened(system):
            log = _ChangeLog(size["changes"] // size["commits"])
            system.append(log.next())
            consumers = tuple(_Consumer(every, system.version(), log.digest) for every in (10, 50))
            spent = dict.fromkeys(("ingest", "consumers", "snapshots"), 0.0)
            upkeep = 0.0
            for number in range(size["commits"]):
                if not number % 100 and out.remaining() < sum(spent.values()) / max(number, 1) * 100:
                    out.cannot("all of it", f"too slow: {number:,} of {size['commits']:,} commits in the time given")
                    return
                batch = log.next()
                spent["ingest"] += seconds(lambda batch=batch: system.upsert(batch))
                for each in consumers:
                    if (number + 1) % each.every == 0:
                        spent["consumers"] += seconds(lambda each=each: each.read(system))
                if (number + 1) % (size["commits"] // size["snapshots"]) == 0:
                    spent["snapshots"] += seconds(lambda: check("snapshot", digest(system.snapshot()), log.digest))
                    if system.why_not("compact") is None:
                        upkeep += seconds(system.maintain)
            spent["consumers"] += seconds(lambda: [each.read(system) for each in consumers])
            for metric, value in spent.items():
                out.figure(metric, value)
            attempt(out, "expiry and compaction", lambda: seconds(lambda: forget(system)), UPKEEP)
            out.figure("all of it", sum(spent.values()) + upkeep)
            out.seal()
            for each in consumers:
                check("what a consumer has", each.digest, log.digest)
            check("rows after", digest(system.snapshot()), log.digest)
        out.figure("stored at the end", _stored_mb(system), "MB")


class Growth(Loaded):
    """The same small steps on larger and larger tables."""

    name = "growth"
    title = "{upsert:,} rows upserted in {base:,}, what that changed, one row, and all rows"
    needs = ("append", "upsert")
    repeat = 1
    pairs = (
        ("first upsert", "upsert"),
        ("changes", "changes, again"),
        ("first point", "point"),
        ("snapshot", "snapshot, again"),
    )
    cases = tuple(
        Case(f"{count:,} rows", quick={"base": count // 100, "upsert": 100}, full={"base": count, "upsert": 1_000})
        for count in (10_000, 100_000, 1_000_000, 10_000_000)
    )

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        upserts = [rows(sample(size["upsert"], size["base"], salt=each), each) for each in range(1, 6)]
        keys = sample(20, size["base"], salt=7).tolist()
        with opened(system):
            before = system.version()
            first, *times = [seconds(lambda each=each: system.upsert(each)) for each in upserts]
            out.figure("first upsert", first)
            out.figure("upsert", median(times), note=spread(times))
            for metric in ("changes", "changes, again"):
                attempt(out, metric, lambda: seconds(lambda: system.changes(before, system.version())))
            attempt(out, "first point", lambda: seconds(lambda: system.lookup(keys[0])))
            attempt(out, "point", lambda: median([seconds(lambda key=key: system.lookup(key)) for key in keys[1:]]))
            for metric in ("snapshot", "snapshot, again"):
                attempt(out, metric, lambda: seconds(system.snapshot))


@dataclass
class _ChangeLog:
    """Batches of changes, and the digest of the table that they make."""

    size: int
    made: int = 0
    rows_there: int = 0
    digest: Digest = NOTHING
    versions: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def next(self) -> pa.Table:
        """Make the next batch: half of it updates rows that are there, the rest is new."""
        self.made += 1
        updated = min(self.size // 2, self.rows_there)
        old = sample(updated, self.rows_there, salt=self.made) if updated else np.empty(0, dtype=np.int64)
        new = np.arange(self.rows_there, self.rows_there + self.size - updated, dtype=np.int64)
        for version in np.unique(self.versions[old]).tolist():
            self.digest = minus(self.digest, digest(rows(old[self.versions[old] == version], version)))
        self.versions = np.concatenate([self.versions, np.zeros(len(new), dtype=np.int64)])
        self.rows_there += len(new)
        ids = np.concatenate([old, new])
        self.versions[ids] = self.made
        batch = rows(ids, self.made)
        self.digest = plus(self.digest, digest(batch))
        return batch


@dataclass
class _Consumer:
    """Reads what changed since it last did, and adds it up."""

    every: int
    after: Version
    digest: Digest

    def read(self, system: System) -> None:
        until = system.version()
        if until == self.after:
            return
        feed = system.changes(self.after, until).select(["id", "total", "_diff"])
        diffs = feed.column("_diff").to_numpy()
        for diff, apply in ((1, plus), (-1, minus)):
            self.digest = apply(self.digest, digest(feed.filter(pa.array(diffs == diff))))
        self.after = until


def _stored_mb(system: System) -> float:
    return sum(each.stat().st_size for each in system.folder.rglob("*") if each.is_file()) / (1 << 20)
