"""A driver of Spark with two streams on a store in a bucket, which is going to be killed: python stream_worker.py JSON.

Files become rows by `foreach_batch`; the feed of these rows goes through the source and the sink into a copy. A query
that fails is started again from its checkpoint, as operators do it.
"""

import json
import os
import sys

from crash.remote_worker import CONFIG, say
from spark.class_archive import java_options
from spark.test_cluster import dies_before_it_answers

import timespine as ts
from timespine.spark.setup.session import session
from timespine.spark.write import driver_or_tasks, write_task

FAILURES_MAX = 60
"""Queries that may fail before the driver gives up."""

QUICK_START = java_options()


def connected(folder, kill_executor):
    """Start a session: with an executor in a process of its own that dies once, or on two threads."""
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 1,
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.executor.extraJavaOptions": QUICK_START,
        **{f"spark.executorEnv.{key}": os.environ[key] for key in os.environ if key.startswith("AWS_")},
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    if kill_executor:
        work = dies_before_it_answers(write_task.append_task, f"{folder}/executor-{os.getpid()}")
        driver_or_tasks.append_task = work
    return session(master="local-cluster[1,2,1024]" if kill_executor else "local[2]", conf=conf)


def main(url, storage, consensus, folder, kill_executor):
    spark = connected(folder, kill_executor)
    say("driver", os.getpid(), spark.sparkContext._gateway.proc.pid)
    driver_or_tasks.SMALL_ROWS = 1
    options = {f"storage.{name}": str(value) for name, value in storage.items()} | {"consensus": consensus}
    with ts.open(url, storage=storage, consensus=consensus, config=CONFIG, maintenance=False) as store:
        files = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(f"{folder}/files")
        write = ts.spark.foreach_batch(store["rows"], done=lambda batch, result: say("ack", batch, bool(result)))
        feed = spark.readStream.format("timespine").options(**options).load(f"{url}/rows").select("id", "name")
        queries = {
            "rows": files.writeStream.foreachBatch(write),
            "copy": feed.writeStream.format("timespine").options(**options).option("mode", "append"),
        }
        wanted = len(os.listdir(f"{folder}/files"))
        for _ in range(FAILURES_MAX):
            started = [start(query, folder, name, url) for name, query in queries.items()]
            for name, query in zip(queries, started, strict=True):
                wait(query, name)
            if is_done(store, wanted):
                say("done", 0, 0)
                break
    spark.stop()


def start(query, folder, name, url):
    """Start a query, which ends when it has all that there is."""
    target = (f"{url}/{name}",) if name == "copy" else ()
    return query.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start(*target)


def wait(query, name):
    try:
        query.awaitTermination()
    except Exception:
        say("failed", name, 0)


def is_done(store, wanted):
    """Tell whether both collections have all batches of rows."""
    try:
        counts = {name: store[name].count() for name in ("rows", "copy")}
        return len(store["rows"].history()) == wanted and counts["rows"] == counts["copy"]
    except ts.errors.TimespineError:
        return False


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
