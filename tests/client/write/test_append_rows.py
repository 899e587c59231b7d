"""Appending: rows in every form, times in every form, and nothing left behind by what was refused."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from append_cases import ROWS
from key_value_cases import create, now, parts_of
from memory_store import BLOBS, QUICK, counted

from timespine.client.write.prepare import materialize_once
from timespine.errors import ClosedError, DiffOverflow, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


# Rows in every form.


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
        with pytest.raises(UsageError, match="the rows lack the key column 'k'"):
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
        with pytest.raises(UsageError, match="at or after"):
            orders.append([{"k": 2}], upper=upper)
    other["orders"].append([{"k": 3}], upper=8)  # unknown to the first store
    with pytest.raises(UsageError, match="at or after"):
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
        with pytest.raises(UsageError, match="at or after"):
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
