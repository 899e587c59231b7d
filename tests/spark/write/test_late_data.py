"""Rows at the times of a column: durable at once, part of the collection when a rule seals them, late ones by rule."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import timespine as ts
from timespine.client.commit.group_commit import GroupCommitter
from timespine.config import Config
from timespine.core.transitions import Write
from timespine.errors import Determinate, UsageError
from timespine.spark import foreach_batch
from timespine.spark.options import Options
from timespine.spark.write import driver_or_tasks
from timespine.spark.write.data_source_writer import stream_sink
from timespine.spark.write.seal_rule import SealRule, parse_seal_rule

BOTH = pytest.mark.parametrize("small_rows", [10_000, 1], ids=["driver", "executors"])
DDL = "id long, name string, t long"
TIMED = StructType([StructField("id", LongType()), StructField("t", LongType())])


@pytest.fixture
def events(store):
    return store.create("events", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


def batch(spark, *rows):
    return spark.createDataFrame(list(rows), DDL)


def sealed(collection):
    return [row["id"] for row in collection.snapshot().to_pylist()]


def unsealed(collection):
    return {row["id"]: row["_time"] for row in collection.unsealed().to_pylist()}


# The rule.


@pytest.mark.parametrize(
    ("text", "timeline", "delay"),
    [
        ("none", "clock", None),
        ("max", "counter", 0),
        ("MAX", "clock", 0),
        ("delay 5", "counter", 5),
        ("delay 10 minutes", "clock", 600_000),
        ("delay 0", "clock", 0),
    ],
)
def test_a_rule_for_the_seal_is_named(text, timeline, delay):
    assert parse_seal_rule(text, timeline) == SealRule(delay)


@pytest.mark.parametrize(
    ("text", "timeline", "says"),
    [
        ("later", "clock", "none, max, or a delay"),
        ("max 5", "counter", "none, max, or a delay"),
        ("delay", "counter", "none, max, or a delay"),
        (None, "counter", "none, max, or a delay"),
        ("delay 5", "clock", "has a unit"),
        ("delay 5 minutes", "counter", "a delay is a number"),
        ("delay -5", "counter", "a delay is a number"),
        ("delay 5 moons", "clock", "not a duration"),
    ],
)
def test_a_rule_that_says_nothing_is_an_error(text, timeline, says):
    with pytest.raises(UsageError, match=says):
        parse_seal_rule(text, timeline)


def test_what_a_rule_seals():
    assert SealRule(None).upper(7) is None
    assert SealRule(0).upper(None) is None
    assert SealRule(0).upper(7).elements == ((8,),)
    assert SealRule(7).upper(7).elements == ((1,),)
    assert SealRule(8).upper(7) is None


# foreach_batch.


@BOTH
def test_rows_out_of_order_are_durable_at_once_and_part_of_the_collection_when_their_time_is_sealed(
    events, spark, small_rows
):
    told = []
    write = foreach_batch(events, sink="s", times="t", seal="delay 3", done=lambda *each: told.append(each))
    write(batch(spark, (1, "a", 5), (2, "b", 9), (3, "c", 2)), 0)
    assert (sealed(events), unsealed(events)) == ([1, 3], {2: 9})
    assert events.upper.elements == ((7,),)
    write(batch(spark, (4, "d", 7), (5, "e", 8)), 1)  # of earlier times: it seals nothing
    assert events.upper.elements == ((7,),)
    write(batch(spark, (6, "f", 12), (7, "g", 11)), 2)
    assert (sealed(events), unsealed(events)) == ([1, 2, 3, 4, 5], {6: 12, 7: 11})
    assert [row["id"] for row in events.snapshot(as_of=7).to_pylist()] == [1, 3, 4]
    assert [(number, done.rows, done.first, done.last, done.late) for number, done in told] == [
        (0, 3, 2, 9, 0),
        (1, 2, 7, 8, 0),
        (2, 2, 11, 12, 0),
    ]
    assert events._handle.state().writers.keys() <= {events._handle.committer.session.writer}


@BOTH
@pytest.mark.parametrize(("late", "times"), [("move", {1: 10, 2: 12, 3: 10}), ("drop", {2: 12}), ("refuse", None)])
def test_rows_that_come_too_late_go_by_rule_and_are_counted(events, store, spark, small_rows, late, times):
    events.seal(10)
    told = []
    write = foreach_batch(events, sink="s", times="t", late=late, done=lambda *each: told.append(each[1]))
    frame = batch(spark, (1, "a", 3), (2, "b", 12), (3, "c", 9))
    if times is None:
        with pytest.raises(UsageError, match=r"rows at 3 come too late: events is complete up to \[10\]"):
            write(frame, 0)
        assert events._handle.state().sinks == {}
        times = {}
    else:
        write(frame, 0)
        assert (told[0].late, told[0].rows) == (2, len(times))
        counted = store.metrics()
        assert counted.get("late rows moved", 0) + counted.get("late rows dropped", 0) == 2
    assert unsealed(events) == times
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []


@BOTH
@pytest.mark.parametrize(("late", "times"), [("move", {1: 0, 2: 12}), ("drop", {2: 12})])
def test_times_of_any_width_and_before_all_others_go_by_rule_too(events, spark, small_rows, late, times):
    told = []
    write = foreach_batch(events, sink="s", times="t", late=late, done=lambda *each: told.append(each[1]))
    write(batch(spark, (1, "a", -3), (2, "b", 12)).withColumn("t", F.col("t").cast("int")), 0)
    assert (told[0].late, unsealed(events)) == (1, times)


@BOTH
def test_late_rows_push_no_seal_ahead_of_what_came(events, spark, small_rows):
    """Else rows in order would be too late because others were."""
    write = foreach_batch(events, sink="s", times="t", seal="max", late="move")
    write(batch(spark, (1, "a", 9)), 0)
    write(batch(spark, (2, "b", 3), (3, "c", 4)), 1)
    assert (events.upper.elements, unsealed(events)) == (((10,),), {2: 10, 3: 10})
    write(batch(spark, (4, "d", 10)), 2)
    assert sealed(events) == [1, 2, 3, 4]


@BOTH
def test_what_is_sealed_while_tasks_write_is_looked_at_again(events, spark, small_rows, monkeypatch):
    write = foreach_batch(events, sink="s", times="t", late="move")
    original = GroupCommitter.commit

    def commit(self, *pairs, **options):
        if any(isinstance(command, Write) for _, command in pairs):
            monkeypatch.undo()
            if small_rows == 1:
                monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 1)
            events.seal(7)
        return original(self, *pairs, **options)

    monkeypatch.setattr(GroupCommitter, "commit", commit)
    write(batch(spark, (1, "a", 3), (2, "b", 8)), 0)
    assert unsealed(events) == {1: 7, 2: 8}
    assert len([entry for entry in events.history() if entry.operation == "write"]) == 1


@BOTH
def test_a_batch_that_comes_again_is_passed_over(events, spark, small_rows, monkeypatch):
    write = foreach_batch(events, sink="s", times="t", seal="max")
    frame = batch(spark, (1, "a", 3), (2, "b", 8))
    write(frame, 0)
    before = events.history()
    write(frame, 0)
    assert events.history() == before
    # Also if the look before the commit does not see it: the commit does.
    monkeypatch.setattr("timespine.spark.sink_progress.SinkProgress.is_in", lambda *_: False)
    foreach_batch(events, sink="s", times="t", seal="max", late="move")(frame, 0)
    assert (events.history(), sealed(events), unsealed(events)) == (before, [1, 2], {})


@BOTH
def test_a_commit_that_fails_leaves_nothing_and_the_batch_goes_in_when_it_comes_again(
    events, store, spark, small_rows, monkeypatch
):
    write = foreach_batch(events, sink="s", times="t", seal="max")
    frame = batch(spark, *((id, "x" * 500, id) for id in range(40)))
    original = GroupCommitter.commit

    def commit(self, *pairs, **options):
        if any(isinstance(command, Write) for _, command in pairs):
            raise Determinate("storage is away")
        return original(self, *pairs, **options)

    with monkeypatch.context() as patched:
        patched.setattr(GroupCommitter, "commit", commit)
        with pytest.raises(Determinate):
            write(frame, 0)
    state = events._handle.state()
    assert (state.sinks, len(state.unsealed), state.upper.elements) == ({}, 0, ((0,),))
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []
    write(frame, 0)
    assert sealed(events) == list(range(40))


@BOTH
def test_a_batch_without_rows_is_recorded_too(events, spark, small_rows):
    write = foreach_batch(events, sink="s", times="t", seal="max", late="drop")
    write(batch(spark), 0)
    assert events._handle.state().sinks == {"s": 0}
    write(batch(spark, (1, "a", 9)), 1)
    write(batch(spark, (2, "b", 3), (3, "c", 4)), 2)  # all too late
    assert (events._handle.state().sinks, sealed(events), unsealed(events)) == ({"s": 2}, [1], {})


@BOTH
def test_times_may_be_points_of_the_wall_clock_or_a_column_that_is_kept(store, spark, small_rows):
    clicks = store.create("clicks", key={"id": "int64"}, value={"seen": "timestamp[UTC]"})
    moments = [datetime.datetime(2026, 5, 1, 12, minute, 0, 1999, tzinfo=datetime.UTC) for minute in (30, 10, 20)]
    frame = spark.createDataFrame(list(enumerate(moments)), "id long, seen timestamp")
    frame = frame.withColumn("seen", F.date_trunc("millisecond", "seen"))
    foreach_batch(clicks, sink="s", times="seen", seal="delay 15 minutes")(frame, 0)
    ms = [int(moment.timestamp() * 1000) for moment in moments]
    assert clicks.upper.elements == ((ms[0] - 15 * 60_000 + 1,),)
    assert sealed(clicks) == [1]
    assert {row["_time"] for row in clicks.unsealed().to_pylist()} == {ms[0], ms[2]}
    dated = store.create("dated", key={"id": "int64"})
    days = spark.sql("SELECT 1L AS id, DATE'2026-05-01' AS day UNION ALL SELECT 2L, DATE'2026-05-02'")
    assert dated.write(days, times="day").rows == 2
    assert sorted(row["_time"] for row in dated.unsealed().to_pylist()) == [1777593600000, 1777680000000]


@BOTH
def test_frames_are_written_ahead_of_the_seal_by_the_collection_too(events, spark, small_rows):
    frame = batch(spark, (1, "a", 5), (2, "b", 3))
    assert events.write(frame, times="t").rows == 2
    assert events.write(frame.withColumnRenamed("t", "_time")).rows == 2
    gone = batch(spark, (1, "a", 6)).withColumn("_diff", F.lit(-2).cast("long"))
    assert events.write(gone, times="t").rows == 1
    assert events.write(frame.drop("t"), at=7).rows == 2
    events.seal(7)
    assert events.snapshot(as_of=5).to_pylist() == [{"id": 1, "name": "a"}] * 2 + [{"id": 2, "name": "b"}] * 2
    assert sealed(events) == [2, 2]
    with pytest.raises(UsageError, match="either `at`"):
        events.write(frame, at=9, times="t")


@BOTH
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda frame: frame.drop("t"), "no column 't' to take times from"),
        (lambda frame: frame.withColumn("t", F.lit(None).cast("long")), "nulls: every row needs a time"),
        (lambda frame: frame.withColumn("t", F.lit(-1).cast("long")), "below zero"),
        (lambda frame: frame.withColumn("t", F.lit("soon")), "holds string"),
        (lambda frame: frame.withColumn("t", F.current_timestamp()), "give whole numbers"),
        (lambda frame: frame.withColumn("_time", F.lit(1)), "times of their own in _time"),
        (lambda frame: frame.withColumn("other", F.lit(1)), "other"),
        (lambda frame: frame.withColumn("id", F.lit(None).cast("long")), "of the key has nulls"),
    ],
)
def test_rows_that_do_not_fit_are_one_clear_error_and_nothing_is_written(events, spark, small_rows, change, says):
    with pytest.raises(UsageError, match=says):
        foreach_batch(events, sink="s", times="t", seal="max")(change(batch(spark, (1, "a", 3), (2, "b", 4))), 0)
    state = events._handle.state()
    assert (state.sinks, len(state.unsealed), state.upper.elements) == ({}, 0, ((0,),))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "upsert", "times": "t"},
        {"seal": "max"},
        {"late": "move"},
        {"times": "t", "late": "ignore"},
        {"times": "t", "seal": "now"},
    ],
)
def test_what_cannot_be_meant_is_said_at_the_start(events, wrong):
    with pytest.raises(UsageError):
        foreach_batch(events, sink="s", **wrong)


def test_zoneless_times_could_be_anywhere(store, spark):
    clicks = store.create("clicks", key={"id": "int64"})
    frame = spark.sql("SELECT 1L AS id, TIMESTAMP_NTZ'2026-05-01 00:00:00' AS t")
    with pytest.raises(UsageError, match="has no zone"):
        clicks.write(frame, times="t")


# The sink.


def to_sink(frame, store, name="events", **options):
    writer = frame.write.format("timespine").mode("append")
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save(f"{store.location}/{name}")


def test_the_sink_writes_by_a_column_of_times_and_seals_by_rule(events, store, spark):
    to_sink(batch(spark, (1, "a", 5), (2, "b", 9)), store, timeColumn="t", seal="delay 3")
    assert (sealed(events), unsealed(events)) == ([1], {2: 9})
    with pytest.raises(PySparkException, match="rows at 4 come too late"):
        to_sink(batch(spark, (3, "c", 4)), store, timeColumn="t", seal="max")
    to_sink(batch(spark, (3, "c", 4), (4, "d", 8)), store, timeColumn="t", late="move")
    to_sink(batch(spark, (5, "e", 4)), store, timeColumn="t", late="drop")
    assert unsealed(events) == {2: 9, 3: 7, 4: 8}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"timeColumn": "t", "mode": "upsert"}, "leave out mode"),
        ({"timeColumn": "t", "time": "3"}, "leave out mode"),
        ({"timeColumn": "t", "seal": "soon"}, "none, max, or a delay"),
        ({"timeColumn": "t", "late": "maybe"}, "late is one of"),
        ({"seal": "max"}, "name the column"),
        ({"timeColumn": "nothing"}, "no column 'nothing'"),
    ],
)
def test_options_of_the_sink_that_cannot_be_meant_are_errors(events, store, wrong, says):
    options = Options({"path": f"{store.location}/events", **wrong})
    with pytest.raises(UsageError, match=says):
        stream_sink(options, TIMED, overwrite=False)


def test_a_stream_through_the_sink_is_written_ahead_of_the_seal_once(events, store, spark, tmp_path):
    source = store.create("source", key={"id": "int64"}, value={"name": "string", "t": "int64"}, timeline="counter")
    frame = spark.readStream.format("timespine").load(f"{store.location}/source")
    checkpoint = tmp_path / "checkpoint"

    def ran(**options):
        writer = frame.writeStream.format("timespine").option("checkpointLocation", str(checkpoint))
        for key, value in options.items():
            writer = writer.option(key, value)
        query = writer.trigger(availableNow=True).start(f"{store.location}/events")
        assert query.awaitTermination(120)

    source.append([{"id": 1, "name": "a", "t": 5}, {"id": 2, "name": "b", "t": 3}])
    ran(timeColumn="t", seal="max")
    assert sealed(events) == [1, 2]
    (last,) = (checkpoint / "commits").glob("[0-9]*")
    for each in (last, last.with_name(f".{last.name}.crc")):
        each.unlink(missing_ok=True)
    source.append([{"id": 3, "name": "c", "t": 4}, {"id": 4, "name": "d", "t": 9}])
    ran(timeColumn="t", seal="max", late="move")
    assert events.updates().to_arrow().select(["id", "_time"]).to_pylist() == [
        {"id": 1, "_time": 5},
        {"id": 2, "_time": 3},
        {"id": 3, "_time": 6},
        {"id": 4, "_time": 9},
    ]


@pytest.mark.parametrize("late", ["refuse", "move"])
def test_an_empty_batch_of_the_sink_is_noted_and_each_has_a_writer(events, store, late):
    """Batches seal while tasks write: what is late is decided by the process that commits."""
    options = Options(
        {"path": f"{store.location}/events", "sinkId": "s", "timeColumn": "t", "seal": "max", "late": late}
    )

    def begun():
        sink = stream_sink(options, TIMED, overwrite=False)
        sink.begin()
        return sink

    sink = begun()
    sink.commit([sink.write(iter([]))], 0)
    assert events._handle.state().sinks == {"s": 0}
    for number in (1, 2):
        sink = begun()
        sink.commit([sink.write(iter([pa.record_batch({"id": [number], "t": [10 * number]})]))], number)
    assert events.upper.elements == ((21,),)
    sink = begun()
    message = sink.write(iter([pa.record_batch({"id": [3], "t": [15]})]))
    if late == "refuse":
        with pytest.raises(UsageError, match="too late"):
            sink.commit([message], 3)
        sink.abort([message], 3)
    else:
        sink.commit([message], 3)
    assert unsealed(events) == ({3: 21} if late == "move" else {})


def test_tasks_that_write_little_fill_the_state_no_further_than_it_may(tmp_path, spark):
    """What is tiny is inline until there is no room: then it goes to blobs, and nothing is refused."""
    with ts.open(tmp_path / "store", maintenance=False, config=Config(inline_total_bytes=3000)) as store:
        events = store.create("events", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        options = Options({"path": f"{store.location}/events", "sinkId": "s"})
        schema = StructType([StructField("id", LongType())])
        for number in range(12):
            sink = stream_sink(options, schema, overwrite=False)
            sink._handle = lambda: events._handle
            sink.begin()
            sink.commit([sink.write(iter([pa.record_batch({"id": [number]})]))], number)
        assert sealed(events) == list(range(12))
        assert 0 < events._handle.state().inline_bytes <= 3000
