"""Upserts and deletes by tasks change rows chunk by chunk: the memory of a task does not grow with its partition."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import timespine as ts
from timespine.errors import UsageError
from timespine.spark.write import delta_by_tasks, driver_or_tasks, write_task
from timespine.spark.write.write_task import key_chunks

KEY, VALUE = {"id": "int64"}, {"name": "string"}
SMALL = ts.Config(merge_bytes=1 << 16)
"""Chunks of 16 KiB."""


@pytest.mark.parametrize("seed", range(20))
def test_chunks_have_all_rows_once_and_never_part_a_key(seed):
    chance = random.Random(seed)
    keys = sorted(chance.choices(range(chance.choice([1, 5, 500])), k=chance.randrange(0, 600)))
    rows = [{"id": key, "place": place} for place, key in enumerate(keys)]
    tables, left = [], rows
    while left:
        size = chance.randrange(1, 60)
        tables.append(pa.Table.from_pylist(left[:size]))
        left = left[size:]
    chunks = list(key_chunks(iter(tables), ("id",), chance.choice([1, 200, 2000, 10**9])))
    found = [chunk.to_pylist() for chunk in chunks]
    assert [row for chunk in found for row in chunk] == rows
    seen = [{row["id"] for row in chunk} for chunk in found]
    assert all(not one & two for place, one in enumerate(seen) for two in seen[:place])


def test_rows_without_an_order_are_one_chunk():
    tables = [pa.table({"id": [2]}), pa.table({"id": [1]})]
    (chunk,) = key_chunks(iter(tables), (), 1)
    assert chunk.column("id").to_pylist() == [2, 1]
    assert list(key_chunks(iter([]), ("id",), 1)) == []


def test_numbers_that_are_equal_in_one_order_only_stay_whole():
    tables = [pa.table({"id": [-1.0, 0.0]}), pa.table({"id": [-0.0, 0.0, float("nan"), float("nan")]})]
    chunks = [chunk.column("id").to_pylist() for chunk in key_chunks(iter(tables), ("id",), 1)]
    assert sum(map(len, chunks)) == 6
    assert sum(any(repr(each) == "nan" for each in chunk) for chunk in chunks) == 1


@pytest.fixture
def items(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False, config=SMALL) as store:
        yield store.create("items", key=KEY, value=VALUE, timeline="counter")


@pytest.fixture
def answers(monkeypatch, spark):
    """The answers of all tasks of each write. Spark gives a task 500 rows at a time."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    yield from answers_of(monkeypatch)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def answers_of(monkeypatch):
    original, seen = driver_or_tasks.run_write_tasks, []

    def looking(*arguments, **options):
        seen.append(original(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(delta_by_tasks, "run_write_tasks", looking)
    yield seen


def frame(spark, start, stop, salt):
    from pyspark.sql import functions as F

    made = spark.range(start, stop, 1, 3).orderBy(F.rand(1))
    return made.select("id", F.concat(F.lit(salt), F.col("id")).alias("name"))


def rows_of(start, stop, salt):
    return {number: f"{salt}{number}" for number in range(start, stop)}


def test_an_upsert_and_a_delete_of_many_chunks_are_what_one_of_all_rows_is(items, answers, spark):
    items.upsert(frame(spark, 0, 6000, "a"))
    done = items.upsert(frame(spark, 3000, 9000, "b"))
    assert done.rows == 9000  # 6,000 new rows, and 3,000 that they replace
    items.delete(frame(spark, 8000, 12_000, "").select("id"))
    found = {row["id"]: row["name"] for row in items.snapshot().to_pylist()}
    assert found == {**rows_of(0, 3000, "a"), **rows_of(3000, 8000, "b")}
    assert [len(each) >= 4 for each in answers[:2]] == [True, True], "two partitions, and several chunks of each"
    for each in answers:
        assert max(answer.rows for answer in each) <= 2500, "16 KiB of rows, and what came with the last of them"
    assert [sum(answer.rows for answer in each) for each in answers] == [6000, 6000, 4000]


def test_a_key_that_repeats_at_the_end_of_a_chunk_is_refused(items, answers, spark):
    from pyspark.sql import functions as F

    twice = frame(spark, 0, 6000, "a").unionAll(frame(spark, 0, 6000, "b").filter(F.col("id") % 997 == 0))
    with pytest.raises(UsageError, match="repeat the key"):
        items.upsert(twice)
    assert items.count() == 0


def test_rows_at_once_follow_the_config():
    building = write_task.BuildOptions(
        run_tasks_place(ts.Config(merge_bytes=1 << 20)),
        "c",
        "w",
        0,
        None,
        (0,),  # type: ignore[arg-type]
    )
    assert write_task.DeltaTask(building, None, False).chunk_bytes == (1 << 20) // write_task.CHUNK


def run_tasks_place(config):
    from timespine.spark.blob_location import BlobLocation

    return BlobLocation("/nowhere", config)
