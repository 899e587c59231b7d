"""Changes in a transaction: update, replace and merge as collections have them, whoever else is at work."""

import threading
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from assertions import until
from memory_store import BLOBS, QUICK, Script
from transaction_cases import rows

from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def create(store, name):
    return store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")


def pair(store):
    return create(store, "orders"), create(store, "items")


def row(k, v="a"):
    return {"k": k, "v": v}


@BOTH
def test_update_replace_and_merge_are_part_of_it_and_stand_at_its_time(place, config):
    store = place.open(config=config)
    orders, items = pair(store)
    prices = create(store, "prices")
    orders.append([row(1, "a"), row(2, "b")])
    items.append([row(1, "a"), row(2, "b")])
    prices.append([row(1, "a"), row(2, "b")], at=7)
    with store.transaction() as tx:
        tx.update("orders", where="k = 1", set={"v": pl.col("v") + "!"})
        tx.replace("items", [row(3, "b")], where="v = 'b'")
        merge = tx.merge("prices", [row(2, "B"), row(3, "C")])
        merge.when_matched_update().when_not_matched_insert().when_not_matched_by_source_delete().execute()
        tx.seal("prices", 20)
    assert tx.time == 8
    assert rows(orders) == {(1, "a!"): 1, (2, "b"): 1}
    assert rows(items) == {(1, "a"): 1, (3, "b"): 1}
    assert rows(prices) == {(2, "B"): 1, (3, "C"): 1}
    assert rows(prices, 7) == {(1, "a"): 1, (2, "b"): 1}
    assert prices.upper == Frontier.at(20)
    assert [(each.time, each.rows) for each in tx.replies[:3]] == [(8, 2), (8, 2), (8, 4)]
    assert {each.seqno for each in tx.replies[:1]} == {orders._handle.state().seqno}
    assert [each.history()[-1].operation for each in (orders, items)] == ["update", "replace"]


def test_a_merge_that_is_only_described_is_no_part_of_it(place):
    store = place.open()
    orders, _ = pair(store)
    with store.transaction() as tx:
        tx.merge("orders", [row(1)]).when_not_matched_insert()
        tx.append("items", [row(1)])
    assert rows(orders) == {}
    with pytest.raises(UsageError, match="this transaction is over"):
        tx.merge("orders", [row(1)]).when_not_matched_insert().execute()
    with pytest.raises(UsageError, match="at least one clause"), store.transaction() as tx:
        tx.merge("orders", [row(1)]).execute()


@BOTH
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (
            lambda tx: tx.update("orders", where="v = 'a'", set={"v": "new"}),
            {(1, "new"): 1, (2, "b"): 1, (9, "new"): 1},
        ),
        (lambda tx: tx.replace("orders", [row(5, "a")], where="v = 'a'"), {(5, "a"): 1, (2, "b"): 1}),
        (
            lambda tx: tx.merge("orders", [row(9, "c")]).when_matched_delete().when_not_matched_insert().execute(),
            {(1, "a"): 1, (2, "b"): 1},
        ),
    ],
    ids=["update", "replace", "merge"],
)
def test_update_replace_and_merge_follow_what_others_committed_first(place, config, change, left):
    script = Script()
    store, other = place.open(script=script, config=config), place.open()
    orders, items = pair(store)
    orders.append([row(1, "a"), row(2, "b")])
    orders.snapshot().close()
    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=lambda: other["orders"].append([row(9, "a")]))
    with store.transaction() as tx:
        change(tx)
        tx.append("items", [row(1)])
    assert script.is_done
    assert rows(orders, tx.time) == left
    assert rows(orders, tx.time - 1) == {(1, "a"): 1, (2, "b"): 1, (9, "a"): 1}
    assert rows(items, tx.time) == {(1, "a"): 1}
    assert store._committer.counters["changes read"] == 1
    assert place.open().vacuum().blobs == []


def test_a_source_that_can_be_read_once_and_a_list_that_is_used_again_are_those_that_were_given(place):
    store = place.open()
    orders, items = pair(store)
    source, given = pa.table({"k": [1], "v": ["read once"]}), [row(1, "given")]
    with store.transaction() as tx:
        tx.merge("orders", source.to_reader()).when_not_matched_insert().execute()
        tx.replace("items", given)
        given.clear()
    assert rows(orders) == {(1, "read once"): 1}
    assert rows(items) == {(1, "given"): 1}


@pytest.mark.parametrize("threads", [1, 4])
def test_a_transaction_of_changes_goes_in_beside_threads_that_append_all_the_time(place, threads):
    store = place.open()
    orders, items = pair(store)
    orders.append([row(k, "old") for k in range(1000)])
    items.append([row(k, "old") for k in range(1000)])
    stop, appended, failures = threading.Event(), Counter(), []

    def append(start):
        try:
            for k in range(start, start + 100_000):
                if stop.is_set():
                    return
                orders.append([row(k, "new")])
                items.append([row(k, "new")])
                appended[start] += 1
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=append, args=(1_000_000 * (1 + i),)) for i in range(threads)]
    for each in workers:
        each.start()
    try:
        until(lambda: len(appended) == threads)
        for turn in range(5):
            with store.transaction() as tx:
                tx.update("orders", where="v != 'new'", set={"v": f"turn {turn}"})
                tx.update("items", set={"v": pl.col("v").max()})
    finally:
        stop.set()
        for each in workers:
            each.join(60)
    assert not failures
    assert Counter(v for _, v in rows(orders, tx.time))["turn 4"] == 1000
    assert {v for _, v in rows(items, tx.time)} == {"old"}
    counters = store._committer.counters
    assert counters["changes read"] == 10
    assert "changes started again" not in counters
