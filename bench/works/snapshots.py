"""Whole reads: around an upsert and its clean-up, and after very many small commits."""

from __future__ import annotations

import numpy as np

from bench.peers.system import System, Version
from bench.rows import Digest, digest, rows
from bench.works.tables import Loaded, Upserted, after_upserts, forget
from bench.works.upserts import FULL, QUICK
from bench.works.work import UPKEEP, Case, Out, Size, State, Work, again, attempt, check, median, opened, seconds

WINDOW = 50
MAINTAIN_EVERY = 100
AGAIN = 3
LOADED, COMPACTED, EXPIRED = 0, 2, 3
"""States of `Snapshots` by their numbers; the one between is that after an upsert."""

STOPS = (10, 100, 1_000, 10_000)


class Snapshots(Upserted):
    """One table read whole by a fresh process, in four states: the first read, and later ones."""

    name = "snapshots"
    title = "all {base:,} rows, read whole by a fresh process"
    headlines = ("first read", "again")
    pairs = (("first read", "again"),)
    cases = tuple(
        Case(label, quick={**QUICK, "state": state}, full={**FULL, "state": state})
        for state, label in enumerate(
            ("loaded at once", "after an upsert of a tenth", "compacted, history kept", "compacted and expired")
        )
    )

    def setup_key(self, size: Size) -> str:
        """Return the keys of other works for what they set up too."""
        if size["state"] == LOADED:
            return Loaded.setup_key(self, size)
        upserted = super().setup_key(size)
        return upserted if size["state"] < COMPACTED else f"state-{size['state']}-{upserted}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        if size["state"] == LOADED:
            return Loaded.setup(self, system, size, out)
        state = super().setup(system, size, out)
        if size["state"] < COMPACTED:
            return state
        system.open()
        system.compact()
        if size["state"] >= EXPIRED:
            forget(system)
        system.close()
        return state

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        expected = after_upserts(state["digest"], size) if size["state"] else tuple(state["digest"])
        with opened(system):
            out.figure("first read", _read(system, None, expected))
            out.figure("again", median([_read(system, None, expected) for _ in range(AGAIN)]))


class Upkeep(Upserted):
    """What it takes to clean up after an upsert. No two systems do the same, so these are not compared."""

    name = "upkeep"
    title = "compaction of {base:,} rows after an upsert of {upsert:,}, and expiry of what it replaced"
    pairs = (("the version before the upsert", "the version before the upsert, again"),)
    measured_once = "a table that was compacted or expired has nothing left to do for a second time"
    cases = (Case(quick=QUICK, full=FULL),)

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        before, after = tuple(state["digest"]), after_upserts(state["digest"], size)
        with opened(system):
            for metric in self.pairs[0]:
                attempt(out, metric, lambda: _read(system, state["loaded"], before))
            attempt(out, "compaction, history kept", lambda: seconds(system.compact), UPKEEP)
            attempt(out, "expiry and compaction", lambda: seconds(lambda: forget(system)), UPKEEP)
            out.seal()
            check("rows after", digest(system.snapshot()), after)


class ManyCommits(Work):
    """Small commits that are never cleaned up, or are: by itself where a system does that, else every 100 commits."""

    name = "many-commits"
    title = "up to {commits:,} commits of {rows} rows, then all of them read"
    needs = ("append", "snapshot")
    repeat = 1
    headlines = ("snapshot after 10,000",)
    pairs = tuple((f"snapshot after {stop:,}", f"snapshot after {stop:,}, again") for stop in STOPS)
    cases = (
        Case("with maintenance", {"rows": 10, "commits": 120, "on": 1}, {"rows": 10, "commits": 10_000, "on": 1}),
        Case("without maintenance", {"rows": 10, "commits": 120, "on": 0}, {"rows": 10, "commits": 10_000, "on": 0}),
    )

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        on = bool(size["on"])
        if on and system.why_not("compact"):
            out.cannot("snapshot after 10", f"maintenance: {system.why_not('compact')}")
            return
        system.background(on)
        with opened(system):
            stops = sorted({*STOPS, size["commits"]})
            self._climb(system, size, out, [each for each in stops if each <= size["commits"]])

    def _climb(self, system: System, size: Size, out: Out, stops: list[int]) -> None:
        times: list[float] = []
        upkeep = 0.0
        early = 0.0
        for stop in stops:
            needed = sum(times[-WINDOW:]) / max(1, len(times[-WINDOW:])) * (stop - len(times))
            if needed > out.remaining():
                reason = f"too slow: the next {stop - len(times):,} commits would take about {needed:,.0f} s"
                out.cannot(f"snapshot after {stop:,}", reason)
                break
            while len(times) < stop:
                batch = rows(np.arange(len(times) * size["rows"], (len(times) + 1) * size["rows"]))
                times.append(seconds(lambda batch=batch: system.append(batch)))
                if size["on"] and len(times) % MAINTAIN_EVERY == 0:
                    upkeep += seconds(system.maintain)
            first = _read_count(system, stop * size["rows"])
            out.figure(f"snapshot after {stop:,}", first)
            again(
                out,
                f"snapshot after {stop:,}, again",
                first,
                lambda stop=stop: _read_count(system, stop * size["rows"]),
            )
            if stop == 100:
                early = median(times[-WINDOW:])
                out.figure("commit, around the 100th", early)
            elif stop > 100:
                late = median(times[-WINDOW:])
                out.figure(f"commit, around the {stop:,}th", late)
                out.figure(f"{stop:,}th commit / 100th", late / early, unit="x")
        if size["on"] and upkeep > 0.01:
            out.figure("asked-for maintenance, in all", upkeep, UPKEEP)


def _read(system: System, version: Version, expected: Digest) -> float:
    found = []
    elapsed = seconds(lambda: found.append(system.snapshot(version)))
    check("snapshot", digest(found[0]), expected)
    return elapsed


def _read_count(system: System, expected: int) -> float:
    found = []
    elapsed = seconds(lambda: found.append(system.snapshot()))
    check("rows", [found[0].num_rows], [expected])
    return elapsed
