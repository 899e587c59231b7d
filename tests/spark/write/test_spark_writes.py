"""Frames of Spark are written as any other rows are: small ones by the driver, large ones by the executors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from every_type import VALUES, canonical, row
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from timespine.core.transitions import AdvanceUpper
from timespine.errors import SchemaChanged, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.spark.write import driver_or_tasks, write_task
from timespine.spark.write.delta_by_tasks import DeltaByTasksStep

BOTH = pytest.mark.parametrize("small_rows", [10_000, 1], ids=["driver", "executors"])


@pytest.fixture
def items(store):
    return store.create("items", key={"id": "int64"}, value={"name": "string", "wide": "uint64"}, timeline="counter")


def frame(spark, start, stop, name="a", step=1):
    return spark.range(start, stop, step).select("id", F.lit(name).alias("name"), F.col("id").alias("wide"))


def names(collection, as_of=None):
    return {row["id"]: row["name"] for row in collection.snapshot(as_of).to_pylist()}


@BOTH
def test_append_upsert_and_delete_in_one_commit_each(items, spark, small_rows):
    done = items.append(frame(spark, 0, 500))
    assert (done.time, done.rows) == (0, 500)
    assert items.upsert(frame(spark, 400, 700, "b")).rows == 100 + 300
    assert items.delete(spark.range(0, 50)).rows == 50
    wanted = {id: "b" if id >= 400 else "a" for id in range(50, 700)}
    assert names(items) == wanted
    assert names(items, 0) == dict.fromkeys(range(500), "a")
    assert items.snapshot().to_arrow().column("wide").type == pa.uint64()
    assert [entry.operation for entry in items.history()] == ["append", "upsert", "delete"]
    assert items.upsert(frame(spark, 400, 700, "b")).rows == 0
    assert len(items.history()) == 3


@BOTH
def test_rows_of_every_type_come_back_as_they_went(store, spark, small_rows, tmp_path):
    first, second, third = (
        store.create(name, key={"id": "int64"}, value=VALUES, timeline="counter") for name in ("one", "two", "three")
    )
    first.append([row(id) for id in range(200)])
    frame = first.snapshot().to_spark(spark)
    second.append(frame)
    second.upsert(frame)
    frame.write.format("timespine").mode("append").save(f"{store.location}/three")
    wanted = canonical(first.snapshot().to_arrow())
    assert canonical(second.snapshot().to_arrow()) == canonical(third.snapshot().to_arrow()) == wanted
    assert [len(each.history()) for each in (second, third)] == [1, 1]


@BOTH
def test_columns_may_be_called_what_they_like(store, spark, small_rows):
    items = store.create("odd", key={"a.b": "int64"}, value={"c`d": "string"}, timeline="counter")
    rows = spark.range(20).select(F.col("id").alias("a.b"), F.lit("x").alias("c`d"))
    items.append(rows)
    items.upsert(rows.select("`a.b`", F.lit("y").alias("c`d")))
    items.delete(rows.where("`a.b` < 15"))
    assert items.snapshot().to_pylist() == [{"a.b": id, "c`d": "y"} for id in range(15, 20)]
    assert sorted(map(tuple, items.snapshot().to_spark(spark).collect())) == [(id, "y") for id in range(15, 20)]


@BOTH
def test_diffs_and_times_may_come_with_the_rows(items, spark, small_rows):
    items.append(frame(spark, 0, 10))
    gone = frame(spark, 0, 5).withColumn("_diff", F.lit(-1).cast("long")).withColumn("_time", F.col("id") + 3)
    done = items.append(gone, upper=9)
    assert (done.time, done.upper) == (None, Frontier.at(9))
    assert len(names(items, 3)) == 9
    assert len(names(items)) == 5
    with pytest.raises(UsageError, match="too late"):
        items.append(gone)
    with pytest.raises(UsageError, match="at or after"):
        items.append(gone.withColumn("_time", F.lit(20).cast("long")), upper=15)
    assert items.append(frame(spark, 100, 110), at=12).time == 12
    with pytest.raises(UpperMismatch):
        items.append(frame(spark, 200, 210), expected_upper=5)
    assert items.append(frame(spark, 200, 210), expected_upper=13).time == 13


@BOTH
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda f: f.withColumn("more", F.lit(1)), "column 'more'"),
        (lambda f: f.withColumn("name", F.lit(1)), "'name'"),
        (lambda f: f.drop("id"), "the rows lack the key column 'id'"),
        (lambda f: f.withColumn("id", F.when(F.col("id") > 3, F.col("id"))), "of the key has nulls"),
        (lambda f: f.withColumn("wide", F.lit(-1).cast("long")), "does not fit uint64"),
    ],
    ids=["unknown", "type", "no key", "null key", "range"],
)
def test_rows_that_do_not_fit_are_one_clear_error_and_nothing_is_committed(items, spark, small_rows, wrong, says):
    before = items._handle.state().seqno
    for write in (items.append, items.upsert):
        with pytest.raises(UsageError, match=says):
            write(wrong(frame(spark, 0, 20)))
    assert items.history() == []
    assert not items._handle.state().writers or items._handle.state().seqno >= before
    assert list(items._handle.context.blob.list_keys(f"{items.id}/")) == []


@BOTH
def test_a_key_that_is_upserted_twice_is_an_error(items, spark, small_rows):
    with pytest.raises(UsageError, match="repeat the key"):
        items.upsert(frame(spark, 0, 20).union(frame(spark, 19, 30)))
    assert items.history() == []


def beside(monkeypatch, items, *works):
    """Let others do something as soon as tasks have worked out a change; how often they did that."""
    original, calls, left = driver_or_tasks.run_write_tasks, [], list(works)

    def racing(*arguments, **options):
        sent = original(*arguments, **options)
        calls.append(arguments)
        if left:
            left.pop(0)()
        return sent

    monkeypatch.setattr("timespine.spark.write.delta_by_tasks.run_write_tasks", racing)
    items._handle.changing = _Open()  # the same thread plays both
    return calls


@pytest.mark.parametrize("small_rows", [1])
def test_an_upsert_by_tasks_is_patched_by_what_others_committed_first(items, spark, small_rows, monkeypatch):
    items.append(frame(spark, 0, 100))
    jobs = beside(monkeypatch, items, lambda: items.upsert([{"id": 7, "name": "other", "wide": 1}]))
    done = items.upsert(frame(spark, 5, 10, "b"))
    assert names(items, 1)[7] == "other"
    assert names(items)[7] == "b"
    assert items.count() == 100
    assert len(jobs) == 1
    counters = items._handle.committer.counters
    assert (counters["changes read"], counters["changes patched"]) == (2, 1)
    assert "changes started again" not in counters
    assert done.seqno == items._handle.state().seqno


@pytest.mark.parametrize("small_rows", [1])
@pytest.mark.parametrize("mode", ["upsert", "delete"])
def test_rows_of_other_keys_only_move_a_change_by_tasks(items, spark, small_rows, monkeypatch, mode):
    items.append(frame(spark, 0, 100))
    jobs = beside(monkeypatch, items, lambda: items.append([{"id": 1000 + i, "name": "other"} for i in range(20)]))
    rows = frame(spark, 5, 10, "b")
    done = items.upsert(rows) if mode == "upsert" else items.delete(rows.select("id"))
    assert done.time == 2
    assert set(names(items, 1)) == {*range(100), *range(1000, 1020)}
    gone = set(range(5, 10)) if mode == "delete" else set()
    assert set(names(items)) == {*range(100), *range(1000, 1020)} - gone
    assert len(jobs) == 1
    assert "changes patched" not in items._handle.committer.counters


@pytest.mark.parametrize("small_rows", [1])
@pytest.mark.parametrize("deletes", [False, True], ids=["upsert", "delete"])
def test_a_change_by_tasks_in_a_transaction_follows_what_others_committed(
    items, store, spark, small_rows, monkeypatch, deletes
):
    items.append(frame(spark, 0, 100))
    notes = store.create("notes", key={"id": "int64"}, timeline="counter")
    jobs = beside(monkeypatch, items, lambda: items.append([{"id": 7, "name": "more"}, {"id": 777, "name": "other"}]))
    with store.transaction() as tx:
        rows = frame(spark, 5, 10, "b")
        tx._add(DeltaByTasksStep(items._handle, "change", rows.select("id") if deletes else rows, deletes))
        tx.append(notes, [{"id": 1}])
    assert tx.time == 2
    assert tx.replies[0].time == tx.replies[1].time == 2
    left = {*range(5), *range(10, 100), 777}
    assert set(names(items)) == (left if deletes else {*range(100), 777})
    assert items.count() == len(names(items)), "each key once"
    assert len(jobs) == 1
    assert items._handle.committer.counters["changes patched"] == 1


@pytest.mark.parametrize("small_rows", [1])
@pytest.mark.parametrize("how", ["append", "write"])
def test_a_column_dropped_while_executors_write_refuses_their_rows(items, spark, small_rows, monkeypatch, how):
    _race(monkeypatch, lambda: items.evolve(drop=["name"]))
    with pytest.raises(SchemaChanged, match="column name was dropped in items"):
        _put(items, frame(spark, 0, 100), how)
    assert items.count() == 0
    assert list(items.unsealed().to_pylist()) == []


@pytest.mark.parametrize("small_rows", [1])
@pytest.mark.parametrize("how", ["append", "write", "upsert"])
def test_a_column_added_while_executors_write_has_its_default_in_their_rows(items, spark, small_rows, monkeypatch, how):
    # A change is worked out again, and knows the columns by their names: a rename would be an error then.
    name = "name" if how == "upsert" else "title"
    rename = {} if how == "upsert" else {"name": name}
    _race(monkeypatch, lambda: items.evolve(add={"more": ("int64", 3)}, rename=rename))
    _put(items, frame(spark, 0, 100), how)
    assert {(row[name], row["more"]) for row in items.snapshot().to_pylist()} == {("a", 3)}
    assert items.count() == 100


def _put(items, rows, how):
    if how == "write":
        items.write(rows.withColumn("_time", F.lit(1).cast("bigint")))
        items.seal(2)
    else:
        getattr(items, how)(rows)


def _race(monkeypatch, happens):
    """Let something happen once, when the tasks have written their rows and the driver has not committed them."""
    original, raced = driver_or_tasks.run_write_tasks, []

    def racing(*arguments, **options):
        sent = original(*arguments, **options)
        if not raced:
            raced.append(happens())
        return sent

    for module in ("write_unsealed", "delta_by_tasks", "driver_or_tasks"):
        monkeypatch.setattr(f"timespine.spark.write.{module}.run_write_tasks", racing)


class _Open:
    def held_by(self, frame):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("small_rows", [1])
def test_what_failed_tasks_leave_behind_is_never_seen_and_swept(items, store, spark, small_rows, tmp_path, monkeypatch):
    marker = tmp_path / "failed"

    def fails_once(made, batches):
        sent = list(_appended(made)(batches))
        if not marker.exists():
            marker.touch()
            raise RuntimeError("a task fails after it has put its parts")
        yield from sent

    _appended = write_task.append_task
    monkeypatch.setattr(driver_or_tasks, "append_task", lambda made: lambda batches: fails_once(made, batches))
    wide = frame(spark, 0, 3000).withColumn("name", F.sha2(F.col("id").cast("string"), 512))
    with pytest.raises(PySparkException, match="after it has put its parts"):
        items.append(wide)
    assert items.history() == []
    assert list(items._handle.context.blob.list_keys(f"{items.id}/")) == []
    assert items.append(wide).rows == 3000
    assert items.count() == 3000
    assert not store.vacuum().blobs


@pytest.mark.parametrize("small_rows", [1])
def test_a_job_ends_with_its_writer_and_a_long_one_is_kept_alive(items, store, spark, small_rows, monkeypatch):
    seen = []
    original = driver_or_tasks.run_write_tasks

    def looking(*arguments, **options):
        (writer,) = [each for each in items._handle.context.writing if each[0] == items.id]
        before = items._handle.state().writers[writer[1]].until_ms
        items._handle.context.writing[writer] -= 3600
        store._context.clock, clock = lambda: clock() + 600, store._context.clock
        store._heartbeat_thread.heartbeat_once()
        seen.append((writer[1], before))
        return original(*arguments, **options)

    monkeypatch.setattr(driver_or_tasks, "run_write_tasks", looking)
    items.append(frame(spark, 0, 100))
    ((writer, _),) = seen
    assert writer not in items._handle.state().writers
    assert items._handle.context.writing == {}


@BOTH
def test_a_closed_collection_takes_nothing(items, spark, small_rows):
    items._handle.committer.commit((items.id, AdvanceUpper(Frontier())))
    for write in (items.append, items.upsert, items.delete):
        with pytest.raises(Exception, match="closed"):
            write(frame(spark, 0, 5) if write != items.delete else spark.range(5))
