"""What test_connect.py runs on Spark Connect: functions that tell what they found, and the script that calls them."""

from __future__ import annotations

import inspect


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
    from timespine.spark.write import delta_by_tasks, driver_or_tasks

    built, jobs = driver_or_tasks.run_write_tasks, []

    def counted(*arguments, **options):
        jobs.append(1)
        return built(*arguments, **options)

    before = driver_or_tasks.SMALL_ROWS
    driver_or_tasks.run_write_tasks = delta_by_tasks.run_write_tasks = counted
    driver_or_tasks.SMALL_ROWS = small_rows
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
            "orphans": [key for key in store.vacuum().blobs if key.startswith(items.id)],
        }
    finally:
        driver_or_tasks.SMALL_ROWS = before
        driver_or_tasks.run_write_tasks = delta_by_tasks.run_write_tasks = built


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
    feed = read(readChangeFeed="true", startingVersion=1).select(
        "id", "name", "_change_type", "_commit_version", "_diff"
    )
    told["feed"] = sorted(map(list, feed.collect()), key=str)
    frame = spark.createDataFrame([(3, "c"), (4, "d")], "id long, name string")
    frame.write.format("timespine").mode("append").save(path)
    frame.selectExpr("id - 1 as id", "name").write.format("timespine").mode("append").option("mode", "upsert").save(
        path
    )
    told["written"] = names(items.snapshot().to_pylist())
    told["history"] = len(items.history())
    return told


def checkpoint(store, name):
    """A folder for a query on this store."""
    import os

    return os.path.abspath(f"checkpoint-{name}{'-bucket' if '://' in store.location else ''}")


def ran(query):
    """Run a query until it has read all that there is; what went wrong, if anything did.

    Again if a busy machine starts Python too slowly: Spark waits ten seconds for a worker of a stream.
    """
    said = "still running"
    for _ in range(5):
        try:
            started = query.trigger(availableNow=True).start()
            return None if started.awaitTermination(300) else "still running"
        except Exception as error:
            said = str(error)
            if "connect back" not in said and "CANNOT_OPEN_SOCKET" not in said:
                break
    return said


def followed(spark, store, name):
    """The changes of a new collection, in which three commits have left four rows."""
    items = create(store, name)
    items.append([{"id": id, "name": "a"} for id in range(5)])
    items.upsert([{"id": 1, "name": "b"}])
    items.delete([{"id": 2}])
    frame = spark.readStream.format("timespine").option("readChangeFeed", "true").load(f"{store.location}/{name}")
    return frame.select("id", "name", "_change_type")


def sink(spark, store):
    copy = create(store, "copy")
    writer = followed(spark, store, "copied").writeStream.format("timespine").option("mode", "upsert")
    writer = writer.option("path", f"{store.location}/copy").option("checkpointLocation", checkpoint(store, "sink"))
    return {"wrong": ran(writer), "rows": names(copy.snapshot().to_pylist()), "history": len(copy.history())}


def bucket_checkpoint(spark, store):
    """Without a Hadoop filesystem for the bucket in the session, which Timespine needs none of."""
    copy = create(store, "from-bucket")
    writer = followed(spark, store, "to-bucket").writeStream.format("timespine").option("mode", "upsert")
    writer = writer.option("path", f"{store.location}/from-bucket")
    said = [ran(writer.option("checkpointLocation", f"{scheme}://bucket/checkpoint")) for scheme in ("s3a", "s3")]
    return {"said": [str(each).partition("JVM stacktrace")[0] for each in said], "history": len(copy.history())}


def nameless(spark, store):
    """Before other queries: a process that fails at its start tries for minutes to say goodbye to a server that is
    stopped meanwhile."""
    from timespine.spark import foreach_batch

    start = followed(spark, store, "followed-nameless").writeStream
    write = foreach_batch(create(store, "nameless"), "upsert")
    return {"said": ran(start.foreachBatch(write).option("checkpointLocation", checkpoint(store, "nameless")))}


def each_batch(spark, store):
    from pyspark import cloudpickle

    from timespine.errors import UsageError
    from timespine.spark import foreach_batch

    def done(batch, committed):
        with open(lines, "a") as file:
            file.write(f"{batch} {committed.rows if committed else None}\n")

    each, lines = create(store, "each"), checkpoint(store, "each") + ".done"
    start = followed(spark, store, "followed").writeStream
    write = foreach_batch(each, "upsert", sink="each", done=done)
    wrong = ran(start.foreachBatch(write).option("checkpointLocation", checkpoint(store, "each")))
    travelling = cloudpickle.dumps(write)
    cloudpickle.loads(travelling)(spark.createDataFrame([(0, "again")], "id long, name string"), 0)
    with open(lines) as file:
        said = file.read().splitlines()
    told = {
        "wrong": wrong,
        "rows": names(each.snapshot().to_pylist()),
        "done": said,
        "history": len(each.history()),
        "sinks": dict(each._handle.state().sinks),
    }
    create(store, "each", replace=True)
    try:
        cloudpickle.loads(travelling)
    except UsageError as error:
        told["replaced"] = str(error)
    return told


def together(spark, store):
    from timespine.spark import foreach_batch_together

    def split(frame, batch):
        return {
            "first": frame.select("id", "name"),
            "second": ("upsert", frame.select("id", "name")),
            "third": ("write", frame, {"times": "t", "seal": "max"}),
        }

    made = [create(store, name) for name in ("first", "second", "third")]
    source = store.create("timed", key={"id": "int64"}, value={"name": "string", "t": "int64"}, timeline="counter")
    source.append([{"id": 1, "name": "a", "t": 7}, {"id": 2, "name": "b", "t": 5}])
    rows = spark.readStream.format("timespine").load(f"{store.location}/timed")
    writer = rows.writeStream.foreachBatch(foreach_batch_together(store, split, sink="together"))
    return {
        "wrong": ran(writer.option("checkpointLocation", "checkpoint-together")),
        "rows": [names(each.snapshot().to_pylist()) for each in made],
        "uppers": [each.upper.elements[0][0] for each in made],
        "sinks": [dict(each._handle.state().sinks) for each in made],
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


def enriched(spark, store):
    import os

    import timespine as ts

    items = create(store, "enriched")
    items.append([{"id": n, "name": f"n{n}"} for n in range(100)])
    with items.arrange(folder=os.path.abspath("index")) as index:
        index.save()
        frame = ts.spark.enrich(spark.range(98, 102), os.path.abspath("index"), on="id")
        inner = ts.spark.enrich(spark.range(98, 102), os.path.abspath("index"), on="id", how="inner")
        return {"left": sorted(map(list, frame.collect())), "inner": inner.count()}


def kept_fresh(spark, store):
    """Views on Spark: changes from changes, by the driver and by tasks, a text, and a function of DataFrames."""
    from timespine.spark.write import driver_or_tasks
    from timespine.views.spark_engine import source

    words = store.create("view_words", key={"id": "int64"}, value={"g": "int64", "name": "string"}, timeline="counter")
    words.append([{"id": id, "g": None if id == 7 else id % 3, "name": f"a{id}"} for id in range(40)])
    sql = "SELECT g, count(*) AS n, sum(id) AS s, min(regexp_replace(name, 'a', 'b')) AS lo FROM view_words GROUP BY g"
    grouped = store.view("view_grouped", sql=sql, key=["g"], policy="incremental", spark=spark)
    counted = store.view(
        "view_counted",
        frame=lambda tables: tables["view_words"].groupBy("g").count(),
        inputs=["view_words"],
        spark=spark,
    )
    told = {"done": []}
    few, found = driver_or_tasks.SMALL_ROWS, source.LOOKUP_ROWS
    for number, rows in enumerate((few, 1)):
        driver_or_tasks.SMALL_ROWS, source.LOOKUP_ROWS = rows, found if rows == few else 0
        try:
            words.upsert([{"id": id, "g": id % 2, "name": f"c{id}"} for id in range(10 * number, 10 * number + 30)])
            words.delete([{"id": 39 - number}])
            for view in (grouped, counted):
                done = view.refresh()
                told["done"].append([done.engine, done.how])
        finally:
            driver_or_tasks.SMALL_ROWS, source.LOOKUP_ROWS = few, found
    told["exact"] = [grouped.verify().is_exact, counted.verify().is_exact]
    told["rows"] = sum(row["n"] for row in grouped.snapshot().to_pylist())
    return told


def told_of(parts, spark, stores):
    """What some functions tell one after the other, or how they failed, by their names and places."""
    import traceback

    told = {}
    for part, place in parts:
        try:
            told[f"{part.__name__} {place}"] = part(spark, stores[place])
        except Exception:
            told[f"{part.__name__} {place}"] = {"failed": traceback.format_exc()[-3000:]}
    return told


def told_of_all(*threads):
    """What the functions of several threads tell: most of the time goes to the start of one process after the other."""
    import json
    import os
    from concurrent.futures import ThreadPoolExecutor

    import timespine as ts
    from timespine.spark.setup.session import session

    spark = session(conf={"spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"})
    with (
        ts.open(os.path.abspath("store"), maintenance=False) as folder,
        ts.open(os.environ["STORE_URL"], consensus=os.environ["LOGS"], maintenance=False) as bucket,
        ThreadPoolExecutor() as pool,
    ):
        asked = [pool.submit(told_of, parts, spark, {"folder": folder, "bucket": bucket}) for parts in threads]
        told = {name: answer for each in asked for name, answer in each.result().items()}
    spark.stop()
    print(json.dumps(told))


THREADS = (
    (session, sql, snapshots, by_driver, by_executors, release, sink, bucket_checkpoint, kept_fresh),
    (nameless, source, each_batch, together, enriched),
)
"""What runs on a store in a folder. What changes limits of this process, or names in SQL, is in one thread."""

IN_A_BUCKET = ((sql, by_executors), (source, sink, each_batch))
"""What runs after it on a store in a bucket with logs in PostgreSQL."""


def script():
    """The text of the script."""
    parts = (create, names, writes, checkpoint, ran, followed, *(part for thread in THREADS for part in thread))
    asked = []
    for local, remote in zip(THREADS, IN_A_BUCKET, strict=True):
        pairs = [*((part, "folder") for part in local), *((part, "bucket") for part in remote)]
        asked.append("[" + ", ".join(f"({part.__name__}, {place!r})" for part, place in pairs) + "]")
    return "\n".join([*map(inspect.getsource, (*parts, told_of, told_of_all)), f"told_of_all({', '.join(asked)})"])
