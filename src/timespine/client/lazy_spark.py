"""Import the parts for Spark on first use: they are a layer above this one, and need an extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def load_spark_module(module: str) -> ModuleType:
    """Import a module of `timespine.spark`."""
    return importlib.import_module(f"timespine.spark.{module}")


def is_spark_frame(rows: object) -> bool:
    """Return whether rows are a DataFrame of Spark, classic or of Spark Connect. Does not load Spark to find out."""
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame" for kind in type(rows).__mro__
    )


def is_spark_schema(schema: object) -> bool:
    """Return whether a schema is a StructType of Spark. Does not load Spark to find out."""
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "StructType" for kind in type(schema).__mro__
    )
