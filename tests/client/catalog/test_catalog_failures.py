"""The catalog when replies are lost, and when it is damaged."""

import random
import zlib

import msgspec
import pytest
from catalog_cases import KEY, LOST
from memory_store import Script
from numbered_rows import rows_of

from timespine.client.catalog.catalog import FOR_EVER, LOG, Catalog, CatalogEntry, Names, decode_catalog, encode_catalog
from timespine.client.maintenance.maintenance import EXPIRE_S
from timespine.core.encoding.envelope import EnvelopeKind, wrap_payload
from timespine.errors import CorruptionError, Determinate, Indeterminate, TimespineError, VersionError
from timespine.location.consensus import LogWrite
from timespine.testing.unreliable import Fault


def overwrite(place, data):
    """Put another entry at the end of the catalog."""
    head = place.consensus.head(LOG)
    place.consensus.compare_and_set([LogWrite(LOG, head.seqno if head else None, data)])


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
    head, payload = b"TS\x05\x04", msgspec.msgpack.encode({"whatever": "it may hold"})
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
        CatalogEntry("a-1", role="king"),
        CatalogEntry("a-1", role="stage"),
        CatalogEntry("a-1", role="view", owner="b-1"),
        CatalogEntry("a-1", role="stage", owner="../../etc"),
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
