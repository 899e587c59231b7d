"""Stores in a bucket, with logs in PostgreSQL, from Spark: executors open blobs and never the logs.

The function without `test_` is run by a script in a process of its own.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from servers.object_servers import ACCESS_KEY, SECRET_KEY
from test_cluster import dies_before_it_answers, kill_executor_once

import timespine as ts
from timespine.location.postgres.migration import migrate

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes by /proc")

ROOT = Path(__file__).parents[2]

WATCH = """
import os
import sys


def in_an_executor():
    process = os.getpid()
    while process > 1:
        with open(f"/proc/{process}/cmdline") as line:
            program, *words = line.read().split("\\0")
        if program.endswith("java") and "CoarseGrainedExecutorBackend" in " ".join(words):
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


def ended(writer, checkpoint, *target):
    """Run a query to its end, from its checkpoint: again if a busy machine starts Python too slowly for Spark."""
    import os

    said = "it does not end"
    for _ in range(5):
        options = writer.option("checkpointLocation", os.path.abspath(checkpoint)).trigger(availableNow=True)
        try:
            if options.start(*target).awaitTermination(300):
                return "ended"
        except Exception as error:
            said = str(error)[-2000:]
            if "connect back" not in said and "CANNOT_OPEN_SOCKET" not in said:  # under Connect without the cause
                break
    return said


def in_a_bucket(master, url, storage, consensus, lines):
    """Write, read, follow and merge a collection on Spark; tell what came out."""
    import contextlib
    import io
    import json
    import os

    from pyspark.sql import functions as F

    import timespine as ts
    from timespine.spark import merge_job
    from timespine.spark.setup.session import session
    from timespine.spark.write import delta_by_tasks, driver_or_tasks, write_task

    keys = [key for key in os.environ if key.startswith("AWS_")] + ["PYTHONPATH", "MARKER"]
    conf = {
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": 2,
        "spark.executor.extraJavaOptions": os.environ["JDK_JAVA_OPTIONS"],
        **{f"spark.executorEnv.{key}": os.environ[key] for key in keys},
    }
    if master == "connect":
        os.environ["SPARK_REMOTE"] = "local[2]"
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.config(map={name: str(value) for name, value in conf.items()})
        spark = ts.spark.prepare(builder.getOrCreate())
    else:
        spark = session(master=master, conf=conf)
    driver_or_tasks.SMALL_ROWS = 1
    if master.startswith("local-cluster"):  # an executor of each write dies when its task has done all of its work
        driver_or_tasks.append_task = dies_before_it_answers(write_task.append_task, os.path.abspath("append"))
        delta_by_tasks.delta_task = dies_before_it_answers(write_task.delta_task, os.path.abspath("upsert"))
    options = {f"storage.{name}": str(value) for name, value in storage.items()}

    def rows(start, stop, salt):
        made = spark.range(start, stop, 1, 2)
        return made.select("id", F.sha2(F.concat(F.lit(salt), F.col("id")), 512).alias("name"))

    def summed(frame):
        return list(frame.agg(F.count("*"), F.sum(F.crc32("name"))).first())

    told = {"type": type(spark).__module__}
    target = {**options, "consensus": consensus, "key": "id"}
    rows(0, 3000, "a").write.format("timespine").options(**target).mode("append").save(f"{url}/items")
    loaded = spark.read.format("timespine").options(**options).load(f"{url}/items")  # by the location alone
    told["loaded"] = summed(loaded) == summed(rows(0, 3000, "a"))
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        loaded.explain(True)
    told["plan"] = [os.environ["AWS_SECRET_ACCESS_KEY"] in plan.getvalue(), "timespine" in plan.getvalue()]
    read, write = lines  # of the page: they read what the page has written before
    exec(write, {"df": rows(0, 10, "a")})
    told["page"] = eval(read, {"spark": spark}).count()
    with ts.open(url, storage=storage, maintenance=False) as store:
        items = store["items"]
        told["upserted"] = items.upsert(rows(2000, 5000, "b")).rows
        wanted = rows(0, 2000, "a").union(rows(2000, 5000, "b"))
        told["read"] = summed(items.snapshot().to_spark(spark, partitions=2)) == summed(wanted)
        told["changed"] = items.changes(after=items.history()[-2].upper.last_complete()).to_spark(spark).count()
        if master.startswith("local-cluster"):
            appended = items.append(rows(9000, 9100, "b"))  # its executor dies, too
            items.delete(rows(9000, 9100, "b").select("id"))
            told["appended"] = appended.rows
        merge_job.TASK_ROWS = 500
        with merge_job.merging_on(store, spark, least_rows=1):
            items.compact(wait=True)
        told["merged"] = summed(items.snapshot().to_spark(spark)) == summed(wanted)
        store.create("copy", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        feed = spark.readStream.format("timespine").options(**options).load(f"{url}/items")
        sink = feed.writeStream.format("timespine").options(**options).option("mode", "upsert")
        told["queries"] = [ended(sink, "copy", f"{url}/copy")]
        told["followed"] = store["copy"].count() == 5000
        store.create("each", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        if master.startswith("local-cluster"):  # an executor dies in the middle of the stream, too
            delta_by_tasks.delta_task = dies_before_it_answers(write_task.delta_task, os.path.abspath("stream"))
        for _ in range(2):  # again from the same checkpoint: nothing more comes
            write = ts.spark.foreach_batch(store["each"], "upsert", sink="each")
            told["queries"].append(ended(feed.writeStream.foreachBatch(write), "each"))
        told["each"] = [
            store["each"].count(),
            len(store["each"].history()),
            summed(store["each"].snapshot().to_spark(spark)) == summed(wanted),
        ]
        ts.spark.register(store, spark)
        first, second = (entry.upper.last_complete() for entry in items.history()[:2])
        told["sql"] = [
            spark.sql("SELECT count(*) FROM items").collect()[0][0],
            spark.sql(f"SELECT count(*) FROM items_asof({first})").collect()[0][0],
            spark.sql(f"SELECT count(*) FROM timespine_changes('items', {first + 1}, {second})").collect()[0][0],
        ]
    spark.stop()
    told["killed"] = sum(os.path.exists(marker) for marker in ("append", "upsert", "stream"))
    told["logs"] = os.path.exists(os.environ["MARKER"])
    told["blobs"] = os.path.exists(os.environ["MARKER"] + ".blobs")
    print(json.dumps(told))


LONGER = [pytest.param(master, marks=pytest.mark.slow) for master in ("local[2]", "connect")]
"""For `make soak`, as is the demo in a bucket: the cluster and the tests of Connect pass most of the same code."""


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", *LONGER])
def test_executors_use_blobs_of_a_bucket_and_never_its_logs(master, told_by, seaweed, postgres, tmp_path):
    """From classic sessions, Spark Connect and a cluster, whose executors are killed; a bucket alone on one of them."""
    consensus = "bucket"
    if master != "local[2]":
        consensus = postgres.conninfo(postgres.make_database())
        migrate(consensus)
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    path = os.pathsep.join([str(tmp_path / "watch"), *(os.path.abspath(each) for each in os.sys.path if each)])
    url = seaweed.url()
    page = (ROOT / "docs" / "object-stores.md").read_text().replace("s3://bucket/shop", url)
    lines = re.findall(r'^    ((?:spark\.read|df\.write)\.format\("timespine"\).*)$', page, re.MULTILINE)
    arguments = (master, url, seaweed.storage, consensus, lines)
    parts = map(inspect.getsource, (kill_executor_once, dies_before_it_answers, ended, in_a_bucket))
    told = told_by(
        "\n".join([*parts, f"in_a_bucket(*{arguments!r})"]),
        PGUSER="owner",
        AWS_ACCESS_KEY_ID=ACCESS_KEY,
        AWS_SECRET_ACCESS_KEY=SECRET_KEY,
        AWS_ENDPOINT=seaweed.endpoint,
        AWS_ALLOW_HTTP="true",
        AWS_REGION="us-east-1",
        PYTHONPATH=path,
        MARKER=str(tmp_path / "marker"),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_TESTING="1",
    )
    is_cluster = master.startswith("local-cluster")
    assert told.pop("type").startswith("pyspark.sql.connect") == (master == "connect")
    assert told.pop("appended", 100) == 100
    assert told == {
        "loaded": True,
        "page": 10,
        "plan": [False, True],
        "upserted": 4000,
        "read": True,
        "changed": 4000,
        "merged": True,
        "queries": ["ended"] * 3,
        "followed": True,
        "each": [5000, 1, True],
        "sql": [5000, 3000, 4000],
        "killed": 3 if is_cluster else 0,
        "logs": False,
        "blobs": is_cluster,
    }


@pytest.mark.slow
def test_the_pipeline_of_the_demo_runs_in_a_bucket_alone(seaweed, monkeypatch, tmp_path):
    """What `make demo STORE=s3://bucket/prefix` runs."""
    url = seaweed.url()
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT": seaweed.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "examples.spark_pipeline.pipeline", "--rows", "300", "--store", url]
    command += ["--keep", str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("ok: "), done.stdout.count("│ same │"), done.stdout.count("BUG")) == (14, 3, 0)
    assert "batch 2: minutes 2, 9, 8, 1 of them late; complete up to 7 with" in done.stdout
    assert re.search(r"expiry: history is exact from \[2\] on; [1-9]", done.stdout)
    with ts.open(url, read_only=True) as store:
        rows = store.collection("orders").snapshot().to_polars()
        sums = store.collection("by_customer").snapshot().to_polars()
    wanted = rows.group_by("customer").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("cents").sum().alias("total"))
    assert sums.sort("customer").equals(wanted.sort("customer"))
    log = pl.concat(pl.read_ndjson(path) for path in (tmp_path / "kept" / "log" / "orders").iterdir())
    last = log.sort("_sequence").unique("id", keep="last").filter(pl.col("op") != "d")
    assert rows.sort("id").equals(last.select(rows.columns).sort("id"))
    target = subprocess.run(
        ["make", "-n", "demo", f"STORE={url}"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert f"--store '{url}'" in target.stdout
