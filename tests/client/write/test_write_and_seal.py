"""Write and seal: durable at once, in any order, part of the collection when the time is sealed, and never twice."""

import datetime

import polars as pl
import pyarrow as pa
import pytest
from key_value_cases import create, rows_at
from memory_store import BLOBS, Script, in_threads
from unsealed_cases import BOTH, row, unsealed

from timespine.client.write.prepare_unsealed import LATE
from timespine.errors import ClosedError, NotSealed, UsageError
from timespine.model.frontier import Frontier

# Writing.


@BOTH
def test_what_was_written_is_durable_at_once_and_part_of_the_collection_when_it_is_sealed(place, config):
    orders = create(place.open(config=config))
    assert orders.write([row(1, 3), row(2, 7)]).number == 0
    assert orders.write([row(3, 1), row(4, 5)]).number == 1, "in any order"
    assert orders.upper == Frontier.at(0)
    with pytest.raises(NotSealed):
        orders.snapshot(1, timeout=0)
    other = place.open()["orders"]
    assert unsealed(other) == [(1, 3, 1), (2, 7, 1), (3, 1, 1), (4, 5, 1)]
    assert orders.seal(5).upper == Frontier.at(5)
    assert rows_at(other, 4) == {(1, "a"): 1, (3, "a"): 1}
    assert rows_at(other, 2) == {(3, "a"): 1}
    assert unsealed(other) == [(2, 7, 1), (4, 5, 1)]


def test_a_write_says_what_it_came_to(place):
    orders = create(place.open())
    written = orders.write([row(1, 3), row(1, 3), row(2, 7), row(3, 5, _diff=0)])
    assert (written.number, written.rows, written.first, written.last, written.late) == (0, 2, 3, 7, 0)
    assert orders.write([row(1)], at=4).last == 4
    assert orders.write([row(1, 3, _diff=-1)]).rows == 1
    assert unsealed(orders) == [(1, 3, 1), (1, 4, 1), (2, 7, 1)]


def test_minimum_and_maximum_time_of_a_write_are_known_whatever_the_order_of_its_rows(place):
    orders = create(place.open())
    orders.write([row(1, 3), row(2, 2)])
    (batch,) = orders._handle.state().unsealed
    assert (batch.lower, batch.max) == (Frontier.at(2), (3,))


def test_writes_of_all_writers_are_numbered_without_gaps(place):
    stores = [place.open() for _ in range(3)]
    create(stores[0])
    in_threads(*(lambda store=store: [store["orders"].write([row(1, 9)]) for _ in range(5)] for store in stores))
    assert [batch.seqno for batch in stores[0]["orders"]._handle.state().unsealed] == list(range(15))


def test_empty_writes_touch_no_storage(place):
    script = Script()
    orders = create(place.open(script=script))
    orders.write([row(1, 3)])
    before = dict(script.calls)
    assert orders.write([], at=4).number is None
    assert orders.write([], times="when").number is None
    assert orders.write(pa.table({"k": pa.array([], pa.int64()), "_time": pa.array([], pa.int64())})).rows == 0
    assert dict(script.calls) == before


def test_rows_need_times(place):
    orders = create(place.open())
    with pytest.raises(UsageError, match="do not say at which times"):
        orders.write([row(1)])
    with pytest.raises(UsageError, match="either"):
        orders.write([row(1)], at=1, times="k")
    with pytest.raises(UsageError, match="late is one of"):
        orders.write([row(1, 1)], late="perhaps")


def test_a_write_below_the_upper_is_refused_and_at_the_upper_taken(place):
    orders = create(place.open())
    orders.append([row(1)], at=1)
    with pytest.raises(UsageError, match="too late"):
        orders.write([row(2, 1), row(3, 5)])
    assert unsealed(orders) == []
    assert orders.write([row(2, 2)]).number == 0


def test_a_write_that_is_late_since_another_process_sealed_is_refused(place):
    orders, other = create(place.open()), place.open()["orders"]
    assert orders.upper == Frontier.at(0)
    other.seal(5)
    with pytest.raises(UsageError, match="below the upper"):
        orders.write([row(2, 3)])
    assert orders.write([row(2, 3), row(3, 9)], late="drop").late == 1
    assert unsealed(orders) == [(3, 9, 1)]


@pytest.mark.parametrize("late", LATE)
def test_what_is_too_late_is_refused_dropped_or_moved(place, late):
    orders, other = create(place.open()), place.open()["orders"]
    other.seal(5)
    given = [row(1, 2), row(2, 4), row(2, 5), row(3, 8)]
    if late == "refuse":
        with pytest.raises(UsageError):
            orders.write(given, late=late)
        return
    written = orders.write(given, late=late)
    assert written.late == 2
    expected = {"drop": [(2, 5, 1), (3, 8, 1)], "move": [(1, 5, 1), (2, 5, 2), (3, 8, 1)]}
    assert unsealed(orders) == expected[late]


def test_what_all_came_too_late_is_no_write(place):
    orders = create(place.open())
    orders.seal(5)
    assert orders.write([row(1, 2)], late="drop") == orders.write([row(1, 3)], late="drop")
    assert orders._handle.state().unsealed_next == 0


def test_a_closed_collection_takes_no_writes(place):
    orders = create(place.open())
    orders.write([row(1, 3)])
    orders.finish()
    with pytest.raises(ClosedError):
        orders.write([row(1, 9)])
    assert rows_at(orders, 3) == {(1, "a"): 1}


def test_several_coordinates(place):
    orders = create(place.open(), time_coordinates=2)
    orders.write([{"k": 1, "v": "a", "_time_0": 1, "_time_1": 0}, {"k": 2, "v": "a", "_time_0": 0, "_time_1": 1}])
    orders.seal((2, 2))
    assert rows_at(orders, (1, 1)) == {(1, "a"): 1, (2, "a"): 1}
    with pytest.raises(UsageError, match="several coordinates"):
        orders.write([{"k": 1, "v": "a", "_time_0": 1, "_time_1": 1}], late="move")
    with pytest.raises(UsageError, match="one column"):
        orders.write([row(1)], times="k")


# Times in a column.


def moment(day):
    return datetime.datetime(2026, 1, day, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([moment(2), moment(1)], pa.timestamp("us", "UTC")),
        pa.array([moment(2), moment(1)], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([moment(2).date(), moment(1).date()]),
        pa.array([1767312000000, 1767225600000]),
    ],
    ids=["microseconds", "a zone", "dates", "milliseconds"],
)
def test_times_come_from_a_column(place, column):
    clicks = create(place.open(), timeline="clock")
    written = clicks.write(pa.table({"k": [2, 1], "at": column}), times="at")
    assert (written.first, written.last) == (1767225600000, 1767312000000)
    clicks.seal(moment(2))
    assert [each["k"] for each in clicks.snapshot().to_pylist()] == [1]


def test_a_column_of_times_may_be_one_of_the_collection(place):
    clicks = create(place.open(), value={"at": "timestamp[us, tz=UTC]"})
    clicks.write([{"k": 1, "at": moment(1)}], times="at")
    clicks.seal(int(moment(2).timestamp() * 1000))
    assert clicks.snapshot().to_pylist()[0]["at"] == moment(1)
    clicks.write(pl.DataFrame({"k": [3], "at": [moment(5)]}), times="at")
    assert unsealed(clicks) == [(3, 1767571200000, 1)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"k": [1], "at": pa.array([None], pa.int64())}), "nulls"),
        (pa.table({"k": [1], "at": pa.array([moment(1)], pa.timestamp("us"))}), "no zone"),
        (pa.table({"k": [1], "at": ["noon"]}), "string"),
        (pa.table({"k": [1], "at": [-1]}), "below zero"),
        (pa.table({"k": [1]}), "no column"),
        (pa.table({"k": [1], "at": [1], "_time": [1]}), "times of their own"),
    ],
)
def test_a_column_that_has_no_times_is_refused(place, table, why):
    orders = create(place.open())
    with pytest.raises(UsageError, match=why):
        orders.write(table, times="at")


# Sealing.


def test_a_seal_never_goes_back_and_the_same_again_is_fine(place):
    script = Script()
    orders = create(place.open(script=script))
    assert orders.seal(11).upper == Frontier.at(11)
    before = script.calls["compare_and_set"]
    assert orders.seal(11).upper == Frontier.at(11)
    assert script.calls["compare_and_set"] == before
    with pytest.raises(UsageError, match="sealed up to"):
        orders.seal(10)
    assert orders.upper == Frontier.at(11)


def test_a_closed_or_dropped_collection_cannot_be_sealed_and_is_called_by_its_name(place):
    store = place.open()
    orders = create(store)
    orders.seal(5)
    with pytest.raises(UsageError, match="cannot seal orders at"):
        orders.seal(3)
    store.drop("orders")
    with pytest.raises(ClosedError, match="orders"):
        orders.seal(9)


# Reading what is not sealed.


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, [3, 5]),
        (0, 6, [3, 5]),
        (0, 2, []),
        (6, None, []),
        (6, 8, []),
        (3, 3, []),
        (3, 6, [3, 5]),
        (3, 4, [3]),
        (4, 5, []),
        (5, 6, [5]),
    ],
)
def test_unsealed_updates_are_read_by_a_range_of_times(place, lower, upper, expected):
    orders = create(place.open())
    orders.write([row(1, 3), row(1, 5)])
    assert [time for _, time, _ in unsealed(orders, lower, upper)] == expected


def test_a_range_that_ends_before_it_begins_is_refused(place):
    orders = create(place.open(config=BLOBS))
    orders.write([row(1, 3)])
    with pytest.raises(UsageError, match="must not be before"):
        orders.unsealed(4, 3)
    assert orders._handle.context.leases.idle(orders.id), "and holds nothing"


def test_unsealed_updates_can_be_restricted_to_some_columns_and_rows(place):
    orders = create(place.open())
    orders.write([row(1, 3, "x"), row(2, 5, "y")])
    found = orders.unsealed(columns=["v"], where="k = 2").to_pylist()
    assert found == [{"v": "y", "_time": 5, "_diff": 1}]
