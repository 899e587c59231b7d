"""Stores in a bucket, with logs in PostgreSQL, from Spark: executors open blobs and never the logs.

The function without `test_` is run by a script in a process of its own.
"""

from __future__ import annotations

import inspect
import os

import obstore
import pytest
from servers.object_servers import ACCESS_KEY, SECRET_KEY

from timespine.location.object_store.bucket import Bucket
from timespine.location.postgres.migration import migrate
from timespine.spark.stream.sink_progress import find_query

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes by /proc")

WATCH = """
import os
import sys


def in_an_executor():
    process = os.getpid()
    while process > 1:
        with open(f"/proc/{process}/cmdline") as line:
            if "CoarseGrainedExecutorBackend" in line.read():
                return True
        with open(f"/proc/{process}/stat") as stat:
            process = int(stat.read().rpartition(")")[2].split()[1])
    return False


def watch(event, args):
    if event == "import" and args[0] == "psycopg" and in_an_executor():
        with open(os.environ["MARKER"], "w") as file:
            file.write("an executor opened the logs")
    if event == "import" and args[0] == "obstore" and in_an_executor():
        with open(os.environ["MARKER"] + ".blobs", "w") as file:
            file.write("an executor opened blobs")


sys.addaudithook(watch)
"""
"""What every Python process of the script runs first: it notes which of them loads which library."""


def in_a_bucket(master, url, storage, consensus):
    """Write, read, follow and merge a collection on Spark; tell what came out."""
    import json
    import os

    from pyspark.sql import functions as F

    import timespine as ts
    from timespine.spark import merge_job
    from timespine.spark.setup.session import session
    from timespine.spark.write import run_tasks

    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "MARKER")
    conf = {
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": 2,
        "spark.executor.extraJavaOptions": os.environ["JDK_JAVA_OPTIONS"],
        **{f"spark.executorEnv.{key}": os.environ[key] for key in keys},
    }
    spark = session(master=master, conf=conf)
    run_tasks.SMALL_ROWS = 1
    options = {f"storage.{name}": str(value) for name, value in storage.items()}

    def rows(start, stop, salt):
        made = spark.range(start, stop, 1, 2)
        return made.select("id", F.sha2(F.concat(F.lit(salt), F.col("id")), 512).alias("name"))

    def summed(frame):
        return list(frame.agg(F.count("*"), F.sum(F.crc32("name"))).first())

    told = {}
    target = {**options, "consensus": consensus, "key": "id"}
    rows(0, 3000, "a").write.format("timespine").options(**target).mode("append").save(f"{url}/items")
    loaded = spark.read.format("timespine").options(**options).load(f"{url}/items")  # by the location alone
    told["loaded"] = summed(loaded) == summed(rows(0, 3000, "a"))
    told["plan"] = os.environ["AWS_SECRET_ACCESS_KEY"] in loaded._jdf.queryExecution().toString()
    with ts.open(url, storage=storage, maintenance=False) as store:
        items = store["items"]
        told["upserted"] = items.upsert(rows(2000, 5000, "b")).rows
        wanted = rows(0, 2000, "a").union(rows(2000, 5000, "b"))
        told["read"] = summed(items.snapshot().to_spark(spark, partitions=2)) == summed(wanted)
        told["changed"] = items.changes(after=items.history()[-2].upper.last_complete()).to_spark(spark).count()
        merge_job.TASK_ROWS = 500
        with merge_job.merging_on(store, spark, least_rows=1):
            items.compact(wait=True)
        told["merged"] = summed(items.snapshot().to_spark(spark)) == summed(wanted)
        store.create("copy", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        feed = spark.readStream.format("timespine").options(**options).load(f"{url}/items")
        query = (
            feed.writeStream.format("timespine")
            .options(**options)
            .option("mode", "upsert")
            .option("checkpointLocation", os.path.abspath("checkpoint"))
            .trigger(availableNow=True)
            .start(f"{url}/copy")
        )
        query.awaitTermination(300)
        told["followed"] = store["copy"].count() == 5000
    spark.stop()
    told["logs"] = os.path.exists(os.environ["MARKER"])
    told["blobs"] = os.path.exists(os.environ["MARKER"] + ".blobs")
    print(json.dumps(told))


def test_the_query_of_a_checkpoint_in_a_bucket_is_found(moto):
    url = moto.url()
    bucket = Bucket(moto.location(url))
    storage = moto.location(url).storage
    assert find_query(url, storage) is None
    obstore.put(bucket.objects(), bucket.path("metadata"), b'{"id": "5a5d"}')
    assert find_query(url, storage) == find_query(url.replace("s3:", "s3a:"), storage) == "5a5d"
    obstore.put(bucket.objects(), bucket.path("metadata"), b"[]")
    assert find_query(url, storage) is None
    assert find_query("hdfs://name/checkpoint", storage) is None


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "local[2]"])
def test_executors_use_blobs_of_a_bucket_and_never_its_logs(master, told_by, seaweed, postgres, tmp_path):
    database = postgres.make_database()
    migrate(postgres.conninfo(database))
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    path = os.pathsep.join([str(tmp_path / "watch"), *(os.path.abspath(each) for each in os.sys.path if each)])
    arguments = (master, seaweed.url(), seaweed.storage, postgres.conninfo(database))
    told = told_by(
        f"{inspect.getsource(in_a_bucket)}\nin_a_bucket(*{arguments!r})",
        PGUSER="owner",
        AWS_ACCESS_KEY_ID=ACCESS_KEY,
        AWS_SECRET_ACCESS_KEY=SECRET_KEY,
        PYTHONPATH=path,
        MARKER=str(tmp_path / "marker"),
    )
    assert told == {
        "loaded": True,
        "plan": False,
        "upserted": 4000,
        "read": True,
        "changed": 4000,
        "merged": True,
        "followed": True,
        "logs": False,
        "blobs": master.startswith("local-cluster"),
    }
