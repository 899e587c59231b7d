"""A cursor moves as the model does: keys and values forwards and backwards, as of a time and with times."""

from __future__ import annotations

import contextlib
from unittest import mock

import pyarrow as pa
import pytest
from assertions import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from spine_cases import FLAT, frontiers, key_tables, scalar_key, spines, times, tiny
from test_view_as_of import BY_ID, ORDERS, orders, view_of

from timespine.arrangement.batch.batch import batch_of
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.read import cursor as cursors
from timespine.arrangement.read.cursor import Cursor
from timespine.arrangement.read.key_window import WindowSource
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.spine import Spine
from timespine.columnar.kernels.comparable_words import Key
from timespine.columnar.schema.schema import define
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.testing.cursor_model import model_cursor
from timespine.testing.spine_model import model_rows

HELD = {kind for kind in FLAT if not pa.types.is_timestamp(kind) and not pa.types.is_date(kind)}
"""Types whose values Python can all hold."""


@contextlib.contextmanager
def small_windows(rows=3):
    """Windows of a few updates, so that few rows make many."""
    with mock.patch.object(cursors, "WINDOW_ROWS", rows), mock.patch.object(cursors, "WINDOW_ROWS_MAX", 2 * rows):
        yield


class Beside:
    """A cursor and the model of it. Every call is made of both, and both must be at the same place after it."""

    def __init__(self, spine, cursor, model):
        self.layout, self.cursor, self.model = spine.layout, cursor, model

    def row(self, names, values):
        """A dictionary as the model has it."""
        shape = pa.schema([self.layout.schema.arrow.field(name) for name in names])
        return model_rows(pa.Table.from_pylist([values], schema=shape), names)[0] if names else ()

    def key_row(self, values):
        return self.row(self.layout.by, values)

    def value_row(self, values):
        return self.row(self.layout.value_names, values)

    def made(self, call, is_right):
        """Make a call of the cursor; it is a UsageError exactly if the model says so."""
        if is_right:
            return call()
        before = self.state()
        with pytest.raises(UsageError):
            call()
        assert self.state() == before
        return None

    def state(self):
        cursor = self.cursor
        if not cursor.key_valid:
            assert not cursor.val_valid
            return None
        if not cursor.val_valid:
            return self.key_row(cursor.key()), None
        found = []
        cursor.map_times(lambda time, diff: found.append((time, diff)))
        assert sum(diff for _, diff in found) == cursor.weight()
        return self.key_row(cursor.key()), self.value_row(cursor.val()), found

    def expected(self):
        model = self.model
        if not model.key_valid:
            return None
        key = model.keys[model.at][0]
        return (key, model.values[model.value][0], model.times()) if model.val_valid else (key, None)

    def check(self):
        assert self.state() == self.expected()

    # Moves, each of both.

    def step_key(self, data):
        forwards = data.draw(st.booleans())
        call = self.cursor.step_key if forwards else self.cursor.step_key_reverse
        self.made(call, self.model.copy().step_key(forwards=forwards))
        self.model.step_key(forwards=forwards)

    def drawn_key(self, data):
        keys = data.draw(key_tables(self, max_size=1))
        return scalar_key(keys, 0), model_rows(keys, keys.column_names)[0]

    @property
    def values(self):
        return self.pools

    def seek_key(self, data):
        forwards, (given_key, key) = data.draw(st.booleans()), self.drawn_key(data)

        def passes(row):
            return row[: len(key)] >= key if forwards else row[: len(key)] <= key

        if data.draw(st.booleans()):
            seek = self.cursor.seek_key if forwards else self.cursor.seek_key_reverse
            call = lambda: seek(given_key)  # noqa: E731
        else:
            seek = self.cursor.seek_key_with if forwards else self.cursor.seek_key_with_reverse
            call = lambda: seek(lambda at: passes(self.key_row(at)))  # noqa: E731
        self.made(call, self.model.copy().move_key(passes, forwards=forwards))
        self.model.move_key(passes, forwards=forwards)

    def seek_key_exact(self, data):
        given_key, key = self.drawn_key(data)
        assume(len(key) == len(self.layout.by))
        answer = self.model.seek_key_exact(key)
        found = self.made(lambda: self.cursor.seek_key_exact(given_key), answer is not None)
        assert answer is None or found is answer

    def turn_keys(self, data):
        forwards = data.draw(st.booleans())
        (self.cursor.rewind_keys if forwards else self.cursor.fast_forward_keys)()
        self.model.go_to_end(forwards=forwards)

    def step_val(self, data):
        forwards = data.draw(st.booleans())
        call = self.cursor.step_val if forwards else self.cursor.step_val_reverse
        self.made(call, self.model.copy().step_val(forwards=forwards))
        self.model.step_val(forwards=forwards)

    def seek_val(self, data):
        forwards = data.draw(st.booleans())
        names = self.layout.value_names
        depth = data.draw(st.integers(0, len(names)))
        drawn = {name: data.draw(st.sampled_from(self.pools[name])) for name in names[:depth]}
        shape = pa.schema([self.layout.schema.arrow.field(name) for name in names[:depth]])
        wanted = model_rows(pa.Table.from_pylist([drawn], schema=shape), names[:depth])[0] if depth else ()

        def passes(row):
            return row[:depth] >= wanted if forwards else row[:depth] <= wanted

        if data.draw(st.booleans()):
            seek = self.cursor.seek_val if forwards else self.cursor.seek_val_reverse
            call = lambda: seek(drawn)  # noqa: E731
        else:
            seek = self.cursor.seek_val_with if forwards else self.cursor.seek_val_with_reverse
            call = lambda: seek(lambda at: passes(self.value_row(at)))  # noqa: E731
        self.made(call, self.model.copy().move_val(passes, forwards=forwards))
        self.model.move_val(passes, forwards=forwards)

    def turn_vals(self, data):
        forwards = data.draw(st.booleans())
        call = self.cursor.rewind_vals if forwards else self.cursor.fast_forward_vals
        self.made(call, self.model.copy().go_to_end_of_vals(forwards=forwards))
        self.model.go_to_end_of_vals(forwards=forwards)

    def copy(self, data):
        """Go on with a copy; what the other does is nothing to it."""
        left, model = self.cursor, self.model
        self.cursor, self.model = left.copy(), model.copy()
        left.fast_forward_keys()

    def map_times_through(self, data):
        upper = data.draw(times(self.layout))
        found = []
        self.made(
            lambda: self.cursor.map_times_through(upper, lambda time, diff: found.append((time, diff))),
            self.model.val_valid,
        )
        assert not self.model.val_valid or found == self.model.times(upper)

    def map_values(self, data):
        if self.cursor._windows.as_of is None or not self.model.key_valid:
            self.made(self.cursor.weight_checked, False)
            return
        found = []
        self.cursor.map_values(lambda value, weight: found.append((self.value_row(value), weight)))
        expected = []
        while self.model.val_valid:
            value, pairs = self.model.values[self.model.value]
            expected.append((value, pairs[0][1]))
            self.model.step_val(forwards=self.model.vals_forwards)
        assert found == expected

    def position(self, data):
        offset, total = self.cursor.position()
        updates = sum(batch.rows for batch in self.batches)
        assert total == updates
        if self.model.key_valid:
            key = Key.of(list(self.cursor.key().values()), self.layout.by_types).encoded
            before = 0
            for batch in self.batches:
                for chunk in batch.chunks:
                    before += sum(Key.at(chunk.index.columns, row).encoded < key for row in range(chunk.rows))
            assert offset == before
        elif self.model.exact is None:
            assert offset == (total if self.model.forwards else 0)


MOVES = (
    "step_key",
    "step_key",
    "seek_key",
    "seek_key_exact",
    "turn_keys",
    "step_val",
    "step_val",
    "seek_val",
    "turn_vals",
    "copy",
    "map_times_through",
    "map_values",
    "position",
)


@settings(max_examples=examples(60))
@given(st.data())
def test_a_cursor_moves_as_the_model_does(data):
    with tiny(), small_windows(data.draw(st.integers(1, 4))):
        spine = data.draw(spines())
        assume(all(kind in HELD or pa.types.is_nested(kind) for kind in spine.layout.schema.types.values()))
        as_of = data.draw(st.none() | times(spine.layout))
        since = Frontier.minimum(spine.layout.schema.arity)
        if as_of is None:
            since = data.draw(frontiers(spine.layout))
            spine.model.fold(since)
        cursor = Cursor(WindowSource(spine.layout, spine.batches, as_of, since, FilterCounts()))
        beside = Beside(spine, cursor, model_cursor(spine.model, as_of))
        beside.pools, beside.batches = spine.values, spine.batches
        beside.check()
        for move in data.draw(st.lists(st.sampled_from(MOVES), max_size=25)):
            getattr(beside, move)(data)
            beside.check()


@pytest.mark.parametrize("keys_forwards", [True, False])
@pytest.mark.parametrize("vals_forwards", [True, False])
@given(data=st.data())
def test_all_rows_come_in_each_of_the_four_orders(keys_forwards, vals_forwards, data):
    with tiny(), small_windows():
        spine = data.draw(spines())
        assume(all(kind in HELD or pa.types.is_nested(kind) for kind in spine.layout.schema.types.values()))
        as_of = data.draw(times(spine.layout))
        cursor = ArrangementView(spine.layout, spine.batches, as_of).cursor()
        beside = Beside(spine, cursor, None)
        found = []
        if not keys_forwards:
            cursor.fast_forward_keys()
        while cursor.key_valid:
            if not vals_forwards:
                cursor.fast_forward_vals()
            while cursor.val_valid:
                found.append(
                    ((*beside.key_row(cursor.key()), *beside.value_row(cursor.val())), cursor.weight_checked())
                )
                (cursor.step_val if vals_forwards else cursor.step_val_reverse)()
            (cursor.step_key if keys_forwards else cursor.step_key_reverse)()
        expected = []
        rows = spine.model.as_of(as_of)
        for key in spine.model.keys(as_of)[:: 1 if keys_forwards else -1]:
            of_key = [(row, count) for row, count in rows if row[: len(key)] == key]
            expected += of_key if vals_forwards else of_key[::-1]
        assert found == expected


@given(st.data())
def test_items_are_the_rows_between_two_keys_in_both_directions(data):
    with tiny(), small_windows():
        spine = data.draw(spines())
        assume(all(kind in HELD or pa.types.is_nested(kind) for kind in spine.layout.schema.types.values()))
        as_of = data.draw(times(spine.layout))
        bounds, models = [], []
        for _ in range(2):
            keys = data.draw(st.none() | key_tables(spine, max_size=1))
            bounds.append(None if keys is None else scalar_key(keys, 0))
            models.append(None if keys is None else model_rows(keys, keys.column_names)[0])
        view = ArrangementView(spine.layout, spine.batches, as_of)
        beside = Beside(spine, None, None)
        expected = spine.model.scan(*models, as_of, inclusive=False)
        for reverse in (False, True):
            keys, found = [], []
            for key, values in view.items(*bounds, reverse=reverse):
                keys.append(beside.key_row(key))
                found += [((*keys[-1], *beside.value_row(value)), count) for value, count in values]
            assert keys == sorted(set(keys), reverse=reverse)
            assert sorted(found) == expected


# Examples.


def test_values_that_cancel_and_keys_without_values_are_hidden_and_take_no_step():
    one = orders([(n, "a") for n in range(100)])
    two = orders([(n, "a") for n in range(1, 99)], time=1, diff=-1)
    with small_windows():
        cursor = view_of(one, two).cursor()
        assert cursor.key() == {"id": 0}
        cursor.step_key()
        assert (cursor.key(), cursor.val(), cursor.weight()) == ({"id": 99}, {"name": "a"}, 1)
        cursor.step_key()
        assert not cursor.key_valid
        cursor.step_key()
        assert not cursor.key_valid
        cursor.fast_forward_keys()
        cursor.step_key_reverse()
        assert cursor.key() == {"id": 0}
        assert view_of(one, two, as_of=(0,)).cursor().position() == (0, 198)


def test_a_cursor_of_a_spine_has_times_folded_to_since_before_merges_do_it():
    with Spine(ORDERS, threads=False) as spine:
        for time in range(4):
            spine.insert(orders([(1, "a")], time=time))
        spine.insert(orders([(1, "a")], time=3, diff=-1))
        spine.advance_since(Frontier.at(1))
        cursor = spine.cursor()
        found = []
        cursor.map_times(lambda time, diff: found.append((time, diff)))
        assert found == [((1,), 2), ((2,), 1)]
        assert cursor.weight() == 3
        for wrong in (cursor.weight_checked, lambda: cursor.map_values(print)):
            with pytest.raises(UsageError, match="times of their own"):
                wrong()


def test_an_exact_seek_of_an_absent_key_searches_no_chunk():
    counts = FilterCounts()
    batches = [batch_of(orders([(1000 * n + i, "") for i in range(0, 50, 7)]), BY_ID) for n in range(9)]
    cursor = ArrangementView(BY_ID, batches, (9,), counts).cursor()
    with mock.patch("timespine.arrangement.read.find_key.locate_key", side_effect=AssertionError):
        for key in (-5, 3, 1001, 4002, 9999):
            assert not cursor.seek_key_exact({"id": key})
            assert not cursor.key_valid
    assert counts.member_hits == 0
    assert cursor.seek_key_exact({"id": 10_000}) is False
    cursor.rewind_keys()
    assert cursor.seek_key_exact({"id": 4007})
    assert cursor.val() == {"name": ""}
    assert cursor.position() == (33, 72)


def test_exact_seeks_ascend_and_mix_with_nothing():
    cursor = view_of(orders([(1, "a"), (2, "b"), (3, "c")])).cursor()
    assert cursor.seek_key_exact({"id": 2})
    for wrong in (
        lambda: cursor.seek_key_exact({"id": 1}),
        cursor.step_key,
        lambda: cursor.seek_key({"id": 3}),
        cursor.step_key_reverse,
    ):
        with pytest.raises(UsageError, match="rewind_keys"):
            wrong()
    cursor.rewind_keys()
    cursor.step_key()
    with pytest.raises(UsageError, match="has moved"):
        cursor.seek_key_exact({"id": 3})


def test_keys_and_values_of_other_columns_and_places_without_rows_are_errors():
    cursor = view_of(orders([(1, "a")])).cursor()
    for wrong in ({}, {"name": "a"}, {"id": 1, "name": "a"}, {"id": "one"}):
        with pytest.raises(UsageError):
            cursor.seek_key(wrong)
    for wrong in ({"id": 1}, {"name": 5}):
        with pytest.raises(UsageError):
            cursor.seek_val(wrong)
    cursor.step_key()
    for call in (cursor.key, cursor.val, cursor.weight, cursor.rewind_vals, lambda: cursor.map_times(print)):
        with pytest.raises(UsageError, match="at no"):
            call()
    empty = ArrangementView(BY_ID, [], (0,)).cursor()
    assert not empty.key_valid
    empty.fast_forward_keys()
    assert not empty.key_valid
    assert empty.position() == (0, 0)


def test_a_seek_reads_one_small_window_and_steps_double_it():
    made = []
    real = WindowSource._window

    def counted(self, pieces, edge):
        made.append(sum(piece.rows for piece in pieces))
        return real(self, pieces, edge)

    rows = [orders([(n, "") for n in range(start, 60_000, 6)]) for start in range(6)]
    with mock.patch.object(WindowSource, "_window", counted):
        cursor = view_of(*rows).cursor()
        cursor.seek_key({"id": 50_000})
        assert cursor.key() == {"id": 50_000}
        assert len(made) == 2
        assert max(made) <= cursors.WINDOW_ROWS
        for _ in range(9_999):
            cursor.step_key()
        assert cursor.key() == {"id": 59_999}
        assert len(made) <= 5
        cursor.fast_forward_keys()
        cursor.seek_key_reverse({"id": 7})
        assert cursor.key() == {"id": 7}
        assert max(made[-2:]) <= cursors.WINDOW_ROWS
        assert len(made) <= 7


def test_a_value_of_a_year_that_python_lacks_is_an_error_and_the_cursor_goes_on():
    schema = define({"id": "int64"}, {"at": "timestamp"})
    table = pa.table({"id": [1, 2], "at": pa.array([1 << 60, 0], pa.timestamp("us"))})
    with Spine(schema, threads=False) as spine:
        far = table.append_column("_time", pa.array([0, 0])).append_column("_diff", pa.array([1, 1]))
        spine.insert(far.cast(schema.update_arrow))
        cursor = spine.cursor()
        with pytest.raises(UsageError, match="cannot hold"):
            cursor.val()
        cursor.step_key()
        assert cursor.val()["at"].year == 1970
