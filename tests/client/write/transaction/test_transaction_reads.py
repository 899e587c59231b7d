"""What a transaction reads: checked at its commit; and many collections as of one time."""

# ruff: noqa: PT012 - a transaction is committed, and refused, where its block ends

import threading

import pytest
from key_value_cases import create
from memory_store import BLOBS, Gate, Script
from transaction_cases import keys_of, pair, row, rows

from timespine.client.api_for_engines import begin_refresh
from timespine.client.read import multi_snapshot
from timespine.core.transitions import CommitSink
from timespine.errors import BatchAlreadyCommitted, NotSealed, SinceError, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

# What a caller relies on.


def test_a_transaction_fails_if_an_upper_that_it_has_read_moved(place):
    store, other = place.open(), place.open()
    orders, items = pair(store)
    orders.append([row(1)])
    with store.transaction() as tx:
        tx.expect("orders", 1)
        tx.append("items", [row(1)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch) as caught, store.transaction() as tx:
        tx.expect(orders, Frontier.at(1))
        tx.append("items", [row(2)])
        other["orders"].append([row(2)])
    assert caught.value.actual == Frontier.at(2)
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 2)
        tx.expect("orders", 1)


def test_a_transaction_of_nothing_but_what_it_relies_on_is_checked_too(place):
    store = place.open()
    create(store)
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 99)


def test_a_handle_is_read_by_its_id_also_after_a_rename(place):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append([row(1)])
    other.rename("orders", "old")
    create(other, "orders").append([row(2)])
    with store.transaction() as tx:
        assert [each["k"] for each in tx.snapshot(orders).to_pylist()] == [1]


def test_what_moved_at_the_last_moment_is_noticed_too(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, items = pair(store)
    orders.append([row(1)])
    items.append([row(1)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].append([row(2)]))
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 1)
        tx.append("items", [row(2)])
    assert rows(items) == {(1, "a"): 1}


def test_a_snapshot_inside_of_a_transaction_is_relied_on(place):
    store, other = place.open(), place.open()
    orders, items = pair(store)
    with store.transaction() as tx:
        assert tx.snapshot("orders").to_pylist() == []
        tx.append("orders", [row(1)])
    with store.transaction() as tx:
        total = len(tx.snapshot(orders, columns=["k"]).to_pylist())
        tx.append("items", [row(total)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        total = len(tx.snapshot("orders").to_pylist())
        other["orders"].append([row(2)])
        tx.append("items", [row(total)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(TypeError, match="as_of"), store.transaction() as tx:
        tx.snapshot("orders", as_of=0)  # a transaction relies on the newest rows


def test_a_batch_of_a_sink_is_in_with_the_rest_once(place):
    store = place.open()
    orders, items = pair(store)
    for n in range(2):
        tx = begin_refresh(store)
        for name in ("orders", "items"):
            tx.append(name, [row(1)])
            tx.also(name, CommitSink("s", 0))
        if n:
            with pytest.raises(BatchAlreadyCommitted):
                tx.commit()
        else:
            tx.commit()
    assert rows(orders) == rows(items) == {(1, "a"): 1}


# Sealing many, and reading many.


def test_many_collections_are_sealed_by_one_commit_or_none_is(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    names = [f"c{n}" for n in range(20)]
    for name in names:
        create(store, name).append([row(1)])
    gate.sets.clear()
    store.seal(names, 10)
    assert keys_of(gate) == [20]
    assert {store[name].upper for name in names} == {Frontier.at(10)}
    store["c7"].seal(11)
    with pytest.raises(UsageError):
        store.seal(names, 10)
    store.seal(names, 11)
    with pytest.raises(UsageError):
        store.seal([*names, "nobody"], 12)
    assert {store[name].upper for name in names} == {Frontier.at(11)}


def test_a_cut_without_a_time_is_as_of_the_largest_time_that_is_complete_in_all(place):
    store = place.open()
    orders, items = pair(store)
    with pytest.raises(UsageError, match="orders has no complete time"):
        store.snapshot(["orders", "items"])
    orders.append([row(1)], at=3)
    items.append([row(1)], at=7)
    with store.snapshot(["orders", items]) as cut:
        assert (cut.as_of, list(cut), len(cut)) == (3, ["orders", "items"], 2)
        assert cut["items"].to_pylist() == []
        assert "as of 3" in repr(cut)


def test_the_collection_that_lags_behind_or_has_forgotten_is_named(place):
    store = place.open()
    orders, items = pair(store)
    orders.append([row(1)], at=9)
    items.append([row(1)], at=3)
    with pytest.raises(NotSealed, match="items"):
        store.snapshot(["orders", "items"], as_of=5, timeout=0)
    orders.expire(before=8)
    with pytest.raises(SinceError, match="orders"):
        store.snapshot(["orders", "items"], as_of=3)
    with pytest.raises(NotSealed, match="items: nothing can be read before 8 is complete"):
        store.snapshot(["orders", "items"], timeout=0)
    items.seal(9)
    assert store.snapshot(["orders", "items"]).as_of == 8
    create(store, "clock", timeline="clock")
    with pytest.raises(UsageError, match="none in common"):
        store.snapshot(["orders", "clock"])
    with pytest.raises(UsageError, match="at least one"):
        store.snapshot([])
    with pytest.raises(UsageError, match="name the collections"):
        store.snapshot([3])


def test_a_cut_is_found_although_its_first_time_is_let_go_meanwhile(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    orders, items = pair(store)
    for collection in (orders, items):
        collection.append([row(1)], at=3)
    taking = threading.Event()
    real = multi_snapshot.open_snapshot

    def read_snapshot(handle, *args):
        if not taking.is_set():
            taking.set()
            for name in ("orders", "items"):
                other[name].append([row(2)], at=6)
                other[name].expire(before=6)
        return real(handle, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multi_snapshot, "open_snapshot", read_snapshot)
        with store.snapshot(["orders", "items"]) as cut:
            assert cut.as_of == 6
