"""Appending: rows in every form, times in every form, and nothing left behind by what was refused."""

import datetime
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore, Script, counted

from timespine.client.write.prepare import materialize_once
from timespine.config import Config
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import expire_lapsed_leases, roll_up
from timespine.errors import (
    ClosedError,
    Determinate,
    DiffOverflow,
    Fenced,
    Indeterminate,
    UpperMismatch,
    UsageError,
)
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
PARTS = Config(
    part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=3
)
"""A few rows are many parts, and those are listed in hollow runs."""


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def now(collection):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), "k", "v")


def parts_of(place, collection):
    """The blobs with rows, or lists of them."""
    return [key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"]


# Rows in every form.

ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": None}, {"k": 2, "v": None}]
TABLE = pa.table({"k": pa.array([1, 2, 2], pa.int64()), "v": pa.array(["a", None, None], pa.string())})


class Exported:
    """Whatever speaks Arrow's C interface, once."""

    def __init__(self, table):
        self._reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema=None):
        return self._reader.__arrow_c_stream__(requested_schema)


FORMS = {
    "dicts": lambda table: table.to_pylist(),
    "tuple of dicts": lambda table: tuple(table.to_pylist()),
    "dict of lists": lambda table: table.to_pydict(),
    "dict of arrays": lambda table: {name: table.column(name) for name in table.column_names},
    "dict of polars": lambda table: {name: pl.Series(table.column(name)) for name in table.column_names},
    "table": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "exported": Exported,
    "polars": pl.from_arrow,
    "lazy": lambda table: pl.from_arrow(table).lazy(),
    "pandas": lambda table: table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get),
}


@pytest.mark.parametrize("form", FORMS)
@BOTH
def test_rows_are_taken_in_every_form(place, config, form):
    orders = create(place.open(config=config))
    done = orders.append(FORMS[form](TABLE))
    assert (done.time, done.upper, done.rows) == (0, Frontier.at(1), 2)
    assert now(orders) == {(1, "a"): 1, (2, None): 2}


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_every_form_may_bring_times_and_diffs(place, form):
    orders = create(place.open())
    table = TABLE.append_column("_time", pa.array([3, 5, 4])).append_column("_diff", pa.array([2, 1, -1]))
    done = orders.append(FORMS[form](table))
    assert (done.time, done.upper, done.rows) == (None, Frontier.at(6), 3)
    assert counted(orders.updates().to_pylist(), "k", "v", "_time") == {
        (1, "a", 3): 2,
        (2, None, 5): 1,
        (2, None, 4): -1,
    }


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_every_form_survive_a_schema_that_others_changed_meanwhile(place, form):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append(ROWS)
    other["orders"].evolve(add={"w": "int64"})
    table = pa.table({"k": [7], "w": [8]})
    # What this store knows is too old for these rows: it looks, and takes them as they were given.
    assert orders.append(FORMS[form](table)).rows == 1
    assert {"k": 7, "v": None, "w": 8} in other["orders"].snapshot().to_pylist()


def test_rows_of_another_snapshot_can_be_appended_as_they_are(place):
    store = place.open()
    orders, copy = create(store), create(store, "copy")
    orders.append(ROWS)
    copy.append(orders.snapshot())
    assert now(copy) == now(orders)
    copy.append(orders.snapshot(multiplicity="column"))
    assert now(copy) == {(1, "a"): 2, (2, None): 4}


def test_times_in_a_named_index_of_pandas_are_times(place):
    orders = create(place.open())
    frame = pd.DataFrame({"k": [1, 2], "v": ["a", "b"], "_time": [4, 6]}).set_index("_time")
    assert orders.append(frame).upper == Frontier.at(7)
    assert now(orders) == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.parametrize(
    "rows",
    [
        None,
        7,
        "text",
        b"bytes",
        object(),
        [1, 2],
        [["k", 1]],
        [{"k": 1}, None],
        iter([{"k": 1}]),
        {"k": 1},
        {"k": [1], "v": ["a", "b"]},
        [{"k": "one"}],
        [{"k": 1.5}],
        [{"k": True}],
        [{"k": 1 << 64}],
        [{"k": 1, "v": 7}],
        [{"k": 1, "unknown": 7}],
        [{"K": 1}],
        [{1: 1}],
        [{"k": 1, "_diff": 1.5}],
        [{"k": 1, "_diff": None}],
        [{"k": 1, "_diff": 1 << 63}],
        [{"k": 1, "_time": -1}],
        [{"k": 1, "_time": "now"}],
        [{"k": 1}, {"k": 2, "_time": 3}],
        [{"k": 1, "_time_0": 1}],
        np.zeros(3),
        pa.array([1, 2]),
        pl.Series([1, 2]),
    ],
    ids=lambda rows: "object" if type(rows) is object else repr(rows)[:22],
)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_invalid_rows_are_refused_and_change_nothing(place, rows):
    store = place.open()
    orders = create(store)
    orders.append(ROWS)
    seqno = orders._handle.state().seqno
    with pytest.raises(UsageError):
        orders.append(rows)
    assert orders._handle.state().seqno == seqno
    assert orders.append(ROWS).time == 1


# Times.


def test_without_times_rows_get_the_next_free_one(place):
    orders = create(place.open())
    assert [orders.append(ROWS).time for _ in range(3)] == [0, 1, 2]
    orders.seal(10)
    assert orders.append(ROWS).time == 10
    assert orders.append(ROWS, upper=20).upper == Frontier.at(20)
    assert orders.append(ROWS).time == 20


def test_on_the_clock_the_next_free_time_is_now(place):
    orders = create(place.open(), timeline="clock")
    assert orders.append(ROWS).time == place.clock.ms
    assert orders.append(ROWS).time == place.clock.ms + 1  # two in one millisecond
    place.clock.advance(60)
    assert orders.append(ROWS).time == place.clock.ms


@BOTH
def test_of_two_processes_that_append_at_the_next_free_time_none_loses(place, config):
    stores = [place.open(config=config), place.open(config=config)]
    first, second = create(stores[0]), stores[1]["orders"]
    times = [each.append([{"k": n, "v": "x"}]).time for n, each in enumerate([first, second] * 5)]
    assert times == list(range(10))
    assert now(first) == now(second) == {(n, "x"): 1 for n in range(10)}
    assert [row["_time"] for row in sorted(first.updates().to_pylist(), key=lambda row: row["k"])] == times


def test_at_says_at_which_time_rows_stand(place):
    orders = create(place.open())
    done = orders.append(ROWS, at=7)
    assert (done.time, done.upper) == (7, Frontier.at(8))
    with pytest.raises(UsageError, match="`at`"):
        orders.append([{"k": 1, "_time": 1 << 50}], at=1 << 50)


def test_a_datetime_is_a_time_of_the_wall_clock_and_none_of_a_counter(place):
    store = place.open()
    clock, counter = create(store, timeline="clock"), create(store, "counted")
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert clock.append(ROWS, at=moment).time == int(moment.timestamp() * 1000)
    counter.append(ROWS)
    for refused in (
        lambda: counter.append(ROWS, at=moment),
        lambda: counter.append(ROWS, upper=moment),
        lambda: counter.append(ROWS, expected_upper=moment),
        lambda: counter.seal(moment),
        lambda: counter.updates(until=moment),
        lambda: counter.subscribe(moment),
        lambda: counter.hold(moment),
        lambda: counter.hold(0).release_before(moment),
        lambda: counter.expire(moment),
    ):
        with pytest.raises(UsageError, match="its time line is a counter"):
            refused()
    assert counter.upper == Frontier.at(1)


def test_the_last_time_there_is_cannot_be_completed(place):
    orders = create(place.open())
    with pytest.raises(UsageError, match=f"time {INT64_MAX} is the last there is"):
        orders.append(ROWS, at=INT64_MAX)
    orders.seal(INT64_MAX)
    for write in (lambda: orders.append(ROWS), lambda: orders.upsert([{"k": 1}])):
        with pytest.raises(UsageError, match=f"time {INT64_MAX} is the last there is"):
            write()


# What rows must bring.


@pytest.mark.parametrize(
    "rows",
    [
        [{"v": "a"}],
        [{"k": 1, "v": "a"}, {"v": "b"}],
        {"v": ["a"]},
        pa.table({"v": ["a"]}),
        pl.DataFrame({"v": ["a"]}),
        pd.DataFrame({"v": ["a"]}),
        Exported(pa.table({"v": ["a"]})),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_rows_without_a_column_of_the_key_are_refused(place, rows):
    orders = create(place.open())
    orders.append([{"k": None, "v": "the row of the null key"}])
    rows = materialize_once(rows)
    for write in (orders.append, orders.upsert, orders.replace):
        with pytest.raises(UsageError, match="keys need the columns k: k is not there"):
            write(rows)
    assert now(orders) == {(None, "the row of the null key"): 1}


def test_a_key_that_is_said_to_be_null_is_one_and_values_that_are_not_there_are_null_or_their_default(place):
    orders = create(place.open())
    orders.evolve(add={"n": ("int64", 5)})
    orders.append([{"k": None}, {"k": 1, "v": "a", "n": 0}])
    orders.upsert([{"k": 2}])
    assert counted(orders.snapshot().to_pylist(), "k", "v", "n") == {
        (None, None, 5): 1,
        (1, "a", 0): 1,
        (2, None, 5): 1,
    }
    orders.append([])


def test_rows_without_a_diff_among_others_count_once(place):
    orders = create(place.open())
    orders.append([{"k": 1, "v": "a", "_diff": 3}, {"k": 2, "v": "b"}])
    assert now(orders) == {(1, "a"): 3, (2, "b"): 1}
    with pytest.raises(UsageError, match=r"_diff.* 1 nulls"):
        orders.append([{"k": 1, "_diff": None}, {"k": 2}])


def test_times_are_in_all_rows_or_in_none(place):
    orders = create(place.open())
    with pytest.raises(UsageError, match="2 of 3 rows have no _time: give it in all of them, or in none"):
        orders.append([{"k": 1, "_time": 5}, {"k": 2}, {"k": 3}])
    assert orders.upper == Frontier.at(0)


def test_an_upper_that_the_next_free_time_is_not_before_is_refused(place):
    store, other = place.open(), place.open()
    orders = create(store)
    assert orders.append([{"k": 1}], upper=4).upper == Frontier.at(4)
    for upper in (2, 4):
        with pytest.raises(UsageError, match="at or after the upper"):
            orders.append([{"k": 2}], upper=upper)
    other["orders"].append([{"k": 3}], upper=8)  # unknown to the first store
    with pytest.raises(UsageError, match="at or after the upper"):
        orders.append([{"k": 2}], upper=8)
    done = orders.append([{"k": 2}], upper=10)
    assert (done.time, done.upper) == (8, Frontier.at(10))
    assert sorted(row["k"] for row in orders.snapshot().to_pylist()) == [1, 2, 3]


def test_upper_says_how_far_an_append_completes_the_collection(place):
    orders = create(place.open())
    assert orders.append(ROWS, at=3, upper=10).upper == Frontier.at(10)
    assert orders.count(9) == 3
    seqno = orders._handle.state().seqno
    for wrong in (12, 11):
        with pytest.raises(UsageError, match="at or after the upper"):
            orders.append(ROWS, at=12, upper=wrong)
    assert orders._handle.state().seqno == seqno


@BOTH
def test_rows_that_come_too_late_are_refused_and_leave_nothing(place, config):
    store = place.open(config=config)
    orders = create(store)
    orders.append(ROWS, at=5)
    before = orders.snapshot(4).to_pylist(), place.blobs()
    for late in (
        lambda: orders.append([{"k": 9}], at=5),
        lambda: orders.append([{"k": 9, "_time": 3}, {"k": 9, "_time": 8}]),
        lambda: orders.append([{"k": 9, "_time": 3}, {"k": 9, "_time": 8}], upper=9),
        lambda: orders.append([{"k": 9, "_time": 3, "_diff": 0}, {"k": 9, "_time": 8, "_diff": 1}]),
    ):
        with pytest.raises(UsageError, match="too late"):
            late()
    assert (orders.snapshot(4).to_pylist(), place.blobs()) == before
    assert orders.upper == Frontier.at(6)


@BOTH
def test_rows_that_another_process_made_late_are_refused_and_leave_nothing(place, config):
    store, other = place.open(config=config), place.open(config=config)
    orders = create(store)
    orders.append(ROWS, at=5)
    other["orders"].append(ROWS, at=8)
    before = place.blobs()
    with pytest.raises(UsageError, match="too late"):
        orders.append([{"k": 9}], at=7)
    assert place.blobs() == before
    # What is not late goes in though it was made for an older upper.
    assert orders.append([{"k": 9}], at=9).upper == Frontier.at(10)
    assert now(other["orders"])[9, None] == 1


@BOTH
def test_expected_upper_makes_it_a_compare_and_append(place, config):
    store, other = place.open(config=config), place.open(config=config)
    orders = create(store)
    assert orders.append(ROWS, at=5, expected_upper=0).upper == Frontier.at(6)
    other["orders"].append(ROWS, at=8)
    before = place.blobs()
    with pytest.raises(UpperMismatch) as raised:
        orders.append(ROWS, at=9, expected_upper=6)
    assert raised.value.actual == Frontier.at(9)
    with pytest.raises(UpperMismatch):
        orders.append(ROWS, at=12, expected_upper=10)
    assert place.blobs() == before
    assert orders.append(ROWS, at=9, expected_upper=9, upper=20).upper == Frontier.at(20)


def test_rows_before_the_expected_upper_are_refused_whatever_the_upper_is(place):
    orders = create(place.open())
    orders.append(ROWS, at=4)
    for wrong in (
        lambda: orders.append([{"k": 9, "_time": 3}, {"k": 9, "_time": 7}], expected_upper=5),
        lambda: orders.append([{"k": 9}], at=3, upper=8, expected_upper=5),
    ):
        with pytest.raises(UsageError, match="before the upper"):
            wrong()
    assert orders.upper == Frontier.at(5)
    orders.compact(wait=True)
    assert now(orders) == {(1, "a"): 1, (2, None): 2}


def test_rows_without_times_get_the_next_free_one_from_the_expected_upper_on(place):
    orders = create(place.open())
    assert orders.append(ROWS, expected_upper=0).time == 0
    assert orders.append(ROWS, expected_upper=1, upper=5).upper == Frontier.at(5)
    with pytest.raises(UpperMismatch):
        orders.append(ROWS, expected_upper=1)
    clock = create(place.open(), "clock", timeline="clock")
    assert clock.append(ROWS, expected_upper=0).time == place.clock.ms


@pytest.mark.parametrize("rows", [[], TABLE.slice(0, 0), {}, {"k": []}, pl.DataFrame(), ()], ids=str)
def test_an_append_of_nothing_is_an_append(place, rows):
    orders = create(place.open())
    done = orders.append(rows)
    assert (done.time, done.upper, done.rows) == (0, Frontier.at(1), 0)
    assert orders.append(rows, at=7).upper == Frontier.at(8)
    assert orders.append(rows, at=8, upper=12).upper == Frontier.at(12)
    assert orders.append(rows, expected_upper=12, upper=15).upper == Frontier.at(15)
    with pytest.raises(UsageError, match="too late"):
        orders.append(rows, at=7)
    with pytest.raises(UpperMismatch):
        orders.append(rows, expected_upper=12, upper=20)
    assert orders.count() == 0


def test_an_empty_table_with_times_says_nothing_about_how_far_it_goes(place):
    orders = create(place.open())
    empty = TABLE.slice(0, 0).append_column("_time", pa.array([], pa.int64()))
    with pytest.raises(UsageError, match="nothing to append"):
        orders.append(empty)
    assert orders.append(empty, upper=4).upper == Frontier.at(4)


def test_rows_that_cancel_out_move_the_upper_and_store_nothing(place):
    orders = create(place.open(config=BLOBS))
    rows = [{"k": 1, "v": "a", "_time": 3, "_diff": 2}, {"k": 1, "v": "a", "_time": 3, "_diff": -2}]
    done = orders.append(rows)
    assert (done.rows, done.upper) == (0, Frontier.at(4))
    assert parts_of(place, orders) == []
    assert orders.append([{"k": 1, "_diff": 0}]).rows == 0
    assert orders.count() == 0


def test_counts_may_go_below_zero_and_are_never_lost(place):
    orders = create(place.open())
    orders.append([{"k": 1, "v": "a", "_diff": -3}])
    orders.append([{"k": 1, "v": "a", "_diff": 5}])
    assert now(orders) == {(1, "a"): 2}
    assert counted(orders.snapshot(0, multiplicity="column").to_pylist(), "k", "v") == {(1, "a"): -3}


@BOTH
def test_counts_that_do_not_fit_are_refused_as_a_whole(place, config):
    orders = create(place.open(config=config))
    rows = [{"k": 1, "v": "a", "_diff": INT64_MAX}, {"k": 1, "v": "a", "_diff": 1}, {"k": 2, "v": "b", "_diff": 1}]
    with pytest.raises(DiffOverflow):
        orders.append(rows)
    assert orders.upper == Frontier.at(0)
    assert parts_of(place, orders) == []


def test_the_last_times_there_are_can_be_used_and_nothing_after_them(place):
    orders = create(place.open())
    with pytest.raises(UsageError):
        orders.append(ROWS, at=INT64_MAX)
    assert orders.append(ROWS, at=INT64_MAX - 1).upper == Frontier.at(INT64_MAX)
    with pytest.raises(UsageError, match="last there is"):
        orders.append(ROWS)
    assert orders.count() == 3


@BOTH
def test_a_closed_collection_takes_nothing_and_keeps_no_blobs(place, config):
    store = place.open(config=config)
    orders = create(store)
    orders.append(ROWS)
    place.open()["orders"].finish()
    before = place.blobs()
    for refused in (
        lambda: orders.append(ROWS),
        lambda: orders.append(ROWS, at=9),
        lambda: orders.upsert([{"k": 1}]),
    ):
        with pytest.raises(ClosedError):
            refused()
    with pytest.raises(UpperMismatch):
        orders.append(ROWS, at=9, expected_upper=1)
    assert place.blobs() == before
    assert orders.count() == 3


# Several coordinates.


def test_with_several_coordinates_times_and_upper_must_be_said(place):
    plane = create(place.open(), time_coordinates=2)
    for wrong in (
        lambda: plane.append(ROWS),
        lambda: plane.append(ROWS, at=3),
        lambda: plane.append(ROWS, at=(3, 4)),
        lambda: plane.append([{"k": 1, "_time": 3}], upper=(5, 5)),
        lambda: plane.append([{"k": 1, "_time_0": 3}], upper=(5, 5)),
        lambda: plane.append(ROWS, at=(6, 6), upper=(5, 5)),
        lambda: plane.append(ROWS, at=(3, 4), upper=5),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert plane.upper == Frontier.minimum(2)
    done = plane.append(ROWS, at=(3, 4), upper=(4, 4))
    assert (done.time, done.upper) == ((3, 4), Frontier(((4, 4),)))
    assert plane.count((3, 9)) == 3
    assert plane.count((3, 3)) == 0


def test_rows_at_times_that_cannot_be_compared_are_late_only_if_one_of_them_is(place):
    plane = create(place.open(), time_coordinates=2)
    plane.writer().seal(Frontier(((0, 3), (3, 0))))
    rows = [{"k": 1, "_time_0": 0, "_time_1": 5}, {"k": 2, "_time_0": 5, "_time_1": 0}]
    with pytest.raises(UsageError, match="too late"):
        plane.append([*rows, {"k": 3, "_time_0": 2, "_time_1": 2}], upper=(6, 6))
    done = plane.append(rows, upper=(6, 6))
    assert (done.time, done.rows) == (None, 2)
    assert plane.count((5, 5)) == 2
    assert plane.count((0, 5)) == 1


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12),
    upper=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_lateness_of_partially_ordered_times_is_that_of_the_definition(times, upper):
    with MemoryStore() as place:
        plane = create(place.open(), time_coordinates=2)
        frontier = Frontier(tuple(upper))
        plane.writer().seal(frontier)
        rows = [{"k": n, "_time_0": first, "_time_1": second} for n, (first, second) in enumerate(times)]
        if all(frontier.less_equal(time) for time in times):
            assert plane.append(rows, upper=(7, 7)).rows == len(rows)
            assert plane.count((6, 6)) == len(rows)
        else:
            with pytest.raises(UsageError, match="too late"):
                plane.append(rows, upper=(7, 7))


def test_very_many_times_that_cannot_be_compared_are_fine(place):
    plane = create(place.open(), time_coordinates=2)
    rows = [{"k": n, "_time_0": n, "_time_1": 300 - n} for n in range(300)]
    assert plane.append(rows, upper=(400, 400)).rows == 300
    assert plane.count((399, 399)) == 300


# Inline or blob.


def test_tiny_appends_live_in_the_state_and_larger_ones_in_blobs(place):
    orders = create(place.open())
    orders.append(ROWS)
    assert parts_of(place, orders) == []
    assert orders._handle.state().inline_bytes > 0
    orders.append([{"k": n, "v": f"{n * 7919:x}" * 20} for n in range(1000)])
    assert len(parts_of(place, orders)) == 1
    assert orders.count() == 1003


def test_when_the_state_is_full_rows_go_to_blobs(place):
    one = create(place.open(), "one")
    one.append([{"k": 0, "v": "x"}])
    size = one._handle.state().inline_bytes
    config = Config(inline_total_bytes=3 * size + size // 2, retry_pause_ms=1)
    orders = create(place.open(config=config))
    for n in range(6):
        orders.append([{"k": n, "v": "x"}])
    assert 2 * size < orders._handle.state().inline_bytes <= config.inline_total_bytes
    assert len(parts_of(place, orders)) == 3
    assert orders.count() == 6


def test_when_others_filled_the_state_unnoticed_rows_go_to_blobs(place):
    one = create(place.open(), "one")
    one.append([{"k": 0, "v": "x"}])
    size = one._handle.state().inline_bytes
    config = Config(inline_total_bytes=size + size // 2, retry_pause_ms=1)
    store, other = place.open(config=config), place.open(config=config)
    for way in ({}, {"at": 7}):
        orders = create(store, replace=True)
        orders._handle.state()
        other["orders"].append([{"k": 1, "v": "x"}])
        assert orders._handle.known().inline_bytes == 0
        orders.append([{"k": 2, "v": "y"}], **way)
        assert now(orders) == {(1, "x"): 1, (2, "y"): 1}
        assert 0 < orders._handle.state().inline_bytes <= config.inline_total_bytes
        assert len(parts_of(place, orders)) == 1
    orders = create(store, replace=True)
    orders._handle.state()
    other["orders"].append([{"k": 1, "v": "x"}])
    orders.upsert([{"k": 1, "v": "z"}])
    assert now(orders) == {(1, "z"): 1}


def test_a_row_larger_than_a_part_and_more_rows_than_a_run_lists_are_fine(place):
    orders = create(place.open(config=PARTS))
    orders.append([{"k": n, "v": ("long" if n % 7 else "row " * 4000)} for n in range(400)])
    assert len(parts_of(place, orders)) > 10
    assert any(part.hollow for part in orders._handle.state().parts())
    assert orders.count() == 400
    assert sum(count for (_, v), count in now(orders).items() if len(v) > 100) == 58
    orders.append([{"k": 1000, "v": "x" * 3_000_000}])
    assert len(orders.lookup({"k": 1000}).to_pylist()[0]["v"]) == 3_000_000


# Failures on the way.


def test_what_was_put_before_a_put_failed_for_good_is_deleted(place):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", Fault.DETERMINATE, skip=3, times=99)
    with pytest.raises(Determinate):
        orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert parts_of(place, orders) == []
    script.rules.clear()
    orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert orders.count() == 400


def test_what_was_put_before_the_list_of_parts_failed_for_good_is_deleted(place):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", Fault.INDETERMINATE_DONE, key="/h", times=99)
    with pytest.raises(Indeterminate):
        orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert parts_of(place, orders) == []


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT])
@pytest.mark.parametrize("kind", ["/p", "/h"])
def test_a_put_that_failed_once_is_repeated(place, fault, kind):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", fault, key=kind)
    orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert script.is_done
    assert orders.count() == 400


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_what_may_be_committed_is_never_deleted(place, fault):
    script = Script()
    store = place.open(script=script, config=PARTS)
    orders = create(store)
    orders.append(ROWS)
    before = parts_of(place, orders)
    script.add("compare_and_set", fault, key=orders.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=3)
    with pytest.raises(Indeterminate):
        orders.append([{"k": 1000 + n, "v": "value" * 20} for n in range(100)])
    assert len(parts_of(place, orders)) > len(before)
    script.rules.clear()
    store.ghosts()
    # Whether it is in or not, every state can be read to the last row.
    assert place.open()["orders"].count() in (3, 103)
    orders.append([{"k": 1, "v": "next"}])
    assert now(place.open()["orders"])[1, "next"] == 1
    assert place.open()["orders"].count() in (4, 104)


def test_what_may_be_committed_and_was_not_is_swept_when_its_writer_is_gone(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=99)
    with pytest.raises(Indeterminate):
        orders.append([{"k": 5, "v": "x"}])
    assert len(parts_of(place, orders)) == 2
    store.close()  # as if it had crashed: it cannot give up its ids
    assert other.maintain(sweep=True).swept == 0
    place.clock.advance(2 * 3600)
    assert other.maintain(sweep=True).swept >= 1
    assert len(parts_of(place, orders)) == 1
    assert other["orders"].count() == 3


def test_an_append_that_is_refused_because_its_writer_was_expired_is_put_again_once(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)

    writer = store._committer.session.writer

    def expire():
        place.clock.advance(2 * 3600)
        other._committer.run(orders.id, lambda session: expire_lapsed_leases(session, orders.id))
        assert writer not in other["orders"]._handle.state().writers

    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=expire)
    orders.append([{"k": 5, "v": "x"}], at=7)
    assert script.is_done
    assert now(other["orders"])[5, "x"] == 1
    assert sorted(key.split("/")[1] == writer for key in parts_of(place, orders)) == [False, True]


@pytest.mark.parametrize(
    ("fault", "meanwhile", "there"),
    [(Fault.NONE, "compare_and_set", 0), (Fault.CONFLICT_DONE, "scan", 1)],
    ids=["lost", "misreported"],
)
def test_an_append_whose_log_was_cut_before_it_knew_is_in_doubt_and_keeps_its_blobs(place, fault, meanwhile, there):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)
    writer = store._committer.session.writer

    def expire_and_cut():
        place.clock.advance(2 * 3600)
        for step in (expire_lapsed_leases, roll_up, collect_garbage):
            other._committer.run(orders.id, lambda session, step=step: step(session, orders.id))

    if meanwhile == "scan":
        script.add("compare_and_set", fault, key=orders.id)
    script.add(meanwhile, Fault.NONE, key=orders.id, hook=expire_and_cut)
    with pytest.raises(Fenced) as raised:
        orders.append([{"k": 5, "v": "x"}], at=7)
    assert raised.value.in_doubt
    assert script.is_done
    assert [key.split("/")[1] for key in parts_of(place, orders)] == [writer] * 2, "neither deleted nor put again"
    assert now(other["orders"])[5, "x"] == there
    orders.append([{"k": 6, "v": "y"}], at=8)
    assert now(other["orders"])[6, "y"] == 1


def test_a_conflict_that_never_ends_is_reported_and_leaves_nothing(place):
    config = Config(commit_attempts=4, inline_part_bytes=1, retry_pause_ms=1)
    other = place.open()

    class Busy(Script):
        on = False

        def __call__(self, operation, key):
            if self.on and operation == "compare_and_set":
                other["orders"].append([{"k": 0, "v": "theirs"}])
            return Fault.NONE

    script = Busy()
    orders = create(place.open(script=script, config=config))
    orders.append(ROWS)
    before = parts_of(place, orders)
    script.on = True
    with pytest.raises(Determinate, match="in a row"):
        orders.append([{"k": 1, "v": "ours"}])
    script.on = False
    assert parts_of(place, orders) == before
    assert (1, "ours") not in now(orders)


# Schemas that others change.


def test_rows_of_the_old_shape_go_on_fitting_after_others_evolved_the_schema(place):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    other["orders"].evolve(rename={"v": "name"}, add={"n": ("int64", 7)})
    orders.append([{"k": 2, "v": "b"}])  # this process has not noticed
    assert other["orders"].snapshot().to_pylist() == [
        {"k": 1, "name": "a", "n": 7},
        {"k": 2, "name": "b", "n": 7},
    ]
    orders.append([{"k": 3, "name": "c", "n": 1}])
    with pytest.raises(UsageError, match="'v'"):
        orders.append([{"k": 4, "v": "d"}])
    assert orders.count() == 3


def test_rows_that_fit_no_schema_are_refused_with_the_newest_in_mind(place):
    store, other = place.open(), place.open()
    orders = create(store)
    other["orders"].evolve(add={"n": "int64"})
    with pytest.raises(UsageError, match="'n'"):
        orders.append([{"k": 1, "w": "a"}])


# All of it against a model.

UPDATES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", None]), st.integers(0, 4), st.integers(-2, 2)))


@settings(max_examples=40, deadline=None)
@given(appends=st.lists(UPDATES, max_size=5), inline=st.booleans())
def test_every_history_of_appends_is_read_back_as_of_every_time(appends, inline):
    with MemoryStore() as place:
        orders = create(place.open(config=QUICK if inline else BLOBS))
        upper, history = 0, []
        for batch in appends:
            rows = [{"k": k, "v": v, "_time": upper + delay, "_diff": diff} for k, v, delay, diff in batch]
            history += rows
            upper = max([upper] + [row["_time"] + 1 for row in rows])
            if rows:
                assert orders.append(rows).upper == Frontier.at(upper)
        for time in range(upper):
            expected = Counter()
            for row in history:
                if row["_time"] <= time:
                    expected[row["k"], row["v"]] += row["_diff"]
            there = counted(orders.snapshot(time, multiplicity="column").to_pylist(), "k", "v")
            assert there == {row: count for row, count in expected.items() if count}


def test_fenced_in_doubt_is_told_and_not_repeated(place, monkeypatch):
    orders = create(place.open(config=BLOBS))
    orders.append(ROWS)
    calls = []

    def doubtful(*commands, **options):
        calls.append(commands)
        raise Fenced("who knows", in_doubt=True)

    monkeypatch.setattr(orders._handle.committer, "commit", doubtful)
    with pytest.raises(Fenced):
        orders.append(ROWS)
    assert len(calls) == 1
    assert len(parts_of(place, orders)) == 2


# The schema.


@pytest.mark.parametrize(
    "wrong", [{"drop": "v"}, {"drop": {"v"}}, {"add": "v"}, {"rename": ["v"]}, {"widen": [("k", "int64")]}]
)
def test_an_evolution_that_is_not_by_columns_is_refused(place, wrong):
    orders = create(place.open())
    with pytest.raises(UsageError, match="names of columns"):
        orders.evolve(**wrong)
    assert orders.schema.names == ("k", "v")
