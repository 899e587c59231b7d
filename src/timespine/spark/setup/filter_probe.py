"""Probe once per session whether Spark pushes filters to Python sources correctly.

Spark 4.3 does not: it uses the plan of a filtered query again for the next query on the same DataFrame, and rows are
missing. The probe runs such queries on a source of ten numbers, and compares their rows with the right ones.
Spark pushes filters only where `spark.sql.python.filterPushdown.enabled` is true, so other sessions are not probed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThanOrEqual, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""The setting with which Spark pushes filters to Python sources."""

NUMBERS = 10
"""The rows of the probe: the numbers from 0 on."""

_verdicts: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""The verdicts of the probed sessions, until Python collects a session."""


class ProbeSource(DataSource):
    """Ten numbers, or those from a pushed bound on."""

    @classmethod
    def name(cls) -> str:
        return "timespine_filter_probe"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ProbeReader()


class ProbeReader(DataSourceReader):
    """A reader that takes the filter `n >= bound`, as a correct source does."""

    def __init__(self) -> None:
        self._first = 0

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self._first = max(self._first, each.value)
            else:
                yield each

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._first)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(partition.value, NUMBERS))


def pushes_filters_correctly(spark: SparkSession) -> bool:
    """Return whether Spark gives the right rows where it pushes filters to Python sources; probe a session once."""
    verdict = _verdicts.get(spark)
    if verdict is None:
        verdict = _verdicts[spark] = _probe(spark)
    return verdict


def _probe(spark: SparkSession) -> bool:
    """Run queries with filters and without on one DataFrame, one after the other and within one query."""
    spark.dataSource.register(ProbeSource)
    frame = spark.read.format(ProbeSource.name()).load()
    some, more = frame.where("n >= 8"), frame.where("n >= 5")
    every, last, half = list(range(NUMBERS)), [8, 9], [5, 6, 7, 8, 9]
    right = [(some, last), (frame, every), (more.unionAll(frame).unionAll(some), sorted(half + every + last))]
    return all(_numbers(query) == rows for query, rows in right)


def _numbers(query: DataFrame) -> list[int]:
    """Collect the rows of a query in order; none if it fails, since such a session pushes nothing correctly."""
    try:
        return sorted(row["n"] for row in query.collect())
    except Exception:  # Spark has many classes, and all of them mean the same here
        return []
