"""Streams: every batch exactly once, every change once, and history is held for as long as somebody follows it."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from timespine.errors import UsageError
from timespine.spark import drop_hold, drop_sink, foreach_batch
from timespine.spark.options import Options
from timespine.spark.read.stream_reader import FeedReader
from timespine.spark.sink_progress import SinkProgress, find_query
from timespine.spark.write.data_source_writer import stream_sink

WAIT_S = 120


@pytest.fixture
def orders(store):
    return store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


@pytest.fixture
def copy(store):
    return store.create("copy", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


def followed(spark, store, name="orders", **options):
    reader = spark.readStream.format("timespine").option("readChangeFeed", "true")
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load(f"{store.location}/{name}")


def changes_of(frame):
    return frame.select("id", "name", "_change_type")


def ran(writer, path=None):
    """Run a query until it has read all that there is."""
    query = writer.trigger(availableNow=True).start(*([path] if path else []))
    assert query.awaitTermination(WAIT_S)
    return query


def to_sink(frame, store, checkpoint, mode="upsert", name="copy", **options):
    writer = frame.writeStream.format("timespine").option("checkpointLocation", str(checkpoint)).option("mode", mode)
    for key, value in options.items():
        writer = writer.option(key, value)
    return ran(writer, f"{store.location}/{name}")


def rows(collection):
    return {row["id"]: row["name"] for row in collection.snapshot().to_pylist()}


def test_a_feed_through_the_sink_makes_a_copy_and_goes_on_where_it_was(orders, copy, store, spark, tmp_path):
    orders.append([{"id": id, "name": "a"} for id in range(50)])
    orders.upsert([{"id": id, "name": "b"} for id in range(25)])
    checkpoint = tmp_path / "checkpoint"
    frame = changes_of(followed(spark, store))
    to_sink(frame, store, checkpoint)
    assert rows(copy) == rows(orders)
    assert len(copy.history()) == 1
    orders.delete([{"id": 3}])
    orders.upsert([{"id": 4, "name": "c"}, {"id": 99, "name": "new"}])
    to_sink(frame, store, checkpoint)
    assert rows(copy) == rows(orders)
    assert len(copy.history()) == 2
    to_sink(frame, store, checkpoint)
    assert len(copy.history()) == 2
    (record,) = copy._handle.state().sinks
    assert record == find_query(str(checkpoint))
    (hold,) = orders._handle.state().holds
    assert drop_hold(orders, hold)
    assert not drop_hold(orders, hold)
    assert drop_sink(copy, record) == 1


def test_a_batch_that_comes_again_is_passed_over(orders, copy, store, spark, tmp_path):
    """Spark died after the commit and before it noted that the batch was done."""
    checkpoint = tmp_path / "checkpoint"
    frame = changes_of(followed(spark, store))
    orders.append([{"id": 1, "name": "a"}])
    to_sink(frame, store, checkpoint)
    before = copy.history()
    (last,) = sorted((checkpoint / "commits").glob("[0-9]*"))
    last.unlink()
    for crc in (checkpoint / "commits").glob(".*.crc"):
        crc.unlink()
    to_sink(frame, store, checkpoint)
    assert copy.history() == before
    assert rows(copy) == {1: "a"}


def test_appended_rows_come_once_though_the_batch_came_twice(orders, store, spark, tmp_path):
    log = store.create("log", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    checkpoint = tmp_path / "checkpoint"
    orders.append([{"id": id, "name": "x" * 100} for id in range(300)])
    frame = followed(spark, store).select("id", "name", "_diff")
    to_sink(frame, store, checkpoint, mode="append", name="log")
    assert log.count() == 300
    shutil.rmtree(checkpoint / "commits")
    to_sink(frame, store, checkpoint, mode="append", name="log")
    assert log.count() == 300
    orders.delete([{"id": 7}])
    to_sink(frame, store, checkpoint, mode="append", name="log")
    assert rows(log) == rows(orders)
    # What the batch that was passed over had put is gone, or will be with its writer.
    store.maintain(sweep=True)
    assert log.count() == 299


def test_rows_of_a_batch_never_change_what_was_read_before_it_was_committed(orders, store):
    """Others may have committed while its tasks wrote, or another batch of the same sink."""
    orders.append([{"id": 0, "name": "first"}])
    options = Options({"path": f"{store.location}/orders", "sinkId": "sink"})
    for batch in range(3):
        sink = stream_sink(options, NAMED, overwrite=False)
        sink.begin()
        rows = pa.record_batch({"id": [10 + batch], "name": [f"batch {batch}"]})
        message = sink.write(iter([rows]))
        orders.append([{"id": 20 + batch, "name": "other"}])
        before = [rows_as_of(orders, time) for time in range(orders.upper.elements[0][0])]
        sink.commit([message], batch)
        assert orders.changes(after=len(before) - 1).to_pylist() == [
            {"id": 10 + batch, "name": f"batch {batch}", "_diff": 1}
        ]
        orders.compact(wait=True)
        assert [rows_as_of(orders, time) for time in range(len(before))] == before
        assert 10 + batch in rows_as_of(orders, len(before))


def sink_of(store, name, schema, **options):
    given = {"path": f"{store.location}/{name}", "sinkId": "sink", **options}
    return stream_sink(Options(given), schema, overwrite=False)


NAMED = StructType([StructField("id", LongType()), StructField("name", StringType())])


def test_a_stream_does_not_go_on_with_another_collection_of_the_same_name(orders, store):
    reader = FeedReader(Options({"path": f"{store.location}/orders"}))
    orders.append([{"id": 1, "name": "a"}])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert start["collection"] == end["collection"] == orders.id
    other = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter", replace=True)
    for id in range(3):
        other.append([{"id": id, "name": "b"}])
    again = FeedReader(Options({"path": f"{store.location}/orders"}))
    for goes_on in (
        lambda: again.latestOffset(end, ReadAllAvailable()),
        lambda: again.partitions(start, end),
        lambda: again.commit(end),
    ):
        with pytest.raises(UsageError, match=r"another collection than the one .* checkpoint"):
            goes_on()
    assert other._handle.state().holds == {}
    old = {name: value for name, value in end.items() if name != "collection"}
    assert again.latestOffset(old, ReadAllAvailable()) == {**end, "after": 2, "collection": other.id}


def test_a_sink_does_not_go_on_with_another_collection_of_the_same_name(copy, store):
    def batch(sink, number):
        message = sink.write(iter([pa.record_batch({"id": [number], "name": ["a"]})]))
        sink.commit([message], number)

    sink = sink_of(store, "copy", NAMED)
    sink.commit([sink.write(iter([]))], 0)  # no rows, and noted all the same: it is the first
    assert copy._handle.state().sinks == {"sink": 0}
    assert copy.history() == []
    batch(sink, 1)
    other = store.create("copy", key={"id": "int64"}, value={"name": "string"}, timeline="counter", replace=True)
    with pytest.raises(UsageError, match="batch 2 is the first one of sink sink that comes to this collection"):
        batch(sink_of(store, "copy", NAMED), 2)
    assert other.history() == []
    with pytest.raises(UsageError, match="first_batch=2"):
        foreach_batch(other, sink="sink", first_batch=1)(None, 2)
    batch(sink_of(store, "copy", NAMED, firstBatch="2"), 2)
    batch(sink_of(store, "copy", NAMED), 3)
    assert rows(other) == {2: "a", 3: "a"}


def test_an_update_of_a_clustered_collection_is_one_in_its_copy(copy, store):
    """Its images lie in different places, so a feed gives them as a row that goes and one that comes."""
    value = {"name": "string"}
    source = store.create("source", key={"id": "int64"}, value=value, cluster=["name"], timeline="counter")
    fed = [*NAMED, StructField("_change_type", StringType()), StructField("_commit_version", LongType())]
    sink = sink_of(store, "copy", StructType(fed), mode="upsert", sequenceBy="_commit_version")
    reader = FeedReader(Options({"path": f"{store.location}/source", "readChangeFeed": "true"}))
    offset = reader.initialOffset()
    for number, names in enumerate(({1: "m", 2: "m"}, {1: "a", 2: "z"})):
        source.upsert([{"id": id, "name": name} for id, name in names.items()])
        start, offset = offset, reader.latestOffset(offset, ReadAllAvailable())
        batches = [batch for each in reader.partitions(start, offset) for batch in reader.read(each)]
        columns = [field.name for field in fed]
        sink.commit([sink.write(iter([batch.select(columns)])) for batch in batches], number)
        assert rows(copy) == names
    reader.stop()


def test_two_helpers_in_one_batch_need_a_name_each(orders, copy, store, spark, tmp_path):
    orders.append([{"id": 1, "name": "comes"}, {"id": 2, "name": "goes"}])
    copy.append([{"id": 2, "name": "old"}])
    upserts, deletes = (foreach_batch(copy, mode, sink=f"{mode}s") for mode in ("upsert", "delete"))
    nameless = store.create("nameless", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    one, other = foreach_batch(nameless, "upsert"), foreach_batch(nameless, "delete")
    said = []

    def both(frame, batch):
        upserts(frame.filter("name = 'comes'"), batch)
        deletes(frame.filter("name = 'goes'").select("id"), batch)
        one(frame, batch)
        with pytest.raises(UsageError, match="give each of them a name of its own"):
            other(frame.select("id"), batch)
        said.append(batch)

    frame = spark.readStream.format("timespine").load(f"{store.location}/orders")
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):  # the second time as if Spark had died before it noted that the batch was done
        ran(frame.writeStream.foreachBatch(both).option("checkpointLocation", str(checkpoint)))
        assert rows(copy) == {1: "comes"}
        assert rows(nameless) == {1: "comes", 2: "goes"}
        assert len(copy.history()) == 3
        shutil.rmtree(checkpoint / "commits")
    assert said == [0, 0]


def test_what_a_helper_refuses_stands_in_the_first_line_of_the_error_of_its_query(copy, spark, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text('{"id": 1, "nothing": 2}')
    frame = spark.readStream.schema("id bigint, nothing bigint").json(str(tmp_path / "files"))
    writer = frame.writeStream.foreachBatch(foreach_batch(copy, "upsert"))
    with pytest.raises(PySparkException) as raised:
        ran(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    said = str(raised.value).splitlines()
    assert "timespine.errors." in said[0], said[0]
    assert "nothing" in said[0], said[0]
    assert "Traceback" not in said[0], said[0]


def rows_as_of(collection, time):
    return {row["id"]: row["name"] for row in collection.snapshot(time).to_pylist()}


def test_a_fresh_checkpoint_under_a_sink_in_use_is_an_error(orders, copy, store, spark, tmp_path):
    orders.append([{"id": 1, "name": "a"}])
    frame = changes_of(followed(spark, store))
    to_sink(frame, store, tmp_path / "first", sinkId="copies")
    with pytest.raises(PySparkException, match="belongs to another checkpoint"):
        to_sink(frame, store, tmp_path / "second", sinkId="copies")
    assert drop_sink(copy, "copies") == 1
    to_sink(frame, store, tmp_path / "second", sinkId="copies")
    assert rows(copy) == {1: "a"}


def test_a_sink_needs_something_to_be_known_by():
    with pytest.raises(UsageError, match="checkpointLocation"):
        SinkProgress(None, None).check()
    with pytest.raises(UsageError, match="longer"):
        SinkProgress("x" * 50, None).check()
    with pytest.raises(UsageError, match="sink id"):
        SinkProgress("Not A Name", None).check()
    assert find_query(None) is None
    assert find_query("/nowhere") is None


def test_mistakes_are_said_before_anything_is_written(orders, copy, store, spark, tmp_path):
    orders.append([{"id": 1, "name": "a"}])
    frame = changes_of(followed(spark, store))
    for wrong, says in (
        ({"mode": "merge"}, "append, upsert or delete"),
        ({"sequenceBy": "nothing"}, "nothing"),
        ({"modes": "upsert"}, "no option .modes"),
    ):
        with pytest.raises(PySparkException, match=says):
            to_sink(frame, store, tmp_path / says[:6], **wrong)
    assert copy.history() == []


def test_the_last_of_several_changes_counts_by_its_sequence(orders, copy, store, spark, tmp_path):
    changes = store.create("changes", key={"n": "int64"}, value={"id": "int64", "name": "string", "op": "string"})
    changes.append(
        [
            {"n": 1, "id": 1, "name": "a", "op": "insert"},
            {"n": 2, "id": 1, "name": "b", "op": "update"},
            {"n": 3, "id": 2, "name": "c", "op": "insert"},
            {"n": 4, "id": 2, "name": "c", "op": "delete"},
            {"n": 5, "id": 3, "name": "d", "op": "insert"},
        ]
    )
    frame = spark.readStream.format("timespine").load(f"{store.location}/changes")
    frame = frame.select("id", "name", "n", F.col("op").alias("_change_type"))
    to_sink(frame, store, tmp_path / "checkpoint", sequenceBy="n")
    assert rows(copy) == {1: "b", 3: "d"}
    with pytest.raises(PySparkException, match="repeat the key"):
        to_sink(frame.drop("n"), store, tmp_path / "other", sinkId="other")


def test_a_stream_of_rows_that_only_come_fails_when_one_goes(orders, store, spark, tmp_path):
    log = store.create("log", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    orders.append([{"id": 1, "name": "a"}])
    frame = spark.readStream.format("timespine").load(f"{store.location}/orders")
    to_sink(frame, store, tmp_path / "checkpoint", mode="append", name="log")
    assert rows(log) == {1: "a"}
    orders.delete([{"id": 1}])
    with pytest.raises(PySparkException, match="readChangeFeed"):
        to_sink(frame, store, tmp_path / "checkpoint", mode="append", name="log")
    assert rows(log) == {1: "a"}


def test_batches_stay_within_the_limit_and_offsets_are_frontiers(orders, copy, store, spark, tmp_path):
    for start in range(0, 100, 10):
        orders.append([{"id": id, "name": "a"} for id in range(start, start + 10)])
    checkpoint = tmp_path / "checkpoint"
    told = []
    frame = changes_of(followed(spark, store, maxRowsPerTrigger=25))
    writer = frame.writeStream.foreachBatch(foreach_batch(copy, "upsert", done=lambda *told_: told.append(told_)))
    ran(writer.option("checkpointLocation", str(checkpoint)))
    assert [done.rows for _, done in told] == [20, 20, 20, 20, 20]
    assert rows(copy) == rows(orders)
    last = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    assert json.loads(last.read_text().splitlines()[-1])["after"] == 9


def test_history_that_a_stream_still_needs_is_held(orders, copy, store, spark, tmp_path):
    orders.append([{"id": 1, "name": "a"}])
    frame = changes_of(followed(spark, store, hold="follower"))
    to_sink(frame, store, tmp_path / "checkpoint")
    orders.upsert([{"id": 1, "name": "b"}])
    orders.upsert([{"id": 1, "name": "c"}])
    assert "hold follower" in orders.expire(before=2).held_by
    orders.compact(wait=True)
    to_sink(frame, store, tmp_path / "checkpoint")
    assert rows(copy) == {1: "c"}


def test_a_query_that_has_read_all_there_is_holds_only_what_comes_next(orders, copy, store, spark, tmp_path):
    for name in "abc":
        orders.upsert([{"id": 1, "name": name}])
    to_sink(changes_of(followed(spark, store, maxRowsPerTrigger=1)), store, tmp_path / "checkpoint")
    # That the last batch is done is not known before the next one: its hold is where the batch began.
    assert orders.expire(before=2).since.elements == ((1,),)
    assert orders._handle.state().readers == {}


def test_a_stream_may_begin_at_a_time_or_with_what_comes_next(orders, copy, store, spark, tmp_path):
    for id in range(5):
        orders.append([{"id": id, "name": "a"}])
    to_sink(changes_of(followed(spark, store, startingVersion=3)), store, tmp_path / "third")
    assert sorted(rows(copy)) == [3, 4]
    latest = changes_of(followed(spark, store, startingVersion="latest"))
    to_sink(latest, store, tmp_path / "latest", sinkId="latest")
    orders.append([{"id": 9, "name": "z"}])
    to_sink(latest, store, tmp_path / "latest", sinkId="latest")
    assert sorted(rows(copy)) == [3, 4, 9]


def test_foreach_batch_is_exactly_once_and_tells_what_it_did(orders, copy, store, spark, tmp_path):
    write = foreach_batch(copy, "upsert", sink="each")
    frame = spark.createDataFrame([(1, "a")], "id long, name string")
    write(frame, 0)
    write(frame, 0)
    assert len(copy.history()) == 1
    foreach_batch(copy, "delete", sink="each")(spark.createDataFrame([(1,)], "id long"), 1)
    assert rows(copy) == {}
    foreach_batch(copy, sink="each")(frame, 2)
    foreach_batch(copy, sink="each")(frame.limit(0), 3)
    assert rows(copy) == {1: "a"}
    with pytest.raises(UsageError, match="another checkpoint"):
        write(frame, 1)
    with pytest.raises(UsageError, match="needs a name"):
        foreach_batch(copy)(frame, 5)
    for wrong in ({"mode": "x"}, {"sequence_by": "id"}):
        with pytest.raises(UsageError):
            foreach_batch(copy, **wrong)
