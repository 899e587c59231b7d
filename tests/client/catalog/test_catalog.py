"""Names of collections: one winner, whoever comes at the same time, and nothing that damage could make of them."""

import pytest
from catalog_cases import KEY
from memory_store import BLOBS, Script, in_threads
from numbered_rows import rows_of

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog import LOG, decode_catalog
from timespine.client.maintenance.maintenance import EXPIRE_S
from timespine.columnar.schema.schema import define
from timespine.errors import UnknownCollection, UsageError
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier
from timespine.testing.unreliable import Fault

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
        UsageError, match=r"retain 604800000 ms, not retain 691200000 ms; change it with store\['orders'\].retain"
    ):
        store.create("orders", key=KEY, retain="8 days", if_exists="open")
    with pytest.raises(UsageError, match="retain 604800000 ms, not retain 'for ever'; change it"):
        store.create("orders", key=KEY, retain="for ever", if_exists="open")
    with pytest.raises(UsageError, match="no retain of its own, not retain 604800000 ms; change it"):
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
