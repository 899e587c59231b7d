"""Upserts, and what they changed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.system import System
from bench.rows import COLUMNS, SCHEMA, digest, rows, sample
from bench.works.tables import Loaded, Upserted, after_upsert, replaced, upsert_rows
from bench.works.work import Case, Out, Size, State, check, median, opened, seconds, spread

MILLION = 1_000_000
QUICK = {"base": 500_000, "upsert": 50_000}
FULL = {"base": 10 * MILLION, "upsert": MILLION}


class UpsertSmall(Loaded):
    """A few upserts one after the other, each of other rows."""

    name = "upsert-10k"
    headlines = ("upsert",)
    title = "upsert of {upsert:,} rows in {base:,}, one of ten new"
    needs = ("append", "upsert")
    cases = (
        Case(
            quick={"base": 100_000, "upsert": 10_000, "times": 3}, full={"base": MILLION, "upsert": 10_000, "times": 5}
        ),
    )

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        given = [upsert_rows(size, 1 + each) for each in range(size["times"])]
        with opened(system):
            first, *times = [seconds(lambda each=each: system.upsert(each)) for each in given]
            out.figure("first upsert of a process", first)
            out.figure("upsert", median(times), note=spread(times))
            out.seal()
            if out.first:
                expected = size["base"] + size["times"] * (size["upsert"] // 10)
                check("rows after", [system.snapshot().num_rows], [expected])


class UpsertLarge(Loaded):
    """One upsert of a tenth of the table."""

    name = "upsert-1m"
    headlines = ("upsert",)
    title = "upsert of {upsert:,} rows in {base:,}, one of ten new"
    needs = ("append", "upsert")
    cases = (Case(quick=QUICK, full=FULL),)

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        given = upsert_rows(size)
        with opened(system):
            out.figure("upsert", seconds(lambda: system.upsert(given)))
            out.seal()
            if out.first:
                check("rows after", digest(system.snapshot()), after_upsert(state["digest"], size))


class Changes(Upserted):
    """What that upsert changed."""

    name = "changes"
    headlines = ("changes",)
    title = "the net changes of an upsert of {upsert:,} rows in {base:,}"
    needs = ("append", "upsert", "changes")
    cases = (Case(quick=QUICK, full=FULL),)

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        with opened(system):
            found: list[pa.Table] = []
            out.figure("changes", seconds(lambda: found.append(_read(system, state))))
            out.figure("changes, again", seconds(lambda: found.append(_read(system, state))))
            out.seal()
            was, now = replaced(size), size["upsert"]
            diffs = found[0].column("_diff").to_numpy()
            check("net changes", [len(diffs), int(diffs.sum())], [was + now, now - was])


class NetChanges(Loaded):
    """The same rows updated three times: a net feed has two updates for each, the old row and the newest."""

    name = "net-changes"
    headlines = ("made net",)
    title = "the net changes of three updates of the same {upsert:,} rows in {base:,}"
    needs = ("append", "upsert", "changes")
    cases = (Case(quick={"base": 100_000, "upsert": 10_000}, full={"base": MILLION, "upsert": 10_000}),)

    def setup_key(self, size: Size) -> str:
        return f"updated-thrice-{size['base']}-{size['upsert']}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        state = super().setup(system, size, out)
        ids = sample(size["upsert"], size["base"], salt=77)
        system.open()
        for version in (1, 2, 3):
            system.upsert(rows(ids, version))
        state["upserted"] = system.version()
        system.close()
        return state

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        true_net = 2 * size["upsert"]
        with opened(system):
            found: list[pa.Table] = []
            elapsed = seconds(lambda: found.append(_read(system, state)))
            given = found[0].num_rows
            out.figure("feed as it comes", elapsed, note=f"{given:,} rows, the net is {true_net:,}")
            if given != true_net:
                elapsed += seconds(lambda: found.append(_net(found[0])))
            out.figure("made net", elapsed, note="" if given == true_net else "summed by pyarrow afterwards")
            out.figure("feed, again", seconds(lambda: _read(system, state)))
            out.seal()
            check("net rows", [found[-1].num_rows], [true_net])


def _read(system: System, state: State) -> pa.Table:
    return system.changes(state["loaded"], state["upserted"])


def _net(feed: pa.Table) -> pa.Table:
    """What a user has to do whose feed is not net. Some feeds have string views, which pyarrow cannot group."""
    plain = feed.cast(pa.schema([*SCHEMA, pa.field("_diff", pa.int64())]))
    summed = plain.group_by(COLUMNS).aggregate([("_diff", "sum")])
    return summed.filter(pc.field("_diff_sum") != 0)
