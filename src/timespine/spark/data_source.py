"""`spark.read`, `readStream`, `write` and `writeStream` with `.format("timespine")`.

Spark creates these objects in Python processes beside the driver. `schema`, `partitions`
and `commit` run there, with the store open. `read` and `write` run in tasks, which use
only what the pickled object carries.

Each of these processes imports this module, most of them for one call. So each call imports what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from timespine.spark.hide_tracebacks import raises_plain_errors
from timespine.spark.options import FEED, READ, STREAM, STREAM_WRITE, WRITE, Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from timespine.columnar.predicate.predicate import Predicate
    from timespine.spark.read.stream_reader import FeedReader
    from timespine.spark.write.data_source_writer import BatchSink, StreamSink


class TimespineSource(DataSource):
    """The data source of collections: `load("folder/collection")`."""

    @classmethod
    def name(cls) -> str:
        return "timespine"

    @raises_plain_errors
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from timespine.spark.read.read_plan import read_schema
        from timespine.spark.store_cache import collection_of

        # Spark does not say here whether this is a stream.
        options = Options(self.options, READ, FEED, STREAM)
        collection = collection_of(options.target)
        return from_arrow_schema(read_schema(collection, options))

    @raises_plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return TimespineReader(Options(self.options, READ, FEED), schema)

    @raises_plain_errors
    def streamReader(self, schema: StructType) -> FeedReader:
        from timespine.spark.read.stream_reader import FeedReader

        return FeedReader(Options(self.options, STREAM), schema)

    @raises_plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from timespine.spark.write.data_source_writer import batch_sink

        return batch_sink(Options(self.options, WRITE), schema, overwrite=overwrite)

    @raises_plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from timespine.spark.write.data_source_writer import stream_sink

        return stream_sink(Options(self.options, STREAM_WRITE), schema, overwrite=overwrite)


class FilteringSource(TimespineSource):
    """The same data source for sessions that push filters correctly (`spark.setup.filter_probe`)."""

    @raises_plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(Options(self.options, READ, FEED), schema)


class TimespineReader(DataSourceReader):
    """A batch read.

    SUBTLE: it must have no method `pushFilters`. If it has one, Spark 4.3 uses the plan of a filtered query again
    for the next query without filters on the same DataFrame, and rows are missing (test_facts.py). The option `where`
    takes conditions that skip parts.
    """

    def __init__(self, options: Options, promised: StructType) -> None:
        self._options = options
        self._promised = promised
        self._pushed: Predicate | None = None

    @raises_plain_errors
    def partitions(self) -> list[InputPartition]:
        from timespine.spark.read.read_plan import plan_read
        from timespine.spark.store_cache import collection_of

        planned = plan_read(collection_of(self._options.target), self._options, self._promised, self._pushed)
        return [InputPartition((planned.reading, data)) for data in planned.slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from timespine.spark.read.read_task import read_partition

        return read_partition(partition)


class FilteringReader(TimespineReader):
    """A batch read that takes the filters which it can apply exactly, and leaves the others to Spark."""

    @raises_plain_errors
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        from timespine.spark.read.pushed_filters import split_filters

        self._pushed, others = split_filters(filters, self._options, self._promised)
        return others
