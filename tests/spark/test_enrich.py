"""Rows of a DataFrame are enriched from a checkpoint as a join would do it, by tasks that map its files."""

from __future__ import annotations

import datetime
import decimal
import inspect
import os
from unittest import mock

import pyarrow as pa
import pytest
from every_type import VALUES, canonical, row
from hypothesis import given
from hypothesis import strategies as st

import timespine as ts
from timespine.errors import UsageError
from timespine.spark import enrich_from_arrangement, enrich_task
from timespine.spark.enrich_task import OPEN_MAX, _opened, match_rows, open_once


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "index")


def index_of(store, folder, rows, key=None, value=None, **options):
    """Make a collection and a checkpoint of it."""
    made = store.create("items", key=key or {"id": "int64"}, value=value or {"name": "string"}, timeline="counter")
    made.append(rows)
    with made.arrange(folder=folder, **options) as index:
        index.save()
    return made


def plain(frame):
    return sorted((tuple(each) for each in frame.collect()), key=str)


def test_a_left_and_an_inner_join_by_the_key(spark, store, folder):
    index_of(store, folder, pa.table({"id": range(5000), "name": [f"n{n}" for n in range(5000)]}))
    probes = spark.createDataFrame(
        [(n, f"p{n}") for n in (1, 4999, 7, 5000, 7)] + [(None, "null")], "id long, mark string"
    )
    expected = [(1, "p1", "n1"), (4999, "p4999", "n4999"), (7, "p7", "n7"), (7, "p7", "n7")]
    inner = ts.spark.enrich(probes, folder, on="id", how="inner")
    assert inner.columns == ["id", "mark", "name"]
    assert plain(inner) == sorted(expected, key=str)
    left = ts.spark.enrich(probes, folder, on="id")
    assert plain(left) == sorted([*expected, (5000, "p5000", None), (None, "null", None)], key=str)
    joined = probes.join(store["items"].snapshot().to_spark(spark), "id", "left")
    assert plain(left) == plain(joined)
    many = spark.range(0, 100_000).withColumnRenamed("id", "k").repartition(5)
    assert ts.spark.enrich(many, folder, on={"k": "id"}, how="inner").count() == 5000
    assert ts.spark.enrich(many, folder, on={"k": "id"}).filter("name is null").count() == 95_000


def test_by_other_columns_several_rows_of_a_key_and_rows_that_count_twice(spark, store, folder):
    rows = [("a", 1, "x"), ("a", 2, "y"), ("a", 2, "y"), ("b", 1, "z"), (None, 1, "n")]
    table = pa.table({"city": [r[0] for r in rows], "n": [r[1] for r in rows], "v": [r[2] for r in rows]})
    bag = store.create("bag", value={"city": "string", "n": "int32", "v": "string"}, timeline="counter")
    bag.append(table)
    with bag.arrange(by=["city", "n"], folder=folder) as index:
        index.save()
    probes = spark.createDataFrame([("a", 2), ("b", 1), ("c", 1), (None, 1)], "city string, n int")
    both = plain(ts.spark.enrich(probes, folder, on=["n", "city"]))
    assert both == sorted([("a", 2, "y"), ("a", 2, "y"), ("b", 1, "z"), ("c", 1, None), (None, 1, None)], key=str)
    prefix = ts.spark.enrich(probes.select("city"), folder, on="city", columns=["v"], how="inner")
    assert plain(prefix) == [("a", "x"), ("a", "y"), ("a", "y"), ("b", "z")]


def test_every_type_is_a_key_and_a_value(spark, store, tmp_path):
    full = [row(n) for n in range(40)]
    for each in full:
        each["place"]["y"] = 1
    items = store.create("all", key={"id": "int64"}, value=VALUES, timeline="counter")
    items.append(full)
    frame = items.snapshot().to_spark(spark)
    for name in ("flag", "tiny", "small", "wide", "ratio", "price", "name", "data", "day", "at", "moment"):
        folder = str(tmp_path / name)
        with items.arrange(by=[name, "id"], folder=folder) as index:
            index.save()
        probes = frame.select(name, "id")
        found = ts.spark.enrich(probes, folder, on=[name, "id"], how="inner")
        wanted = frame.filter(f"`{name}` is not null").select(*found.columns)
        assert canonical(found.toArrow()) == canonical(wanted.toArrow()), name


def test_names_that_are_no_expressions(spark, store, folder):
    index_of(
        store, folder, [{"a.b": "k", "c d": "v", "`": 3}], key={"a.b": "string"}, value={"c d": "string", "`": "int64"}
    )
    probes = spark.createDataFrame([("k", 1, 2)], ["x y", "z.w", "q"])
    found = ts.spark.enrich(probes, folder, on={"x y": "a.b"})
    assert found.columns == ["x y", "z.w", "q", "c d", "`"]
    assert plain(found) == [("k", 1, 2, "v", 3)]


def test_the_rows_are_those_of_the_checkpoint_when_the_frame_was_made(spark, store, folder):
    items = index_of(store, folder, [{"id": 1, "name": "old"}])
    probes = spark.range(1, 3)
    before = ts.spark.enrich(probes, folder, on="id")
    with items.arrange(folder=folder) as index:
        for n in range(5):
            items.upsert([{"id": 1, "name": f"new{n}"}, {"id": 2, "name": "two"}])
            index.save()
        assert plain(before) == [(1, "old"), (2, None)]
        now = ts.spark.enrich(probes, folder, on="id")
        assert plain(now) == [(1, "new4"), (2, "two")]
        with ts.arrangement.open(folder) as opened:
            assert plain(ts.spark.enrich(probes, opened, on="id")) == plain(now)
        assert ts.spark.release(spark) >= 2
        items.upsert([{"id": 1, "name": "newest"}])
        index.save()
        index_files = [name for name in os.listdir(folder) if name.startswith("manifest-")]
        assert len(index_files) <= 3  # a worker may still map one


def test_a_session_keeps_a_bounded_number_of_checkpoints(spark, store, folder, monkeypatch):
    monkeypatch.setattr(enrich_from_arrangement, "PINS_MAX", 2)
    items = index_of(store, folder, [{"id": 1, "name": "n0"}])
    frames = []
    with items.arrange(folder=folder) as index:
        for n in range(5):
            items.upsert([{"id": 1, "name": f"n{n + 1}"}])
            index.save()
            frames.append(ts.spark.enrich(spark.range(1, 2), folder, on="id"))
            frames[-1].count()
    assert plain(frames[-1]) == [(1, "n5")]
    assert plain(frames[-2]) == [(1, "n4")]
    assert len([place for place in enrich_from_arrangement._pinned[spark] if place[0] == folder]) == 2
    with pytest.raises(Exception, match="was replaced by"):
        ts.spark.enrich(spark.range(1, 2), ts.arrangement.OpenedCheckpoint(folder, 1), on="id")


def test_wrong_questions_are_errors_before_any_task_runs(spark, store, folder):
    index_of(store, folder, [{"id": 1, "name": "old"}])
    frame = spark.createDataFrame([(1, "x")], "id long, mark string")
    cases = [
        ({"on": "mark"}, "on names the columns 'id'"),
        ({"on": ["id", "name"]}, "on names the columns 'id'"),
        ({"on": {"mark": "id"}}, "column 'mark'"),
        ({"on": {"nothing": "id"}}, "has no column 'nothing'"),
        ({"on": 7}, "on is a column"),
        ({"on": "id", "columns": ["other"]}, "no column 'other'"),
        ({"on": "id", "columns": ["name", "name"]}, "twice"),
        ({"on": "id", "columns": "name"}, "a list of names"),
        ({"on": "id", "how": "outer"}, "'left' or 'inner'"),
    ]
    for options, says in cases:
        with pytest.raises(UsageError, match=says):
            ts.spark.enrich(frame, folder, **options)
    with pytest.raises(UsageError, match="has 'name' already"):
        ts.spark.enrich(frame.withColumnRenamed("mark", "NAME"), folder, on="id")
    with pytest.raises(UsageError, match="no folder"):
        ts.spark.enrich(frame, folder + "-other", on="id")


def test_damage_is_an_error_of_the_job_in_one_sentence(spark, store, folder):
    index_of(store, folder, pa.table({"id": range(2000), "name": ["x"] * 2000}))
    (name,) = [name for name in os.listdir(folder) if name.endswith(".batch")]
    with open(f"{folder}/{name}", "r+b") as file:
        file.seek(4000)
        file.write(b"\xff\xfe\xfd")
    frame = ts.spark.enrich(spark.range(1, 2), folder, on="id")
    with pytest.raises(Exception, match=r"a chunk of file .* is not what was written"):
        frame.collect()


def test_a_worker_maps_a_checkpoint_once_and_keeps_few(store, tmp_path):
    first = None
    for n in range(OPEN_MAX + 2):
        folder = str(tmp_path / f"index{n}")
        items = store.create(f"items{n}", key={"id": "int64"}, timeline="counter")
        items.append([{"id": 1}])
        with items.arrange(folder=folder) as index:
            index.save()
        opened = open_once(folder, 1)
        assert open_once(folder, 1) is opened
        first = first or opened
    assert len(_opened) == OPEN_MAX
    assert first not in _opened.values()
    for each in _opened.values():
        each.close()
    _opened.clear()


def test_matching_by_floats_decimals_and_times():
    when = datetime.datetime(2020, 1, 1)
    values = [(float("nan"), decimal.Decimal("1.00"), when), (0.0, decimal.Decimal("2.00"), when), (None, None, None)]
    keys = pa.table({name: pa.array([each[place] for each in values]) for place, name in enumerate("abc")})
    found = keys.append_column("_diff", pa.array([1, 2, 1]))
    own, theirs = match_rows(keys, found, "left")
    assert (own.to_pylist(), theirs.to_pylist()) == ([0, 1, 1, 2], [0, 1, 1, None])
    with pytest.raises(UsageError, match="negative"):
        match_rows(keys, keys.append_column("_diff", pa.array([1, -2, 1])), "left")


@given(
    st.lists(st.integers(-5, 5), max_size=20),
    st.lists(st.integers(-5, 5), unique=True, max_size=8),
    st.sampled_from(["left", "inner"]),
    st.sampled_from([pa.int64(), pa.int8(), pa.timestamp("us")]),
)
def test_keys_of_integers_are_matched_as_a_join_does(wanted, there, how, kind):
    keys = pa.table({"id": pa.array(wanted, pa.int64()).cast(kind)})
    ids = pa.array(sorted(there), pa.int64()).cast(kind)
    found = pa.table({"id": ids, "_diff": pa.array([1 + n % 2 for n in range(len(there))], pa.int64())})
    direct = match_rows(keys, found, how)
    with mock.patch.object(enrich_task, "_match_integers", return_value=None):
        joined = match_rows(keys, found, how)
    assert [each.to_pylist() for each in direct] == [each.to_pylist() for each in joined]


def test_keys_that_the_search_cannot_match_are_joined():
    one, two = pa.array([1, 2]), pa.array([1, 1])
    for keys, there in ((pa.array([1, None]), one), (one, two), (pa.array(["a"]), pa.array(["a"]))):
        assert enrich_task._match_integers(pa.table({"id": keys}), pa.table({"id": there}), "left") is None
    both = pa.table({"id": one, "at": one})
    assert enrich_task._match_integers(both, both, "left") is None
    own, theirs = match_rows(pa.table({"id": one}), pa.table({"id": two, "_diff": two}), "left")
    assert (own.to_pylist(), theirs.to_pylist()) == ([0, 0, 1], [0, 1, None])


def enriches():
    """On two executors in processes of their own, each with workers of its own."""
    import json
    import os

    import timespine as ts
    from timespine.spark.setup.session import session

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.log.level": "OFF",
        "spark.executor.extraJavaOptions": os.environ["JDK_JAVA_OPTIONS"],
    }
    spark = session(master="local-cluster[2,1,1024]", conf=conf)
    with ts.open(os.path.abspath("store"), maintenance=False) as store:
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        items.append([{"id": n, "name": f"n{n}"} for n in range(1000)])
        with items.arrange(folder="index") as index:
            index.save()
            frame = ts.spark.enrich(spark.range(0, 2000, 1, 4), "index", on="id")
            items.upsert([{"id": 1, "name": "later"}])
            told = {"rows": frame.count(), "found": frame.filter("name = concat('n', id)").count()}
    spark.stop()
    print(json.dumps(told))


@pytest.mark.slow
def test_executors_of_a_cluster_read_the_checkpoint(told_by):
    assert told_by(f"{inspect.getsource(enriches)}\nenriches()") == {"rows": 2000, "found": 1000}
