"""An arrangement of a collection answers as the collection does, at once after every commit, and serves its lookups."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from assertions import until

import timespine as ts
from timespine.arrangement.arrangement import Arrangement
from timespine.client.read.arranged_rows import arranged_rows
from timespine.client.write.read_current import CurrentRows
from timespine.columnar.scan import scan as scanning
from timespine.errors import (
    ArrangementMisfit,
    ClosedError,
    InvalidRows,
    LeaseExpired,
    NotSealed,
    SinceError,
    StoreClosed,
    UsageError,
)

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double"}


def rows(table):
    return sorted(table.to_pylist(), key=str)


def everything(arrangement):
    return rows(pa.concat_tables(list(arrangement.scan()) or [pa.table({})]))


def test_every_acknowledged_change_is_there_at_once(orders):
    with orders.arrange() as by_id:
        assert by_id.get({"id": 3}) == [{"id": 3, "customer": "b", "total": 3.0}]
        orders.upsert([{"id": 3, "customer": "b", "total": 33.0}])
        assert by_id.get_one({"id": 3}) == {"id": 3, "customer": "b", "total": 33.0}
        orders.delete({"id": 3})
        assert by_id.get({"id": 3}) == []
        assert by_id.get_one({"id": 3}) is None
        assert everything(by_id) == rows(orders.snapshot().to_arrow())
        assert by_id.fetch([{"id": 1}, {"id": 3}, {"id": 99}]).column("id").to_pylist() == [1]


def test_random_changes_through_an_arrangement_are_those_without(tmp_path):
    """The same changes to two stores, one of which has arrangements: by the key, by another column, of some rows."""
    draw = random.Random(7)
    with ts.open(str(tmp_path / "one")) as one, ts.open(str(tmp_path / "two")) as two:
        plain, arranged = (each.create("orders", key=KEY, value=VALUE, timeline="counter") for each in (one, two))
        by_id = arranged.arrange()
        by_customer = arranged.arrange(by=["customer"])
        large = arranged.arrange(columns=["total", "id"], where="total > 5")
        for _ in range(60):
            kind = draw.choice(["upsert", "upsert", "delete", "append"])
            picked = [draw.randrange(12) for _ in range(draw.randrange(1, 4))]
            changed = [
                {"id": n, "customer": draw.choice(["a", "b", None]), "total": float(draw.randrange(10))}
                for n in dict.fromkeys(picked)
            ]
            for each in (plain, arranged):
                getattr(each, kind)([{"id": row["id"]} for row in changed] if kind == "delete" else changed)
            expected = rows(plain.snapshot().to_arrow())
            assert rows(arranged.snapshot().to_arrow()) == expected
            assert everything(by_id) == everything(by_customer) == expected
            assert everything(large) == sorted(
                ({"total": row["total"], "id": row["id"]} for row in expected if row["total"] > 5), key=str
            )
            key = {"id": draw.randrange(12)}
            found, wanted = arranged.lookup(key), plain.lookup(key)
            assert found.schema == wanted.schema
            assert rows(found) == rows(wanted)
            assert rows(by_customer.fetch({"customer": "a"})) == rows(plain.snapshot(where="customer = 'a'").to_arrow())
        assert by_id.metrics()["restarts"] == 0


def test_lookups_and_upserts_read_no_part(orders):
    with orders.arrange(), mock.patch.object(CurrentRows, "_read", side_effect=AssertionError):
        assert orders.lookup({"id": 4}).to_pylist() == [{"id": 4, "customer": "a", "total": 4.0}]
        with mock.patch.object(scanning, "scan", side_effect=AssertionError):
            assert orders.lookup({"id": 4}).num_rows == 1
        orders.upsert([{"id": 4, "customer": "z", "total": 0.0}, {"id": 100, "customer": "z", "total": 1.0}])
    assert orders.lookup({"id": 4}).to_pylist() == [{"id": 4, "customer": "z", "total": 0.0}]


def test_questions_that_an_arrangement_cannot_answer_go_the_usual_way(orders):
    with orders.arrange():
        assert orders.lookup({"id": 4}, as_of=0).num_rows == 1
        assert orders.lookup(between=(3, 5)).num_rows == 3
        assert orders.lookup([{"id": 4}, {"id": 5}]).num_rows == 2
        assert orders.lookup({"id": 4}, columns=["total"]).column_names == ["total"]
        assert orders.lookup({"id": 4, "total": 99.0}).num_rows == 1
        with pytest.raises(UsageError):
            orders.lookup({"total": 4.0})
        with pytest.raises(UsageError):
            orders.lookup({"id": "four"})


def test_changes_use_rows_of_the_upper_that_they_replace(tmp_path, orders):
    """Another process changes the row between the arrangement and the upsert, again and again."""
    with ts.open(str(tmp_path / "store")) as other:
        theirs = other["orders"]
        with orders.arrange():
            for n in range(5):
                theirs.upsert([{"id": 1, "customer": "theirs", "total": float(n)}])
                orders.upsert([{"id": 1, "customer": "ours", "total": float(n)}])
                assert orders.snapshot(where="id = 1").to_pylist() == [{"id": 1, "customer": "ours", "total": float(n)}]


def test_two_processes_that_change_one_row_at_once_leave_one_row(tmp_path, orders):
    with ts.open(str(tmp_path / "store")) as other, orders.arrange(), other["orders"].arrange():

        def change(collection, who):
            for n in range(15):
                collection.upsert([{"id": 1, "customer": who, "total": float(n)}])

        threads = [threading.Thread(target=change, args=each) for each in ((orders, "a"), (other["orders"], "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert orders.snapshot(where="id = 1").count() == 1


def test_commits_of_other_processes_are_seen_by_reads_and_by_the_thread(tmp_path, orders):
    with ts.open(str(tmp_path / "store")) as other, orders.arrange() as by_id:
        committed = other["orders"].append([{"id": 77, "customer": "c", "total": 7.0}])
        assert by_id.get_one({"id": 77})["total"] == 7.0
        assert by_id.wait(committed.time)
        other["orders"].append([{"id": 78, "customer": "c", "total": 7.0}])
        until(lambda: by_id.upper.time == 3)
        assert not by_id.wait(1000, timeout=0.01)


def test_an_equal_question_shares_one_arrangement_until_the_last_close(orders):
    one = orders.arrange()
    two = orders.arrange()
    other = orders.arrange(by=["customer"])
    assert one is two
    assert other is not one
    one.close()
    assert two.get({"id": 1})
    two.close()
    with pytest.raises(StoreClosed):
        two.get({"id": 1})
    other.close()
    assert not orders._handle.context.arrangements


def test_closing_the_store_ends_arrangements(tmp_path):
    store = ts.open(str(tmp_path / "store"))
    arrangement = store.create("orders", key=KEY).arrange()
    assert arrangement.get({"id": 1}) == []
    store.close()
    with pytest.raises(StoreClosed):
        arrangement.get({"id": 1})


def test_a_program_that_closes_nothing_ends(tmp_path):
    program = """
import sys, timespine as ts
orders = ts.open(sys.argv[1]).create("orders", key={"id": "int64"}, timeline="counter")
orders.append([{"id": 1}])
index = orders.arrange()
print(index.get({"id": 1}))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[{'id': 1}]\n"


def test_history_is_the_newest_time_or_all_from_the_beginning_on(orders):
    with orders.arrange() as latest, orders.arrange(history="all") as whole:
        orders.upsert([{"id": 1, "customer": "new", "total": 1.0}])
        assert latest.get_one({"id": 1})["customer"] == "new"
        assert [row["customer"] for row, _ in whole.at(0).get({"id": 1})] == ["b"]
        assert [row["customer"] for row, _ in whole.at(1).get({"id": 1})] == ["new"]
        with pytest.raises(SinceError):
            latest.at(0)
        with pytest.raises(NotSealed):
            whole.at(2)
    with pytest.raises(UsageError, match="history"):
        orders.arrange(history="some")


def test_times_before_the_first_snapshot_cannot_be_read(orders):
    orders.upsert([{"id": 1, "customer": "c", "total": 0.0}])
    with orders.arrange(history="all") as index:
        assert index.since.time == orders.upper.time - 1
        with pytest.raises(SinceError):
            index.at(0)
        orders.upsert([{"id": 1, "customer": "d", "total": 0.0}])
        orders.evolve(add={"note": "string"})
        orders.upsert([{"id": 1, "customer": "e", "total": 0.0}])
        last = orders.upper.time - 1
        assert index.at(last).get({"id": 1}) == [(orders.lookup({"id": 1}).to_pylist()[0], 1)]
        assert index.since.time >= last - 1  # it was read anew
        with pytest.raises(SinceError):
            index.at(last - 2)


def test_changes_beside_an_arrangement_that_begins_later_read_their_rows_elsewhere(orders):
    real = CurrentRows._from_arrangement

    def begins(self, keys):
        with mock.patch.object(CurrentRows, "_from_arrangement", real):
            orders.append([{"id": 100, "customer": "z", "total": 0.0}])
            with orders.arrange(history="all"):
                return real(self, keys)

    with mock.patch.object(CurrentRows, "_from_arrangement", begins):
        orders.upsert([{"id": 1, "customer": "new", "total": 1.0}])
    assert orders.lookup({"id": 1}).to_pylist() == [{"id": 1, "customer": "new", "total": 1.0}]


def test_conditions_that_print_alike_are_two_questions(orders):
    some, others = (pl.col("id").is_in([0, 1, *range(start, start + 50), 99]) for start in (2, 200))
    assert str(some) == str(others)
    with orders.arrange(where=some) as one, orders.arrange(where=others) as two, orders.arrange(where=some) as same:
        assert [len(index.get({"id": 5})) for index in (one, two, same)] == [1, 0, 1]
        assert same is one


def test_a_changed_schema_is_read_anew(orders):
    with orders.arrange() as by_id:
        orders.evolve(add={"note": "string"})
        orders.upsert([{"id": 1, "customer": "x", "total": 1.0, "note": "hello"}])
        assert by_id.get_one({"id": 1})["note"] == "hello"
        assert rows(orders.lookup({"id": 2})) == [{"id": 2, "customer": "a", "total": 2.0, "note": None}]
        assert by_id.metrics()["restarts"] == 1


def test_an_arrangement_by_a_dropped_column_says_so_and_stops(orders, caplog):
    with orders.arrange(by=["customer"]) as index:
        orders.evolve(drop=["customer"])
        for _ in range(3):
            with pytest.raises(UsageError, match=r"'customer' was dropped; .*arrange the collection by columns"):
                index.get({"customer": "a"})
        until(lambda: not index._thread.is_alive())
        seqno = orders._handle.state().seqno
        with pytest.raises(UsageError):
            index.get({"customer": "a"})
        assert orders._handle.state().seqno == seqno
        assert len([line for line in caplog.messages if "could not follow" in line]) <= 1


def test_an_arrangement_that_does_not_fit_the_schema_answers_no_read_and_stops_none(orders):
    handle = orders._handle
    with orders.arrange(by=["customer"]) as index:
        keys, last = pa.table({"customer": ["a"]}), orders.upper.time - 1
        assert arranged_rows(handle, keys, last).num_rows > 0
        orders.evolve(drop=["customer"])
        orders.evolve(add={"customer": "string"})
        with pytest.raises(ArrangementMisfit):
            index.get({"customer": "a"})
        assert arranged_rows(handle, keys, last) is None


@pytest.mark.parametrize(
    ("key", "said"),
    [({"id": "four"}, "int64"), ({"id": 1 << 63}, "int64"), ({}, "id"), ({"ids": 4}, "id"), ({"id": 1.5}, "int64")],
)
def test_a_wrong_key_is_refused_as_without_an_arrangement(orders, key, said):
    with pytest.raises(InvalidRows, match=said) as plain:
        orders.lookup(key)
    with orders.arrange(), pytest.raises(InvalidRows) as arranged:
        orders.lookup(key)
    assert str(arranged.value) == str(plain.value)


def test_a_lookup_passes_an_error_of_the_arrangement_on(orders):
    with orders.arrange() as index:
        failing = mock.patch.object(index, "catch_up", side_effect=UsageError("not about the key"))
        with failing, pytest.raises(UsageError, match="not about the key"):
            orders.lookup({"id": 4})


def test_a_lost_lease_is_read_anew_and_readers_go_on(orders):
    with orders.arrange() as by_id:
        with mock.patch.object(by_id._current.feed, "poll", side_effect=LeaseExpired("lost")):
            orders.append([{"id": 50, "customer": "c", "total": 5.0}])
            assert by_id.get_one({"id": 50})["customer"] == "c"
        assert by_id.metrics()["restarts"] >= 1


def test_a_dropped_collection_is_served_until_its_data_is_gone(store, orders):
    with orders.arrange() as by_id:
        store.drop("orders")
        assert by_id.get_one({"id": 1})["customer"] == "b"
        until(lambda: by_id.upper.is_closed)
        gone = mock.patch.object(by_id, "_newest_schema", side_effect=ClosedError("dropped"))
        with gone, pytest.raises(ClosedError):
            by_id.get({"id": 1})


def test_rows_are_arranged_by_known_columns_with_an_order_and_totally_ordered_times(store, orders):
    with pytest.raises(UsageError):
        orders.arrange(by=["nothing"])
    with pytest.raises(UsageError):
        orders.arrange(by=["customer"], columns=["total"])
    with pytest.raises(UsageError, match="ordered"):
        store.create("pairs", key=KEY, time_coordinates=2, timeline="counter").arrange()
    assert isinstance(orders.arrange(), Arrangement)


def test_a_row_that_counts_several_times_is_given_as_often(store):
    bag = store.create("bag", value={"word": "string"}, timeline="counter")
    bag.append([{"word": "a"}, {"word": "a"}, {"word": "b"}])
    with bag.arrange() as words:
        assert words.get({"word": "a"}) == [{"word": "a"}] * 2
        assert words.fetch({"word": "a"}, counts=True).to_pylist() == [{"word": "a", "_diff": 2}]
        with pytest.raises(UsageError, match="2 rows"):
            words.get_one({"word": "a"})
        bag.append(pa.table({"word": ["c"], "_diff": [-1]}))
        with pytest.raises(UsageError, match="negative"):
            words.get({"word": "c"})
