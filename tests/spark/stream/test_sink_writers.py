"""Every batch that Spark writes has a writer of its own: what its tasks leave behind is deleted when it ends."""

from __future__ import annotations

import pickle

import obstore
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import timespine as ts
from timespine.client.api_for_engines import commit_steps, handle_of
from timespine.columnar.ingest.update_table import to_update_table
from timespine.errors import Determinate, Indeterminate
from timespine.location.object_store.bucket import Bucket
from timespine.spark.options import Options
from timespine.spark.write.data_source_writer import stream_sink
from timespine.spark.write.seal_rule import SealRule
from timespine.spark.write.write_task import UnsealedOptions
from timespine.spark.write.write_unsealed import UnsealedRuns, WriteRunsStep

NAMED = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture
def items(store):
    return store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


def wide(start, stop):
    rows = {"id": list(range(start, stop)), "name": [f"{id:0512x}" for id in range(start, stop)]}
    return iter([pa.record_batch(rows)])


def sent_to_tasks(store, **options):
    """A sink as a task gets it, and as another process makes it to commit the batch."""
    given = Options({"path": f"{store.location}/items", **options})
    sink, committing = (stream_sink(given, NAMED, overwrite=False) for _ in range(2))
    return pickle.loads(pickle.dumps(sink)), committing


def blobs(items):
    return [info.key for info in items._handle.context.blob.list_keys(f"{items.id}/") if "/p" in info.key]


def job_writers(items):
    """The writers of jobs, which are told from those of processes by their ids."""
    return [each for each in items._handle.state().writers if each.startswith(("ws", "wj"))]


def test_a_commit_takes_the_blobs_of_the_tasks_and_ends_their_writer(store, items):
    sink, committing = sent_to_tasks(store, sinkId="s")
    (writer,) = job_writers(items)
    lost = sink.write(wide(0, 300))  # by a task that Spark does not count, because it ran twice
    assert lost.answer.rows == 300
    message = sink.write(wide(0, 300))
    committing.commit([message], 0)
    assert items.count() == 300
    assert writer not in items._handle.state().writers
    assert len(blobs(items)) == 2
    store.maintain(sweep=True)
    assert len(blobs(items)) == 1
    assert items.count() == 300


@pytest.mark.parametrize("messages", ["some", "none"])
def test_what_tasks_of_an_aborted_batch_put_is_gone(store, items, messages):
    sink, committing = sent_to_tasks(store, sinkId="s")
    message = sink.write(wide(0, 300))
    assert blobs(items)
    committing.abort([message, None] if messages == "some" else [None, None], 0)
    if messages == "none":
        assert blobs(items), "the process that aborts does not know whose they are"
        store.maintain(sweep=True)
    assert blobs(items) == []
    assert job_writers(items) == []


def test_a_batch_that_is_in_already_leaves_nothing(store, items):
    for _ in range(2):
        sink, committing = sent_to_tasks(store, sinkId="s")
        committing.commit([sink.write(wide(0, 300))], 0)
    assert (items.count(), len(blobs(items)), job_writers(items)) == (300, 1, [])


@pytest.mark.parametrize("error", [Determinate, Indeterminate])
def test_what_may_be_committed_is_not_deleted(store, items, error, monkeypatch):
    """Spark aborts a batch whose commit failed, also if only the reply was lost."""
    sink, committing = sent_to_tasks(store, sinkId="s")
    message = sink.write(wide(0, 300))
    handle = committing._handle()
    commit = handle.committer.commit

    def fails(*commands, **options):
        if error is Indeterminate:
            commit(*commands, **options)
        raise error("storage is away")

    with monkeypatch.context() as patched:
        patched.setattr(handle.committer, "commit", fails)
        with pytest.raises(error):
            committing.commit([message], 0)
    committing.abort([message], 0)
    store.maintain(sweep=True)
    assert items.count() == (300 if error is Indeterminate else 0)
    assert len(blobs(items)) == (1 if error is Indeterminate else 0)
    assert job_writers(items) == []


def test_rows_stand_where_the_tasks_wrote_them_though_another_process_commits(store, items):
    """The sink that commits is made after the tasks ran, when other times are free."""
    items.append([{"id": -1, "name": "first"}])
    sink, _ = sent_to_tasks(store, sinkId="s")
    message = sink.write(wide(0, 3))
    items.append([{"id": -2, "name": "other"}])
    before = items.snapshot(1).count()
    _, committing = sent_to_tasks(store, sinkId="s")
    committing.commit([message], 0)
    assert (items.snapshot(1).count(), items.snapshot(2).count()) == (before, before + 3)
    items.compact(wait=True)
    assert items.snapshot(1).count() == before


def test_a_failed_task_of_a_batch_write_leaves_nothing(store, items, spark):
    fails = F.when(F.col("id") == 2999, F.raise_error(F.lit("broken"))).otherwise(
        F.sha2(F.col("id").cast("string"), 512)
    )
    frame = spark.range(0, 3000, 1, 2).select("id", fails.alias("name"))
    with pytest.raises(PySparkException, match="broken"):
        frame.write.format("timespine").mode("append").save(f"{store.location}/items")
    assert blobs(items) == []
    spark.range(3).select("id", F.lit("a").alias("name")).write.format("timespine").mode("append").save(
        f"{store.location}/items"
    )
    assert items.count() == 3
    assert job_writers(items) == []


def test_every_batch_of_a_stream_has_its_writer(store, items, spark, tmp_path):
    source = store.create("source", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    for start in range(0, 900, 300):
        source.append(pa.Table.from_batches(list(wide(start, start + 300))))
    rows = spark.readStream.format("timespine").option("maxRowsPerTrigger", 300).load(f"{store.location}/source")
    query = (
        rows.select("id", "name")
        .writeStream.format("timespine")
        .option("path", f"{store.location}/items")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert items.count() == 900
    assert len(items.history()) == 3
    assert job_writers(items) == []


def test_an_empty_first_batch_finds_its_query_in_a_checkpoint_in_a_bucket(spark, tmp_path, moto):
    """Spark writes a checkpoint to a bucket through Hadoop only; here the one of a real query is put there."""
    (tmp_path / "files").mkdir()
    files = spark.readStream.schema("id long, name string").json(str(tmp_path / "files"))
    writer = files.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    checkpoint, url = moto.url(), moto.url()
    bucket = Bucket(moto.location(checkpoint))
    for path in (each for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()):
        name = str(path.relative_to(tmp_path / "checkpoint"))
        obstore.put(bucket.objects(), bucket.path(name), path.read_bytes())
    storage = {f"storage.{name}": str(value) for name, value in moto.storage.items()}
    with ts.open(url, storage=moto.storage, maintenance=False) as store:
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        given = {"path": f"{url}/items", "checkpointLocation": checkpoint.replace("s3:", "s3a:"), **storage}
        stream_sink(Options(given), NAMED, overwrite=False).commit([], 0)
        assert dict(items._handle.state().sinks) == {str(query.id): 0}
        given["checkpointLocation"] = moto.url()  # Spark has written nothing there
        with pytest.raises(ts.UsageError, match="sinkId"):
            stream_sink(Options(given), NAMED, overwrite=False).commit([], 0)


def test_unsealed_rows_of_tasks_that_find_no_room_in_the_state_go_to_a_blob(tmp_path):
    with ts.open(tmp_path / "full", maintenance=False, config=ts.Config(inline_total_bytes=1)) as store:
        events = store.create("events", key={"id": "int64"}, timeline="counter")
        handle = handle_of(events)
        with events.writer().builder(3) as builder:
            builder.add(to_update_table([{"id": 1}], events.schema, (3,)))
            runs = builder.finish(ts.Frontier.at(4)).runs
        assert all(part.inline is not None for run in runs for part in run.parts)
        how = UnsealedOptions("_time", "refuse", SealRule(0))
        (done,) = commit_steps(WriteRunsStep(handle, how, UnsealedRuns(0, runs, 1, 0, 3)))
        assert (done.rows, done.first, done.last) == (1, 3, 3)
        assert events.snapshot(3).to_pylist() == [{"id": 1}]
        assert handle.state().inline_bytes == 0
