"""Lets Spark find the format "timespine" without being told: it looks for modules named `pyspark_*`."""

from timespine.spark.data_source import TimespineSource as DefaultSource

__all__ = ["DefaultSource"]
