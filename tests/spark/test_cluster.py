"""Executors and drivers that die at the worst moment: the same rows, once, and nothing of theirs stays behind.

The functions without `test_` are run by scripts in processes of their own. They kill at marked points, never by a
timer, and only processes whose ids they have seen.
"""

from __future__ import annotations

import inspect
import os

import pytest
from servers.object_servers import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes by /proc")


def script(main, *parts, **arguments):
    """The text of a script that calls a function, which uses others."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return "\n".join([*map(inspect.getsource, (*parts, main)), f"{main.__name__}({given})"])


def frame(spark, start, stop, salt):
    """Rows that do not compress, so that they become blobs and do not travel inline."""
    from pyspark.sql import functions as F

    return spark.range(start, stop).select("id", F.sha2(F.concat(F.lit(salt), F.col("id")), 512).alias("name"))


def name(id, salt):
    import hashlib

    return hashlib.sha512(f"{salt}{id}".encode()).hexdigest()


def kill_executor_once(marker):
    """In a task: kill the JVM of its executor, if nobody was killed here before. A task is run by a child of a daemon
    that the JVM has started."""
    import os
    import signal

    try:
        file = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    with open(f"/proc/{os.getppid()}/stat") as stat:
        executor = int(stat.read().rpartition(")")[2].split()[1])
    with open(f"/proc/{executor}/cmdline") as line:
        if "CoarseGrainedExecutorBackend" not in line.read():
            raise RuntimeError(f"{executor} is not an executor")
    os.write(file, str(executor).encode())
    os.close(file)
    os.kill(executor, signal.SIGKILL)
    os._exit(1)


def dies_before_it_answers(make, marker):
    """A maker of tasks, the first of which dies when all its work is done."""

    def made(*arguments):
        work = make(*arguments)

        def task(batches):
            answers = list(work(batches))
            kill_executor_once(marker)
            yield from answers

        return task

    return made


def dies_half_way(make, marker):
    """A maker of tasks, the first of which dies after its first rows."""

    def made(*arguments):
        work = make(*arguments)

        def task(batches):
            for answer in work(batches):
                yield answer
                kill_executor_once(marker)

        return task

    return made


def swept(store):
    """How many blobs nobody can reach, before and after they are deleted."""
    found = store.vacuum().blobs
    deleted = store.vacuum(dry_run=False)
    return [len(found), len(deleted.blobs), deleted.deleted, len(store.vacuum().blobs)]


def counted(rows):
    """Of some rows: how many there are, how many keys, and how many are those of which frame."""
    told = {"rows": len(rows), "keys": len({row["id"] for row in rows})}
    return told | {salt: sum(row["name"] == name(row["id"], salt) for row in rows) for salt in "ab"}


def on_a_cluster():
    """Two executors in processes of their own, and four kills."""
    import json
    import os

    import timespine as ts
    from timespine.spark import merge_job
    from timespine.spark.read import read_task, to_spark
    from timespine.spark.setup.session import session
    from timespine.spark.write import delta_by_tasks, driver_or_tasks, write_task

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.adaptive.coalescePartitions.enabled": False,
        "spark.shuffle.io.retryWait": "100ms",
        "spark.executor.extraJavaOptions": os.environ["JDK_JAVA_OPTIONS"],
    }
    spark = session(master="local-cluster[2,1,1024]", conf=conf)
    driver_or_tasks.SMALL_ROWS = 1
    told = {}
    with ts.open(os.path.abspath("store"), maintenance=False) as store:
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")

        def look(part, rows, found):
            with open(part) as file:
                killed = int(file.read())
            told[part] = {
                "found": found,
                "counted": counted(rows),
                "history": [entry.operation for entry in items.history()],
                "swept": swept(store),
                "afterwards": counted(items.snapshot().to_pylist()),
                "under way": len(items._handle.context.writing),
                "killed": killed,
            }

        driver_or_tasks.append_task = dies_before_it_answers(write_task.append_task, os.path.abspath("append"))
        done = items.append(frame(spark, 0, 3000, "a"))
        look("append", items.snapshot().to_pylist(), done.rows)
        to_spark.over_slices = dies_half_way(read_task.over_slices, os.path.abspath("read"))
        rows = items.snapshot().to_spark(spark, partitions=2).toArrow().to_pylist()
        look("read", rows, len(rows))
        delta_by_tasks.delta_task = dies_before_it_answers(write_task.delta_task, os.path.abspath("upsert"))
        done = items.upsert(frame(spark, 2000, 5000, "b"))
        look("upsert", items.snapshot().to_pylist(), done.rows)
        merge_job.TASK_ROWS = 500
        merge_job.over_ranges = dies_before_it_answers(merge_job.over_ranges, os.path.abspath("compact"))
        with merge_job.merging_on(store, spark, least_rows=1):
            items.compact(wait=True)
        look("compact", items.snapshot().to_pylist(), len(items.snapshot()._plan.runs))
    spark.stop()
    print(json.dumps(told))


def small_session(master="local[1]"):
    from timespine.spark.setup.session import session

    conf = {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g", "spark.log.level": "OFF"}
    return session(master=master, conf=conf)


def where():
    """The location of the store: a folder, or what the environment says."""
    import os

    return os.environ.get("STORE_URL") or os.path.abspath("store")


def created(store):
    return store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter", if_exists="open")


def die():
    """The end of this process, by its own id: nothing of it runs any more."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die():
    """A driver that is killed when its tasks have answered, before it commits what they wrote."""

    import timespine as ts
    from timespine.config import Config
    from timespine.spark.write import driver_or_tasks

    spark = small_session()
    store = ts.open(where(), maintenance=False, config=Config(writer_lease_ms=2000))
    items = created(store)
    items.append([{"id": 0, "name": "first"}])
    driver_or_tasks.SMALL_ROWS = 1
    driver_or_tasks.append_runs_step = lambda *_, **__: die()
    items.append(frame(spark, 1, 3001, "a"))


def follow(last):
    """Write what comes as files, one a batch, and die when a batch is in and Spark has not noted it."""

    import timespine as ts
    from timespine.spark import foreach_batch

    def done(batch, committed):
        with open("done", "a") as file:
            print(batch, committed.rows if committed else None, file=file)
        if batch == last:
            die()

    spark = small_session()
    with ts.open(where(), maintenance=False) as store:
        files = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json("files")
        writer = files.writeStream.foreachBatch(foreach_batch(created(store), done=done))
        query = writer.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
        if not query.awaitTermination(100):
            raise RuntimeError("the query does not end")
    spark.stop()


def ended(text):
    """How a script in a process of its own ended."""
    import subprocess
    import sys

    return subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, timeout=600).returncode


def after_a_driver_that_wrote(driver):
    """What others find when a driver has died before its commit: at once, and when its lease is over."""
    import json
    import time

    import timespine as ts

    def keys(items):
        return {info.key for info in items._handle.context.blob.list_keys(f"{items.id}/")}

    told = {"ended": ended(driver)}
    with ts.open(where(), maintenance=False) as store:
        items = store["items"]
        told["rows"] = items.snapshot().to_pylist()
        told["history"] = len(items.history())
        put = keys(items)
        told["put"], told["at once"] = len(put), swept(store)
    with ts.open(where(), maintenance=False, clock=lambda: time.time() + 3600) as store:
        items = store["items"]
        told["before"] = len(put & keys(items))
        told["swept"] = store.maintain().swept
        told["left"] = len(put & keys(items))
        told["afterwards"] = items.snapshot().to_pylist()
    print(json.dumps(told))


def after_a_driver_that_followed(driver):
    """The same query, from the same checkpoint, by a driver that lives."""
    import json
    import os

    import timespine as ts

    os.mkdir("files")
    for number in range(3):
        with open(f"files/{number}.json", "w") as file:
            for id in range(10 * number, 10 * number + 10):
                print(json.dumps({"id": id, "name": "a"}), file=file)
    told = {"ended": ended(driver)}
    told["noted"] = sorted(each for each in os.listdir("checkpoint/commits") if each.isdigit())
    with ts.open(where(), maintenance=False) as store:
        told["committed"] = len(store["items"].history())
    follow(last=None)
    with ts.open(where(), maintenance=False) as store:
        told["ids"] = sorted(row["id"] for row in store["items"].snapshot().to_pylist())
        told["history"] = len(store["items"].history())
    with open("done") as file:
        told["done"] = file.read().splitlines()
    print(json.dumps(told))


LOCAL = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
"""All on the loopback; the executors of a cluster work in folders that go with it, not in that of Spark."""

WHOLE = {"rows": 3000, "keys": 3000, "a": 3000, "b": 0}
UPSERTED = {"rows": 5000, "keys": 5000, "a": 2000, "b": 3000}


def test_executors_that_die_cost_time_and_nothing_else(told_by):
    parts = (frame, name, kill_executor_once, dies_before_it_answers, dies_half_way, swept, counted)
    told = told_by(script(on_a_cluster, *parts), **LOCAL)
    assert len({part.pop("killed") for part in told.values()}) == 4
    for written in ("append", "upsert", "compact"):
        found, deleted, *rest = told[written].pop("swept")
        assert found == deleted >= 1  # of the attempt that died, and of others that Spark gave up because of it
        assert rest == [True, 0]
    assert told["read"].pop("swept") == [0, 0, True, 0]
    whole = {"counted": WHOLE, "afterwards": WHOLE, "history": ["append"], "under way": 0}
    changed = {"counted": UPSERTED, "afterwards": UPSERTED, "history": ["append", "upsert"], "under way": 0}
    assert told == {
        "append": {"found": 3000, **whole},
        "read": {"found": 3000, **whole},
        "upsert": {"found": 4000, **changed},
        "compact": {"found": 1, **changed},
    }


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def store_url(request):
    """Where the store of a driver that dies is: a folder, or a bucket alone; as variables of its environment."""
    if request.param == "folder":
        return {}
    seaweed = request.getfixturevalue("seaweed")
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT": seaweed.endpoint, "AWS_ALLOW_HTTP": "true", "STORE_URL": seaweed.url()}


def test_what_a_driver_wrote_and_did_not_commit_is_never_seen_and_goes_with_its_lease(told_by, store_url):
    driver = script(write_and_die, frame, small_session, where, created, die)
    told = told_by(script(after_a_driver_that_wrote, where, ended, swept, driver=driver), **LOCAL, **store_url)
    put = told.pop("put")
    assert put > 0
    assert told == {
        "ended": -9,
        "rows": [{"id": 0, "name": "first"}],
        "history": 1,
        "at once": [0, 0, True, 0],
        "before": put,
        "swept": put,
        "left": 0,
        "afterwards": [{"id": 0, "name": "first"}],
    }


def test_a_batch_that_was_committed_by_a_driver_that_died_is_not_written_again(told_by, store_url):
    parts = (small_session, where, created, die)
    driver = script(follow, *parts, last=1)
    told = told_by(script(after_a_driver_that_followed, *parts, follow, ended, driver=driver), **LOCAL, **store_url)
    assert told == {
        "ended": -9,
        "noted": ["0"],
        "committed": 2,
        "ids": list(range(30)),
        "history": 3,
        "done": ["0 10", "1 10", "1 None", "2 10"],
    }


def a_refresh_on_a_cluster():
    """Two executors in processes of their own; one dies while it writes a first build, one while it writes changes."""
    import json
    import os

    import pyarrow as pa

    import timespine as ts
    from timespine.spark.setup.session import session
    from timespine.spark.write import driver_or_tasks, write_task
    from timespine.views.refresh import choose_engine
    from timespine.views.spark_engine import source

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.adaptive.coalescePartitions.enabled": False,
        "spark.shuffle.io.retryWait": "100ms",
        "spark.executor.extraJavaOptions": os.environ["JDK_JAVA_OPTIONS"],
    }
    spark = session(master="local-cluster[2,1,1024]", conf=conf)
    driver_or_tasks.SMALL_ROWS = 1
    choose_engine._BASE_S = {"process": 1e6, "spark": 0.6}
    source.LOOKUP_ROWS = 0
    told = {}
    sql = "SELECT g, count(*) AS n, sum(v) AS s, max(t) AS hi FROM items GROUP BY g"
    with ts.open(os.path.abspath("store"), maintenance=False) as store:
        items = store.create(
            "items", key={"id": "int64"}, value={"g": "int64", "v": "int64", "t": "string"}, timeline="counter"
        )

        def rows(start, stop):
            ids = range(start, stop)
            texts = [name(id, "a") for id in ids]
            return pa.table({"id": ids, "g": [id % 700 for id in ids], "v": list(ids), "t": texts})

        def look(part):
            with open(part) as file:
                killed = int(file.read())
            verified = view.verify(spark=spark)
            told[part] = {
                "exact": [verified.rows, verified.is_exact],
                "sum": sum(row["s"] for row in view.snapshot().to_pylist()),
                "history": len(view.history()),
                "swept": swept(store),
                "afterwards": len(view.snapshot().to_pylist()),
                "under way": len(items._handle.context.writing),
                "killed": killed,
            }

        items.append(rows(0, 2000))
        driver_or_tasks.append_task = dies_before_it_answers(write_task.append_task, os.path.abspath("build"))
        view = store.view("sums", sql=sql, key=["g"], spark=spark)
        look("build")
        items.append(rows(2000, 2600))
        driver_or_tasks.append_task = dies_before_it_answers(write_task.append_task, os.path.abspath("refresh"))
        done = view.refresh(engine="spark")
        told["done"] = [done.engine, done.how, done.changes]
        look("refresh")
    spark.stop()
    print(json.dumps(told))


def test_executors_that_die_during_a_refresh_lose_and_double_nothing(told_by):
    parts = (name, kill_executor_once, dies_before_it_answers, swept)
    told = told_by(script(a_refresh_on_a_cluster, *parts), **LOCAL)
    assert told.pop("done") == ["spark", "changes", 1200]
    assert len({part.pop("killed") for part in told.values()}) == 2
    for part in told.values():
        found, deleted, *rest = part.pop("swept")
        assert found == deleted
        assert rest == [True, 0]
    exact = {"exact": [700, True], "afterwards": 700, "under way": 0}
    assert told == {
        "build": {"sum": sum(range(2000)), "history": told["build"]["history"], **exact},
        "refresh": {"sum": sum(range(2600)), "history": told["build"]["history"] + 1, **exact},
    }
