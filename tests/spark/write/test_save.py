"""`df.write.format("timespine")`: it creates, appends and overwrites; and what is wrong stands in the first line."""

from __future__ import annotations

import importlib.util
import os
import traceback

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import timespine as ts
from timespine.errors import UsageError
from timespine.spark import hide_tracebacks
from timespine.spark.hide_tracebacks import HIDE, plain_errors, puts_message_first
from timespine.spark.options import WRITE, Options
from timespine.spark.write.data_source_writer import batch_sink

ORDERS = "id bigint, name string"


def save(frame, place, mode="append", **options):
    frame.write.format("timespine").mode(mode).options(**options).save(place)


def orders(spark, *rows):
    return spark.createDataFrame(list(rows), ORDERS)


def first_line(call):
    """The first line of what Spark raises."""
    with pytest.raises(PySparkException) as caught:
        call()
    return str(caught.value).splitlines()[0]


def test_a_collection_that_is_not_there_is_created_with_the_columns_of_the_frame(spark, store):
    frame = spark.sql("SELECT 1L AS id, 'a' AS name, timestamp'2026-01-01 00:00:00' AS at, array(1, 2) AS tags")
    for name, options, key in (
        ("one", {"key": "id"}, ("id",)),
        ("two", {"key": "id, name"}, ("id", "name")),
        ("no", {}, ()),
    ):
        narrow = frame if key else frame.drop("tags")
        save(narrow, f"{store.location}/{name}", **options)
        made = store[name].schema
        assert made.key_names == (key or ("id", "name", "at"))
        types = {"id": "int64", "name": "string", "at": "timestamp[UTC]", "tags": "list<int32>"}
        assert {field.name: field.type for field in made.fields} == {each: types[each] for each in narrow.columns}
        save(narrow, f"{store.location}/{name}")
        assert store[name].count() == 2


def test_a_schema_may_be_that_of_a_frame(spark, store):
    frame = spark.sql("SELECT 1L AS id, 'a' AS name, array(1, 2) AS tags")
    created = store.create("from_struct", schema=frame.schema, key=["id"], timeline="counter")
    assert {each.name: each.type for each in created.schema.fields} == {
        "id": "int64",
        "name": "string",
        "tags": "list<int32>",
    }
    created.append(frame)
    assert created.snapshot().to_pylist() == [{"id": 1, "name": "a", "tags": [1, 2]}]


def test_a_store_that_is_not_there_is_created_too(spark, tmp_path):
    save(orders(spark, (1, "a")), str(tmp_path / "new" / "orders"), key="id")
    save(orders(spark, (2, "b")), str(tmp_path / "new" / "orders"))
    with ts.open(tmp_path / "new", create=False) as store:
        assert store["orders"].count() == 2


def test_an_upsert_creates_by_key_and_leaves_the_columns_of_changes_out(spark, store):
    place = f"{store.location}/orders"
    frame = orders(spark, (1, "a"), (2, "b")).withColumn("_change_type", F.lit("insert"))
    frame.write.format("timespine").mode("append").option("key", "id").option("mode", "upsert").save(place)
    assert store["orders"].schema.names == ("id", "name")
    assert store["orders"].count() == 2


def test_overwriting_replaces_all_rows_in_one_commit_and_touches_none_that_stay(spark, store):
    place = f"{store.location}/orders"
    save(orders(spark, (1, "a"), (2, "b"), (3, "c")), place, "overwrite", key="id")
    made = store["orders"]
    (first,) = made.history()
    save(orders(spark, (1, "a"), (2, "other"), (4, "d")), place, "overwrite")
    assert [entry.rows for entry in made.history()] == [3, 4]
    (upper,) = first.upper.elements[0]
    changes = [row for row in made.updates().to_pylist() if row["_time"] >= upper]
    assert sorted((row["id"], row["name"], row["_diff"]) for row in changes) == [
        (2, "b", -1),
        (2, "other", 1),
        (3, "c", -1),
        (4, "d", 1),
    ]
    save(orders(spark), place, "overwrite")
    assert made.count() == 0


def test_many_rows_of_many_tasks_are_overwritten(spark, store):
    place = f"{store.location}/numbers"
    rows = spark.range(60_000).repartition(4)
    save(rows, place, key="id")
    save(rows.where("id % 3 > 0").union(spark.range(60_000, 60_010)), place, "overwrite")
    assert store["numbers"].count() == 40_010
    assert len(store["numbers"].history()) == 2


@pytest.mark.parametrize("mode", ["error", "ignore", None])
def test_spark_hands_no_other_mode_over_and_nothing_is_created(spark, store, mode):
    write = orders(spark, (1, "a")).write.format("timespine").option("key", "id")
    write = write.mode(mode) if mode else write
    said = first_line(lambda: write.save(f"{store.location}/orders"))
    assert 'Please use either the "Append" or "Overwrite" mode instead' in said
    assert store.names() == []


# What is wrong stands in the first line.


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("orders", {"asof": "x", "nope": "1"}, "there is no option 'nope'; there are: path"),
        ("orders", {"asOf": "yesterday"}, "option asOf is a time such as 7"),
        ("missing", {}, "there is no collection"),
        ("orders", {"where": "nope = 1"}, "nope"),
    ],
)
def test_a_read_says_what_is_wrong_first(spark, store, name, options, says):
    store.create("orders", schema=ORDERS, key="id").append([{"id": 1, "name": "a"}])
    said = first_line(
        lambda: spark.read.format("timespine").options(**options).load(f"{store.location}/{name}").count()
    )
    assert says in said
    assert "Traceback" not in said


def test_a_read_of_no_store_says_so_first(spark, tmp_path):
    assert "there is no store in" in first_line(lambda: spark.read.format("timespine").load(f"{tmp_path}/no/orders"))


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ("SELECT 1L AS id, 2 AS name", {}, "column 'name'"),
        ("SELECT 'x' AS id, 'a' AS name", {}, "column 'id'"),
        ("SELECT 'a' AS name", {}, "the rows lack the key column 'id'"),
        ("SELECT CAST(NULL AS bigint) AS id, 'a' AS name", {}, "column id of the key has nulls"),
        ("SELECT 1L AS id, 'a' AS name", {"key": "name"}, "collection orders exists and has the key id, not name"),
        ("SELECT 1L AS id, 'a' AS name, 3L AS t", {"timeColumn": "t", "seal": "none"}, "late"),
    ],
    ids=["type", "type of the key", "no key", "null", "another key", "late"],
)
def test_a_write_says_what_is_wrong_first_and_changes_nothing(spark, store, rows, options, says):
    made = store.create("orders", schema=ORDERS, key="id", timeline="counter")
    made.append([{"id": 1, "name": "a"}], at=7)
    said = first_line(lambda: save(spark.sql(rows), f"{store.location}/orders", **options))
    assert says in said
    assert "Traceback" not in said
    assert len(made.history()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "nope"}, "the key names 'nope'; there are 'id', 'name'"),
        ({"mode": "upsert"}, "name its key columns with option key"),
    ],
)
def test_what_cannot_be_created_says_why_first(spark, store, options, says):
    write = orders(spark, (1, "a")).write.format("timespine").mode("append")
    for name, value in options.items():
        write = write.option(name, value)
    assert says in first_line(lambda: write.save(f"{store.location}/orders"))
    assert store.names() == []


@pytest.mark.parametrize("fails", ["rows", "a task", "an option"])
def test_a_first_write_that_fails_leaves_no_collection_and_another_one_creates_it(spark, store, fails):
    place = f"{store.location}/orders"
    frame = orders(spark, (1, "a"), (2, "b"))
    if fails == "rows":
        with pytest.raises(PySparkException):
            save(orders(spark, (1, "a"), (None, "b")), place, key="id")
    elif fails == "a task":
        with pytest.raises(PySparkException, match="of the user"):
            save(frame.withColumn("name", F.expr("raise_error('of the user')").cast("string")), place, key="id")
    else:
        with pytest.raises(PySparkException):
            save(frame, place, key="id", timeColumn="nope")
    assert store.names() == []
    save(frame, place, key="id, name")
    assert store["orders"].schema.key_names == ("id", "name")
    assert store["orders"].count() == 2


def test_a_first_write_that_fails_keeps_rows_that_another_one_wrote(spark, store):
    place = f"{store.location}/orders"
    options = Options({"path": place, "key": "id"}, WRITE)
    sink = batch_sink(options, orders(spark, (1, "a")).schema, overwrite=False)
    save(orders(spark, (2, "b")), place)
    sink.abort([None])
    assert store["orders"].snapshot().to_pylist() == [{"id": 2, "name": "b"}]


def test_overwriting_refuses_what_only_appends_take(spark, store):
    write = orders(spark, (1, "a")).write.format("timespine").mode("overwrite").option("time", "3")
    assert "leave out option time" in first_line(lambda: write.save(f"{store.location}/orders"))


def ended(frame, place, checkpoint, **options):
    """The first line of what ended a streaming query."""
    sink = frame.writeStream.format("timespine").option("checkpointLocation", str(checkpoint)).options(**options)
    query = sink.trigger(availableNow=True).start(place)
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination()
    lines = [str(each).splitlines()[0] for each in (caught.value, query.exception())]
    assert lines[0].endswith(lines[1])
    return lines[1]


def test_a_stream_says_what_is_wrong_first(spark, store, tmp_path):
    source = store.create("source", schema=ORDERS, key="id", timeline="counter")
    copy = store.create("copy", schema=ORDERS, key="id", timeline="counter")
    source.append([{"id": None, "name": "a"}])
    frame = spark.readStream.format("timespine").load(f"{store.location}/source").select("id", "name")
    said = ended(frame, f"{store.location}/copy", tmp_path / "c")
    assert "column id of the key has nulls" in said
    assert "Traceback" not in said
    assert copy.history() == []
    source.append([{"id": 2, "name": "b"}])
    timed = frame.withColumn("t", F.lit(3).cast("bigint"))
    copy.append([{"id": 1, "name": "a"}], at=7)
    said = ended(timed.where("id = 2"), f"{store.location}/copy", tmp_path / "d", timeColumn="t", seal="none")
    assert "late" in said
    assert "Traceback" not in said


def test_a_stream_that_reads_what_is_gone_says_so_first(spark, store, tmp_path):
    source = store.create("source", schema=ORDERS, key="id", timeline="counter")
    source.append([{"id": 1, "name": "a"}])
    store.create("copy", schema=ORDERS, key="id", timeline="counter")
    frame = spark.readStream.format("timespine").load(f"{store.location}/source").select("id", "name")
    store.drop("source")
    said = ended(frame, f"{store.location}/copy", tmp_path / "c")
    assert "source" in said
    assert "Traceback" not in said


def test_only_errors_of_ours_lose_their_traceback_and_only_in_workers(monkeypatch):
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(UsageError), plain_errors():
        raise UsageError("wrong")
    assert HIDE not in os.environ
    monkeypatch.setattr(hide_tracebacks, "_is_worker", lambda: True)
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError
    assert HIDE not in os.environ
    monkeypatch.setenv(HIDE, "")
    with pytest.raises(UsageError), plain_errors():
        raise UsageError("wrong")
    assert os.environ[HIDE] == "1"


def test_the_traceback_of_an_error_of_a_helper_begins_with_its_message():
    @puts_message_first
    def fails(wrong):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise wrong from error

    for wrong, begins in (
        (UsageError("say this"), "timespine.errors.UsageError: say this\n"),
        (ValueError(), "Traceback"),
    ):
        with pytest.raises(type(wrong)) as raised:
            fails(wrong)
        text = "".join(traceback.format_exception(raised.value))
        assert text.startswith(begins), text
        assert "KeyError: 'inner'" in text, "the causes are still there"
        assert raised.value is wrong


CONNECT = """
import json
import timespine as ts
from timespine.spark.setup.session import session

spark = session(conf={"spark.log.level": "OFF"})
store = ts.open("shop")
place = store.location + "/orders"
write = lambda frame, mode: frame.write.format("timespine").option("key", "id").mode(mode).save(place)
write(spark.range(5), "append")
write(spark.range(3, 7), "overwrite")
told = {"rows": store["orders"].count(), "commits": len(store["orders"].history())}
try:
    spark.read.format("timespine").option("nope", "1").load(place).count()
except Exception as error:
    told["says"] = str(error).splitlines()[0]
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")
def test_so_it_is_on_spark_connect(told_by):
    told = told_by(CONNECT, SPARK_REMOTE="local[1]", SPARK_TESTING="1")
    assert "there is no option 'nope'; there are: path" in told.pop("says")
    assert told == {"rows": 4, "commits": 2}
