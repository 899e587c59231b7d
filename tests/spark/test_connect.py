"""Spark Connect: no context, no JVM at hand, and everything works as on a classic session.

One server for all tests: the functions with `spark` and `store` are run by one script in a process of its own, and
the tests look at what they told.
"""

from __future__ import annotations

import importlib.util
import inspect

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")


def create(store, name, **options):
    return store.create(name, key={"id": "int64"}, value={"name": "string"}, timeline="counter", **options)


def names(rows):
    """Rows as JSON takes them: what there is, and how often, so that nothing twice is missed."""
    return sorted([row["id"], row["name"]] for row in rows)


def session(spark, store):
    from pyspark.errors import PySparkException

    told = {"type": type(spark).__module__, "refused": []}
    for name in ("sparkContext", "_jvm"):
        try:
            getattr(spark, name)
        except (PySparkException, AttributeError) as refusal:
            told["refused"].append(type(refusal).__name__)
    return told


def snapshots(spark, store):
    import pyarrow as pa

    items = create(store, "snapshots")
    items.append(pa.table({"id": range(3000), "name": ["a"] * 3000}))
    native, sliced = items.snapshot().to_spark(spark), items.snapshot().to_spark(spark, partitions=3)
    told = {"files": [len(native.inputFiles()), len(sliced.inputFiles())]}
    told["same"] = native.toArrow().sort_by("id").equals(sliced.toArrow().sort_by("id"))
    items.upsert([{"id": 1, "name": "b"}, {"id": 5000, "name": "c"}])
    items.delete([{"id": 2}])
    frame = items.snapshot().to_spark(spark)
    told["merged"] = names(frame.filter("id < 4 or id > 4000").toArrow().to_pylist())
    told["counts"] = [items.snapshot(time).to_spark(spark).count() for time in range(3)]
    told["changes"] = sorted(map(list, items.changes(after=0).to_spark(spark).collect()))
    images = items.changes(after=0, images=True).to_spark(spark).select("id", "_change_type").collect()
    told["images"] = sorted(map(list, images))
    return told


def writes(spark, store, small_rows):
    from pyspark.sql import functions as F

    from timespine.errors import UsageError
    from timespine.spark import changing, writing

    built, jobs = writing.built, []

    def counted(*arguments):
        jobs.append(1)
        return built(*arguments)

    before = writing.SMALL_ROWS
    writing.built = changing.built = counted
    writing.SMALL_ROWS = small_rows
    try:
        items = create(store, f"writes-{small_rows}")
        frame = spark.range(0, 300).select("id", F.lit("a").alias("name"))
        rows = [items.append(frame).rows]
        rows += [items.upsert(frame.filter("id >= 200").withColumn("name", F.lit("b"))).rows]
        rows += [items.delete(spark.range(0, 50)).rows]
        try:
            items.append(frame.withColumn("id", F.when(F.col("id") > 3, F.col("id"))))
            says = None
        except UsageError as error:
            says = str(error)
        found = items.snapshot().to_pylist()
        return {
            "rows": rows,
            "ids": sorted(row["id"] for row in found),
            "names": sorted({(row["id"] >= 200, row["name"]) for row in found}),
            "history": [entry.operation for entry in items.history()],
            "says": says,
            "jobs": len(jobs),
            "orphans": store.vacuum().blobs,
        }
    finally:
        writing.SMALL_ROWS = before
        writing.built = changing.built = built


def by_driver(spark, store):
    return writes(spark, store, 10_000)


def by_executors(spark, store):
    return writes(spark, store, 1)


def source(spark, store):
    items = create(store, "source")
    items.append([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}])
    items.upsert([{"id": 2, "name": "b"}])
    path = f"{store.location}/source"

    def read(**options):
        return spark.read.format("timespine").options(**options).load(path)

    told = {"now": names(read().collect()), "before": names(read(asOf=0).collect())}
    feed = read(readChangeFeed="true", startingVersion=1).select("id", "name", "_change_type", "_commit_version", "_diff")
    told["feed"] = sorted(map(list, feed.collect()), key=str)
    frame = spark.createDataFrame([(3, "c"), (4, "d")], "id long, name string")
    frame.write.format("timespine").mode("append").save(path)
    frame.selectExpr("id - 1 as id", "name").write.format("timespine").mode("append").option("mode", "upsert").save(path)
    told["written"] = names(items.snapshot().to_pylist())
    told["history"] = len(items.history())
    return told


def ran(query):
    """Run a query until it has read all that there is; what went wrong, if anything did."""
    try:
        started = query.trigger(availableNow=True).start()
        return None if started.awaitTermination(60) else "still running"
    except Exception as error:
        return str(error)


def followed(spark, store):
    frame = spark.readStream.format("timespine").option("readChangeFeed", "true").load(f"{store.location}/followed")
    return frame.select("id", "name", "_change_type")


def sink(spark, store):
    items = create(store, "followed")
    copy = create(store, "copy")
    items.append([{"id": id, "name": "a"} for id in range(5)])
    writer = followed(spark, store).writeStream.format("timespine").option("mode", "upsert")
    writer = writer.option("path", f"{store.location}/copy").option("checkpointLocation", "checkpoint-sink")
    wrong = [ran(writer)]
    first = names(copy.snapshot().to_pylist())
    items.upsert([{"id": 1, "name": "b"}])
    items.delete([{"id": 2}])
    wrong += [ran(writer)]
    return {"wrong": wrong, "first": first, "then": names(copy.snapshot().to_pylist()), "history": len(copy.history())}


def each_batch(spark, store):
    import shutil

    from timespine.spark import foreach_batch

    def done(batch, committed):
        with open(f"{folder}/done", "a") as file:
            file.write(f"{batch} {committed.rows if committed else None}\n")

    each, folder = create(store, "each"), store.location
    start = followed(spark, store).writeStream
    write = foreach_batch(each, "upsert", sink="each", done=done)
    writer = start.foreachBatch(write).option("checkpointLocation", "checkpoint-each")
    wrong = [ran(writer)]
    shutil.rmtree("checkpoint-each/commits")
    wrong += [ran(writer)]
    nameless = start.foreachBatch(foreach_batch(each, "upsert")).option("checkpointLocation", "checkpoint-nameless")
    with open(f"{folder}/done") as file:
        lines = file.read().splitlines()
    return {
        "wrong": wrong,
        "rows": names(each.snapshot().to_pylist()),
        "done": lines,
        "history": len(each.history()),
        "sinks": dict(each._access.state().sinks),
        "nameless": ran(nameless),
    }


def sql(spark, store):
    import json

    from timespine.spark import register

    items = create(store, "words")
    items.append([{"id": id, "name": "a"} for id in range(10)])
    items.upsert([{"id": id, "name": "b"} for id in range(8, 12)])
    told = {"views": "words" in register(store, spark)}

    def count(text):
        return spark.sql(f"SELECT count(*) FROM {text}").collect()[0][0]

    told["counts"] = [count(text) for text in ("words", "words_asof(0)", "words_asof(1)", "words_updates")]
    changes = spark.sql("SELECT * FROM timespine_changes('words', 1, 1)").collect()
    told["changes"] = sorted([json.loads(each["row"])["id"], each["_diff"]] for each in changes)
    try:
        count("words_asof(7)")
    except Exception as error:
        told["says"] = str(error)
    return told


def release(spark, store):
    import pyarrow as pa

    from timespine.spark import release

    release(spark)
    items = create(store, "released")
    items.append(pa.table({"id": range(1000), "name": ["a"] * 1000}))
    with items.snapshot(0) as rows:
        frame = rows.to_spark(spark)
    items.upsert(pa.table({"id": range(1000), "name": ["b"] * 1000}))
    items.expire(before=1)
    items.compact(wait=True)
    store.maintain(sweep=True)
    told = {"held": frame.filter("name = 'a'").count(), "released": [release(spark), release(spark)]}
    items.compact(wait=True)
    store.maintain(sweep=True)
    return {**told, "since": items.snapshot().since.elements[0][0]}


def told_of_all(parts):
    """What each of some functions tells, or how it failed."""
    import json
    import sys
    import time
    import traceback

    import timespine as ts
    from timespine.spark.session import session

    conf = {"spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"}
    spark, told = session(conf=conf), {}
    with ts.open("store", maintenance=False) as store:
        store.location = os.path.abspath(store.location)
        for part in parts:
            began = time.monotonic()
            try:
                told[part.__name__] = part(spark, store)
            except Exception:
                told[part.__name__] = {"failed": traceback.format_exc()[-3000:]}
            print(part.__name__, round(time.monotonic() - began, 2), file=sys.stderr)
    spark.stop()
    print(json.dumps(told))


PARTS = (session, snapshots, by_driver, by_executors, source, sink, each_batch, sql, release)
SCRIPT = "\n".join(
    [
        "import os",
        *(inspect.getsource(each) for each in (create, names, writes, ran, followed, *PARTS, told_of_all)),
        f"told_of_all([{', '.join(part.__name__ for part in PARTS)}])",
    ]
)
