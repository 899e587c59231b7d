"""A driver of Spark that upserts a stream of files into a store in a bucket: python upsert_stream_worker.py JSON.

It stops at marked points, each once, until the test has killed something there. A query that fails is started again
from its checkpoint.
"""

import json
import os
import sys

from assertions import until
from crash.remote_worker import CONFIG, say
from crash.stream_worker import FAILURES_MAX, connected, wait

import timespine as ts
from timespine.spark.write import delta_by_tasks, driver_or_tasks, write_task

BEFORE_BLOBS = {1: "s3"}
"""Points in tasks, before they put blobs, by the numbers of batches."""

BEFORE_COMMIT = {3: "postgres", 4: "driver"}
"""Points in the driver, when the blobs of a batch are there and their commit is not."""


def stop_once(folder, point):
    """Wait at a marked point until the test says to go on; later attempts do not stop there."""
    try:
        os.close(os.open(f"{folder}/at-{point}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    until(lambda: os.path.exists(f"{folder}/go-{point}"), 300)


def stop_at_points(folder, current):
    """Let tasks and commits of batches stop at their points."""
    commands = delta_by_tasks.DeltaByTasksStep.commands

    def task_that_stops(*arguments):
        work, point = write_task.delta_task(*arguments), BEFORE_BLOBS.get(current["batch"])

        def task(batches):
            if point is not None:
                stop_once(folder, point)
            yield from work(batches)

        return task

    def commit_that_stops(step, *arguments):
        if current["batch"] in BEFORE_COMMIT:
            stop_once(folder, BEFORE_COMMIT[current["batch"]])
        return commands(step, *arguments)

    delta_by_tasks.delta_task = task_that_stops
    delta_by_tasks.DeltaByTasksStep.commands = commit_that_stops


def main(url, storage, consensus, folder):
    spark = connected(folder, kill_executor=False)
    say("driver", os.getpid(), spark.sparkContext._gateway.proc.pid)
    driver_or_tasks.SMALL_ROWS = 1
    current = {}
    stop_at_points(folder, current)
    wanted = len(os.listdir(f"{folder}/files"))
    with ts.open(url, storage=storage, consensus=consensus, config=CONFIG, maintenance=False) as store:
        rows = store["rows"]
        write = ts.spark.foreach_batch(
            rows, "upsert", done=lambda batch, result: say("ack", batch, result.rows if result else 0)
        )

        def write_batch(frame, batch):
            current["batch"] = batch
            write(frame, batch)

        files = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(f"{folder}/files")
        query = files.writeStream.foreachBatch(write_batch).option("checkpointLocation", f"{folder}/checkpoint")
        for _ in range(FAILURES_MAX):
            wait(query.trigger(availableNow=True).start(), "rows")
            if committed(rows) == wanted:
                say("done", 0, 0)
                break
    spark.stop()


def committed(rows):
    """Count the commits, if the servers answer."""
    try:
        return len(rows.history())
    except ts.errors.TimespineError:
        return None


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
