"""A collection and batches that tests of the batch writer share."""

import pyarrow as pa

from timespine.columnar.ingest.update_table import to_update_table
from timespine.model.frontier import Frontier


def create(store, name="numbers", **options):
    return store.create(name, **{"key": {"n": "int64"}, "timeline": "counter", **options})


def built(collection, writer, numbers, lower, upper, **options):
    """A batch of numbers, all at its first time."""
    table = to_update_table(pa.table({"n": numbers}), collection.schema, (lower,))
    with writer.builder(lower, **options) as builder:
        builder.add(table)
        return builder.finish(Frontier.at(upper))


def now(collection):
    return sorted(row["n"] for row in collection.snapshot().to_pylist())
