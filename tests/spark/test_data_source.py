"""The source as Spark uses it, without Spark: what was promised is read, and leases are few."""

from __future__ import annotations

import gc
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import timespine as ts
from timespine.config import Config
from timespine.errors import UsageError
from timespine.spark import drop_reads
from timespine.spark.data_source import TimespineSource
from timespine.spark.options import Options
from timespine.spark.read import to_spark
from timespine.spark.read.read_plan import plan_read
from timespine.spark.read.read_task import read_slice
from timespine.spark.type_mapping import ddl_of
from timespine.testing.unreliable import Fault, UnreliableConsensus


@pytest.fixture
def items(store):
    made = store.create("items", key={"id": "int64"}, value={"a": "int32", "b": "int32"}, timeline="counter")
    made.append([{"id": 1, "a": 10, "b": 20}])
    return made


def source(store, name="items", **options):
    return TimespineSource({"path": f"{store.location}/{name}", **options})


def given(reader, partitions):
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


def loaded(store, **options):
    """What a DataFrame gives that was made now and is read later."""
    made = source(store, **options)
    schema = made.schema()

    def read():
        reader = made.reader(schema)
        return given(reader, reader.partitions())

    return read


def test_what_was_added_since_a_frame_was_made_is_left_out(items, store):
    reads = [loaded(store), loaded(store, readUpdates="true"), loaded(store, readChangeFeed="true")]
    before = [read() for read in reads]
    items.evolve(add={"x": "int64"})
    assert [read() for read in reads] == before
    assert loaded(store)() == [{"id": 1, "a": 10, "b": 20, "x": None}]


def test_so_it_is_where_rows_are_told_apart_by_all_columns(store):
    log = store.create("log", value={"a": "int64"}, timeline="counter")
    log.append([{"a": 1}, {"a": 1}])
    made = source(store, "log", readChangeFeed="true")
    reader = made.streamReader(made.schema())
    start = reader.initialOffset()
    log.evolve(add={"b": "int64"})
    log.append([{"a": 2, "b": 5}])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sorted(row["a"] for row in given(reader, reader.partitions(start, end))) == [1, 1, 2]
    reader.stop()


@pytest.mark.parametrize(
    ("evolved", "says"),
    [
        ({"drop": ["b"]}, "column 'b' was dropped or renamed since this DataFrame was made: load it again"),
        ({"rename": {"a": "c"}}, "column 'a' was dropped or renamed"),
        ({"widen": {"a": "int64"}}, "column 'a' is bigint, and was int when this DataFrame was made: load it again"),
    ],
    ids=["dropped", "renamed", "widened"],
)
def test_what_is_not_as_it_was_is_an_error(items, store, evolved, says):
    reads = [loaded(store), loaded(store, readChangeFeed="true"), loaded(store, readUpdates="true")]
    items.evolve(**evolved)
    for read in reads:
        with pytest.raises(UsageError, match=says):
            read()


def test_a_stream_goes_on_with_the_columns_that_it_began_with(items, store):
    made = source(store)
    reader = made.streamReader(made.schema())
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadAllAvailable())
    assert given(reader, reader.partitions(start, middle)) == [{"id": 1, "a": 10, "b": 20}]
    items.evolve(add={"x": "int64"})
    items.append([{"id": 2, "a": 1, "b": 2, "x": 3}])
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert given(reader, reader.partitions(middle, end)) == [{"id": 2, "a": 1, "b": 2}]
    items.evolve(drop=["a"])
    with pytest.raises(UsageError, match="load it again"):
        reader.partitions(middle, end)
    reader.stop()


def test_a_feed_of_some_columns_has_those_of_the_key_too(items, store):
    items.upsert([{"id": 1, "a": 10, "b": 21}])
    (made,) = loaded(store, readChangeFeed="true", columns="b", endingVersion="0")()
    assert (made["id"], made["b"], made["_change_type"], "a" in made) == (1, 20, "insert", False)
    with pytest.raises(UsageError, match="there is no column 'nope'"):
        loaded(store, readChangeFeed="true", columns="nope")


def test_a_schema_of_the_users_own_chooses_columns(items, store):
    wanted = StructType([StructField("b", IntegerType()), StructField("id", LongType())])
    reader = source(store).reader(wanted)
    assert given(reader, reader.partitions()) == [{"b": 20, "id": 1}]


def test_reads_that_are_planned_soon_after_each_other_share_a_lease(tmp_path):
    seconds = [1_000_000.0]
    with ts.open(tmp_path / "store", maintenance=False, clock=lambda: seconds[0]) as store:
        items = store.create("items", key={"id": "int64"}, timeline="counter")
        items.append([{"id": 1}])
        items.append([{"id": 2}])

        def after(*options):
            for each in options:
                plan_read(items, Options({"path": "/a/b", **each}))
            return len([each for each in items._handle.state().readers if each.startswith("rs")])

        assert after({}, {}, {}, {}) == 1
        assert after({"asOf": "0"}) == 2  # from before the other
        assert after({}, {"asOf": "0"}, {"lease": "10 min"}) == 2
        seconds[0] += 299  # a twelfth of an hour: a lease is taken for so much more than its term
        assert after({}) == 2
        seconds[0] += 2
        assert after({}) == 3
        assert after({"lease": "2 hours"}) == 4
        with ts.open(tmp_path / "store", maintenance=False, clock=lambda: seconds[0]) as other:
            plan_read(other.collection("items"), Options({"path": "/a/b"}))
        assert after() == 4
        assert {each.term_ms for each in items._handle.state().readers.values()} >= {65 * 60_000, 130 * 60_000}
        assert drop_reads(items) == 4
        assert after({}) == 1


class Log(UnreliableConsensus):
    """The log of a store: counts what is asked of it, and lets others act before the next compare-and-set."""

    def __init__(self, store):
        super().__init__(store._committer.driver.consensus, self.decide)
        self.calls = Counter()
        self.before = None
        store._committer.driver.consensus = self

    def decide(self, operation, key):
        self.calls[operation] += 1
        if operation == "compare_and_set" and self.before is not None:
            before, self.before = self.before, None
            before()
        return Fault.NONE

    def cost(self, call):
        self.calls.clear()
        call()
        return dict(self.calls)


@pytest.mark.parametrize("options", [{}, {"asOf": "0"}, {"readChangeFeed": "true"}, {"readUpdates": "true"}])
def test_planning_a_read_looks_at_the_log_once_and_registers_one_lease_at_most(store, items, options):
    log = Log(store)
    asked = Options({"path": f"{store.location}/items", **options})
    assert log.cost(lambda: plan_read(items, asked)) == {"scan": 1, "compare_and_set": 1}
    assert log.cost(lambda: plan_read(items, asked)) == {"scan": 1}


def test_a_frame_of_rows_that_are_planned_does_not_look_at_the_log(store, items, monkeypatch):
    monkeypatch.setattr(to_spark, "check_workers", lambda spark: None)

    class Session:
        def range(self, *_):
            return self

        def mapInArrow(self, *_):
            return self

    log, session = Log(store), Session()
    with items.snapshot() as rows:
        assert log.cost(lambda: rows.to_spark(session, native=False)) == {}
    assert to_spark.release(session) == 1


def test_a_read_is_planned_on_the_state_that_has_its_lease(tmp_path):
    """Another process merges and sweeps what is there, after the look at the log and before the lease is in."""
    config = Config(inline_part_bytes=1)
    with ts.open(tmp_path, maintenance=False, config=config) as store:
        items = store.create("items", key={"id": "int64"}, timeline="counter")
        for id in range(4):
            items.append([{"id": id}])
        log = Log(store)

        def merge():
            with ts.open(tmp_path, maintenance=False, config=config) as other:
                other["items"].append([{"id": 9}])
                other["items"].compact(wait=True)
                other.maintain(sweep=True)

        log.before = merge
        made = plan_read(items, Options({"path": f"{store.location}/items"}))
        assert log.before is None
        found = [
            row["id"] for data in made.slices for batch in read_slice(made.reading, data) for row in batch.to_pylist()
        ]
        assert sorted(found) == [0, 1, 2, 3, 9]


def test_a_session_that_is_forgotten_gives_back_what_its_frames_held(items):
    class Session:
        pass

    items.append([{"id": n, "a": n, "b": n} for n in range(2, 5000)])  # in a blob: without one, no lease is taken
    session = Session()
    with items.snapshot() as rows:
        lease = rows._leased.lease
        before = len(lease.users)
        for _ in range(3):
            to_spark._keep(rows, session)
        assert len(lease.users) == before + 3
        assert to_spark.release(session) == 3
        assert len(lease.users) == before
        to_spark._keep(rows, session)
        del session
        gc.collect()
        assert len(lease.users) == before


NUMBERS = {"n": "uint64", "l": "list<uint64>", "s": "struct<a:uint32,b:list<uint64>>"}


def test_unsigned_numbers_come_back_from_inside_of_lists_and_structs(store):
    one, two = (store.create(name, key={"id": "int64"}, value=NUMBERS, timeline="counter") for name in ("one", "two"))
    most = 2**64 - 1
    one.append([{"id": 1, "n": most, "l": [most, None], "s": {"a": 7, "b": [most, 0]}}, {"id": 2}])
    read = source(store, "one")
    schema = read.schema()
    inner = DecimalType(20, 0)
    assert schema["s"].dataType["b"].dataType == ArrayType(inner)
    reader = read.reader(schema)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    for mode in ("append", "upsert"):
        sink = source(store, "two", mode=mode).writer(schema, overwrite=False)
        sink.commit([sink.write(iter(batches))])
        assert two.snapshot().to_pylist() == one.snapshot().to_pylist()
    wrong = pa.RecordBatch.from_pylist(
        [{"id": 3, "l": [-1]}], pa.schema({"id": pa.int64(), "l": pa.list_(pa.decimal128(20, 0))})
    )
    sink = source(store, "two").writer(StructType([schema["id"], schema["l"]]), overwrite=False)
    with pytest.raises(UsageError, match="do not fit"):
        sink.commit([sink.write(iter([wrong]))])


KEYS = StructType([StructField("id", LongType())])


def test_keys_to_delete_may_repeat_and_come_with_the_rest_of_a_change(items, store):
    items.append([{"id": 2, "a": 1, "b": 2}])
    fed = StructType([*KEYS, StructField("a", IntegerType()), StructField("_change_type", StringType())])
    sink = source(store, mode="delete").writer(fed, overwrite=False)
    batch = pa.record_batch({"id": [1, 1, 9], "a": pa.array([5, 6, 7], pa.int32()), "_change_type": ["delete"] * 3})
    sink.commit([sink.write(iter([batch])), sink.write(iter([batch]))])
    assert [row["id"] for row in items.snapshot().to_pylist()] == [2]
    with pytest.raises(UsageError, match="'more'"):
        source(store, mode="delete").writer(StructType([*KEYS, StructField("more", LongType())]), overwrite=False)
    with pytest.raises(UsageError, match="id"):
        source(store, mode="delete").writer(StructType([StructField("a", IntegerType())]), overwrite=False)
    null = source(store, mode="delete").writer(KEYS, overwrite=False)
    with pytest.raises(UsageError, match="nulls"):
        null.commit([null.write(iter([pa.record_batch({"id": pa.array([None], pa.int64())})]))])


def test_without_key_columns_whole_rows_are_deleted_and_nothing_is_upserted(store):
    log = store.create("log", value={"id": "int64"}, timeline="counter")
    log.append([{"id": 1}, {"id": 1}, {"id": 2}])
    sink = source(store, "log", mode="delete").writer(KEYS, overwrite=False)
    sink.commit([sink.write(iter([pa.record_batch({"id": [1]})]))])
    assert log.snapshot().to_pylist() == [{"id": 2}]
    with pytest.raises(UsageError, match="no key columns"):
        source(store, "log", mode="upsert").writer(KEYS, overwrite=False)
    store.create("nested", value={"l": "list<int64>"})
    lists = StructType([StructField("l", ArrayType(LongType()))])
    with pytest.raises(UsageError, match="no key columns"):
        source(store, "nested", mode="delete").writer(lists, overwrite=False)


def test_a_stream_may_find_its_checkpoint_in_the_settings_of_the_session(items, store):
    """Spark starts none without: the tasks tell which query it is."""
    sink = source(store).streamWriter(KEYS, overwrite=False)
    message = sink.write(iter([pa.record_batch({"id": [7]})]))
    with pytest.raises(UsageError, match="needs a name"):
        sink.commit([message], 0)
    message.query = "query"
    sink.commit([message], 0)
    assert items._handle.state().sinks == {"query": 0}


def test_updates_end_with_since_and_upper(items, store):
    """Their names are those of no column of the user's, whatever these are called."""
    assert source(store, readUpdates="true").schema().names[-2:] == ["_since", "_upper"]
    wanted = StructType([*KEYS, StructField("a", IntegerType()), StructField("b", IntegerType())])
    with pytest.raises(UsageError, match="updates end with the columns _since and _upper"):
        source(store, readUpdates="true").reader(wanted).partitions()
    read = loaded(store, readUpdates="true")
    before = read()
    assert [(row["_time"], row["_since"], row["_upper"]) for row in before] == [(0, 0, 1)]
    items.evolve(add={"_since": "int64"})
    assert source(store, readUpdates="true").schema().names[-2:] == ["_since_", "_upper"]
    assert read() == before


def test_types_are_said_as_sql_says_them_with_names_quoted():
    inner = StructType([StructField("x y", LongType()), StructField("a`b", ArrayType(DecimalType(20, 0)))])
    assert ddl_of(ArrayType(inner)) == "array<struct<`x y`: bigint, `a``b`: array<decimal(20,0)>>>"
