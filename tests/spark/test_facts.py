"""What was found out about Spark by experiment, and is relied on. If one of these fails, Spark has changed."""

from __future__ import annotations

import os
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import timespine as ts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a module of tests


class Numbers(DataSource):
    """0 to 9; with filters handed down, those that are 5 at least."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int, planned int, read int"

    def reader(self, schema):
        return NumbersReader(pushes=self.options.get("pushes") == "true")


class NumbersReader(DataSourceReader):
    def __new__(cls, pushes=False):
        return super().__new__(PushingReader if pushes else NumbersReader)

    def __init__(self, pushes=False):
        self.least = 0

    def partitions(self):
        return [InputPartition((self.least, os.getpid()))]

    def read(self, partition):
        least, planned = partition.value
        for number in range(least, 10):
            yield number, planned, os.getpid()


class PushingReader(NumbersReader):
    def pushFilters(self, filters):
        self.least = 5 if filters else 0
        return filters


@pytest.fixture
def numbers(spark):
    spark.dataSource.register(Numbers)
    return spark.read.format("numbers")


def test_what_a_filtered_query_has_planned_is_used_by_the_next_one_without_filters(numbers, spark):
    """The reason why no filters are taken: the second count should be 10."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = numbers.option("pushes", "true").load()
        assert frame.filter("n >= 8").count() == 2
        assert frame.count() == 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_reader_that_takes_filters_fails_where_they_are_not_handed_down(numbers, spark):
    with pytest.raises(Exception, match="PUSHDOWN_DISABLED"):
        numbers.option("pushes", "true").load().count()


def test_a_python_source_is_asked_for_all_columns_whatever_the_query_needs(numbers, spark, capsys):
    """The reason why the option `columns` exists: Spark has no way to tell a Python source which columns it needs."""
    numbers.load().select("n").explain()
    (scan,) = [line for line in capsys.readouterr().out.splitlines() if "BatchScan" in line]
    assert all(f"{name}#" in scan for name in ("n", "planned", "read"))


def test_plans_are_made_in_a_process_beside_the_driver_and_once_per_frame(numbers):
    frame = numbers.load()
    first, second = frame.collect(), frame.collect()
    assert {row["planned"] for row in first} == {row["planned"] for row in second}
    assert os.getpid() not in {row["planned"] for row in first} | {row["read"] for row in first}


def test_the_format_is_found_without_being_registered(spark, tmp_path):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("items", key={"id": "int64"}).append([{"id": 1}])
        assert spark.read.format("timespine").load(str(tmp_path / "store" / "items")).count() == 1
