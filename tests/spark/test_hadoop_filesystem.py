"""A session with a Hadoop filesystem for buckets: checkpoints of streams in a bucket, and scans by Spark itself.

PySpark comes with no filesystem for S3, but with one that maps a scheme onto another: here onto the folder that rclone
serves as a bucket. So Spark writes a file of a checkpoint, and obstore reads the object. Scans need ranges, which
rclone does not give: there the folder has a copy of the objects of another server.

The functions without `test_` are run by a script in a process of its own.
"""

from __future__ import annotations

import hashlib
import inspect
import os

import obstore
import pytest
from servers.object_servers import ACCESS_KEY, BUCKET, SECRET_KEY, start_rclone
from servers.shared_process import stop

import timespine as ts
from timespine.location.object_store.bucket import Bucket


def ended(writer, *path):
    """Run a query to its end and return its id: again if a busy machine starts Python too slowly for Spark."""
    for attempt in range(5):
        query = writer.start(*path)
        try:
            query.awaitTermination()
            break
        except Exception as error:
            if attempt == 4 or ("connect back" not in str(error) and "CANNOT_OPEN_SOCKET" not in str(error)):
                raise
    return str(query.id)


def with_a_filesystem(folder, url, storage):
    """Follow files with checkpoints in the bucket, and read a snapshot that is there; tell what came out."""
    import json
    import os

    from pyspark.sql import functions as F

    import timespine as ts
    from timespine.spark.setup.session import session
    from timespine.spark.sink_progress import find_query

    conf = {
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 1,
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "spark.hadoop.fs.viewfs.mounttable.bucket.linkFallback": f"file://{folder}",
    }
    spark = session(master="local[1]", conf=conf)
    told = {"ids": [], "found": []}
    os.mkdir("files")
    with ts.open(os.path.abspath("store"), maintenance=False) as store:
        rows = store.create("rows", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        each = store.create("each", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        files = spark.readStream.schema("id long, name string").json(os.path.abspath("files"))
        writers = {
            "s3://bucket/checkpoints/sink": files.writeStream.format("timespine").option("sinkId", "named"),
            "s3a://bucket/checkpoints/each": files.writeStream.foreachBatch(ts.spark.foreach_batch(each)),
        }
        for number in range(2):  # the second time from the checkpoints
            with open(f"files/{number}.json", "w") as file:
                file.write(json.dumps({"id": number, "name": "a"}) + "\n")
            for checkpoint, writer in writers.items():
                writer = writer.option("checkpointLocation", checkpoint.replace("s3a:", "s3:"))
                path = (f"{store.location}/rows",) if checkpoint.endswith("sink") else ()
                told["ids"].append(ended(writer.trigger(availableNow=True), *path))
                told["found"].append(find_query(checkpoint))
        told["rows"] = [sorted(row["id"] for row in made.snapshot().to_pylist()) for made in (rows, each)]
        told["history"] = [len(made.history()) for made in (rows, each)]
        told["sinks"] = [dict(made._handle.state().sinks) for made in (rows, each)]
    with ts.open(url, storage=storage, read_only=True) as store:
        items = store["items"]

        def summed(frame):
            return list(frame.agg(F.count("*"), F.sum(F.crc32("name"))).first())

        native = items.snapshot().to_spark(spark, native="s3")
        told["files"] = [name.startswith("s3://bucket/") for name in native.inputFiles()]
        told["same"] = summed(native) == summed(items.snapshot().to_spark(spark))
        told["count"] = native.filter("id >= 100").count()
        told["by tasks"] = items.snapshot().to_spark(spark).inputFiles()
        for scheme in ("s3x", "not a scheme"):
            try:
                items.snapshot().to_spark(spark, native=scheme)
            except ts.errors.UsageError as error:
                told[scheme] = str(error)
    spark.stop()
    print(json.dumps(told))


@pytest.fixture
def served(tmp_path, object_credentials):
    """A folder, and the endpoint of a server that gives its files as objects of a bucket."""
    folder = tmp_path / "served"
    folder.mkdir()
    started = start_rclone(folder)
    yield folder / BUCKET, f"http://127.0.0.1:{started['port']}"
    stop({**started, "folder": str(folder)})


def put_store(server, folder):
    """Make a store in a bucket, and copy its objects to files; return the location."""
    url = server.url()
    with ts.open(url, storage=server.storage, maintenance=False) as store:
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        names = [hashlib.sha512(str(id).encode()).hexdigest() for id in range(3000)]
        items.append([{"id": id, "name": name} for id, name in enumerate(names)])
        items.compact(wait=True)
    bucket = Bucket(server.location(url))
    for page in obstore.list(bucket.objects(), bucket.path("").rstrip("/")):
        for each in page:
            target = folder / each["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes(obstore.get(bucket.objects(), each["path"]).bytes()))
    return url


def test_checkpoints_and_scans_of_a_bucket_by_a_filesystem_of_the_session(told_by, moto, served):
    folder, endpoint = served
    url = put_store(moto, folder)
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    parts = inspect.getsource(ended) + inspect.getsource(with_a_filesystem)
    text = f"{parts}\nwith_a_filesystem({str(folder)!r}, {url!r}, {moto.storage!r})"
    told = told_by(text, **environment)
    ids = told.pop("ids")
    assert told.pop("found") == ids  # Spark wrote them, and the bucket has them
    assert ids[:2] == ids[2:]
    assert os.listdir(folder / "checkpoints" / "sink" / "commits")
    query = hashlib.sha256(ids[0].encode()).hexdigest()[:16]
    assert told.pop("s3x").startswith("the session has no Hadoop filesystem for s3x://")
    assert told.pop("not a scheme").startswith("native is True, False or the scheme")
    assert told == {
        "rows": [[0, 1], [0, 1]],
        "history": [2, 2],
        "sinks": [{f"named-q{query}": 1}, {ids[1]: 1}],
        "files": [True],
        "same": True,
        "count": 2900,
        "by tasks": [],
    }
