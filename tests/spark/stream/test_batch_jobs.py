"""A micro-batch of `foreach_batch` runs few jobs, makes one commit, and evaluates each row once."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from timespine.spark import foreach_batch
from timespine.spark.write import driver_or_tasks

WAIT_S = 300


@pytest.fixture
def copy(store):
    return store.create("copy", key={"id": "int64"}, value={"name": "string"}, timeline="counter")


@pytest.fixture
def streamed(spark, tmp_path):
    """Run a query over files of so many rows each, two files in each batch; return its jobs, as numbers of stages."""

    def run(sizes, function, change=lambda frame: frame):
        source, first, partitions = tmp_path / "source", 0, []
        source.mkdir()
        for number, size in enumerate(sizes):
            rows = [{"id": id, "name": f"{id}"} for id in range(first, first + size)]
            (source / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
            first += size

        def write(frame, batch):
            partitions.append(frame._jdf.queryExecution().logical().rdd().getNumPartitions())
            function(frame, batch)

        frame = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 2).json(str(source))
        writer = change(frame).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(write).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None
        assert partitions == [2] * (len(sizes) // 2)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(WAIT_S * 1000)  # the tracker hears of jobs by events
        tracker = spark.sparkContext.statusTracker()
        return [len(tracker.getJobInfo(job).stageIds) for job in tracker.getJobIdsForGroup(str(query.runId))]

    return run


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_small_batch_is_one_job_of_one_stage_and_one_commit(copy, spark, streamed, mode):
    helper, commits = foreach_batch(copy, mode, sink="s"), []
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()

    def write(frame, batch):
        before = copy._handle.state().seqno
        helper(frame, batch)
        commits.append(copy._handle.state().seqno - before)

    assert streamed([5, 7, 6, 6, 3, 4], write) == [1, 1, 1]
    assert commits[1:] == [1, 1]  # before the first one, this process registers as a writer
    assert sorted(row["id"] for row in copy.snapshot().to_pylist()) == list(range(31))
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept


@pytest.mark.parametrize(
    ("sizes", "jobs"),
    [
        ((19, 1), [1]),
        ((10, 10), [1]),
        ((30, 2), [1, 2]),  # a partition has more than its share: a limit tells whether the rows are few
        ((30, 30), None),
        ((60, 1), None),
    ],
)
def test_rows_are_evaluated_once_however_they_are_spread(copy, spark, streamed, monkeypatch, sizes, jobs):
    """Up to 40 rows are few. Rows that a second evaluation gives have other names."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 40)
    monkeypatch.setattr(driver_or_tasks, "SHARE_MIN", 1)
    count = spark.sparkContext.accumulator(0)

    def seen(batches):
        for batch in batches:
            count.add(batch.num_rows)
            yield batch

    def change(frame):
        return frame.mapInArrow(seen, "id long, name string").withColumn("name", F.expr("uuid()"))

    def write(frame, batch):
        foreach_batch(copy, sink="s")(frame, batch)

    found = streamed(sizes, write, change)
    names = [row["name"] for row in copy.snapshot().to_pylist()]
    assert count.value == sum(sizes)
    assert len(set(names)) == len(names) == sum(sizes)
    assert jobs is None or sorted(found) == jobs
