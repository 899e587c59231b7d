"""Whole queries on Spark: the text of the user, over the inputs as of one time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.client.engine_interface import CollectionHandle, ReadOptions, fresh_id, open_snapshot
from timespine.errors import UsageError
from timespine.spark.read.to_spark import to_spark
from timespine.spark.type_mapping import arrow_columns
from timespine.views.engine.evaluate import consolidate
from timespine.views.engine.lowering import WEIGHT, to_memory
from timespine.views.sql.parse import Query


def session_of(given: Any) -> Any:
    """Return the session to compute on; raise a UsageError if there is none."""
    if given is not None:
        return given
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError(
            "Spark has to compute this view, and is not installed: pip install 'timespine[spark]'"
        ) from None
    active = SparkSession.getActiveSession()
    if active is None:
        raise UsageError("Spark has to compute this view: give a session, spark=...")
    return active


def _frame(
    query: Query, inputs: Mapping[str, tuple[CollectionHandle, Mapping[str, str]]], time: int, spark: Any
) -> Any:
    """Return the DataFrame of a query over inputs as of a time; `inputs` has the present names of their columns."""
    from sqlglot import exp

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    names = {}
    for name, (handle, columns) in inputs.items():
        with open_snapshot(handle, time, ReadOptions(list(columns.values()))) as rows:
            frame = to_spark(rows, spark)
        for written, present in columns.items():
            if written != present:
                frame = frame.withColumnRenamed(present, written)
        names[name] = f"view_{fresh_id('')[:16]}"
        frame.createOrReplaceTempView(names[name])
    tree = query.tree.copy()
    for table in tree.find_all(exp.Table):
        written = ".".join(part.name for part in table.parts)
        found = next((each for each in names if each.lower() == written.lower()), None)
        if found is not None:
            alias = table.alias or table.name
            table.replace(exp.to_table(names[found], alias=exp.to_identifier(alias, quoted=True)))
    return spark.sql(tree.sql("spark"))


def spark_schema(
    query: Query, inputs: Mapping[str, tuple[CollectionHandle, Mapping[str, str]]], time: int, spark: Any
) -> pa.Schema:
    """Return the columns of a query, with the types that Spark gives them."""
    found: pa.Schema = arrow_columns(_frame(query, inputs, time, spark).schema)
    return found


def spark_rows(
    query: Query,
    inputs: Mapping[str, tuple[CollectionHandle, Mapping[str, str]]],
    time: int,
    spark: Any,
    schema: pa.Schema,
) -> pl.DataFrame:
    """Compute a query on Spark; return its rows with their counts."""
    table = _frame(query, inputs, time, spark).toArrow().cast(schema)
    frame = to_memory(pl.DataFrame(pl.from_arrow(table)))
    return consolidate(frame.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT)))
