"""Anything that can be done with a spine, in any order, beside the model: every read is the same."""

from __future__ import annotations

import tempfile
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from spine_cases import TIMES, counted, frontiers, key_tables, layouts, pools, times, tiny, update_tables
from test_arrangement_spine import TINY
from test_cursor import Beside, small_windows

from timespine.arrangement.batch.batch import batch_of
from timespine.arrangement.spine.spine import Spine
from timespine.core.arrangement import memory_pressure
from timespine.errors import SinceError, UsageError
from timespine.testing.cursor_model import model_cursor
from timespine.testing.spine_model import SpineModel, model_rows

LIMITS = (1 << 40, 3_000, 1)
"""Bytes of memory: enough, and two that let everything go to disk sooner or later."""


class Machine(RuleBasedStateMachine):
    """A spine with a folder, and the model. Rows below bounds may have gone, so they are not compared."""

    @initialize(data=st.data())
    def begin(self, data):
        self.patches = [tiny(), small_windows(), mock.patch.object(memory_pressure, "RESERVE_BYTES", 0)]
        for patch in self.patches:
            patch.__enter__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        self.layout = data.draw(layouts())
        self.values = data.draw(pools(self.layout))
        self.model = SpineModel(self.layout.order, len(self.layout.by), self.layout.schema.time_names)
        self.limit = data.draw(st.sampled_from(LIMITS))
        self.bound, self.value_bound, self.paused, self.saved = (), (), 0, None
        self.spine = self.opened()

    def opened(self):
        options = {"threads": False, "rules": TINY, "folder": self.folder, "memory_bytes": self.limit}
        return Spine(self.layout.schema, self.layout.by, **options)

    @rule(data=st.data(), wait=st.booleans())
    def insert(self, data, wait):
        table = data.draw(update_tables(self.layout, self.values))
        if self.spine.insert(table, wait=wait):
            self.model.insert(table)

    @rule(data=st.data())
    def insert_a_shared_batch(self, data):
        table = data.draw(update_tables(self.layout, self.values, min_size=1))
        batch = batch_of(table, self.layout)
        if batch is not None:
            self.spine.insert(batch)
            self.model.insert(table)

    @rule(data=st.data())
    def advance_since(self, data):
        self.spine.advance_since(data.draw(frontiers(self.layout)))

    @rule(data=st.data())
    def retain_keys(self, data):
        """Drop the keys before one, which only ever rises."""
        key = data.draw(key_tables(mock.Mock(layout=self.layout, values=self.values), max_size=1))
        bound = max(self.bound, model_rows(key, key.column_names)[0])

        def is_kept(table):
            return [row[: len(bound)] >= bound for row in model_rows(table, self.layout.by)]

        self.bound = bound
        self.spine.retain_keys(is_kept)

    @rule(data=st.data(), keep=st.sampled_from([None, "last", "top", "bottom"]), count=st.integers(1, 2))
    def retain_values(self, data, keep, count):
        """Drop the rows whose other columns are before some, which only ever rise; keep a few of them per key."""
        if not self.layout.value_names:
            return
        row = data.draw(update_tables(self.layout, self.values, min_size=1, max_size=1))
        bound = max(self.value_bound, self.value_of(model_rows(row, self.layout.order)[0]))

        def is_kept(table):
            return [self.value_of(row) >= bound for row in model_rows(table, self.layout.order)]

        self.value_bound = bound
        self.spine.retain_values(is_kept, **({keep: count} if keep else {}))

    def value_of(self, row):
        return row[len(self.layout.by) :]

    def wanted(self, rows):
        """The rows that no filter rejects: the others may be there, or may have gone."""
        above = [row for row in rows if row[0][: len(self.bound)] >= self.bound]
        return [row for row in above if self.value_of(row[0]) >= self.value_bound]

    @rule()
    def pause(self):
        self.spine.pause()
        self.paused += 1

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self):
        self.spine.resume()
        self.paused -= 1

    @precondition(lambda self: not self.paused)
    @rule()
    def complete(self):
        self.spine.complete_merges()
        assert self.spine.is_compaction_complete
        assert self.spine.is_settled()

    @precondition(lambda self: self.folder is not None)
    @rule()
    def save(self):
        self.spine.save()
        self.saved = (self.model.copy(), self.spine.since, self.spine.is_dirty)

    @precondition(lambda self: self.folder is not None and self.saved is not None)
    @rule()
    def restore(self):
        """Lose what was not saved. Filters are not saved, and what they have dropped stays away."""
        self.spine.close()
        self.spine, self.paused = self.opened(), 0
        assert self.spine.key_filter is self.spine.value_filter is None
        assert (self.spine.since, self.spine.is_dirty) == self.saved[1:]
        self.model = self.saved[0].copy()

    @rule()
    def fork(self):
        before = self.spine
        self.spine = before.fork()
        before.close()
        self.folder, self.saved, self.paused = None, None, 0

    @invariant()
    def reads_are_those_of_the_model(self):
        if not hasattr(self, "spine"):
            return
        for time in [(TIMES,) * self.layout.schema.arity, (1,) * self.layout.schema.arity]:
            try:
                view = self.spine.view(time)
            except SinceError:
                assert not self.spine.since.less_equal(time)
                continue
            answer = [row for table in view.scan(rows=5) for row in counted(table, self.layout)]
            assert self.wanted(answer) == self.wanted(self.model.as_of(time))

    @invariant()
    def memory_is_that_of_the_batches_in_memory(self):
        if hasattr(self, "spine"):
            in_memory = [batch.nbytes for batch in self.spine.batches if batch.in_memory]
            assert self.spine._driver.memory_bytes() == sum(in_memory)

    @rule(data=st.data())
    def fetch(self, data):
        keys = data.draw(key_tables(mock.Mock(layout=self.layout, values=self.values)))
        time = data.draw(times(self.layout))
        if self.spine.since is None or self.spine.since.less_equal(time):
            found = self.spine.view(time).fetch(keys)
            expected = self.model.fetch(model_rows(keys, keys.column_names), time)
            assert self.wanted(counted(found, self.layout)) == self.wanted(expected)

    @rule(forwards=st.booleans())
    def step_through_all(self, forwards):
        """Walk over all keys, values and times: they are those of the model, folded to since."""
        folded = self.model.copy()
        if self.spine.since is not None:
            folded.fold(self.spine.since)
        cursor, beside = self.spine.cursor(), Beside(self, None, None)
        found, pairs = [], []
        if not forwards:
            cursor.fast_forward_keys()
        while cursor.key_valid:
            values = []
            while cursor.val_valid:
                pairs.clear()
                cursor.map_times(lambda time, diff: pairs.append((time, diff)))
                try:
                    row = (*beside.key_row(cursor.key()), *beside.value_row(cursor.val()))
                except UsageError:
                    return  # Python has no year 10000
                values.append((row, list(pairs)))
                cursor.step_val()
            found[:0] = values if not forwards else []
            found += values if forwards else []
            (cursor.step_key if forwards else cursor.step_key_reverse)()
        expected = [((*key, *value), at) for key, values in model_cursor(folded, None).keys for value, at in values]
        assert self.wanted(found) == self.wanted(expected)

    def teardown(self):
        if hasattr(self, "spine"):
            self.spine.close()
        if hasattr(self, "temporary"):
            self.temporary.cleanup()
        for patch in getattr(self, "patches", ()):
            patch.__exit__(None, None, None)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase
