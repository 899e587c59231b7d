"""Reads and merges on Spark are cut by all ordered columns: a leading one with a single value does not matter."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import timespine as ts
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.config import DEFAULT
from timespine.spark import merge_job, merging_on

SMALL = replace(DEFAULT, part_bytes=4096, row_group_rows=64, run_parts=8, inline_part_bytes=64)
ROWS = 4000
TASKS = 4
LEADING = {
    "one tenant": ("string", "acme"),
    "one day": ("date", datetime.date(2024, 1, 31)),
}


@pytest.fixture(params=LEADING)
def visits(request, tmp_path):
    """Rows that all have the same value in their first key column, in four batches that overlap."""
    kind, value = LEADING[request.param]
    with ts.open(tmp_path / "store", config=SMALL, maintenance=False) as store:
        made = store.create("visits", key={"first": kind, "id": "int64"}, value={"v": "int64"}, timeline="counter")
        for batch in range(4):
            ids = range(batch, ROWS, 4)
            made.append(pa.table({"first": [value] * len(ids), "id": ids, "v": ids}, schema=made.schema.arrow))
        yield store, made


def check_balance(sizes):
    assert sum(sizes) == ROWS
    assert len(sizes) >= TASKS - 1
    assert max(sizes) <= 2 * ROWS / TASKS


def test_a_read_is_cut_into_partitions_of_about_the_same_size(visits, spark):
    store, made = visits
    frames = (
        made.snapshot().to_spark(spark, partitions=TASKS),
        spark.read.format("timespine").option("partitions", TASKS).load(f"{store.location}/visits"),
    )
    for frame in frames:
        found = frame.groupBy(F.spark_partition_id()).count().toArrow().column("count").to_pylist()
        check_balance(found)


def test_a_merge_is_cut_into_tasks_of_about_the_same_size(visits, spark, monkeypatch):
    store, made = visits
    sizes = []
    real = merge_job.ranges

    def counted(work, schema, parts):
        found = real(work, schema, parts)
        for each in found:
            wanted = ScanRequest(schema, schema.names, keep_times=True, lower=each.lower, upper=each.upper)
            sizes.append(sum(table.num_rows for table in scan(parts, each.runs, wanted, 1 << 20)))
        return found

    monkeypatch.setattr(merge_job, "TASK_ROWS", ROWS // TASKS)
    monkeypatch.setattr(merge_job, "ranges", counted)
    with merging_on(store, spark, least_rows=1):
        made.compact(wait=True)
    check_balance(sizes)
    assert made.count() == ROWS
