"""Storage that reports its own success as a conflict: whatever was done is done once, and its caller is told so."""

from __future__ import annotations

from functools import partial

import pytest
from memory_store import BLOBS, QUICK, Script

from timespine.client.catalog.catalog import CHANGES_KEPT, LOG
from timespine.client.catalog.reservations import RESERVED_MS, expire_reservations, forget_cancelled
from timespine.core.transitions import CommitSink
from timespine.errors import Determinate
from timespine.testing.unreliable import Fault

KEY = {"n": "int64"}
CONFIGS = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def orders_of(store, name="orders"):
    return store.create(name, key=KEY, timeline="counter")


def rows_of(place, name="orders"):
    """The rows that another process finds: how often each of them counts."""
    return sorted((row["n"], row.get("_diff", 1)) for row in place.open()[name].snapshot().to_pylist())


def always(operation, key):
    return Fault.CONFLICT_DONE if operation == "compare_and_set" else Fault.NONE


@CONFIGS
def test_an_append_is_in_once_and_answered_with_its_time(place, config):
    script = Script()
    store = place.open(script=script, config=config)
    orders = orders_of(store)
    orders.append([{"n": 0}])
    before = store._committer.session.committer
    script.add("compare_and_set", Fault.CONFLICT_DONE, key=orders.id)
    assert orders.append([{"n": 1}]).time == 1
    assert script.is_done
    assert rows_of(place) == [(0, 1), (1, 1)]
    assert store._committer.session.committer == before


@CONFIGS
def test_a_transaction_over_several_collections_is_in_once(place, config):
    script = Script()
    store = place.open(script=script, config=config)
    orders, audit = orders_of(store), orders_of(store, "audit")
    orders.append([{"n": 0}])
    audit.append([{"n": 0}])
    script.add("compare_and_set", Fault.CONFLICT_DONE, key=orders.id)
    with store.transaction() as tx:
        tx.append("orders", [{"n": 1}])
        tx.append("audit", [{"n": 2}])
    assert script.is_done
    assert rows_of(place) == [(0, 1), (1, 1)]
    assert rows_of(place, "audit") == [(0, 1), (2, 1)]


@CONFIGS
def test_a_transaction_that_creates_is_not_told_that_its_collection_exists(place, config):
    script = Script()
    store = place.open(script=script, config=config)
    orders_of(store)
    script.add("compare_and_set", Fault.CONFLICT_DONE, key="audit")
    with store.transaction() as tx:
        tx.create("audit", key=KEY, timeline="counter")
        tx.append("audit", [{"n": 2}])
        tx.append("orders", [{"n": 1}])
    assert script.is_done
    assert rows_of(place) == [(1, 1)]
    assert rows_of(place, "audit") == [(2, 1)]
    assert place.open().vacuum().blobs == []


def test_an_announcement_is_made_once(place):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    orders_of(store)
    with store.transaction() as tx:
        tx.create("audit", key=KEY, timeline="counter")
        script.add("compare_and_set", Fault.CONFLICT_DONE, key=LOG)
        tx.append("audit", [{"n": 2}])
    assert script.is_done
    assert rows_of(place, "audit") == [(2, 1)]


def test_an_announcement_that_was_given_up_before_it_was_known_is_not_made_again(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    catalog = store._catalog
    orders_of(store)

    def give_up():
        other._catalog.change(partial(expire_reservations, RESERVED_MS + 6))
        other._catalog.change(partial(forget_cancelled, {"x-1"}))

    script.add("compare_and_set", Fault.CONFLICT_DONE, key=LOG)
    script.add("scan", Fault.NONE, key=LOG, skip=1, hook=give_up)
    with pytest.raises(Determinate, match="maintenance cancelled the reservation"):
        catalog.reserve_id("x-1", 5)
    assert script.is_done
    assert other._catalog.read().reserved == {}


@pytest.mark.parametrize("change", ["create", "rename", "drop", "retain", "replace"])
def test_a_change_of_the_catalog_is_made_once_though_others_undo_it_before_it_is_known(place, change):
    other, undone = place.open(), []

    def decide(operation, key):
        if operation == "compare_and_set" and key.startswith(LOG) and armed:
            armed.clear()
            undone.append(0)
            return Fault.CONFLICT_DONE
        if operation == "scan" and key == LOG and undone == [0]:
            undone[0] = 1
            undo()
        return Fault.NONE

    armed = []
    store = place.open(script=decide)
    orders = store.create("orders", key=KEY)
    armed.append(True)
    undo = {
        "create": lambda: other.rename("sales", "elsewhere"),
        "rename": lambda: other.rename("sales", "elsewhere"),
        "drop": lambda: other.create("orders", key=KEY, replace=True),
        "retain": lambda: other["orders"].retain("1 day"),
        "replace": lambda: other.rename("orders", "elsewhere"),
    }[change]
    if change == "create":
        assert store.create("sales", key=KEY).id == other["elsewhere"].id
    elif change == "rename":
        store.rename("orders", "sales")
        assert other["elsewhere"].id == orders.id
    elif change == "drop":
        assert store.drop("orders") is True
        assert other["orders"].id != orders.id
    elif change == "retain":
        orders.retain("7 days")
        assert other._catalog.read().entries["orders"].retain_ms == 24 * 3_600_000
    else:
        again = store.create("orders", key=KEY, replace=True)
        assert other["elsewhere"].id == again.id
    assert undone == [1]


def test_the_catalog_remembers_a_bounded_number_of_changes(place):
    store = place.open()
    for number in range(CHANGES_KEPT + 3):
        store.create(f"c{number}", key=KEY)
    names = store._catalog.read()
    assert len(names.changes) == len(set(names.changes)) == CHANGES_KEPT


def test_a_batch_of_a_sink_is_in_once_and_not_refused_as_known(place):
    script = Script()
    store = place.open(script=script)
    orders = orders_of(store)
    orders.append([{"n": 0}])
    script.add("compare_and_set", Fault.CONFLICT_DONE, key=orders.id)
    assert store._committer.commit((orders.id, CommitSink("sink", 0))) == (None,)
    assert script.is_done


@CONFIGS
def test_a_store_whose_every_success_is_reported_as_a_conflict_does_everything_once(place, config):
    store = place.open(script=always, config=config)
    orders = orders_of(store)
    for number in range(4):
        assert orders.append([{"n": number}]).time == number
    orders.upsert([{"n": 1}, {"n": 9}])
    orders.delete([{"n": 0}])
    with store.transaction() as tx:
        tx.create("audit", key=KEY, timeline="counter")
        tx.append("audit", [{"n": 5}])
        tx.append("orders", [{"n": 6}])
    with store.transaction() as tx:
        tx.append("audit", [{"n": 7}])
        tx.append("orders", [{"n": 8}])
    store.rename("audit", "trail")
    store.create("gone", key=KEY)
    assert store.drop("gone") is True
    store.maintain()
    assert rows_of(place) == [(n, 1) for n in (1, 2, 3, 6, 8, 9)]
    assert rows_of(place, "trail") == [(5, 1), (7, 1)]
    assert place.open().names() == ["orders", "trail"]
    committer = store._committer.session.committer
    assert committer in place.open()._committer.state(orders.id).committers
    store.close()
    assert committer not in place.open()._committer.state(orders.id).committers
