"""Changes between two times: net, exact, in pairs by key if asked for, whatever happened to the batches meanwhile."""

import datetime
import decimal
import math
from collections import Counter
from itertools import combinations_with_replacement

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, SMALL, MemoryStore, counted

from timespine.client.read.change_set import CHANGE_TYPE
from timespine.client.read.rows import REPEATED_MAX
from timespine.errors import NotSealed, SinceError, UsageError


def orders_of(store, **options):
    options = {"key": {"id": "int64"}, "value": {"name": "string"}, "timeline": "counter", **options}
    return store.create("orders", **options)


def net(changes):
    return counted(changes.to_pylist(), "id", "name")


def images(changes):
    return sorted((row[CHANGE_TYPE], row["id"], row["name"]) for row in changes.to_pylist())


@pytest.fixture
def orders(store):
    """ada comes, bob comes, ada is renamed twice, bob goes, eve comes and goes: times 0 to 5."""
    made = orders_of(store)
    made.append([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
    made.upsert([{"id": 1, "name": "adah"}])
    made.upsert([{"id": 1, "name": "ida"}])
    made.delete({"id": 2})
    made.append([{"id": 3, "name": "eve"}])
    made.delete({"id": 3})
    return made


# Net.


def test_what_came_and_went_in_between_is_not_there(orders):
    assert net(orders.changes(0)) == {(1, "ada"): -1, (1, "ida"): 1, (2, "bob"): -1}
    assert net(orders.changes(0, 1)) == {(1, "ada"): -1, (1, "adah"): 1}
    assert net(orders.changes(3)) == {}
    assert net(orders.changes(4)) == {(3, "eve"): -1}
    assert net(orders.changes(3, 4)) == {(3, "eve"): 1}


def test_after_is_left_out_and_until_is_included(orders):
    assert net(orders.changes(0, 2)) == {(1, "ada"): -1, (1, "ida"): 1}
    assert net(orders.changes(2, 3)) == {(2, "bob"): -1}
    for time in range(6):
        assert net(orders.changes(time, time)) == {}


def test_without_a_beginning_changes_are_from_nothing_on(orders):
    assert net(orders.changes(until=0)) == {(1, "ada"): 1, (2, "bob"): 1}
    assert net(orders.changes()) == net(orders.changes(until=5)) == {(1, "ida"): 1}


def test_without_an_end_changes_are_up_to_the_newest_complete_time(orders):
    changes = orders.changes(0)
    orders.append([{"id": 9, "name": "late"}])
    assert (9, "late") not in net(changes)
    assert net(orders.changes(0))[9, "late"] == 1
    orders.seal(100)
    assert net(orders.changes(50)) == {}


def test_an_empty_collection_has_no_changes_in_any_form(store):
    orders = orders_of(store)
    for changes in (orders.changes(), orders.changes(0), orders.changes(images=True)):
        table = changes.to_arrow()
        assert (table.num_rows, table.schema) == (0, changes.schema)
        assert (changes.count(), list(changes.batches())) == (0, [])


def test_changes_are_counted_by_distinct_rows(orders):
    assert orders.changes(0).count() == 3
    assert orders.changes(0, images=True).count() == 3
    assert orders.changes(0, 0).count() == 0
    assert "orders" in repr(orders.changes(0))


def test_changes_may_be_asked_for_by_datetimes(place, store):
    orders = orders_of(store, timeline="clock")
    moments = []
    for name in "abc":
        orders.append([{"id": 1, "name": name}])
        moments.append(datetime.datetime.fromtimestamp(place.clock.now, datetime.UTC))
        place.clock.advance(60)
    assert net(orders.changes(moments[0], moments[1])) == {(1, "b"): 1}
    assert net(orders.changes(moments[0])) == {(1, "b"): 1, (1, "c"): 1}


def test_changes_along_two_coordinates_are_those_of_one_time_without_the_other(store):
    pairs = orders_of(store, time_coordinates=2)
    times = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
    rows = [{"id": n, "name": "x", "_time_0": time[0], "_time_1": time[1]} for n, time in enumerate(times)]
    pairs.append(rows, upper=(3, 3))
    found = {row["id"] for row in pairs.changes((0, 1), (1, 1)).to_pylist()}
    assert found == {2, 3}
    with pytest.raises(UsageError, match="several coordinates"):
        pairs.changes((0, 0))


# What cannot be answered.


def test_changes_from_before_since_on_are_an_error_that_says_since(place, orders):
    orders.expire(before=3)
    place.open(config=BLOBS)["orders"].compact(wait=True)  # rows in the state need no lease
    assert not orders._handle.state().is_inline
    for after, until in ((2, None), (0, 1), (2, 5), (None, 2)):
        with pytest.raises(SinceError, match="3"):
            orders.changes(after, until)
    assert net(orders.changes(3)) == {}
    assert net(orders.changes()) == {(1, "ida"): 1}
    assert orders.expire(before=5).held_by == ()  # and what was refused holds nothing


def test_changes_that_go_back_are_refused(orders):
    with pytest.raises(UsageError, match="before"):
        orders.changes(3, 2)
    with pytest.raises(UsageError, match="before"):
        orders.changes(99)


def test_changes_up_to_a_time_that_is_not_complete_are_not_sealed(orders):
    for after in (None, 0, 6):
        with pytest.raises(NotSealed):
            orders.changes(after, 6, timeout=0)
    assert orders.expire(before=5).held_by == ()  # and what was asked in vain holds nothing


# Images.


def test_images_pair_what_went_with_what_came_by_key(orders):
    assert images(orders.changes(0, images=True)) == [
        ("delete", 2, "bob"),
        ("update_postimage", 1, "ida"),
        ("update_preimage", 1, "ada"),
    ]
    assert images(orders.changes(3, 4, images=True)) == [("insert", 3, "eve")]
    assert images(orders.changes(3, images=True)) == []


def test_a_row_is_among_the_images_as_often_as_it_changed(store):
    orders = orders_of(store)
    orders.append(
        [{"id": 1, "name": "a", "_diff": 2}, {"id": 2, "name": "b", "_diff": 3}, {"id": 3, "name": "c", "_diff": 1}]
    )
    gone = [{"id": 1, "name": "a", "_diff": -2}, {"id": 2, "name": "b", "_diff": -2}]
    orders.append([*gone, {"id": 1, "name": "z", "_diff": 1}])
    changes = orders.changes(0, images=True)
    assert images(changes) == [
        ("delete", 2, "b"),
        ("delete", 2, "b"),
        ("update_postimage", 1, "z"),
        ("update_preimage", 1, "a"),
        ("update_preimage", 1, "a"),
    ]
    assert changes.count() == 5


def test_images_of_keys_that_are_null_or_no_number_are_paired_too(store):
    odd = store.create("odd", key={"a": "double", "b": "string"}, value={"v": "int64"}, timeline="counter")
    keys = [(math.nan, None), (None, None), (None, "x"), (math.nan, "x")]
    for v in (1, 2):
        odd.upsert([{"a": a, "b": b, "v": v} for a, b in keys])
    found = odd.changes(0, images=True).to_pylist()
    assert Counter(row[CHANGE_TYPE] for row in found) == {"update_preimage": 4, "update_postimage": 4}
    assert all((row["v"] == 2) == (row[CHANGE_TYPE] == "update_postimage") for row in found)


def test_images_of_some_columns_have_the_key_in_front(store):
    made = orders_of(store, value={"name": "string", "total": "double"})
    made.append([{"id": 1, "name": "a", "total": 1.0}, {"id": 2, "name": "b", "total": 1.0}])
    made.upsert([{"id": 1, "name": "z", "total": 1.0}, {"id": 2, "name": "b", "total": 2.0}])
    assert made.changes(0, columns=["name"]).schema.names == ["name", "_diff"]
    changes = made.changes(0, columns=["name"], images=True)
    assert changes.schema.names == ["id", "name", CHANGE_TYPE]
    # Of what is asked for nothing changed about the second.
    assert images(changes) == [("update_postimage", 1, "z"), ("update_preimage", 1, "a")]
    assert made.changes(0, columns=["name", "id"], images=True).schema.names == ["name", "id", CHANGE_TYPE]


def test_a_condition_is_asked_of_each_image_by_itself(orders):
    assert net(orders.changes(0, where="name = 'ida'")) == {(1, "ida"): 1}
    assert images(orders.changes(0, where="name = 'ida'", images=True)) == [("insert", 1, "ida")]
    assert images(orders.changes(0, where="id = 2", images=True)) == [("delete", 2, "bob")]


def test_images_need_a_key(store):
    orders = orders_of(store, key=None, value={"id": "int64", "name": "string"})
    orders.append([{"id": 1, "name": "a"}])
    with pytest.raises(UsageError, match="no key"):
        orders.changes(images=True)
    assert net(orders.changes()) == {(1, "a"): 1}


@pytest.mark.parametrize("diff", [REPEATED_MAX + 1, (1 << 63) - 1, -(1 << 63)])
def test_more_images_than_anybody_could_look_at_are_refused(store, diff):
    orders = orders_of(store)
    orders.append([{"id": 1, "name": "a", "_diff": diff}])
    assert net(orders.changes()) == {(1, "a"): diff}
    with pytest.raises(UsageError, match="without"):
        orders.changes(images=True).to_arrow()


@pytest.mark.parametrize("diff", [1, 2])
@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.bool_(), [True, None, False]),
        (pa.uint64(), [(1 << 64) - 1, 0, None]),
        (pa.float32(), [math.inf, None, -1.5]),
        (pa.decimal128(38, 10), [decimal.Decimal("9" * 28 + ".0123456789"), None, decimal.Decimal(-1)]),
        (pa.string(), ["", None, "\U0001f600"]),
        (pa.binary(), [b"\x00", b"", None]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
        (
            pa.timestamp("us", "Europe/Berlin"),
            [datetime.datetime(2024, 10, 27, 2, 30, tzinfo=datetime.UTC), None, None],
        ),
        (pa.list_(pa.int64()), [[1, None], [], None]),
        (pa.struct([("a", pa.string()), ("b", pa.list_(pa.float64()))]), [{"a": None, "b": [1.0]}, None, {"a": "x"}]),
    ],
    ids=str,
)
def test_images_of_every_type_are_the_rows_that_there_are(store, type, values, diff):
    made = store.create("every", key={"k": "int64"}, value={"v": type}, timeline="counter")
    rows = pa.table({"k": [1, 2, 3], "v": pa.array(values, type), "_diff": [diff] * 3})
    made.append(rows)
    changes = made.changes(images=True)
    table = changes.to_arrow()
    assert table.schema == changes.schema == made.changes(0, 0, images=True).to_arrow().schema
    assert table.drop_columns([CHANGE_TYPE]) == made.snapshot().to_arrow()
    assert pa.Table.from_batches(changes.batches(), table.schema) == table


# Across evolution and compaction.


def test_changes_are_seen_through_the_newest_schema(orders):
    orders.evolve(rename={"name": "called"}, add={"vip": ("bool", False)})
    orders.upsert([{"id": 1, "called": "ida", "vip": True}])
    names = ("id", "called", "vip")
    assert counted(orders.changes(0, 5).to_pylist(), *names) == {
        (1, "ada", False): -1,
        (1, "ida", False): 1,
        (2, "bob", False): -1,
    }
    assert counted(orders.changes(5).to_pylist(), *names) == {(1, "ida", False): -1, (1, "ida", True): 1}
    found = orders.changes(0, images=True).to_pylist()
    assert {(row[CHANGE_TYPE], row["called"], row["vip"]) for row in found} == {
        ("delete", "bob", False),
        ("update_preimage", "ada", False),
        ("update_postimage", "ida", True),
    }


def test_a_change_in_a_column_that_was_dropped_is_no_longer_a_change(orders):
    orders.evolve(drop=["name"], add={"name": "string"})
    assert net(orders.changes(0, 2)) == {}
    assert net(orders.changes(0)) == {(2, None): -1}
    orders.compact(wait=True)
    assert net(orders.changes(0, 2)) == {}
    assert net(orders.changes(0)) == {(2, None): -1}


def test_a_widened_column_changes_nothing(store):
    orders = orders_of(store, value={"name": "string", "n": "int32"})
    orders.append([{"id": 1, "name": "a", "n": 7}])
    orders.evolve(widen={"n": "int64"})
    orders.upsert([{"id": 1, "name": "a", "n": 7}])
    orders.upsert([{"id": 1, "name": "a", "n": 1 << 40}])
    assert [(row["n"], row["_diff"]) for row in orders.changes(0).to_pylist()] == [(7, -1), (1 << 40, 1)]


def test_changes_are_the_same_before_and_after_compaction(store, orders):
    pairs = list(combinations_with_replacement(range(6), 2))
    before = {pair: (net(orders.changes(*pair)), images(orders.changes(*pair, images=True))) for pair in pairs}
    early = orders.changes(0)
    orders.compact(wait=True)
    store.maintain()
    for pair in pairs:
        assert (net(orders.changes(*pair)), images(orders.changes(*pair, images=True))) == before[pair]
    orders.expire(before=2)
    orders.compact(wait=True)
    store.maintain()
    for pair in pairs:
        if pair[0] >= 2:
            assert (net(orders.changes(*pair)), images(orders.changes(*pair, images=True))) == before[pair]
    assert net(early) == before[0, 5][0]  # it holds what it was asked for


steps = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "delete", "append", "compact", "maintain", "evolve"]),
        st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(steps)
def test_changes_are_the_difference_of_two_snapshots(steps):
    with MemoryStore() as place:
        store = place.open(config=SMALL)
        orders = orders_of(store)
        for number, (what, rows) in enumerate(steps):
            keyed = {id: {"id": id, "name": name} for id, name in rows}
            if what == "upsert":
                orders.upsert(list(keyed.values()))
            elif what == "delete":
                orders.delete([{"id": id} for id in keyed])
            elif what == "append":
                orders.append([{"id": id, "name": name, "_diff": number % 3 - 1} for id, name in rows])
            elif what == "compact":
                orders.compact(wait=True)
            elif what == "maintain":
                store.maintain()
            else:
                orders.evolve(add={f"c{number}": ("int64", number)})
        upper = orders.upper.elements[0][0]
        at = [counted(orders.snapshot(time, multiplicity="column").to_pylist(), "id", "name") for time in range(upper)]
        for after, until in combinations_with_replacement(range(upper), 2):
            wanted = Counter(at[until])
            wanted.subtract(at[after])
            assert net(orders.changes(after, until)) == {row: count for row, count in wanted.items() if count}


def test_a_condition_chooses_rows_before_they_are_paired(place):
    orders = place.open().create("orders", key={"id": "int64"}, value={"total": "int64"}, timeline="counter")
    orders.append([{"id": 1, "total": 5}, {"id": 2, "total": 50}, {"id": 3, "total": 50}])
    orders.upsert([{"id": 1, "total": 50}, {"id": 2, "total": 5}, {"id": 3, "total": 60}])
    found = orders.changes(after=0, where="total > 10", images=True).to_pylist()
    assert [(row["_change_type"], row["id"], row["total"]) for row in found] == [
        ("insert", 1, 50),
        ("delete", 2, 50),
        ("update_preimage", 3, 50),
        ("update_postimage", 3, 60),
    ]
