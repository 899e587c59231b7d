"""Reads of a state without blobs, which take no lease, give what leased reads of the same history give."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore

from timespine.errors import SinceError

some = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
KEYS = st.integers(0, 3)
TIMES = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("upsert"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("expire"), TIMES),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("maintain"), st.none()),
    st.tuples(st.just("snapshot"), TIMES),
    st.tuples(st.just("changes"), st.tuples(TIMES, TIMES)),
    st.tuples(st.just("look"), st.none()),
)


class World:
    """One history in one store: a process that writes, another one that reads, and the reads that are open."""

    def __init__(self, place, config):
        self.writer, self.reader = place.open(config=config), place.open(config=config)
        self.orders = self.writer.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        self.orders.append([{"id": 0, "name": "x"}])
        self.seen = self.reader["orders"]
        self.open = []
        self.leases = self.leased_reads = 0

    @property
    def upper(self):
        return self.orders.upper.elements[0][0]

    @property
    def since(self):
        return self.orders.since.elements[0][0]

    def change(self, what, given, name):
        """A step of the writer."""
        if what == "append":
            self.orders.append([{"id": key, "name": name} for key in given])
        elif what == "upsert":
            self.orders.upsert([{"id": given, "name": name}])
        elif what == "delete":
            self.orders.delete({"id": given})
        elif what == "expire":
            self.orders.expire(before=min(given, self.upper - 1))
        elif what == "compact":
            self.orders.compact(wait=True)
        elif what == "maintain":
            self.writer.maintain(sweep=True)

    def read(self, what, given):
        """Begin a read of the other process, which stays open."""
        self.leased_reads += not self.orders._handle.state().is_inline
        rows = self.seen.snapshot(given) if what == "snapshot" else self.seen.changes(after=given[0], until=given[1])
        self.open.append(rows)
        self.leases += len(self.orders._handle.state().readers)

    def look(self):
        """What every open read gives."""
        return [
            Counter((row["id"], row["name"], row.get("_diff", 1)) for row in rows.to_pylist()) for rows in self.open
        ]


@some
@examples(st.lists(STEPS, min_size=4, max_size=20))
def test_reads_with_and_without_a_lease_give_the_same_rows_whatever_happens_meanwhile(steps):
    with MemoryStore() as inline, MemoryStore() as stored:
        worlds = World(inline, QUICK), World(stored, BLOBS)
        for number, (what, given) in enumerate([*steps, ("look", None)]):
            least, upper = max(world.since for world in worlds), worlds[0].upper
            if what in ("snapshot", "changes"):
                # A lease holds back history, so only times that both still have are read.
                times = [min(max(time, least), upper - 1) for time in (given if what == "changes" else [given])]
                for world in worlds:
                    world.read(what, sorted(times) if what == "changes" else times[0])
            elif what == "look":
                assert worlds[0].look() == worlds[1].look()
            else:
                for world in worlds:
                    world.change(what, given, f"n{number}")
            assert worlds[0].upper == worlds[1].upper
        for world in worlds:
            assert bool(world.leases) == bool(world.leased_reads), "a merge may put the rows of a state into a blob"
            if world.since > 0:
                with pytest.raises(SinceError):
                    world.seen.snapshot(world.since - 1)
