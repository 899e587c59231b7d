"""Archive the classes that Spark loads: a JVM that maps the archive takes half of the CPU time to start.

    python tests/spark/class_archive.py FILE

`make spark` makes the archive once. Tests use it if it is there, and a JVM that cannot use it goes on without.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that compiles little: it lives for seconds."""

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""The archive of this environment."""

SECONDS_MAX = 300
"""How long the JVM may take to write the archive."""


def java_options() -> str:
    """Return the options of a JVM that starts quickly, with the archive if there is one."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return QUICK_START
    return f"{QUICK_START} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def make_archive(path: str) -> None:
    """Run what most tests run in one JVM, and let it write its classes to a file when it ends."""
    from pyspark import SparkContext

    import timespine as ts
    from timespine.spark.setup.session import session

    options = f"{QUICK_START} -XX:ArchiveClassesAtExit={path} -Xlog:disable"
    spark = session("classes", master="local[2]", conf={"spark.driver.extraJavaOptions": options})
    jvm: subprocess.Popen[bytes] = SparkContext._gateway.proc
    with tempfile.TemporaryDirectory() as folder, ts.open(f"{folder}/store") as store:
        orders = store.create("orders", key={"id": "int64"}, value={"name": "string"})
        orders.append(spark.range(100).selectExpr("id", "cast(id AS string) AS name"))
        source = f"{folder}/store/orders"
        read = spark.read.format("timespine").load(source)
        read.createOrReplaceTempView("orders")
        spark.sql("SELECT id % 7 AS k, count(*) AS n, max(name) FROM orders GROUP BY 1 ORDER BY 2").collect()
        spark.sql("SELECT a.id FROM orders a LEFT JOIN orders b ON a.name = b.name WHERE b.id > 3").collect()
        read.write.parquet(f"{folder}/files")
        changes = spark.readStream.format("timespine").load(source)
        query = changes.writeStream.trigger(availableNow=True)
        query = query.option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(lambda rows, _: rows.count())
        query.start().awaitTermination()
    spark.stop()
    jvm.stdin.close()
    jvm.wait(SECONDS_MAX)


if __name__ == "__main__":
    make_archive(sys.argv[1])
