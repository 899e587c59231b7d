"""Upserts, and what they changed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.system import System
from bench.rows import COLUMNS, SCHEMA, digest, rows, sample
from bench.works.tables import Loaded, Upserted, after_upserts, replaced, upsert_rows
from bench.works.work import Case, Out, Size, State, again, check, median, opened, seconds, spread

MILLION = 1_000_000
QUICK = {"base": 500_000, "upsert": 50_000}
FULL = {"base": 10 * MILLION, "upsert": MILLION}


class UpsertSmall(Loaded):
    """A few upserts one after the other, each of other rows."""

    name = "upsert-10k"
    headlines = ("upsert",)
    pairs = (("first upsert of a process", "upsert"),)
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
    """An upsert of a tenth of the table, and one more of other rows."""

    name = "upsert-1m"
    headlines = ("upsert",)
    pairs = (("upsert", "upsert, again"),)
    title = "upsert of {upsert:,} rows in {base:,}, one of ten new"
    needs = ("append", "upsert")
    cases = (Case(quick=QUICK, full=FULL),)

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        done = []

        def once() -> float:
            given = upsert_rows(size, 1 + len(done))
            done.append(seconds(lambda: system.upsert(given)))
            return done[-1]

        with opened(system):
            out.figure("upsert", once())
            again(out, "upsert, again", done[0], once)
            out.seal()
            if out.first:
                check("rows after", digest(system.snapshot()), after_upserts(state["digest"], size, len(done)))


class Changes(Upserted):
    """What that upsert changed."""

    name = "changes"
    headlines = ("changes",)
    pairs = (("changes", "changes, again"),)
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
    pairs = (("feed as it comes", "feed, again"), ("made net", "made net, again"))
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
            for feed, net in zip(*self.pairs, strict=True):
                found: list[pa.Table] = []
                elapsed = seconds(lambda found=found: found.append(_read(system, state)))
                given = found[0].num_rows
                out.figure(feed, elapsed, note=f"{given:,} rows, the net is {true_net:,}")
                if given != true_net:
                    elapsed += seconds(lambda found=found: found.append(_net(found[0])))
                out.figure(net, elapsed, note="" if given == true_net else "summed by pyarrow afterwards")
                check("net rows", [found[-1].num_rows], [true_net])
            out.seal()


def _read(system: System, state: State) -> pa.Table:
    return system.changes(state["loaded"], state["upserted"])


def _net(feed: pa.Table) -> pa.Table:
    """What a user has to do whose feed is not net. Some feeds have string views, which pyarrow cannot group."""
    plain = feed.cast(pa.schema([*SCHEMA, pa.field("_diff", pa.int64())]))
    summed = plain.group_by(COLUMNS).aggregate([("_diff", "sum")])
    return summed.filter(pc.field("_diff_sum") != 0)
