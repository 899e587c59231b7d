"""Renaming and dropping: names stay blocked, critical holds protect data, and what is dropped is closed."""

from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from catalog_cases import KEY, LOST
from memory_store import BLOBS, Script
from numbered_rows import rows_of

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog import LOG
from timespine.client.commit.retry_limits import RetryPolicy
from timespine.errors import ClosedError, Contention, CorruptionError, UnknownCollection, UpperMismatch, UsageError
from timespine.location.consensus import LogWrite
from timespine.testing.unreliable import Fault

# Renaming and dropping.


def test_renaming_keeps_the_collection_and_its_open_handles(place):
    store, other = place.open(), place.open()
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    theirs = other["orders"]
    store.rename("orders", "sales")
    assert store.names() == ["sales"]
    assert (orders.name, theirs.name) == ("sales", "orders")
    orders.append([{"n": 2}])
    theirs.append([{"n": 3}])
    assert rows_of(store["sales"]) == [1, 2, 3]
    with pytest.raises(UsageError, match="no collection"):
        store["orders"]


def test_a_name_that_is_taken_or_not_there_cannot_be_part_of_a_rename(place):
    store = place.open()
    store.create("a", key=KEY)
    store.create("b", key=KEY)
    with pytest.raises(UsageError, match="already"):
        store.rename("a", "b")
    with pytest.raises(UsageError, match="no collection"):
        store.rename("c", "d")
    assert store.names() == ["a", "b"]


def test_a_rename_that_meets_a_replacement_renames_the_new_collection(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    store.create("orders", key=KEY)
    replace = partial(other.create, "orders", key=KEY, replace=True)
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=replace)
    store.rename("orders", "sales")
    assert script.is_done
    assert store.names() == other.names() == ["sales"]
    assert store["sales"].id == other["sales"].id


def test_a_rename_that_always_meets_a_replacement_ends_in_contention(place, monkeypatch):
    script = Script()
    store, other = place.open(script=script), place.open()
    store.create("orders", key=KEY)
    monkeypatch.setattr(catalog, "RETRY", RetryPolicy(renames=3))

    def replace():
        other.create("orders", key=KEY, replace=True)
        script.add("compare_and_set", Fault.NONE, key=LOG, hook=replace)

    script.add("compare_and_set", Fault.NONE, key=LOG, hook=replace)
    with pytest.raises(Contention, match="moved the name orders to another collection, 3 times in a row"):
        store.rename("orders", "sales")
    script.rules.clear()
    assert store.names() == ["orders"]
    store.rename("orders", "sales")
    assert other.names() == ["sales"]


def test_a_rename_to_the_same_name_changes_nothing(place):
    store = place.open()
    store.create("orders", key=KEY)
    store.rename("orders", "orders")
    assert store.names() == ["orders"]


def test_a_policy_set_through_an_old_handle_goes_to_its_own_collection(place):
    store = place.open()
    first = store.create("orders", key=KEY)
    store.rename("orders", "archive")
    second = store.create("orders", key=KEY)
    first.retain("7 days")
    assert first._handle.entry.retain_ms == 7 * 86_400_000
    assert second._handle.entry.retain_ms is None
    names = place.open()._catalog.read().entries
    assert (names["archive"].retain_ms, names["orders"].retain_ms) == (7 * 86_400_000, None)


def test_a_policy_needs_times_of_the_wall_clock(place):
    store = place.open()
    with pytest.raises(UsageError, match="wall clock"):
        store.create("a", key=KEY, timeline="counter", retain="7 days")
    with pytest.raises(UsageError, match="wall clock"):
        store.create("a", key=KEY, time_coordinates=2, retain="7 days")
    for collection in (store.create("b", key=KEY, timeline="counter"), store.create("c", key=KEY, time_coordinates=2)):
        with pytest.raises(UsageError, match="wall clock"):
            collection.retain("7 days")
        collection.retain(None)


def test_a_dropped_collection_is_gone_for_those_who_open_it_and_not_for_those_who_read_it(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    reading = other["orders"].snapshot()
    store.drop("orders")
    assert "orders" not in other
    with pytest.raises(UnknownCollection, match="no collection orders: it was dropped"):
        other["orders"]
    for _ in range(2):
        store.maintain()
    # Somebody still reads it: it is closed, but nothing of it went.
    assert reading.to_pylist() == [{"n": 1}]
    with pytest.raises(ClosedError):
        other_handle(other, orders).append([{"n": 2}])
    reading.close()
    other.close()
    store.maintain()
    assert store._catalog.read().dropped == ()
    left = place.blobs()
    assert all("/s" in key for key in left), left  # the rollup of its tombstone, and no rows
    assert len(left) <= 1


def other_handle(store, collection):
    """The handle that a store has of a collection, whatever it is called."""
    from timespine.client.collection import Collection

    return Collection(store._handles.get(collection.id), store)


def test_the_name_of_a_dropped_collection_stays_blocked_until_replace_takes_it(place):
    store = place.open(config=BLOBS)
    ids = set()
    for round in range(3):
        collection = store.create("orders", key=KEY, timeline="counter", replace=round > 0)
        collection.append([{"n": round}])
        ids.add(collection.id)
        assert rows_of(store["orders"]) == [round]
        assert store._catalog.read().tombstones == {}  # whoever takes the name takes the block away
        assert store.drop("orders") is True
        for again in (store, place.open()):
            for if_exists in ("error", "open"):
                with pytest.raises(UsageError, match="was dropped, and its name stays blocked; pass replace=True"):
                    again.create("orders", key=KEY, timeline="counter", if_exists=if_exists)
    store.maintain()
    names = place.open()._catalog.read()
    assert (names.entries, names.dropped, names.tombstones) == ({}, (), {"orders": collection.id})
    assert len(ids) == 3  # an id is never used again
    assert len(place.blobs()) <= 3


def test_dropping_says_whether_this_call_did_it_and_a_name_that_never_was_is_unknown(place):
    store, other = place.open(), place.open()
    store.create("orders", key=KEY)
    assert store.drop("orders") is True
    assert [each.drop("orders") for each in (store, other)] == [False, False]
    assert store.drop("orders", force=True) is False
    store.maintain()
    assert other.drop("orders") is False  # also when nothing is left of it
    with pytest.raises(UnknownCollection, match="there is no collection never; there are: none") as raised:
        store.drop("never")
    assert raised.value.name == "never"


def test_of_two_that_drop_at_once_one_did_it(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    store.create("orders", key=KEY)
    did = []
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=lambda: did.append(other.drop("orders")))
    did.append(store.drop("orders"))
    assert script.is_done
    assert did == [True, False]


@pytest.mark.parametrize("change", ["rename", "replace"])
def test_a_drop_that_meets_another_change_is_as_if_it_came_after_it(place, change):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders = store.create("orders", key=KEY)

    def meanwhile():
        if change == "rename":
            other.rename("orders", "sales")
        else:
            other.create("orders", key=KEY, replace=True)

    script.add("compare_and_set", Fault.NONE, key=LOG, hook=meanwhile)
    if change == "rename":
        with pytest.raises(UnknownCollection, match="no collection orders; there are: sales"):
            store.drop("orders")
        assert other["sales"].id == orders.id
        assert other._catalog.read().tombstones == {}
    else:
        assert store.drop("orders") is True
        assert other.names() == []


def test_a_collection_cannot_be_renamed_onto_a_dropped_name_and_leaves_no_block_behind(place):
    store = place.open()
    store.create("gone", key=KEY)
    store.drop("gone")
    orders = store.create("orders", key=KEY)
    with pytest.raises(UsageError, match="gone was dropped, and its name stays blocked; give another name"):
        store.rename("orders", "gone")
    store.rename("orders", "sales")
    assert store.create("orders", key=KEY).id != orders.id
    assert set(store._catalog.read().tombstones) == {"gone"}


def test_loading_leaves_no_blocked_names_and_takes_one_over(place, tmp_path):
    store = place.open()
    pq.write_table(pa.table({"n": [7]}), tmp_path / "rows.parquet")
    load = {"key": ["n"], "timeline": "counter"}
    store.load("orders", tmp_path / "rows.parquet", **load)
    store.load("orders", tmp_path / "rows.parquet", **load, replace=True)
    assert store._catalog.read().tombstones == {}

    def fail(rows):
        raise RuntimeError("interrupted")

    for replace in (False, True):  # a load that failed has changed nothing: it can be tried again
        with pytest.raises(RuntimeError):
            store.load("new", tmp_path / "rows.parquet", **load, replace=replace, progress=fail)
        assert (store.names(), store._catalog.read().tombstones) == (["orders"], {})
    store.drop("orders")
    with pytest.raises(UsageError, match="stays blocked"):
        store.load("orders", tmp_path / "rows.parquet", **load)
    assert rows_of(store.load("orders", tmp_path / "rows.parquet", **load, replace=True)) == [7]
    assert store._catalog.read().tombstones == {}


# Critical holds.


def test_what_is_under_a_critical_hold_is_not_dropped_or_replaced_unless_forced(place, tmp_path):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    hold = other["orders"].critical_hold("backup", 0)
    pq.write_table(pa.table({"n": [7]}), tmp_path / "rows.parquet")
    for refused in (
        lambda: store.drop("orders"),
        lambda: store.create("orders", key=KEY, replace=True),
        lambda: store.load("orders", tmp_path / "rows.parquet", key=["n"], replace=True),
    ):
        with pytest.raises(UsageError, match=r"critical holds \(backup\); release them, or .*force=True"):
            refused()
    assert store["orders"].id == orders.id
    orders.append([{"n": 2}])  # it is as it was
    assert store._catalog.read().dropped == ()
    assert store.drop("orders", force=True) is True
    assert other._committer.state(orders.id).holds == {}  # they go with the closing
    assert other._committer.state(orders.id).upper.is_closed
    other._leases.close()
    store.maintain()
    assert (store._catalog.read().dropped, store._catalog.read().forced) == ((), ())
    with pytest.raises(ClosedError):
        hold.release_before(1)


def test_a_released_hold_is_no_obstacle_and_many_are_named_in_short(place):
    store = place.open()
    orders = store.create("orders", key=KEY)
    holds = [orders.critical_hold(f"h{n}") for n in range(7)]
    with pytest.raises(UsageError, match=r"\(h0, h1, h2, h3, h4 and 2 more\)"):
        store.drop("orders")
    for hold in holds:
        hold.release()
    assert store.drop("orders") is True


def test_a_hold_that_is_taken_while_a_collection_is_dropped_keeps_its_data(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    theirs = other["orders"]
    taken = []
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=lambda: taken.append(theirs.critical_hold("late", 0)))
    assert store.drop("orders") is True
    store.maintain()
    assert store._catalog.read().dropped == (theirs.id,)
    assert theirs.snapshot().to_pylist() == [{"n": 1}]
    taken[0].release()
    other._leases.close()
    store.maintain()
    assert store._catalog.read().dropped == ()


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_a_forced_drop_that_could_not_close_is_forced_by_maintenance(place, fault):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    orders.critical_hold("backup", 0)
    script.add("compare_and_set", fault, key=orders.id, times=20)
    assert store.drop("orders", force=True) is True
    assert other._committer.state(orders.id).holds
    assert store._catalog.read().forced == (orders.id,)
    script.rules.clear()
    other.maintain()
    assert other._committer.state(orders.id).holds == {}
    assert other._catalog.read().forced == other._catalog.read().dropped == ()


def test_a_damaged_collection_is_dropped_by_force_and_keeps_no_other_from_being_purged(place):
    store = place.open()
    for name in ("bad", "good"):
        store.create(name, key=KEY).append([{"n": 1}])
    bad = store["bad"].id
    head = place.consensus.head(bad)
    place.consensus.compare_and_set([LogWrite(bad, head.seqno, b"damage")])
    with pytest.raises(CorruptionError):
        store.drop("bad")
    assert "bad" in store
    assert store.drop("bad", force=True) is True
    assert store.drop("good") is True
    report = store.maintain()
    assert report.failures == 1
    assert "bad, which was dropped: CorruptionError" in report.skipped[0]
    assert store._catalog.read().dropped == (bad,)


# What is dropped is closed.


def taken_away(how, store, tmp_path):
    """A collection loses its name: it is dropped, or another takes its place."""
    if how == "drop":
        store.drop("orders")
    elif how == "replace":
        store.create("orders", key=KEY, timeline="counter", replace=True)
    else:
        pq.write_table(pa.table({"n": [7]}), tmp_path / "rows.parquet")
        store.load("orders", tmp_path / "rows.parquet", key=["n"], timeline="counter", replace=True)


def writes(orders):
    """Every way to add rows."""
    return {
        "append": lambda: orders.append([{"n": 2}]),
        "append at": lambda: orders.append([{"n": 2}], at=50),
        "append below": lambda: orders.append([{"n": 2}], upper=50),
        "append much": lambda: orders.append([{"n": n} for n in range(9000)]),
        "upsert": lambda: orders.upsert([{"n": 2}]),
        "delete": lambda: orders.delete({"n": 1}),
        "replace": lambda: orders.replace([{"n": 2}]),
    }


@pytest.mark.parametrize("known", [True, False], ids=["state known", "state not known"])
@pytest.mark.parametrize("how", ["drop", "replace", "load"])
def test_nothing_is_acknowledged_that_is_written_to_what_was_dropped(place, tmp_path, how, known):
    store, other = place.open(), place.open()
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    handles = {"another process": other["orders"], "this one": store["orders"]}
    if known:
        other["orders"].append([{"n": 0}])
    taken_away(how, store, tmp_path)
    for orders in handles.values():
        for write in writes(orders).values():
            with pytest.raises(ClosedError, match=r"collection orders.* is closed: it was dropped"):
                write()
        with pytest.raises(UpperMismatch):
            orders.append([{"n": 2}], expected_upper=1)
    assert rows_of(handles["another process"]) == ([0, 1] if known else [1])


def test_a_handle_of_what_is_gone_for_good_says_that_it_was_dropped(place):
    store, other = place.open(), place.open()
    orders = store.create("orders", key=KEY, timeline="counter")
    theirs = other["orders"]
    theirs.append([{"n": 1}])
    store.drop("orders")
    other._leases.close()
    store.maintain()
    for handle in (orders, theirs):
        for use in (
            lambda handle=handle: handle.append([{"n": 1}]),
            lambda handle=handle: handle.upsert([{"n": 1}]),
            lambda handle=handle: handle.schema,
            lambda handle=handle: handle.snapshot(),
            lambda handle=handle: handle.hold(),
        ):
            with pytest.raises(ClosedError, match=r"collection orders (is finalized: it )?was dropped"):
                use()


def test_a_snapshot_of_what_is_dropped_is_read_to_its_end_and_a_feed_ends(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    snapshot = other["orders"].snapshot()
    with other["orders"].subscribe() as feed:
        assert next(feed).kind == "snapshot"
        store.drop("orders")
        store.maintain()
        assert [event.kind for event in feed] == ["progress"]
    assert snapshot.to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, *LOST])
def test_a_drop_that_cannot_close_is_still_a_drop_and_maintenance_closes(place, fault):
    script = Script()
    store, other = place.open(script=script), place.open()
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    theirs = other["orders"]
    script.add("compare_and_set", fault, key=theirs.id, times=20)
    store.drop("orders")
    assert store.names() == []
    other.maintain()
    with pytest.raises(ClosedError, match="dropped"):
        theirs.append([{"n": 2}])


def test_a_program_that_creates_a_collection_with_an_earlier_schema_still_opens_it(place):
    store = place.open()
    value = {"name": "string", "total": "int32"}
    orders = store.create("orders", key=KEY, value=value)
    orders.evolve(add={"city": "string"})
    orders.evolve(rename={"name": "customer"}, widen={"total": "int64"}, drop=["city"])
    orders.append([{"n": 1, "customer": "ada", "total": 1 << 40}])
    for known in (value, {**value, "city": "string"}, {"customer": "string", "total": "int64"}):
        again = place.open().create("orders", key=KEY, value=known, if_exists="open")
        assert again.id == orders.id
        assert again.schema.names == ("n", "customer", "total")
    with pytest.raises(UsageError, match=r"another schema \(column 'total': 'int64', not 'string'"):
        store.create("orders", key=KEY, value={"customer": "string", "total": "string"}, if_exists="open")
