"""`spark.read`, `readStream`, `write` and `writeStream` with `.format("timespine")`.

Spark makes these objects in Python processes beside the driver: `schema`, `partitions`
and `commit` run there, with the store open; `read` and `write` run in tasks, which get
everything they need with what is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from timespine.spark.hide_tracebacks import plain
from timespine.spark.options import FEED, READ, STREAM, STREAM_WRITE, WRITE, Options
from timespine.spark.read.read_plan import plan, schema_of
from timespine.spark.read.read_task import read_partition
from timespine.spark.read.stream_reader import FeedReader
from timespine.spark.store_cache import collection_of
from timespine.spark.stream.data_source_writer import BatchSink, StreamSink, check_sink, writing_of


class TimespineSource(DataSource):
    """Collections of a store: `load("folder/collection")`."""

    @classmethod
    def name(cls) -> str:
        return "timespine"

    @plain
    def schema(self) -> StructType:
        # Whether this is a stream nobody tells here.
        options = Options(self.options, READ, FEED, STREAM)
        collection = collection_of(options.target)
        return from_arrow_schema(schema_of(collection, options))

    @plain
    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(Options(self.options, READ, FEED), schema)

    @plain
    def streamReader(self, schema: StructType) -> FeedReader:
        return FeedReader(Options(self.options, STREAM), schema)

    @plain
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(*writing_of(Options(self.options, WRITE), schema, overwrite=overwrite, creates=True))

    @plain
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        options = Options(self.options, STREAM_WRITE)
        check_sink(options)
        return StreamSink(*writing_of(options, schema, overwrite=overwrite))


class Reader(DataSourceReader):
    """A batch read.

    SUBTLE: it takes no filters, though Spark has a way to hand them down. What a filtered query has planned is used
    for the next one without filters on the same DataFrame, and rows are missing (test_facts.py). Conditions for
    skipping parts are given with the option `where`.
    """

    def __init__(self, options: Options, promised: StructType) -> None:
        self._options = options
        self._promised = promised

    @plain
    def partitions(self) -> list[InputPartition]:
        planned = plan(collection_of(self._options.target), self._options, self._promised)
        return [InputPartition((planned.reading, data)) for data in planned.slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)
