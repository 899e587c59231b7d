"""Rows in Spark are the rows that there are: natively, by slices and through the source, whatever the layout."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_type import VALUES, canonical, row
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import timespine as ts
from timespine.client.api_for_engines import untouched_parts_of
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.scan import part_access, split_keys
from timespine.columnar.scan.part_access import Parts
from timespine.errors import TimespineError, UsageError
from timespine.spark.read import to_spark
from timespine.spark.read.to_spark import partitions_of, release


def expected(table):
    """What `to_arrow` gives, with unsigned 64-bit numbers as Spark has them: as decimals."""
    if "wide" in table.column_names:
        place = table.column_names.index("wide")
        table = table.set_column(place, "wide", table.column("wide").cast(pa.decimal128(20, 0)))
    return canonical(table)


def test_every_type_comes_through_slices_and_the_source(store, spark):
    items = store.create("items", key={"id": "int64"}, value=VALUES, timeline="counter")
    items.append([row(id) for id in range(300)])
    items.upsert([row(id, name="changed") for id in range(0, 400, 3)])
    items.delete([{"id": 5}])
    wanted = expected(items.snapshot().to_arrow())
    assert canonical(items.snapshot().to_spark(spark, partitions=3).toArrow()) == wanted
    loaded = spark.read.format("timespine").load(f"{store.location}/items")
    assert canonical(loaded.toArrow()) == wanted
    before = spark.read.format("timespine").option("asOf", 0).load(f"{store.location}/items")
    assert canonical(before.toArrow()) == expected(items.snapshot(0).to_arrow())


def test_one_consolidated_run_is_read_by_spark_itself_and_gives_the_same_rows(store, spark):
    kinds = {name: kind for name, kind in VALUES.items() if name not in ("small", "wide", "tags", "place", "moment")}
    items = store.create("items", key={"id": "int64"}, value=kinds, timeline="counter")
    rows = [{name: value for name, value in row(id).items() if name in ("id", *kinds)} for id in range(2000)]
    table = pa.Table.from_pylist(rows)
    items.append(table)
    native = items.snapshot().to_spark(spark)
    assert "FileScan parquet" in native._jdf.queryExecution().executedPlan().toString()
    sliced = items.snapshot().to_spark(spark, native=False)
    assert "FileScan" not in sliced._jdf.queryExecution().executedPlan().toString()
    assert canonical(native.toArrow()) == canonical(sliced.toArrow()) == expected(items.snapshot().to_arrow())
    some = items.snapshot(columns=["name"]).to_spark(spark)
    assert some.columns == ["name"]
    assert some.count() == 2000
    items.upsert([dict(table.slice(7, 1).to_pylist()[0], name="new")])
    changed = items.snapshot().to_spark(spark)
    assert "FileScan" not in changed._jdf.queryExecution().executedPlan().toString()
    assert canonical(changed.toArrow()) == expected(items.snapshot().to_arrow())


def test_a_damaged_file_is_an_error_or_the_same_rows_and_never_others(store, spark, tmp_path):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append(pa.table({"id": range(3000), "name": [f"name {id}" for id in range(3000)]}))
    (part,) = [part for run in items.snapshot()._plan.runs for part in run.parts]
    path = tmp_path / "store" / "blobs" / part.key
    whole, damaged = path.read_bytes(), set()
    for place in (100, len(whole) // 2, len(whole) - 200, len(whole) - 5):
        path.chmod(0o600)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        store._cache.clear()
        for native in (True, False):
            try:
                found = items.snapshot().to_spark(spark, native=native).toArrow()
            except (TimespineError, PySparkException, Py4JJavaError):
                damaged.add(place)
            else:
                assert sorted(found.column("id").to_pylist()) == list(range(3000))
                assert set(found.column("name").to_pylist()) == {f"name {id}" for id in range(3000)}
    assert len(damaged) >= 3  # the middle may be a Bloom filter, which nobody asks here


@pytest.fixture
def file_of(tmp_path):
    """Make a collection of one file that Spark reads directly: give its DataFrame, its path and its part."""
    with contextlib.ExitStack() as stack:

        def make(spark, rows, **config):
            config = ts.Config(inline_part_bytes=1, **config)
            store = stack.enter_context(ts.open(tmp_path / "one", maintenance=False, config=config))
            items = store.create("items", key={"id": "int64"}, value={"kind": "string"}, timeline="counter")
            items.append(
                pa.table({"id": range(rows), "kind": [f"kind{'abcdefghij'[id % 10] * 3}" for id in range(rows)]})
            )
            (part,) = untouched_parts_of(items.snapshot())
            path = tmp_path / "one" / "blobs" / part.key
            path.chmod(0o600)
            frame = items.snapshot().to_spark(spark)
            assert "FileScan" in frame._jdf.queryExecution().executedPlan().toString()
            return frame, path, part

        yield make


def test_a_damaged_page_index_leaves_out_no_rows_of_a_filtered_query(file_of, spark):
    """The least id of each page becomes a huge one in the index: a reader that believes it skips the page."""
    frame, path, part = file_of(spark, 5000, row_group_rows=1000)
    whole, end = path.read_bytes(), part.size - PartMeta.decode(part.meta).tail
    group = pq.ParquetFile(path).metadata.row_group(4)
    start = max(group.column(place).data_page_offset for place in range(group.num_columns))
    damaged = whole[start:end]
    for least in range(1000, 5000, 1000):
        damaged = damaged.replace(least.to_bytes(8, "little"), (least + (1 << 40)).to_bytes(8, "little"))
    assert damaged != whole[start:end]
    path.write_bytes(whole[:start] + damaged + whole[end:])
    assert frame.where("id >= 10 and id < 4990").count() == 4980


def test_a_damaged_dictionary_leaves_out_no_rows_of_a_filtered_query(file_of, spark):
    frame, path, _ = file_of(spark, 3000)
    whole, kinds = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(1)
    for place in range(kinds.dictionary_page_offset, kinds.data_page_offset, 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert frame.where("kind = 'kindccc'").count() == 300
        except (PySparkException, Py4JJavaError):
            continue


@pytest.fixture
def in_many_files(tmp_path):
    """A settled run in some dozens of small files."""
    config = ts.Config(part_bytes=1024, inline_part_bytes=1)
    with ts.open(tmp_path / "many", maintenance=False, config=config) as store:
        items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
        items.append(pa.table({"id": range(2000), "name": [f"name {id}" for id in range(2000)]}))
        yield items


def test_many_small_files_are_planned_by_the_state_and_no_file_is_opened(in_many_files, spark, monkeypatch):
    monkeypatch.setattr(to_spark, "FILES_FEW", 8)
    monkeypatch.setattr(to_spark, "WORTH_ROWS", 1)
    monkeypatch.setattr(split_keys, "FEW_PARTS", 8)
    files = untouched_parts_of(in_many_files.snapshot())
    assert len(files) > 20
    opened, load = [], Parts.open
    monkeypatch.setattr(Parts, "open", lambda self, part, *given: opened.append(part.key) or load(self, part, *given))
    frame = in_many_files.snapshot().to_spark(spark)
    assert opened == []
    assert "FileScan" not in frame._jdf.queryExecution().executedPlan().toString()
    assert sorted(frame.toArrow().column("id").to_pylist()) == list(range(2000))
    monkeypatch.setattr(to_spark, "FILE_BYTES_MIN", 1)  # now they are large
    checked, check = [], part_access.check_footer
    monkeypatch.setattr(part_access, "CHECKED_TOGETHER", 3)  # so that several threads check
    monkeypatch.setattr(
        part_access, "check_footer", lambda part, *given: checked.append(part.key) or check(part, *given)
    )
    frame = in_many_files.snapshot().to_spark(spark)
    assert sorted(checked) == sorted(part.key for part in files)
    assert opened == [], "hashes are compared, and no footer is parsed"
    assert "FileScan" in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == 2000


@pytest.mark.parametrize("native", [True, False])
def test_a_foreign_file_among_many_is_refused_however_they_are_read(in_many_files, spark, native):
    """It has the same columns and is sound by itself, but it is another part."""
    store, files = in_many_files._handle.context, untouched_parts_of(in_many_files.snapshot())
    blobs = Path(store.location) / "blobs"
    (blobs / files[-1].key).chmod(0o600)
    (blobs / files[-1].key).write_bytes((blobs / files[-2].key).read_bytes())
    with pytest.raises((TimespineError, PySparkException, Py4JJavaError)):
        in_many_files.snapshot().to_spark(spark, native=native).count()


def test_changes_are_net_and_images_are_paired_by_key(store, spark):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append([{"id": id, "name": "a"} for id in range(100)])
    items.upsert([{"id": id, "name": "b"} for id in range(50)])
    items.upsert([{"id": id, "name": "a"} for id in range(40)])
    changes = items.changes(after=0)
    assert canonical(changes.to_spark(spark, partitions=2).toArrow()) == canonical(changes.to_arrow())
    assert changes.to_spark(spark).count() == 20
    images = items.changes(after=0, images=True)
    assert canonical(images.to_spark(spark, partitions=2).toArrow()) == canonical(images.to_arrow())
    feed = spark.read.format("timespine").option("readChangeFeed", "true")
    found = feed.option("startingVersion", 1).option("endingVersion", 1).load(f"{store.location}/items").toArrow()
    assert sorted(found.column("_change_type").unique().to_pylist()) == ["update_postimage", "update_preimage"]
    assert found.num_rows == 100
    assert set(found.column("_commit_version").to_pylist()) == {1}
    assert sum(found.column("_diff").to_pylist()) == 0


def test_columns_conditions_and_counts(store, spark):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append([{"id": id % 10, "name": "twice"} for id in range(20)])
    assert items.snapshot().to_spark(spark).count() == 20
    counted = items.snapshot(multiplicity="column").to_spark(spark).toArrow()
    assert counted.column("_diff").to_pylist() == [2] * 10
    some = items.snapshot(columns=["name"], where="id > 7").to_spark(spark)
    assert some.toArrow().to_pydict() == {"name": ["twice"] * 4}
    loaded = (
        spark.read.format("timespine").option("where", "id > 7").option("columns", "id").load(f"{store.location}/items")
    )
    assert sorted(loaded.toArrow().column("id").to_pylist()) == [8, 8, 9, 9]
    with pytest.raises(UsageError, match="polars expression"):
        items.snapshot(where=pl.col("id") > 7).to_spark(spark)


def test_filters_of_one_query_leave_nothing_out_of_the_next(store, spark):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append([{"id": id, "name": f"n{id:04}" if id % 3 else None} for id in range(500)])
    loaded = spark.read.format("timespine").load(f"{store.location}/items")
    for condition, count in (("id >= 490", 10), ("name is null", 167), ("id in (3, 4, 999)", 2), ("true", 500)):
        assert loaded.filter(condition).count() == count
    assert loaded.count() == 500


def test_times_of_the_wall_clock_are_named_as_people_write_them(store, spark):
    items = store.create("items", key={"id": "int64"})
    items.append([{"id": 1}], at=datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.UTC))
    items.append([{"id": 2}], at=datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC))
    reader = spark.read.format("timespine")
    path = f"{store.location}/items"
    assert reader.option("timestampAsOf", "2026-01-31 18:00:00").load(path).count() == 1
    assert (
        spark.read.format("timespine")
        .option("versionAsOf", items.history()[1].upper.elements[0][0] - 1)
        .load(path)
        .count()
        == 2
    )
    feed = spark.read.format("timespine").option("startingTimestamp", "2026-01-31 13:00:00").load(path)
    (row,) = feed.toArrow().to_pylist()
    assert (row["id"], row["_change_type"]) == (2, "insert")
    assert row["_commit_timestamp"] == datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)


def test_nothing_and_little_and_how_many_partitions(store, spark):
    items = store.create("items", key={"id": "int64"}, timeline="counter")
    assert items.snapshot().to_spark(spark).count() == 0
    items.append([{"id": 1}])
    assert partitions_of(items.snapshot(), None) == 1
    for wrong in (0, "2", True, 1 << 20):
        with pytest.raises(UsageError, match="partitions"):
            items.snapshot().to_spark(spark, partitions=wrong)


def test_a_session_holds_what_its_frames_read_until_it_is_released(store, spark):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append([{"id": id, "name": "a"} for id in range(1000)])
    with items.snapshot(0) as rows:
        frame = rows.to_spark(spark)
    items.upsert([{"id": id, "name": "b"} for id in range(1000)])
    items.expire(before=1)
    items.compact(wait=True)
    store.maintain(sweep=True)
    assert frame.filter("name = 'a'").count() == 1000
    assert release(spark) > 0
    assert release(spark) == 0
    assert spark not in to_spark._leased
