"""Names of collections: one winner, whoever comes at the same time, and nothing that damage could make of them."""

import random
import zlib
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_store import BLOBS, Script, in_threads

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog import FOR_EVER, LOG, Catalog, CatalogEntry, Names, decode_catalog, encode_catalog
from timespine.client.maintenance.scheduler import EXPIRE_S
from timespine.columnar.schema.schema import define
from timespine.core.encoding.envelope import EnvelopeKind, wrap_payload
from timespine.errors import (
    ClosedError,
    CorruptionError,
    Determinate,
    Indeterminate,
    TimespineError,
    UnknownCollection,
    UpperMismatch,
    UsageError,
    VersionError,
)
from timespine.location.consensus import LogWrite
from timespine.location.unreliable import Fault
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier

KEY = {"n": "int64"}
LOST = [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE]


def rows_of(collection):
    return sorted(row["n"] for row in collection.snapshot().to_pylist())


def overwrite(place, data):
    """Put another entry at the end of the catalog."""
    head = place.consensus.head(LOG)
    place.consensus.compare_and_set([LogWrite(LOG, head.seqno if head else None, data)])


# Creating.


def test_of_two_stores_that_create_the_same_name_at_once_one_wins_and_the_other_is_told(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    made = []
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=lambda: made.append(other.create("orders", key=KEY)))
    with pytest.raises(UsageError, match="orders exists"):
        store.create("orders", key=KEY)
    assert store["orders"].id == made[0].id
    # The loser left nothing behind: a collection and its name appear together.
    assert [key for key in place.consensus.list_keys() if key != LOG] == [made[0].id]


def test_of_many_threads_that_open_or_create_the_same_name_all_get_the_same_collection(place):
    stores = [place.open() for _ in range(4)]
    found = []

    def work(store):
        for _ in range(5):
            found.append(store.create("orders", key=KEY, if_exists="open").id)

    in_threads(*(lambda store=store: work(store) for store in stores))
    assert len(set(found)) == 1


def test_collections_that_are_created_at_once_are_all_there(place):
    stores = [place.open() for _ in range(4)]
    in_threads(
        *(
            lambda n=n, store=store: [store.create(f"c{n}-{each}", key=KEY) for each in range(5)]
            for n, store in enumerate(stores)
        )
    )
    assert place.open().names() == sorted(f"c{n}-{each}" for n in range(4) for each in range(5))


def test_what_exists_is_opened_if_it_has_the_same_shape_and_refused_otherwise(place):
    store = place.open()
    first = store.create("orders", key=KEY, value={"v": "string"}, timeline="counter")
    again = store.create("orders", key=KEY, value={"v": "string"}, timeline="counter", if_exists="open")
    assert again.id == first.id
    with pytest.raises(UsageError, match="another schema"):
        store.create("orders", key=KEY, value={"v": "int64"}, timeline="counter", if_exists="open")
    with pytest.raises(UsageError, match="another schema"):
        store.create("orders", key=KEY, value={"v": "string"}, time_coordinates=2, timeline="counter", if_exists="open")
    with pytest.raises(UsageError, match="timeline 'counter', not 'clock'"):
        store.create("orders", key=KEY, value={"v": "string"}, if_exists="open")
    with pytest.raises(UsageError, match="exists"):
        store.create("orders", key=KEY, value={"v": "string"})
    with pytest.raises(UsageError, match="if_exists"):
        store.create("orders", key=KEY, if_exists="maybe")
    assert store["orders"].id == first.id


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"key": {"n": "int32"}}, "column 'n': 'int64', not 'int32'"),
        ({"key": {"n": "int64", "m": "int64"}}, r"key: \('n',\), not \('n', 'm'\)"),
        ({"key": {"m": "int64"}}, "column 'n': 'int64', not None"),
        ({"value": None, "cluster": ()}, "column 'v': 'string', not None"),
        ({"value": {"v": "string", "w": "string"}}, "column 'w': None, not 'string'"),
        ({"key": {"n": "int64", "v": "string"}, "value": None}, r"key: \('n',\), not \('n', 'v'\)"),
        ({"key": None, "value": {"n": "int64", "v": "string"}}, r"key: \('n',\), not \(\)"),
        ({"cluster": ()}, r"cluster: \('v',\), not \(\)"),
        ({"cluster": ("v", "n")}, "cluster"),
        ({"time_coordinates": 2}, "time_coordinates: 1, not 2"),
    ],
)
def test_a_shape_that_is_not_that_of_what_exists_is_refused_and_the_difference_is_named(place, other, says):
    store = place.open()
    shape = {"key": KEY, "value": {"v": "string"}, "cluster": ("v",), "timeline": "counter"}
    store.create("orders", **shape)
    assert store.create("orders", **shape, if_exists="open").id == store["orders"].id
    with pytest.raises(UsageError, match=f"another schema .{says}"):
        store.create("orders", **{**shape, **other}, if_exists="open")


def test_what_exists_is_opened_if_it_came_to_look_like_that(place):
    store = place.open()
    orders = store.create("orders", key=KEY, value={"a": "string", "b": "int32"})
    orders.evolve(drop=["a"], widen={"b": "int64"}, add={"c": ("string", "none yet")})
    looks = {"key": KEY, "value": {"b": "int64", "c": "string"}}
    assert store.create("orders", **looks, if_exists="open").id == orders.id
    with pytest.raises(UsageError, match="another schema"):
        store.create("orders", key=KEY, value={"a": "string", "b": "int64"}, if_exists="open")


def test_a_policy_that_is_not_that_of_what_exists_is_refused_and_changes_nothing(place):
    store = place.open()
    orders = store.create("orders", key=KEY, retain="7 days")
    store.create("plain", key=KEY)
    for same in ("7 days", "168 h", None):
        assert store.create("orders", key=KEY, retain=same, if_exists="open").id == orders.id
    with pytest.raises(
        UsageError, match=r"retain=604800000 ms, not retain=691200000 ms; change it with store\['orders'\].retain"
    ):
        store.create("orders", key=KEY, retain="8 days", if_exists="open")
    with pytest.raises(UsageError, match="retain=604800000 ms, not retain='for ever'; change it"):
        store.create("orders", key=KEY, retain="for ever", if_exists="open")
    with pytest.raises(UsageError, match="no retain of its own, not retain=604800000 ms; change it"):
        store.create("plain", key=KEY, retain="7 days", if_exists="open")
    kept = {name: entry.retain_ms for name, entry in store._catalog.read().entries.items()}
    assert kept == {"orders": 7 * 86_400_000, "plain": None}
    orders.retain("8 days")
    assert store.create("orders", key=KEY, retain="8 days", if_exists="open").id == orders.id


def test_replacing_takes_the_name_over_and_leaves_the_old_rows_to_those_who_read_them(place):
    store = place.open()
    old = store.create("orders", key=KEY, timeline="counter")
    old.append([{"n": 1}])
    snapshot = old.snapshot()
    new = store.create("orders", key={"m": "string"}, timeline="counter", replace=True)
    assert new.id != old.id
    assert store["orders"].id == new.id
    assert new.count() == 0
    assert snapshot.to_pylist() == [{"n": 1}]
    assert old.name != "orders"  # whoever still holds it is not misled
    assert store.names() == ["orders"]


def test_a_schema_and_columns_at_once_are_refused(place):
    store = place.open()
    schema = define(KEY, None)
    assert store.create("a", schema=schema).schema == schema
    with pytest.raises(UsageError, match="either"):
        store.create("b", schema=schema, key=KEY)
    with pytest.raises(UsageError, match="either"):
        store.create("b", schema=schema, time_coordinates=2)
    assert store.names() == ["a"]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../a", ".a", "-a", "_a", "a\n", "a\x00", "é", "a" * 129, "catálogo", None, 7, b"a", ["a"]],
)
def test_names_with_odd_characters_are_refused(place, name):
    store = place.open()
    store.create("there", key=KEY)
    for refused in (
        lambda: store.create(name, key=KEY),
        lambda: store.collection(name),
        lambda: store.rename("there", name),
        lambda: store.drop(name),
    ):
        with pytest.raises(UsageError):
            refused()
    assert name not in store
    assert store.names() == ["there"]


@pytest.mark.parametrize("name", ["a", "A", "7", "a.b", "Orders_2024-01", "a" * 128, "catalog"])
def test_names_that_people_use_are_fine(place, name):
    store = place.open()
    store.create(name, key=KEY, timeline="counter").append([{"n": 1}])
    assert name in store
    assert rows_of(place.open()[name]) == [1]


def test_an_unknown_name_is_answered_with_those_that_there_are(place):
    store = place.open()
    with pytest.raises(UsageError, match="there are: none"):
        store["orders"]
    store.create("customers", key=KEY)
    with pytest.raises(UsageError, match="customers"):
        store["orders"]


def test_names_are_decoded_once_until_a_process_changes_them(place, monkeypatch):
    store, other = place.open(), place.open()
    decoded = []
    monkeypatch.setattr(
        catalog, "decode_catalog", lambda seqno, data: decoded.append(seqno) or decode_catalog(seqno, data)
    )
    for name in ("a", "b", "c"):
        store.create(name, key=KEY)
        assert store[name].name == name
    assert store.names() == ["a", "b", "c"]
    assert decoded == []  # it knows what it has stored
    assert other.names() == other.names() == ["a", "b", "c"]
    assert decoded == [2]
    store.rename("a", "z")
    assert other.names() == ["b", "c", "z"]
    assert decoded == [2, 3]


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


# Finding.


def test_a_collection_is_got_without_being_created(place):
    store = place.open()
    assert store.get("orders") is None
    orders = store.create("orders", key=KEY)
    assert store.get("orders").id == place.open().get("orders").id == orders.id
    store.drop("orders")
    assert store.get("orders") is None
    assert store.names() == []
    with pytest.raises(UsageError, match="is not valid"):
        store.get("../orders")


def test_a_name_that_no_collection_has_is_its_own_error_wherever_it_is_asked_for(place):
    store = place.open()
    store.create("there", key=KEY)
    for asked in (
        lambda: store["nope"],
        lambda: store.collection("nope"),
        lambda: store.description("nope"),
        lambda: store.rename("nope", "other"),
        lambda: store.drop("nope"),
        lambda: store.maintain("nope"),
        lambda: store._set_retention("nope", None),
    ):
        with pytest.raises(UnknownCollection, match="there is no collection nope; there are: there") as raised:
            asked()
        assert raised.value.name == "nope"
        assert isinstance(raised.value, KeyError)


def test_a_collection_is_described_by_name(place):
    store = place.open()
    assert store.create("plane", key=KEY, time_coordinates=2).name == "plane"
    orders = store.create("orders", key=KEY, timeline="counter")
    minimum = Frontier.minimum(1)
    assert store.description("orders") == Description(minimum, minimum, minimum)
    for n in range(5):
        orders.append([{"n": n}])
    orders.expire(before=3)
    for each in (store, place.open(read_only=True)):
        assert each.description("orders") == Description(minimum, Frontier.at(5), Frontier.at(3))
    orders.finish()
    assert store.description("orders") == Description(minimum, CLOSED, Frontier.at(3))
    assert store.description("plane").lower == Frontier.minimum(2)


def test_names_are_listed_and_looked_up_without_reading_a_collection(place):
    store = place.open()
    for n in range(50):
        store.create(f"c{n}", key=KEY)
    script = Script()
    other = place.open(script=script)
    assert len(other.names()) == 50
    assert "c7" in other
    assert script.calls == {"scan": 2}  # the catalog, and nothing else
    assert other.description("c7").upper == Frontier.minimum(1)
    assert script.calls["scan"] <= 4
    assert set(other._committer.session.states) == {store["c7"].id}


def test_a_lease_that_lapsed_does_not_keep_a_dropped_collection(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    reading = other["orders"].snapshot()  # and its process is never seen again
    store.drop("orders")
    store.maintain()
    assert store._catalog.read().dropped
    place.clock.advance(2 * 3600)
    store.maintain()
    assert store._catalog.read().dropped == ()
    assert reading is not None


def test_two_processes_may_purge_the_same_collection_at_once(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    store.drop("orders")
    # While one is about to close it, the other does all of it.
    script.add("compare_and_set", Fault.NONE, key=orders.id, skip=1, hook=lambda: other.maintain())
    store.maintain()
    assert script.is_done
    assert store._catalog.read().dropped == ()


def test_the_background_buries_what_was_dropped(place):
    store = place.open(config=BLOBS)
    store.create("orders", key=KEY, timeline="counter").append([{"n": 1}])
    store.drop("orders")
    other = place.open(config=BLOBS)  # another process, which never opened it
    store.close()
    place.clock.advance(EXPIRE_S)
    other._maintenance.round()
    assert other._catalog.read().dropped == ()
    assert len(place.blobs()) <= 1


def test_what_crashed_writers_left_in_a_dropped_collection_goes_too(place):
    store, crashed = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = store.create("orders", key=KEY, timeline="counter")
    orders.append([{"n": 1}])
    writer = crashed["orders"].writer()
    place.blob.put(f"{orders.id}/{writer.id}/leaked", b"leaked")
    store.drop("orders")
    store.maintain()
    # Its writer might still be alive: the collection is not forgotten before that is known.
    assert store._catalog.read().dropped == (orders.id,)
    place.clock.advance(2 * 3600)
    store.maintain()
    assert store._catalog.read().dropped == ()
    assert not any("leaked" in key for key in place.blobs())


# Replies that are lost.


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("there", [False, True])
def test_creating_survives_a_lost_reply_of_the_catalog(place, fault, there):
    script = Script()
    store = place.open(script=script)
    if there:
        place.open().create("other", key=KEY)
    script.add("compare_and_set", fault, key=LOG)
    orders = store.create("orders", key=KEY, timeline="counter")
    assert script.is_done
    store.ghosts()
    orders.append([{"n": 1}])
    assert rows_of(place.open()["orders"]) == [1]
    assert "orders" in place.open()


@pytest.mark.parametrize("fault", LOST)
def test_creating_survives_a_lost_reply_even_if_others_change_the_catalog_before_it_is_known(place, fault):
    script = Script()
    store, other = place.open(script=script), place.open()
    other.create("first", key=KEY)
    script.add("compare_and_set", fault, key=LOG)
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=lambda: other.create("second", key=KEY))
    orders = store.create("orders", key=KEY)
    store.ghosts()
    assert script.is_done
    assert place.open().names() == ["first", "orders", "second"]
    assert place.open()["orders"].id == orders.id


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("change", ["rename", "drop", "retain", "replace"])
def test_every_change_of_the_catalog_survives_a_lost_reply_and_is_made_once(place, fault, change):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders = store.create("orders", key=KEY)
    script.add("compare_and_set", fault, key=LOG)
    script.add("compare_and_set", Fault.NONE, key=LOG, hook=lambda: other.create("second", key=KEY))
    if change == "rename":
        store.rename("orders", "sales")
    elif change == "drop":
        assert store.drop("orders") is True
    elif change == "retain":
        orders.retain("7 days")
    else:
        orders = store.create("orders", key={"m": "int64"}, replace=True)
    store.ghosts()
    assert script.is_done
    names = other._catalog.read()
    assert (
        set(names.entries)
        == {
            "rename": {"sales", "second"},
            "drop": {"second"},
            "retain": {"orders", "second"},
            "replace": {"orders", "second"},
        }[change]
    )
    assert len(names.dropped) == (change in ("drop", "replace"))
    assert list(names.tombstones) == ["orders"] * (change == "drop")
    if change == "retain":
        assert names.entries["orders"].retain_ms == 7 * 86_400_000
    if change == "replace":
        assert names.entries["orders"].id == orders.id


def test_a_catalog_that_does_not_answer_is_unavailable_in_the_right_way(place):
    script = Script()
    store = place.open(script=script)
    script.add("compare_and_set", Fault.DETERMINATE, key=LOG, times=99)
    with pytest.raises(Determinate):
        store.create("orders", key=KEY)
    script.rules.clear()
    assert store.names() == []
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=LOG, times=99)
    with pytest.raises(Indeterminate):
        store.create("orders", key=KEY)
    script.rules.clear()
    script.add("truncate", Fault.DETERMINATE, key=LOG, times=99)
    store.create("orders", key=KEY)
    store.create("others", key=KEY)  # old entries that stay for once are no failure
    assert store.names() == ["orders", "others"]


# Damage.


def test_a_damaged_catalog_is_a_corruption_error_for_whatever_is_asked(place):
    store = place.open()
    store.create("orders", key=KEY)
    overwrite(place, b"something else")
    other = place.open()
    for asked in (other.names, lambda: other["orders"], lambda: other.create("a", key=KEY), other.maintain):
        with pytest.raises(CorruptionError, match="catalog"):
            asked()


def test_a_catalog_of_a_newer_version_is_refused_as_such(place):
    store = place.open()
    store.create("orders", key=KEY)
    head, payload = b"TS\x05\x02", msgspec.msgpack.encode({"whatever": "it may hold"})
    overwrite(place, head + zlib.crc32(head + payload).to_bytes(4, "big") + payload)
    with pytest.raises(VersionError, match="upgrade"):
        place.open().names()


def test_no_damage_of_a_catalog_gives_other_names():
    entries = {"orders": CatalogEntry("orders-1", "counter", 5000, 17), "b": CatalogEntry("b-2")}
    names = Names(entries, ("gone-3",), 5000, {"gone": "gone-3"}, ("gone-3",), seqno=3)
    data = encode_catalog(names)
    assert decode_catalog(3, data) == names
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_catalog(3, data[:length])
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises((CorruptionError, VersionError)):
                decode_catalog(3, bytes(damaged))


def test_a_catalog_that_is_forged_to_look_whole_is_an_error_and_never_a_crash():
    random_bytes = random.Random(7)
    valid = encode_catalog(Names({"orders": CatalogEntry("orders-1", "counter", 5000, 17)}))[8:]
    for _ in range(3000):
        payload = bytearray(valid)
        for _ in range(random_bytes.randint(1, 4)):
            payload[random_bytes.randrange(len(payload))] = random_bytes.randrange(256)
        forged = wrap_payload(EnvelopeKind.CATALOG, bytes(payload))
        try:
            decode_catalog(3, forged)
        except (CorruptionError, VersionError):
            continue


@pytest.mark.parametrize(
    "entry",
    [
        CatalogEntry("../../etc"),
        CatalogEntry(""),
        CatalogEntry("a/b"),
        CatalogEntry("a-1", "sundial"),
        CatalogEntry("a-1", "clock", 0),
        CatalogEntry("a-1", "clock", -5),
    ],
)
def test_an_entry_that_no_store_would_write_is_damage(entry):
    with pytest.raises(CorruptionError):
        decode_catalog(0, encode_catalog(Names({"a": entry})))


def test_a_dropped_id_that_no_store_would_write_is_damage():
    with pytest.raises(CorruptionError):
        decode_catalog(0, encode_catalog(Names({}, ("../../etc",))))


@pytest.mark.parametrize(
    "names",
    [
        Names({}, (), None, {"../a": "a-1"}),
        Names({}, (), None, {"a": "../../etc"}),
        Names({}, ("a-1",), None, {}, ("../../etc",)),
        Names({}, (), None, {}, ("a-1",)),
        Names({"a": CatalogEntry("a-2")}, (), None, {"a": "a-1"}),
        Names({"a": CatalogEntry("a-1")}, ("a-1",)),
        Names(reserved={"../../etc": 1}),
        Names({"a": CatalogEntry("a-1")}, reserved={"a-1": 1}),
        Names(dropped=("a-1",), reserved={"a-1": 1}),
    ],
)
def test_ids_and_tombstones_that_no_store_would_write_are_damage(names):
    with pytest.raises(CorruptionError):
        decode_catalog(0, encode_catalog(names))


def test_the_catalog_keeps_only_its_newest_entry(place):
    store = place.open()
    for number in range(20):
        store.create(f"c{number}", key=KEY)
    assert len(place.consensus.scan(LOG)) == 1


def test_a_catalog_that_others_keep_changing_is_given_up_at_some_point(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    counter = iter(range(1000))

    class Busy(Script):
        def __call__(self, operation, key):
            if operation == "compare_and_set" and LOG in key:
                other.create(f"c{next(counter)}", key=KEY)
            return Fault.NONE

    busy = place.open(script=Busy())
    with pytest.raises(TimespineError, match="other processes keep changing"):
        busy.create("orders", key=KEY)
    assert "orders" not in store
    assert isinstance(store._catalog, Catalog)


def test_policies_that_others_change_are_learnt_by_the_background(place):
    store, other = place.open(), place.open()
    orders = store.create("orders", key=KEY, retain="7 days")
    other["orders"].retain(None)
    place.clock.advance(EXPIRE_S)
    store._maintenance.round()
    assert orders._handle.entry.retain_ms == FOR_EVER
    other["orders"].retain("1 day")
    store._maintenance.round()
    assert orders._handle.entry.retain_ms == FOR_EVER  # not every time: it reads the catalog
    place.clock.advance(EXPIRE_S)
    store._maintenance.round()
    assert orders._handle.entry.retain_ms == 86_400_000


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
