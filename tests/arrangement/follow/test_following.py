"""An arrangement loses no change: whatever happens to the feed, to the schema, or to the thread that follows."""

from __future__ import annotations

from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from assertions import until

import timespine as ts
from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.follow import begin_following
from timespine.arrangement.spine import process_memory, spine_driver
from timespine.arrangement.spine.spine import Spine
from timespine.client.api_for_engines import handle_of
from timespine.client.read.arranged_rows import arranged_rows
from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.core.arrangement import memory_pressure
from timespine.errors import Determinate, SinceError, UsageError

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double"}


def ids(rows):
    return sorted(row["id"] for row in rows)


# Renamed columns.


def test_a_renamed_column_is_the_same_column(orders):
    with orders.arrange(by=["customer"], columns=["customer", "id"], where="customer != 'x' and total >= 4") as index:
        assert ids(index.get({"customer": "a"})) == [4, 6, 8]
        orders.evolve(rename={"customer": "buyer", "total": "sum"})
        orders.append([{"id": 20, "buyer": "a", "sum": 9.0}, {"id": 21, "buyer": "a", "sum": 1.0}])
        assert ids(index.get({"buyer": "a"})) == [4, 6, 8, 20]
        assert index.layout.schema.names == ("buyer", "id")
        orders.evolve(rename={"buyer": "who"}, add={"buyer": "string"})
        assert ids(index.get({"who": "a"})) == [4, 6, 8, 20]
        with orders.arrange(by=["who"], columns=["who", "id"], where="who != 'x' and sum >= 4") as same:
            assert same is index
        with orders.arrange(by=["buyer"], columns=["buyer", "id"], where="buyer != 'x' and sum >= 4") as other:
            assert other is not index
        with pytest.raises(UsageError, match="'who'"):
            index.get({"customer": "a"})


def test_the_key_may_be_renamed(orders):
    with orders.arrange():
        orders.evolve(rename={"id": "number"})
        orders.upsert([{"number": 3, "customer": "z", "total": 0.0}])
        assert orders.lookup({"number": 3}).to_pylist() == [{"number": 3, "customer": "z", "total": 0.0}]
        assert orders.count() == 10


def test_a_condition_that_cannot_be_renamed_says_so(orders):
    with orders.arrange(where=pl.col("total") > 3) as index:
        assert index.get(3) == []
        orders.evolve(rename={"total": "sum"})
        with pytest.raises(UsageError, match="'total' of a polars expression was renamed"):
            index.get(5)


@pytest.mark.parametrize("options", [{"columns": ["customer", "id"]}, {"where": "customer = 'a'"}])
def test_dropping_any_column_that_was_named_is_an_error(orders, options):
    with orders.arrange(**options) as index:
        orders.evolve(drop=["customer"])
        with pytest.raises(UsageError, match="'customer' was dropped"):
            index.get(4)
    with orders.arrange() as index:
        orders.evolve(drop=["total"])
        assert index.get(4) == [{"id": 4}]


def test_a_schema_that_changes_while_an_arrangement_begins_is_seen(orders):
    """Between the look at the schema and the subscription, and between the subscription and its lease."""
    changes = [{"add": {"note": "string"}}, {"rename": {"customer": "buyer"}}, {"rename": {"buyer": "who"}}]
    real = type(orders).subscribe

    def subscribe(self, *args, **kwargs):
        if changes:
            orders.evolve(**changes.pop(0))
        feed = real(self, *args, **kwargs)
        if changes:
            orders.evolve(**changes.pop(0))
        return feed

    with mock.patch.object(type(orders), "subscribe", subscribe), orders.arrange(by=["customer"]) as index:
        pass
    changes.extend([{"add": {"more": "string"}}])
    with mock.patch.object(type(orders), "subscribe", subscribe), orders.arrange() as index:
        assert index.get_one(3) == orders.lookup({"id": 3}).to_pylist()[0]
        assert index.get_one(3).keys() == {"id", "who", "total", "note", "more"}


def test_a_schema_that_never_stands_still_is_given_up(orders):
    real = type(orders).subscribe
    count = iter(range(1000))

    def subscribe(self, *args, **kwargs):
        orders.evolve(add={f"c{next(count)}": "int64"})
        return real(self, *args, **kwargs)

    thrice = mock.patch.object(begin_following, "SCHEMA_TRIES", 3)
    with mock.patch.object(type(orders), "subscribe", subscribe), thrice, pytest.raises(Determinate, match="3 times"):
        orders.arrange()
    assert not orders._handle.context.arrangements
    assert not orders._handle.state().readers


# Nothing is lost.


def test_an_event_that_could_not_be_inserted_is_inserted_later(orders):
    with orders.arrange() as index:
        real = Spine.insert
        failing = [True, True]

        def insert(self, *args, **kwargs):
            if failing:
                failing.pop()
                raise Determinate("merges do not keep up")
            return real(self, *args, **kwargs)

        # Patched first: the thread that follows may insert the event as soon as it is there.
        with mock.patch.object(Spine, "insert", insert):
            orders.append([{"id": 50, "customer": "c", "total": 5.0}])
            for _ in range(50):
                try:
                    assert index.get_one(50)["customer"] == "c"
                    break
                except Determinate:
                    continue
        assert not failing
        assert index.get_one(50)["customer"] == "c"
        assert index.metrics()["restarts"] == 0


def test_an_interrupt_between_feed_and_spine_loses_nothing(orders):
    # Without its thread: an interrupt is raised in the main one.
    with mock.patch.object(Arrangement, "_follow"), orders.arrange() as index:
        real = ChangeFeed.poll
        interrupts = [True]

        def poll(self):
            events = real(self)
            if events and interrupts:
                interrupts.pop()
                raise KeyboardInterrupt
            return events

        with mock.patch.object(ChangeFeed, "poll", poll):
            orders.append([{"id": 50, "customer": "c", "total": 5.0}])
            for _ in range(50):
                try:
                    if index.get_one(50) is not None:
                        break
                except KeyboardInterrupt:
                    continue
        assert interrupts == []
        assert index.get_one(50)["customer"] == "c"


def test_a_feed_that_begins_later_begins_with_its_snapshot(store):
    ahead = store.create("ahead", key=KEY, timeline="counter")
    ahead.append([{"id": 1}])
    ahead.expire(5, ahead=True)
    with ahead.arrange(history="all") as index:
        assert index.get(1) == []
        ahead.append([{"id": 2}], at=7)
        assert ids([*index.get(1), *index.get(2)]) == [1, 2]
        with pytest.raises(SinceError):
            index.at(5)


# Keys as people write them.


def test_a_key_may_be_a_value_or_a_tuple(orders):
    with orders.arrange() as by_id, orders.arrange(by=["customer", "id"]) as both:
        assert by_id.get(3) == by_id.get({"id": 3}) == by_id.get((3,))
        assert by_id.get_one(3)["total"] == 3.0
        assert ids(both.get("a")) == [0, 2, 4, 6, 8]
        assert ids(both.get(("a", 4))) == [4]
        with pytest.raises(UsageError, match="3 values"):
            both.get((1, 2, 3))
        with pytest.raises(UsageError):
            by_id.get("three")
        for keys in ([3, 4], (3, 4), {3, 4}, range(3, 5), np.array([3, 4]), pa.array([3, 4]), [(3,), {"id": 4}]):
            assert by_id.fetch(keys).column("id").to_pylist() == [3, 4], keys
        assert by_id.fetch(pl.DataFrame({"id": [3, 4]})).num_rows == 2
        assert by_id.fetch([]).num_rows == 0
        assert both.fetch("a").num_rows == 5
        assert [table.num_rows for table in by_id.scan(8)] == [2]
        assert [table.num_rows for table in by_id.scan(None, 3, inclusive=True)] == [4]


# Holding a time, and rows for views.


def test_a_held_time_stays_readable_until_it_is_let_go(orders):
    with orders.arrange() as index:
        with index.hold(0) as held:
            orders.upsert([{"id": 1, "customer": "new", "total": 1.0}])
            assert index.get_one(1)["customer"] == "new"
            assert [row["customer"] for row, _ in index.at(0).get({"id": 1})] == ["b"]
            keys = pa.table({"id": [1]})
            before, after = (arranged_rows(handle_of(orders), keys, time) for time in (0, 1))
            assert before.column("customer").to_pylist() == ["b"]
            assert after.column("customer").to_pylist() == ["new"]
        held.close()
        orders.upsert([{"id": 1, "customer": "newer", "total": 1.0}])
        assert index.get_one(1)["customer"] == "newer"
        assert arranged_rows(handle_of(orders), keys, 0) is None
        with pytest.raises(SinceError):
            index.hold(0)


def test_rows_of_keys_come_from_an_arrangement_whose_first_columns_they_are(orders):
    handle = handle_of(orders)
    by_customer = pa.table({"customer": ["a", None, "nobody"]})
    assert arranged_rows(handle, by_customer, 0) is None
    with orders.arrange(by=["customer"], where="total > 3"), orders.arrange(by=["customer"], columns=["customer"]):
        assert arranged_rows(handle, by_customer, 0) is None
    with orders.arrange(by=["customer", "total"]):
        found = arranged_rows(handle, by_customer, 0)
        assert found.column_names == ["id", "customer", "total", "_diff"]
        assert sorted(found.column("id").to_pylist()) == [0, 2, 4, 6, 8]
        both = pa.table({"total": [4.0], "customer": ["a"]})
        assert arranged_rows(handle, both, 0).column("id").to_pylist() == [4]
        assert arranged_rows(handle, pa.table({"total": [4.0]}), 0) is None
        assert arranged_rows(handle, by_customer, 1) is None


def test_figures_tell_how_it_follows(orders):
    with orders.arrange() as index:
        orders.append([{"id": 50, "customer": "c", "total": 5.0}])
        index.get(50)
        figures = index.metrics()
        assert figures["times behind"] == 0
        assert figures["updates taken"] == 1
        assert figures["reads of the collection"] == 1
        assert figures["checkpoints saved"] == figures["checkpoints restored"] == 0
        with pytest.raises(UsageError, match="no folder"):
            index.save()


# Configuration.


def test_a_store_sets_the_levels_of_its_arrangements(tmp_path):
    bounds = (2, *ts.Config().arrangement_level_rows[1:])
    config = ts.Config(arrangement_level_rows=bounds, arrangement_merge_min=(2,) * 9, arrangement_batches=10)
    for number in range(2):  # from a snapshot, and from the checkpoint of the first one
        with ts.open(str(tmp_path / "store"), config=config) as store:
            orders = store.create("orders", key=KEY, value=VALUE, timeline="counter", if_exists="open")
            with orders.arrange(folder=str(tmp_path / "index")) as index:
                orders.append([{"id": 100 * number + n, "customer": "a", "total": 0.0} for n in range(3)])
                assert ids(index.get({"id": 100 * number})) == [100 * number]
                assert index.metrics()["checkpoints restored"] == number
                rules = index._current.spine._driver.levels.rules
                assert (rules.row_bounds, rules.merge_min, rules.batches_max) == (bounds, (2,) * 9, 10)
                assert index.metrics()["levels"][0]["batches"] == 0


def test_a_store_sets_the_memory_of_its_arrangements(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with ts.open(str(tmp_path / "store"), config=ts.Config(arrangement_memory_bytes=1)) as store:
        orders = store.create("orders", key=KEY, value=VALUE, timeline="counter")
        orders.append([{"id": n, "customer": "a", "total": 0.0} for n in range(3)])
        with orders.arrange(folder=str(tmp_path / "index")) as index, orders.arrange() as in_memory:
            until(lambda: index.metrics()["bytes in memory"] == 0)  # the thread that follows may look first
            figures = index.metrics()
            assert figures["memory limit bytes"] == 1
            assert figures["bytes on disk"] > 0
            assert in_memory.metrics()["bytes on disk"] == 0  # it has no folder
            assert ids(index.get({"id": 2})) == ids(in_memory.get({"id": 2})) == [2]


def test_an_arrangement_that_rests_goes_to_disk_when_the_process_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with ts.open(str(tmp_path / "store")) as store:
        orders = store.create("orders", key=KEY, value=VALUE, timeline="counter")
        orders.append([{"id": n, "customer": "a", "total": 0.0} for n in range(3)])
        with orders.arrange(folder=str(tmp_path / "index")) as index:
            assert index.metrics()["bytes on disk"] == 0
            monkeypatch.setattr(spine_driver, "process_bytes", process_memory.machine_memory_bytes)
            until(lambda: index.metrics()["bytes in memory"] == 0)  # the thread that follows looks now and then
            assert index.metrics()["bytes on disk"] > 0
            assert ids(index.get({"id": 2})) == [2]
