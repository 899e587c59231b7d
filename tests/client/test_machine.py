"""The public API against a model: whatever is done, in any order, answers are those of a plain list of updates."""

import contextlib
import dataclasses
import os
import tempfile
from collections import Counter
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import timespine as ts
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.scan import parallel_scan
from timespine.columnar.write import upload
from timespine.errors import SinceError, UsageError
from timespine.testing.formats.real_storage import with_low_limits

KEYS = st.integers(0, 6)
VALUES = st.sampled_from(["", "a", "b", "\u00e9", "\U0001f600", None])
ROWS = st.lists(st.tuples(KEYS, VALUES), max_size=5)
CONFIG = ts.Config(
    part_bytes=400, row_group_rows=3, inline_part_bytes=500, inline_total_bytes=2000, run_parts=2, rollup_seqnos=8
)
"""Small enough that a handful of rows makes several row groups, parts and hollow runs."""


def as_rows(pairs):
    return [{"k": key, "v": value} for key, value in pairs]


class Collections(RuleBasedStateMachine):
    """One collection, changed and read in every way, and the updates that it should have."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory(prefix="timespine-machine-")
        self.updates = []
        self.upper = 0
        self.since = 0
        self.asked = 0
        self.feed = None
        self.told = Counter()
        self.open()
        self.orders = self.store.create("orders", key={"k": "int64"}, value={"v": "string"}, timeline="counter")

    config = CONFIG

    def open(self):
        self.store = ts.open(self.folder.name, maintenance=False, audit=1.0, config=self.config)

    def teardown(self):
        if hasattr(self, "store"):
            if self.feed is not None:
                self.feed.close()
            self.store.close()
            self.folder.cleanup()

    # The model.

    def at(self, time):
        counts = Counter()
        for row, when, diff in self.updates:
            if when <= time:
                counts[row] += diff
        return Counter({row: count for row, count in counts.items() if count})

    def now(self):
        return self.at(self.upper - 1)

    def replace(self, old, new):
        """What a change that reads and writes comes to: nothing, or one commit at the next time."""
        delta = Counter(new)
        delta.subtract(old)
        delta = {row: count for row, count in delta.items() if count}
        if delta:
            self.updates += [(row, self.upper, count) for row, count in delta.items()]
            self.upper += 1

    @property
    def is_plain(self):
        return all(count > 0 for count in self.now().values())

    # Writing.

    @rule(rows=ROWS)
    def append(self, rows):
        done = self.orders.append(pa.Table.from_pylist(as_rows(rows), self.orders.schema.arrow))
        self.updates += [(row, self.upper, 1) for row in rows]
        assert done.time == self.upper
        self.upper += 1

    @rule(rows=st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=6))
    def append_with_times_and_diffs(self, rows):
        updates = [((key, value), self.upper + delay, diff) for key, value, delay, diff in rows]
        self.orders.append([{"k": row[0], "v": row[1], "_time": time, "_diff": diff} for row, time, diff in updates])
        self.updates += updates
        self.upper = max(time for _, time, _ in updates) + 1

    @precondition(lambda self: self.is_plain)
    @rule(rows=st.dictionaries(KEYS, VALUES, max_size=4))
    def upsert(self, rows):
        old = Counter({row: count for row, count in self.now().items() if row[0] in rows})
        self.orders.upsert(pa.Table.from_pylist(as_rows(rows.items()), self.orders.schema.arrow))
        self.replace(old, Counter(rows.items()))

    @rule(keys=st.sets(KEYS, max_size=3))
    def delete(self, keys):
        self.orders.delete(pa.table({"k": pa.array(sorted(keys), pa.int64())}))
        self.replace(Counter({row: count for row, count in self.now().items() if row[0] in keys}), Counter())

    @rule(bound=KEYS)
    def delete_where(self, bound):
        self.orders.delete(where=f"k < {bound}")
        self.replace(Counter({row: count for row, count in self.now().items() if row[0] < bound}), Counter())

    @precondition(lambda self: self.is_plain)
    @rule(bound=KEYS, value=VALUES)
    def update(self, bound, value):
        old = Counter({row: count for row, count in self.now().items() if row[0] == bound})
        self.orders.update(where=f"k = {bound}", set={"v": value})
        self.replace(old, Counter({(bound, value): sum(old.values())}) if old else Counter())

    # Forgetting, merging, reopening.

    @rule(data=st.data())
    def expire(self, data):
        before = data.draw(st.integers(0, self.upper + 1))
        reply = self.orders.expire(before=before)
        self.asked = max(self.asked, min(before, max(self.upper - 1, 0)))
        reached = reply.since.elements[0][0]
        # A feed holds history back at most as far as it was when it began to listen.
        assert self.since <= reached <= self.asked
        assert reached == self.asked or self.feed is not None
        assert reached >= min(before, self.asked) or any("reader" in who for who in reply.held_by)
        self.since = reached

    @rule()
    def compact(self):
        self.orders.compact(wait=True)
        assert len(self.orders.inspect().batches) <= 1

    @rule()
    def maintain(self):
        self.store.maintain(sweep=True)

    @rule()
    def reopen(self):
        if self.feed is not None:
            self.feed.close()
            self.feed = None
            self.since = self.asked  # what the feed held back follows by itself
        self.store.close()
        self.open()
        self.orders = self.store["orders"]

    # Reading.

    @precondition(lambda self: self.since < self.upper)
    @rule(data=st.data())
    def snapshot(self, data):
        time = data.draw(st.integers(self.since, self.upper - 1))
        rows = self.orders.snapshot(time, multiplicity="column").to_pylist()
        assert Counter({(row["k"], row["v"]): row["_diff"] for row in rows}) == self.at(time)
        assert len(rows) == len(self.at(time))
        assert self.orders.count(time) == sum(self.at(time).values())

    @precondition(lambda self: self.since < self.upper)
    @rule(n=st.integers(1, 4), bound=KEYS)
    def snapshot_in_pieces(self, n, bound):
        with self.orders.snapshot(multiplicity="column", where=f"k >= {bound}") as rows:
            pieces = [row for piece in rows.split(n) for row in piece.to_pylist()]
        wanted = Counter({row: count for row, count in self.now().items() if row[0] >= bound})
        assert Counter({(row["k"], row["v"]): row["_diff"] for row in pieces}) == wanted
        assert len(pieces) == len(wanted)

    @precondition(lambda self: self.since < self.upper)
    @rule(key=KEYS)
    def lookup(self, key):
        expected = Counter({row: count for row, count in self.now().items() if row[0] == key})
        if all(count > 0 for count in expected.values()):
            assert Counter((row["k"], row["v"]) for row in self.orders.lookup({"k": key}).to_pylist()) == expected
        else:
            with pytest.raises(UsageError, match="multiplicity"):
                self.orders.lookup({"k": key})

    @precondition(lambda self: self.since < self.upper)
    @rule(data=st.data())
    def changes(self, data):
        after = data.draw(st.integers(self.since, self.upper - 1))
        until = data.draw(st.integers(after, self.upper - 1))
        rows = self.orders.changes(after=after, until=until).to_pylist()
        net = Counter(self.at(until))
        net.subtract(self.at(after))
        assert {(row["k"], row["v"]): row["_diff"] for row in rows} == {row: n for row, n in net.items() if n}

    @precondition(lambda self: self.since > 0)
    @rule(data=st.data())
    def read_before_since(self, data):
        with pytest.raises(SinceError):
            self.orders.snapshot(data.draw(st.integers(0, self.since - 1)))

    @precondition(lambda self: self.feed is None)
    @rule()
    def subscribe(self):
        self.feed = self.orders.subscribe()
        self.told = Counter()

    @precondition(lambda self: self.feed is not None)
    @rule()
    def listen(self):
        for event in self.feed.poll():
            if event.rows is not None:
                for row in event.rows.to_pylist():
                    self.told[row["k"], row["v"]] += row["_diff"]
        assert Counter({row: count for row, count in self.told.items() if count}) == self.now()
        # What it was told before is released: since may follow.
        reached = self.orders.since.elements[0][0]
        assert self.since <= reached <= max(self.asked, self.since)
        self.since = reached

    @invariant()
    def upper_and_since_are_those_of_the_model(self):
        if hasattr(self, "orders"):
            assert self.orders.upper.elements[0][0] == self.upper
            assert self.orders.since.elements[0][0] == self.since


MANY = range(40)
"""Keys of enough rows for several pages, row groups and parts."""


class FastReads(Collections):
    """The same with rows in files and low limits, so that reads take the paths of large collections."""

    config = dataclasses.replace(
        CONFIG, part_bytes=2000, row_group_rows=8, page_rows=1, inline_part_bytes=100, any_order_rows=1
    )
    taken = Counter()
    """How often a run of the machine took the paths."""

    @initialize()
    def begin(self):
        self.undo = contextlib.ExitStack()
        self.undo.enter_context(with_low_limits())
        for place, name in (
            (parallel_scan, "scan_settled"),
            (parallel_scan, "scan_changed"),
            (PartReader, "read_page"),
            (upload, "join_row_groups"),
        ):
            self.undo.enter_context(self.counting(place, name))
        super().begin()
        self.append_many(0, 1)
        self.compact()

    @classmethod
    def counting(cls, place, name):
        """Count the calls of a function."""
        function = getattr(place, name)

        def counted(*args, **options):
            cls.taken[name] += 1
            return function(*args, **options)

        return mock.patch.object(place, name, counted)

    def teardown(self):
        super().teardown()
        if hasattr(self, "undo"):
            self.undo.close()

    @rule(start=st.integers(0, 20), step=st.integers(1, 3))
    def append_many(self, start, step):
        """Rows of many keys that are not there, so that a merged run is there once each."""
        known = {key for key, _ in self.now()}
        self.append([(key, "abc"[: key % 4]) for key in MANY[start::step] if key not in known])

    @precondition(lambda self: self.since < self.upper)
    @rule(key=st.sampled_from(MANY))
    def lookup_one_of_many(self, key):
        self.lookup(key)

    @precondition(lambda self: self.since < self.upper)
    @rule(low=st.sampled_from(MANY), count=st.integers(0, 6))
    def snapshot_of_a_range(self, low, count):
        where = f"k >= {low} AND k < {low + count}"
        rows = self.orders.snapshot(where=where, multiplicity="column").to_pylist()
        wanted = {row: times for row, times in self.now().items() if low <= row[0] < low + count}
        assert Counter({(row["k"], row["v"]): row["_diff"] for row in rows}) == wanted

    @precondition(lambda self: self.since < self.upper)
    @rule()
    def snapshot_of_all_after_a_merge(self):
        """Twice: what the first one has decoded is in the cache for the second one."""
        self.compact()
        for _ in range(2):
            self.check_now()

    def check_now(self):
        rows = self.orders.snapshot(multiplicity="column").to_pylist()
        assert Counter({(row["k"], row["v"]): row["_diff"] for row in rows}) == self.now()
        assert len(rows) == len(self.now())


limits = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "25")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCollections = Collections.TestCase
TestCollections.settings = limits


class TestFastReads(FastReads.TestCase):
    settings = settings(limits, stateful_step_count=40)

    def runTest(self):
        FastReads.taken.clear()
        super().runTest()
        if self.settings.max_examples >= 25:
            assert min(FastReads.taken[name] for name in ("read_page", "scan_settled")) > 0


def test_a_run_of_the_machine_takes_every_fast_path():
    machine = FastReads()
    FastReads.taken.clear()
    try:
        machine.begin()
        machine.lookup_one_of_many(20)
        assert FastReads.taken["read_page"] > 0
        machine.snapshot_of_all_after_a_merge()
        assert FastReads.taken["scan_settled"] == 2
        machine.upsert({1: "b"})
        machine.check_now()
        assert FastReads.taken["scan_changed"] == 1
        machine.compact()
        assert FastReads.taken["join_row_groups"] > 0
        machine.check_now()
    finally:
        machine.teardown()
