"""Timespine on Spark: read, write, follow and merge collections with the executors. Needs `timespine[spark]`.

spark = ts.spark.session()                              # or any session that there is
orders.snapshot(as_of=7).to_spark(spark)
orders.append(df); orders.upsert(df); orders.delete(df)
spark.read.format("timespine").load("data/orders")
df.writeStream.foreachBatch(ts.spark.foreach_batch(orders, "upsert")).start()
ts.spark.enrich(df, "index", on="id")                   # look up rows in a checkpoint of an arrangement
ts.spark.register(store, spark)                         # SQL: orders, orders_asof(7), timespine_changes(...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timespine.first_use import import_names

if TYPE_CHECKING:
    from timespine.client.collection import Collection
    from timespine.spark.enrich_from_arrangement import enrich
    from timespine.spark.merge_job import merging_on
    from timespine.spark.read.sql_views import register
    from timespine.spark.read.to_spark import release
    from timespine.spark.read_cdc_files import collection_columns, read_changes, stream_changes
    from timespine.spark.setup.session import prepare, session
    from timespine.spark.stream.foreach_batch import foreach_batch
    from timespine.spark.stream.foreach_batch_together import foreach_batch_together

_FROM = {
    "collection_columns": "read_cdc_files",
    "enrich": "enrich_from_arrangement",
    "foreach_batch": "stream.foreach_batch",
    "foreach_batch_together": "stream.foreach_batch_together",
    "merging_on": "merge_job",
    "prepare": "setup.session",
    "read_changes": "read_cdc_files",
    "register": "read.sql_views",
    "release": "read.to_spark",
    "session": "setup.session",
    "stream_changes": "read_cdc_files",
}
"""The module of each public name. `__getattr__` imports it on first use, so that a worker loads only what it needs."""


__getattr__ = import_names(__name__, _FROM)


def drop_sink(collection: Collection, name: str) -> int:
    """Remove the records of a streaming sink, by its name or the id of its query; return their number."""
    from timespine.client.api_for_engines import handle_of
    from timespine.spark.sink_progress import drop_sink_records

    return drop_sink_records(handle_of(collection), name)


def drop_reads(collection: Collection) -> int:
    """End the leases of `spark.read` and `register` on a collection before their term; return their number."""
    from timespine.client.api_for_engines import handle_of
    from timespine.spark.read.fixed_term_leases import drop_read_leases

    return drop_read_leases(handle_of(collection))


def drop_hold(collection: Collection, name: str) -> bool:
    """End the hold of a stream that will not continue; return whether there was one."""
    from timespine.client.api_for_engines import handle_of
    from timespine.spark.read.stream_reader import drop_stream_hold

    return drop_stream_hold(handle_of(collection), name)


__all__ = [
    "collection_columns",
    "drop_hold",
    "drop_reads",
    "drop_sink",
    "enrich",
    "foreach_batch",
    "foreach_batch_together",
    "merging_on",
    "prepare",
    "read_changes",
    "register",
    "release",
    "session",
    "stream_changes",
]
