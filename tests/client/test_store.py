"""Opening a place, sealing what is idle, and leaving nothing behind."""

import datetime
import itertools
import os
import threading

import pyarrow as pa
import pytest
from assertions import until
from memory_store import BLOBS, Script, in_threads
from numbered_rows import rows_of

import timespine as ts
from timespine.client.commit.group_commit import STORE_CLOSED
from timespine.errors import NotSealed, TimespineError, Unavailable, UsageError
from timespine.location.opening.folder_place import CONSENSUS
from timespine.model.frontier import Frontier
from timespine.pool import Pool
from timespine.testing.unreliable import Fault

KEY = {"n": "int64"}


# A folder.


def test_a_folder_becomes_a_store_and_keeps_what_was_put_into_it(tmp_path):
    root = tmp_path / "new" / "store"
    with ts.open(root) as store:
        store.create("numbers", key=KEY, timeline="counter").append([{"n": 1}])
        assert str(root) in repr(store)
    for location in (root, str(root), os.fsencode(root)):
        with ts.open(location, create=False) as store:
            assert rows_of(store["numbers"]) == [1]
    with ts.open(root, read_only=True) as store:
        assert rows_of(store["numbers"]) == [1]


def test_a_store_that_is_not_there_is_not_made_unless_asked_for(tmp_path):
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(UsageError, match="no store"):
            ts.open(tmp_path / "nothing", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    for location in (file, file / "below"):
        with pytest.raises(UsageError):
            ts.open(location)
    with pytest.raises(UsageError, match="no location of a store"):
        ts.open("hdfs://name/prefix")
    for location in (7, None, "a\0b", ["a"]):
        with pytest.raises(UsageError, match="is not a path"):
            ts.open(location)
    assert file.read_text() == "no folder"


def test_a_folder_whose_consensus_is_no_database_is_refused_and_left_alone(tmp_path):
    (tmp_path / CONSENSUS).write_bytes(b"this is not a database, and never was one. " * 100)
    before = (tmp_path / CONSENSUS).read_bytes()
    with pytest.raises(TimespineError):
        ts.open(tmp_path)
    assert (tmp_path / CONSENSUS).read_bytes() == before


def test_two_stores_on_one_folder_see_each_other(tmp_path):
    with ts.open(tmp_path) as one, ts.open(tmp_path) as other:
        one.create("numbers", key=KEY, timeline="counter").append([{"n": 1}])
        other["numbers"].append([{"n": 2}])
        assert rows_of(one["numbers"]) == rows_of(other["numbers"]) == [1, 2]


def test_closing_ends_every_thread_of_the_store(tmp_path):
    before = set(threading.enumerate())
    store = ts.open(tmp_path)
    store.create("numbers", key=KEY).append([{"n": 1}])
    assert set(threading.enumerate()) > before
    store.close()
    store.close()
    until(lambda: set(threading.enumerate()) <= before)


def test_a_store_may_be_closed_while_others_are_at_work_with_it(place):
    store = place.open()
    collection = store.create("numbers", key=KEY, timeline="counter")
    collection.append([{"n": 0}])
    done = []
    started = threading.Event()

    def append_for_ever():
        for number in itertools.count(1):
            collection.append([{"n": number}])
            done.append(number)
            started.set()

    def work():
        with pytest.raises(UsageError, match="closed"):
            append_for_ever()

    def close():
        started.wait(60)
        store.close()

    in_threads(work, close)
    # What was acknowledged is there; what was under way may be.
    there = rows_of(place.open()["numbers"])
    assert there[: len(done) + 1] == [0, *done]
    assert len(there) <= len(done) + 2


# Sealing.


def test_advancing_seals_idle_collections_of_the_wall_clock_at_one_time_in_one_commit(place):
    script = Script()
    store = place.open(script=script)
    left, right = store.create("left", key=KEY), store.create("right", key=KEY)
    counter = store.create("counter", key=KEY, timeline="counter")
    plane = store.create("plane", key=KEY, time_coordinates=2)
    left.append([{"n": 1}])
    store.seal_idle()
    place.clock.advance(60)
    before = script.calls["compare_and_set"]
    assert store.seal_idle() == place.clock.ms
    assert script.calls["compare_and_set"] == before + 1
    assert left.upper == right.upper == Frontier.at(place.clock.ms)
    assert counter.upper == Frontier.at(0)
    assert plane.upper == Frontier.minimum(2)
    assert left.count(place.clock.ms - 1) == 1
    with pytest.raises(NotSealed):
        right.snapshot(place.clock.ms, timeout=0)


@pytest.mark.parametrize("timeline", ["clock", "counter"])
def test_hint_of_a_time_that_is_not_complete_helps_on_both_time_lines(place, timeline):
    store = place.open()
    numbers = store.create("numbers", key=KEY, timeline=timeline)
    numbers.append([{"n": 1}], at=5)
    with pytest.raises(NotSealed, match=r"append, seal, or on the wall clock store\.seal_idle\(\)") as refused:
        numbers.snapshot(9, timeout=0)
    assert "store.seal_idle()" not in str(refused.value).partition("on the wall clock")[0]
    store.seal_idle()
    assert (numbers.upper == Frontier.at(6)) is (timeline == "counter")
    numbers.seal(max(10, numbers.upper.elements[0][0]))
    assert numbers.snapshot(9, timeout=0).count() == 1


def test_advancing_goes_never_back_and_leaves_closed_collections_closed(place):
    store = place.open()
    left, closed = store.create("left", key=KEY), store.create("closed", key=KEY)
    closed.finish()
    store.seal_idle(5000)
    assert store.seal_idle(4000) == 4000
    assert left.upper == Frontier.at(5000)
    assert closed.upper.is_closed
    for wrong in (-1, "now", 1.5):
        with pytest.raises(UsageError):
            store.seal_idle(wrong)


def test_advancing_an_empty_store_is_fine(place):
    store = place.open()
    assert store.seal_idle(7) == 7


# Asking for what is not there.


def test_maintaining_a_collection_that_is_not_there_is_refused(place):
    store = place.open()
    with pytest.raises(UsageError, match="no collection"):
        store.maintain("orders")


def test_a_wrong_timeline_is_refused(place):
    with pytest.raises(UsageError, match="timeline"):
        place.open().create("orders", key=KEY, timeline="sundial")
    with pytest.raises(UsageError):
        place.open().create("orders", key={"_time": "int64"})
    with pytest.raises(UsageError):
        place.open().create("orders")
    assert place.open().names() == []


def test_times_of_the_clock_never_go_back_when_the_clock_does(place):
    store = place.open()
    collection = store.create("numbers", key=KEY)
    first = collection.append([{"n": 1}]).time
    assert first == place.clock.ms
    place.clock.advance(-3600)
    second = collection.append([{"n": 2}]).time
    assert second == first + 1
    place.clock.advance(7200)
    assert collection.append([{"n": 3}]).time == place.clock.ms
    assert [each["_time"] for each in collection.updates().to_pylist()] == [first, second, place.clock.ms]


def test_a_store_that_cannot_be_listed_is_unavailable_and_then_works(place):
    script = Script()
    store = place.open(script=script)
    store.create("numbers", key=KEY)
    script.add("scan", Fault.DETERMINATE, times=3)
    with pytest.raises(Unavailable):
        store.names()
    assert store.names() == ["numbers"]


@pytest.mark.parametrize("audit", ["x", None, True, -0.1, 1.1, float("nan")])
def test_an_audit_is_a_share(tmp_path, audit):
    with pytest.raises(UsageError, match="a share, from 0 to 1"):
        ts.open(tmp_path / "store", audit=audit)


def test_idle_collections_are_sealed_at_a_datetime(place):
    store = place.open()
    numbers = store.create("numbers", key=KEY)
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert store.seal_idle(moment) == 1704067200000
    assert numbers.upper == Frontier.at(1704067200000)
    with pytest.raises(UsageError, match="is not a time"):
        store.seal_idle("now")


@pytest.mark.parametrize("read_only", [False, True])
def test_what_was_begun_before_a_store_was_closed_says_that_it_is_closed(tmp_path, read_only):
    with ts.open(tmp_path, config=BLOBS, maintenance=False) as store:
        numbers = store.create("numbers", key=KEY, timeline="counter")
        for n in range(3):
            numbers.append([{"n": n}])
    store = ts.open(tmp_path, config=BLOBS, read_only=read_only)
    snapshot = store["numbers"].snapshot()
    store.close()
    for read in (snapshot.to_arrow, lambda: list(snapshot.batches()), snapshot.count, lambda: snapshot.split(2)):
        with pytest.raises(UsageError, match="this store is closed: open it again"):
            read()


def test_a_pool_that_is_shut_down_says_that_the_store_is_closed():
    pool = Pool(1, "read", STORE_CLOSED)
    assert pool.submit(max, 1, 2).result() == 2
    pool.shutdown()
    with pytest.raises(UsageError, match="this store is closed: open it again"):
        pool.submit(max, 1, 2)


# The columns of a collection.


@pytest.mark.parametrize(
    "schema",
    [
        "id bigint, name string, at timestamp",
        "struct<id:bigint,name:string,at:timestamp>",
        pa.schema([("id", pa.int64()), ("name", pa.large_string()), ("at", pa.timestamp("ms", "UTC"))]),
    ],
    ids=["text", "struct", "arrow"],
)
def test_all_columns_may_be_given_at_once(tmp_path, schema):
    wanted = {"id": "int64", "name": "string", "at": "timestamp[UTC]"}
    with ts.open(tmp_path) as store:
        for place, key in enumerate(("id", ["id", "name"], None)):
            made = store.create(f"c{place}", schema=schema, key=key).schema
            assert {field.name: field.type for field in made.fields} == wanted
            assert made.key_names == {0: ("id",), 1: ("id", "name"), 2: tuple(wanted)}[place]
        with store.transaction() as transaction:
            transaction.create("c3", schema=schema, key="id")
        assert store["c3"].schema == store["c0"].schema


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schema": "id bigint", "key": {"id": "int64"}}, "let key name those of the key"),
        ({"schema": "id bigint", "value": {"id": "int64"}}, "let key name those of the key"),
        ({"schema": "id bigint", "key": "name"}, "the key names 'name'; there are 'id'"),
        ({"schema": 3}, "3 is not a schema: give a text such as 'id bigint, name string'"),
        ({"key": ["id"]}, "key must map names to types"),
        ({"key": {"id": "number"}}, "column 'id': 'number' is not a type of a column: these work: bool, int8"),
    ],
)
def test_columns_that_say_nothing_are_refused(tmp_path, given, says):
    with ts.open(tmp_path) as store, pytest.raises(UsageError, match=says):
        store.create("c", **given)
